//! What actors handle: a message that came in, a question with the way to answer it, a message of their
//! own that came back. All are actix messages without a result.

use std::fmt;

use actix::Message;
use elastic_protocol::NodeId;
use elastic_protocol::messages::encode;
use tokio::sync::{mpsc, oneshot};

use crate::envelope::{Header, Outcome, frame};
use crate::failure::{AskError, Refusal};
use crate::name::ActorId;
use crate::node::Command;
use crate::wire::{WireMessage, WireRequest};

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
    /// To whom it was sent.
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
pub struct ReplyTo<R: WireRequest>(Option<Way<R>>);

enum Way<R: WireRequest> {
    Local { answer: oneshot::Sender<Result<R::Reply, AskError<R>>>, to: ActorId },
    Remote(RemoteReply),
}

/// The way back to a node that asked: a reserved place in the outbox, so that an answer never finds it
/// full.
pub(crate) struct RemoteReply {
    pub(crate) peer: NodeId,
    pub(crate) request: u64,
    pub(crate) place: mpsc::OwnedPermit<Command>,
}

impl RemoteReply {
    pub(crate) fn send(self, outcome: Outcome, body: &[u8]) {
        let header = Header::Answer { request: self.request, outcome };
        let frame = frame(&header, body);
        self.place.send(Command::Answer { to: self.peer, frame });
    }
}

impl<R: WireRequest> ReplyTo<R> {
    pub(crate) const fn local(
        answer: oneshot::Sender<Result<R::Reply, AskError<R>>>,
        to: ActorId,
    ) -> Self {
        Self(Some(Way::Local { answer, to }))
    }

    pub(crate) const fn remote(reply: RemoteReply) -> Self {
        Self(Some(Way::Remote(reply)))
    }

    /// Answers. Nothing happens if the asker has given up meanwhile. An answer too large for a frame
    /// is reported to the asker as [`Refusal::AnswerTooLarge`].
    pub fn answer(mut self, reply: R::Reply) {
        match self.0.take() {
            Some(Way::Local { answer, .. }) => {
                // The asker may have given up: then nobody wants the answer.
                let _ = answer.send(Ok(reply));
            }
            Some(Way::Remote(way)) => match encode(&reply) {
                Ok(body) if body.len() <= Header::BODY_BYTES_MAX => {
                    way.send(Outcome::Answered, &body);
                }
                _ => way.send(Outcome::Refused(Refusal::AnswerTooLarge), &[]),
            },
            None => {}
        }
    }

    /// Takes the way back out of a question that was not delivered.
    pub(crate) fn refuse(mut self, refusal: Refusal) {
        if let Some(Way::Remote(way)) = self.0.take() {
            way.send(Outcome::Refused(refusal), &[]);
        }
    }
}

impl<R: WireRequest> Drop for ReplyTo<R> {
    fn drop(&mut self) {
        match self.0.take() {
            Some(Way::Local { answer, to }) => {
                let _ = answer.send(Err(AskError::Unanswered { to }));
            }
            Some(Way::Remote(way)) => way.send(Outcome::Unanswered, &[]),
            None => {}
        }
    }
}

impl<R: WireRequest> fmt::Debug for ReplyTo<R> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ReplyTo")
    }
}
