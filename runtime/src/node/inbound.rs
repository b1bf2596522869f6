//! What the transport tells, passed on: frames to actors, answers to askers, messages that come back to
//! their senders, link changes to subscribers. Nothing here panics, blocks, or calls the transport.

use elastic_protocol::NodeId;

use super::{Command, Fault, NodeHandle, Resolution};
use crate::delivery::RemoteReply;
use crate::envelope::{Header, Outcome, decode_header, frame};
use crate::failure::Refusal;
use crate::transport::{LinkEvent, TransportEvent};

/// Commands of which places stay free of questions, for refusals and sessions to close.
const PLACES_KEPT: usize = super::outbox::COMMANDS_MAX - super::QUESTIONS_MAX;

impl NodeHandle {
    pub(super) fn handle_event(&self, event: TransportEvent) {
        match event {
            TransportEvent::Link { peer, event } => self.link(&peer, &event),
            TransportEvent::Frame { from, frame, .. } => self.frame(&from, &frame),
            TransportEvent::Undeliverable { to, frame, .. } => self.handed_back(&to, &frame),
        }
    }

    fn link(&self, peer: &NodeId, event: &LinkEvent) {
        self.inner.links.borrow_mut().changed(peer, event);
        if matches!(event, LinkEvent::Lost { .. }) {
            self.inner.tally.borrow_mut().ended(peer);
            let requests = self.inner.asks.borrow().of_peer(peer);
            if requests.is_empty() {
                return;
            }
            // Later: what the transport hands back after `Lost` (TR-2) is better known than lost.
            let command = Command::GiveUp { peer: peer.clone(), requests };
            if let Err(error) = self.inner.outbox.try_send(command)
                && let Command::GiveUp { peer, requests } = error.into_inner()
            {
                self.inner.give_up(&peer, requests);
            }
        }
    }

    fn frame(&self, from: &NodeId, bytes: &[u8]) {
        let mut is_told = false;
        let refused = match decode_header(bytes) {
            Err(_not_a_header) => Err(Refusal::Malformed),
            Ok((Header::Tell { actor, kind, .. }, body)) => {
                is_told = true;
                self.inner.routes.borrow().tell_bytes(actor, kind, from, body)
            }
            Ok((Header::Ask { actor, kind, request }, body)) => {
                match self.way_back(from, request) {
                    Some(reply) => self.inner.routes.borrow().ask_bytes(actor, kind, body, reply),
                    None => Err(Refusal::TooManyQuestions),
                }
            }
            Ok((Header::Answer { request, outcome }, body)) => {
                self.answer(from, request, outcome, body)
            }
        };
        let Err(refusal) = refused else { return };
        self.fault(from, Fault::Refused(refusal));
        let reason = match refusal {
            Refusal::Malformed => "it sent a malformed frame",
            // The transport has taken it as delivered, and nobody would ever say it again: a new session
            // begins with what is true then.
            Refusal::MailboxFull if is_told => "it says more than can be handled",
            _ => return,
        };
        let (peer, reason) = (from.clone(), reason.to_owned());
        // If the outbox is full, the next such frame closes the session.
        let _ = self.inner.outbox.try_send(Command::Close { peer, reason });
    }

    /// Reserves a place for the answer; past the bound, refuses and gives `None`.
    fn way_back(&self, from: &NodeId, request: u64) -> Option<RemoteReply> {
        let outbox = &self.inner.outbox;
        if outbox.capacity() > PLACES_KEPT
            && let Ok(place) = outbox.clone().try_reserve_owned()
        {
            return Some(RemoteReply { peer: from.clone(), request, place });
        }
        let outcome = Outcome::Refused(Refusal::TooManyQuestions);
        let frame = frame(&Header::Answer { request, outcome }, &[]);
        if outbox.try_send(Command::Answer { to: from.clone(), frame }).is_err() {
            self.fault(from, Fault::RefusalNotSent);
        }
        None
    }

    fn answer(
        &self,
        from: &NodeId,
        request: u64,
        outcome: Outcome,
        body: &[u8],
    ) -> Result<(), Refusal> {
        let resolve = self.inner.asks.borrow_mut().take(request, from);
        let Some(resolve) = resolve else {
            self.fault(from, Fault::StrayAnswer);
            return Ok(());
        };
        let resolution = match outcome {
            Outcome::Answered => Resolution::Answered(body),
            Outcome::Refused(refusal) => Resolution::Refused(refusal),
            Outcome::Unanswered => Resolution::Unanswered,
        };
        resolve(resolution).map_err(|_malformed| Refusal::Malformed)
    }

    fn handed_back(&self, to: &NodeId, bytes: &[u8]) {
        let taken = match decode_header(bytes) {
            Ok((Header::Tell { actor, returns, .. }, body)) => {
                self.inner.returns.borrow().hand_back(returns, to, actor, body)
            }
            Ok((Header::Ask { request, .. }, body)) => {
                let resolve = self.inner.asks.borrow_mut().take(request, to);
                resolve.is_some_and(|resolve| resolve(Resolution::HandedBack(body)).is_ok())
            }
            Ok((Header::Answer { .. }, _)) => true,
            Err(_not_a_header) => false,
        };
        if !taken {
            self.fault(to, Fault::StrayReturn);
        }
    }

    fn fault(&self, peer: &NodeId, fault: Fault) {
        if !self.inner.tally.borrow_mut().count(peer, fault) {
            return;
        }
        if fault == Fault::StrayReturn {
            // Every session's end hands its last frames back, and few senders want to see them again.
            tracing::debug!(%peer, "came back, and nobody wants it");
        } else {
            tracing::warn!(%peer, ?fault, "dropped; more of this kind are only counted");
        }
    }
}
