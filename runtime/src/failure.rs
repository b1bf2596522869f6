//! Errors of communication between actors: messages that were not delivered, and questions that were not answered.
//! Returned by references to actors.

use std::fmt;
use std::time::Duration;

use elastic_protocol::ActorId;
use elastic_protocol::codec::CodecError;
use serde::{Deserialize, Serialize};

use crate::transport::SendErrorReason;

/// A message that was not delivered and will not be, given back.
pub struct Undelivered<M> {
    /// The receiver.
    pub to: ActorId,
    /// The message.
    pub message: M,
    /// The reason.
    pub reason: UndeliveredReason,
}

/// Reason for which a message was not delivered.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, thiserror::Error)]
pub enum UndeliveredReason {
    /// This node has no actor of that name.
    #[error("this node has no actor of that name")]
    NoSuchActor,
    /// The actor does not take this kind of message.
    #[error("the actor does not take this kind of message")]
    NotTaken,
    /// The actor has ended, and no new one was published.
    #[error("the actor has ended")]
    Closed,
    /// The actor's mailbox is full.
    #[error("the actor's mailbox is full")]
    MailboxFull,
    /// There is no session with its node, or this node has no transport.
    #[error("there is no session with its node")]
    NoSession,
    /// Too much is on its way to that node already.
    #[error("too much is on its way to its node already")]
    TransportFull,
    /// The message does not fit into a frame.
    #[error("the message does not fit into a frame")]
    TooLarge,
    /// The message cannot be encoded.
    #[error("the message cannot be encoded")]
    NotEncodable,
    /// The session ended before it was delivered.
    #[error("the session with its node ended before it was delivered")]
    SessionLost,
    /// This node has [`ASKS_MAX`](crate::node::ASKS_MAX) questions without an answer already.
    #[error("too many questions wait for an answer already")]
    TooManyAsked,
}

impl From<&CodecError> for UndeliveredReason {
    fn from(error: &CodecError) -> Self {
        match error {
            CodecError::TooLarge { .. } => Self::TooLarge,
            _ => Self::NotEncodable,
        }
    }
}

impl From<SendErrorReason> for UndeliveredReason {
    fn from(reason: SendErrorReason) -> Self {
        match reason {
            SendErrorReason::NoSession => Self::NoSession,
            SendErrorReason::Full => Self::TransportFull,
            SendErrorReason::TooLarge => Self::TooLarge,
        }
    }
}

impl<M> fmt::Display for Undelivered<M> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "nothing was delivered to {}: {}", self.to, self.reason)
    }
}

impl<M> fmt::Debug for Undelivered<M> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl<M> std::error::Error for Undelivered<M> {}

/// Reasons why a node did not hand a frame to an actor. Sent back to the asker of a question; for a message that
/// was told, it is only counted.
#[derive(
    Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize, thiserror::Error,
)]
pub enum DeliveryRefusal {
    /// No actor of that name.
    #[error("no actor of that name")]
    NoSuchActor,
    /// The actor does not take this kind.
    #[error("the actor does not take this kind of message")]
    NotTaken,
    /// The actor has ended.
    #[error("the actor has ended")]
    Closed,
    /// Its mailbox is full.
    #[error("the actor's mailbox is full")]
    MailboxFull,
    /// Not a frame, or not a message of the kind that it claims to be.
    #[error("the frame is malformed")]
    Malformed,
    /// The node has [`QUESTIONS_MAX`](crate::node::QUESTIONS_MAX) questions to answer already.
    #[error("the node has too many questions to answer already")]
    TooManyQuestions,
    /// The question was handled; its answer does not fit into a frame.
    #[error("the answer does not fit into a frame")]
    AnswerTooLarge,
}

/// Reason for which a question has no answer. [`AskError::is_unhandled`] tells "not handled" from "unknown".
#[derive(Debug, thiserror::Error)]
pub enum AskError<R> {
    /// The question did not get there; it is given back. Not handled.
    #[error(transparent)]
    Undelivered(Undelivered<R>),
    /// Its node did not hand it to the actor. Not handled, but for [`DeliveryRefusal::AnswerTooLarge`].
    #[error("{to} refused the question: {refusal}")]
    Refused {
        /// The actor that was asked.
        to: ActorId,
        /// The reason.
        refusal: DeliveryRefusal,
    },
    /// The session with its node ended: whether it was handled is unknown.
    #[error("the session with {to} was lost before the answer")]
    Lost {
        /// The actor that was asked.
        to: ActorId,
    },
    /// Whether it was handled, or still will be, is unknown.
    #[error("no answer from {to} within {} ms", .within.as_millis())]
    DeadlinePassed {
        /// The actor that was asked.
        to: ActorId,
        /// The deadline, from when it was asked.
        within: Duration,
    },
    /// The actor dropped it without an answer, or ended: whether it was handled is unknown.
    #[error("{to} did not answer")]
    Unanswered {
        /// The actor that was asked.
        to: ActorId,
    },
    /// The reply is not an answer to this kind of question. The question was handled.
    #[error("the answer of {to} is malformed")]
    MalformedAnswer {
        /// The actor that was asked.
        to: ActorId,
    },
}

impl<R> AskError<R> {
    /// Whether it is certain that no actor has seen, or will see, the question.
    pub const fn is_unhandled(&self) -> bool {
        match self {
            Self::Undelivered(_) => true,
            Self::Refused { refusal, .. } => !matches!(refusal, DeliveryRefusal::AnswerTooLarge),
            _ => false,
        }
    }
}
