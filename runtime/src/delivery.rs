//! Messages that actors handle: a message that arrived, a question with the way to answer it, a message of their
//! own that came back. All are actix messages without a result.

use std::fmt;

use actix::Message;
use elastic_protocol::codec::encode;
use elastic_protocol::{ActorId, NodeId, WireMessage, WireRequest};
use tokio::sync::{mpsc, oneshot};

use crate::envelope::{AnswerOutcome, Header, frame};
use crate::failure::{AskError, DeliveryRefusal};
use crate::node::NodeCommand;

/// A message and who it is from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Delivery<M> {
    /// The node it is from: authenticated by the transport, or this node itself.
    pub from: NodeId,
    /// The message.
    pub message: M,
}

impl<M: WireMessage> Message for Delivery<M> {
    type Result = ();
}

/// A message of one's own that the transport took and then could not deliver: the session ended. It was
/// not handled.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Returned<M> {
    /// The actor to which it was sent.
    pub to: ActorId,
    /// The message.
    pub message: M,
}

impl<M: WireMessage> Message for Returned<M> {
    type Result = ();
}

/// A question, who asks it, and the way to answer.
#[derive(Debug)]
pub struct Question<R: WireRequest> {
    /// The node that asks: authenticated by the transport, or this node itself.
    pub from: NodeId,
    /// The question.
    pub request: R,
    /// Takes the answer, now or later.
    pub reply: ReplyTo<R>,
}

impl<R: WireRequest> Message for Question<R> {
    type Result = ();
}

/// Takes one answer. Dropped without one, it tells the asker that there will be none.
pub struct ReplyTo<R: WireRequest>(Option<ReplyRoute<R>>);

enum ReplyRoute<R: WireRequest> {
    Local { answer: oneshot::Sender<Result<R::Reply, AskError<R>>>, to: ActorId },
    Remote(RemoteReply),
}

/// The way back to a node that asked: a reserved place in the outbox, so that an answer never finds it
/// full.
pub(crate) struct RemoteReply {
    pub(crate) peer: NodeId,
    pub(crate) request: u64,
    pub(crate) place: mpsc::OwnedPermit<NodeCommand>,
}

impl RemoteReply {
    pub(crate) fn send(self, outcome: AnswerOutcome, body: &[u8]) {
        let header = Header::Answer { request: self.request, outcome };
        let frame = frame(&header, body);
        self.place.send(NodeCommand::Answer { to: self.peer, frame });
    }
}

impl<R: WireRequest> ReplyTo<R> {
    pub(crate) const fn local(
        answer: oneshot::Sender<Result<R::Reply, AskError<R>>>,
        to: ActorId,
    ) -> Self {
        Self(Some(ReplyRoute::Local { answer, to }))
    }

    pub(crate) const fn remote(reply: RemoteReply) -> Self {
        Self(Some(ReplyRoute::Remote(reply)))
    }

    /// Answers. Nothing happens if the asker has given up meanwhile. An answer too large for a frame
    /// is reported to the asker as [`DeliveryRefusal::AnswerTooLarge`].
    pub fn answer(mut self, reply: R::Reply) {
        match self.0.take() {
            Some(ReplyRoute::Local { answer, .. }) => {
                // The asker may have given up: then the answer has no reader.
                let _ = answer.send(Ok(reply));
            }
            Some(ReplyRoute::Remote(way)) => match encode(&reply) {
                Ok(body) if body.len() <= Header::BODY_BYTES_MAX => {
                    way.send(AnswerOutcome::Answered, &body);
                }
                _ => way.send(AnswerOutcome::Refused(DeliveryRefusal::AnswerTooLarge), &[]),
            },
            None => {}
        }
    }

    /// Takes the way back out of a question that was not delivered.
    pub(crate) fn refuse(mut self, refusal: DeliveryRefusal) {
        if let Some(ReplyRoute::Remote(way)) = self.0.take() {
            way.send(AnswerOutcome::Refused(refusal), &[]);
        }
    }
}

impl<R: WireRequest> Drop for ReplyTo<R> {
    fn drop(&mut self) {
        match self.0.take() {
            Some(ReplyRoute::Local { answer, to }) => {
                let _ = answer.send(Err(AskError::Unanswered { to }));
            }
            Some(ReplyRoute::Remote(way)) => way.send(AnswerOutcome::Unanswered, &[]),
            None => {}
        }
    }
}

impl<R: WireRequest> fmt::Debug for ReplyTo<R> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ReplyTo")
    }
}
