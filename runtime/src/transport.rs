//! The transport trait: how a node reaches other nodes. `transport` implements it over QUIC, `sim` over a
//! seeded network; actors see only this.
//!
//! Contract, which both implementations keep and the simulation checks:
//! - **TR-1** Frames of one conversation with one peer arrive in order, each at most once, for as long as
//!   the session lives. A connection that breaks and is made again within [`Deadlines::lost`] resumes the
//!   session unseen.
//! - **TR-2** A session begins with [`LinkEvent::Up`] and ends with [`LinkEvent::Lost`] at each end that
//!   still lives. What had not been delivered by then is handed back as
//!   [`TransportEvent::Undeliverable`], after `Lost`. A later contact of the same two nodes is a new
//!   session, with a new `Up`.
//! - **TR-3** Conversations do not wait for each other: bulk never delays control.
//! - **TR-4** A peer's [`NodeId`] is authenticated before `Up`; nothing is delivered from anyone else.
//! - **TR-5** Beats are the transport's own affair. A peer that is not heard gives
//!   [`LinkEvent::Silent`] after `Deadlines::suspect` and `Lost` after `Deadlines::lost`; a peer that
//!   closes, or whose process ends in a way that the network tells, gives `Lost` at once.
//! - **TR-6** `send` never blocks. Queues are bounded: past the bound it returns the frame.
//!
//! [`Deadlines::lost`]: elastic_protocol::Deadlines::lost

use std::rc::Rc;

use bytes::Bytes;
use elastic_protocol::NodeId;
use serde::{Deserialize, Serialize};

/// One ordered sequence of frames between two nodes.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub enum Conversation {
    /// Decisions, votes, reports.
    Control,
    /// What may take long, such as output that is forwarded; told apart by number.
    Bulk(u16),
}

/// What happens to the link with a peer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum LinkEvent {
    /// A new session: neither end has any history.
    Up,
    /// Nothing heard for so long; it is suspected.
    Silent {
        /// Milliseconds since it was heard last.
        silent_ms: u64,
    },
    /// It was silent and is heard again, in the same session.
    Heard,
    /// The session is over.
    Lost {
        /// How that was noticed.
        reason: LossReason,
        /// Milliseconds since it was heard last.
        silent_ms: u64,
    },
}

/// How the end of a session was noticed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum LossReason {
    /// Not heard for `Deadlines::lost`.
    #[error("not heard for {silent_ms} ms")]
    Silence {
        /// Milliseconds since it was heard last.
        silent_ms: u64,
    },
    /// The other end closed it and said why.
    #[error("closed by the other end: {0}")]
    Closed(String),
    /// This end closed it.
    #[error("closed by this end: {0}")]
    ClosedHere(String),
    /// The other end has forgotten the session (it restarted, or gave this end up).
    #[error("the other end has no memory of this session")]
    Forgotten,
}

/// What a transport tells its node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum TransportEvent {
    /// The link with a peer changed.
    Link {
        /// Who.
        peer: NodeId,
        /// How.
        event: LinkEvent,
    },
    /// A frame arrived.
    Frame {
        /// From whom, authenticated.
        from: NodeId,
        /// In which conversation.
        conversation: Conversation,
        /// The frame.
        frame: Bytes,
    },
    /// A frame that was taken by `send` has not been delivered, and will not be.
    Undeliverable {
        /// To whom.
        to: NodeId,
        /// In which conversation.
        conversation: Conversation,
        /// The frame.
        frame: Bytes,
    },
}

/// Takes what the transport tells; called on the node's own thread, never from within `send`.
pub type TransportSink = Rc<dyn Fn(TransportEvent)>;

/// A frame that was not taken.
#[derive(Debug, thiserror::Error)]
#[error("nothing was sent to {to}: {reason}")]
pub struct SendError {
    /// To whom.
    pub to: NodeId,
    /// The frame, given back.
    pub frame: Bytes,
    /// Why.
    pub reason: SendErrorReason,
}

/// Why a frame was not taken.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum SendErrorReason {
    /// There is no session with this node.
    #[error("there is no session with it")]
    NoSession,
    /// The bound on undelivered frames is reached: the peer does not keep up.
    #[error("too much is on its way already")]
    Full,
    /// Larger than the transport takes.
    #[error("the frame is too large")]
    TooLarge,
}

/// How a node reaches others. One per node.
pub trait Transport {
    /// This node.
    fn local(&self) -> NodeId;

    /// Queues a frame.
    ///
    /// # Errors
    /// [`SendError`] gives the frame back.
    fn send(&self, to: &NodeId, conversation: Conversation, frame: Bytes) -> Result<(), SendError>;

    /// Ends the session with a peer for good, after what is queued has had a moment to leave. The peer
    /// is told the reason. Nothing happens if there is no session.
    fn close(&self, peer: &NodeId, reason: &str);
}
