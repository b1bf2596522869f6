//! One peer: its session, its connection, its silence and its end. [`super::PeersCore`] owns it.

use std::collections::VecDeque;

use elastic_protocol::{Deadlines, NodeId, Time};
use elastic_runtime::session::{Payload, SessionCore, SessionEvent, SessionLimits};
use elastic_runtime::transport::{LinkEvent, LossReason, TransportEvent};

use super::core::LinkOutput;
use super::link::{CloseCode, LinkId};
use super::liveness::{Liveness, PeerChange};

/// An orderly end of a session that has begun.
#[derive(Debug)]
pub(super) struct Closing {
    pub(super) reason: String,
    pub(super) at: Time,
}

#[derive(Debug)]
pub(super) struct Peer<P> {
    pub(super) session: SessionCore<P>,
    pub(super) liveness: Liveness,
    pub(super) link: Option<LinkId>,
    pub(super) closing: Option<Closing>,
    /// Whether this end makes the connections, and will go on doing so.
    pub(super) dialled: bool,
}

/// The outlets for a peer's outputs and events.
pub(super) struct Said<'a, P> {
    pub(super) node: &'a NodeId,
    pub(super) outputs: &'a mut VecDeque<LinkOutput>,
    pub(super) events: &'a mut VecDeque<TransportEvent<P>>,
}

impl<P> Said<'_, P> {
    pub(super) fn tell(&mut self, event: LinkEvent) {
        self.events.push_back(TransportEvent::Link { peer: self.node.clone(), event });
    }
}

impl<P: Payload> Peer<P> {
    pub(super) fn new(deadlines: &Deadlines, now: Time, dialled: bool) -> Self {
        Self {
            session: SessionCore::new(SessionLimits::DEFAULT),
            liveness: Liveness::new(deadlines, now, dialled),
            link: None,
            closing: None,
            dialled,
        }
    }

    /// Whether nothing of the peer is left to keep.
    pub(super) fn is_over(&self) -> bool {
        !self.dialled && self.link.is_none() && self.session.session().is_none()
    }

    /// Passes the session's events on.
    pub(super) fn drain(&mut self, now: Time, said: &mut Said<'_, P>) {
        while let Some(event) = self.session.poll_event() {
            match event {
                SessionEvent::Up => {
                    self.liveness.handle_session(now);
                    said.tell(LinkEvent::Up);
                }
                SessionEvent::Lost(reason) => {
                    let silent_ms = self.liveness.silent_ms(now);
                    said.tell(LinkEvent::Lost { reason, silent_ms });
                }
                SessionEvent::Undeliverable { conversation, frame } => {
                    let to = said.node.clone();
                    said.events.push_back(TransportEvent::Undeliverable {
                        to,
                        conversation,
                        frame,
                    });
                }
            }
        }
    }

    /// Closes the connection, and tells the other end why.
    pub(super) fn detach(&mut self, code: CloseCode, reason: &str, said: &mut Said<'_, P>) {
        if let Some(link) = self.link.take() {
            said.outputs.push_back(LinkOutput::Close { link, code, reason: reason.to_owned() });
        }
        self.session.handle_disconnect();
    }

    /// Takes a connection, which carries the session from now on.
    pub(super) fn attach(&mut self, now: Time, link: LinkId, said: &mut Said<'_, P>) {
        self.drain(now, said);
        self.handle_heard(now, said);
        self.link = Some(link);
        let waiting = self.session.waiting();
        let wake = |conversation| LinkOutput::Wake { link, conversation };
        said.outputs.extend(waiting.map(wake));
    }

    pub(super) fn handle_heard(&mut self, at: Time, said: &mut Said<'_, P>) {
        if self.liveness.handle_heard(at) {
            said.tell(LinkEvent::Heard);
        }
    }

    /// Ends the session if it was closing.
    pub(super) fn finish_closing(&mut self, now: Time, said: &mut Said<'_, P>) {
        if let Some(Closing { reason, .. }) = self.closing.take() {
            self.detach(CloseCode::Closed, &reason, said);
            self.session.end(LossReason::ClosedHere(reason));
            self.drain(now, said);
        }
    }

    /// Time at which the peer's silence is judged next; `None` without a session.
    pub(super) fn judged_at(&self) -> Option<Time> {
        self.session.session().map(|_| self.liveness.due())
    }

    /// Whether the session is closing, and all of it is acknowledged.
    pub(super) fn has_nothing_to_wait_for(&self) -> bool {
        self.closing.is_some() && self.session.is_flushed()
    }

    fn can_close(&self, now: Time) -> bool {
        self.has_nothing_to_wait_for() || self.closing.as_ref().is_some_and(|it| it.at <= now)
    }

    /// Whether [`Self::handle_timeout`] has something to do.
    pub(super) fn is_due(&self, now: Time) -> bool {
        self.judged_at().is_some_and(|at| at <= now) || self.can_close(now)
    }

    fn lose(&mut self, reason: LossReason, said: &mut Said<'_, P>) {
        self.detach(CloseCode::Broken, "not heard for too long", said);
        self.session.end(reason);
    }

    pub(super) fn handle_timeout(&mut self, now: Time, said: &mut Said<'_, P>) {
        if self.session.session().is_some() {
            let silent_ms = self.liveness.silent_ms(now);
            match self.liveness.handle_timeout(now) {
                Some(PeerChange::Silent) => said.tell(LinkEvent::Silent { silent_ms }),
                Some(PeerChange::Lost) => self.lose(LossReason::Silence { silent_ms }, said),
                Some(PeerChange::Refused) => self.lose(LossReason::Refused { silent_ms }, said),
                None => {}
            }
        }
        self.drain(now, said);
        if self.can_close(now) {
            self.finish_closing(now, said);
        }
    }
}
