//! Passes the transport's reports on: frames to actors, answers to askers, returned messages to their senders, link
//! changes to subscribers. Nothing here panics, blocks, or calls the transport.

use elastic_protocol::NodeId;

use super::{NodeCommand, NodeFault, NodeHandle, Resolution};
use crate::delivery::RemoteReply;
use crate::envelope::{AnswerOutcome, Header, decode_header, frame};
use crate::failure::DeliveryRefusal;
use crate::transport::{LinkEvent, TransportEvent};

/// Places of the command queue that questions cannot use: they stay free for refusals and sessions to close.
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
            // Given up later, by command: a question that the transport hands back after `Lost` (TR-2) has a
            // more exact outcome.
            let command = NodeCommand::GiveUp { peer: peer.clone(), requests };
            if let Err(error) = self.inner.outbox.try_send(command)
                && let NodeCommand::GiveUp { peer, requests } = error.into_inner()
            {
                self.inner.give_up(&peer, requests);
            }
        }
    }

    fn frame(&self, from: &NodeId, bytes: &[u8]) {
        let mut is_told = false;
        let refused = match decode_header(bytes) {
            Err(_not_a_header) => Err(DeliveryRefusal::Malformed),
            Ok((Header::Tell { actor, kind, .. }, body)) => {
                is_told = true;
                self.inner.routes.borrow().tell_bytes(actor, kind, from, body)
            }
            Ok((Header::Ask { actor, kind, request }, body)) => {
                match self.way_back(from, request) {
                    Some(reply) => self.inner.routes.borrow().ask_bytes(actor, kind, body, reply),
                    None => Err(DeliveryRefusal::TooManyQuestions),
                }
            }
            Ok((Header::Answer { request, outcome }, body)) => {
                self.answer(from, request, outcome, body)
            }
        };
        let Err(refusal) = refused else { return };
        self.fault(from, NodeFault::Refused(refusal));
        let reason = match refusal {
            DeliveryRefusal::Malformed => "it sent a malformed frame",
            // The transport counts the frame as delivered, so it would never be sent again. A new session
            // begins with the current state.
            DeliveryRefusal::MailboxFull if is_told => "it says more than can be handled",
            _ => return,
        };
        let (peer, reason) = (from.clone(), reason.to_owned());
        // If the outbox is full, the next such frame closes the session.
        let _ = self.inner.outbox.try_send(NodeCommand::Close { peer, reason });
    }

    /// Reserves a place for the answer. Past the bound, refuses the question and gives `None`.
    fn way_back(&self, from: &NodeId, request: u64) -> Option<RemoteReply> {
        let outbox = &self.inner.outbox;
        if outbox.capacity() > PLACES_KEPT
            && let Ok(place) = outbox.clone().try_reserve_owned()
        {
            return Some(RemoteReply { peer: from.clone(), request, place });
        }
        let outcome = AnswerOutcome::Refused(DeliveryRefusal::TooManyQuestions);
        let frame = frame(&Header::Answer { request, outcome }, &[]);
        if outbox.try_send(NodeCommand::Answer { to: from.clone(), frame }).is_err() {
            self.fault(from, NodeFault::RefusalNotSent);
        }
        None
    }

    fn answer(
        &self,
        from: &NodeId,
        request: u64,
        outcome: AnswerOutcome,
        body: &[u8],
    ) -> Result<(), DeliveryRefusal> {
        let resolve = self.inner.asks.borrow_mut().take(request, from);
        let Some(resolve) = resolve else {
            self.fault(from, NodeFault::StrayAnswer);
            return Ok(());
        };
        let resolution = match outcome {
            AnswerOutcome::Answered => Resolution::Answered(body),
            AnswerOutcome::Refused(refusal) => Resolution::Refused(refusal),
            AnswerOutcome::Unanswered => Resolution::Unanswered,
        };
        resolve(resolution).map_err(|_malformed| DeliveryRefusal::Malformed)
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
            self.fault(to, NodeFault::StrayReturn);
        }
    }

    fn fault(&self, peer: &NodeId, fault: NodeFault) {
        if !self.inner.tally.borrow_mut().count(peer, fault) {
            return;
        }
        match fault {
            // Every session's end hands its last frames back, and few senders want them.
            NodeFault::StrayReturn => tracing::debug!(%peer, "came back, and nobody wants it"),
            // A node that leaves ends its actors before its sessions: a peer's last messages find none.
            NodeFault::Refused(DeliveryRefusal::Closed) => {
                tracing::debug!(%peer, "dropped: its actor has ended");
            }
            _ => tracing::warn!(%peer, ?fault, "dropped; more of this kind are only counted"),
        }
    }
}
