//! The transport trait: how a node reaches other nodes. `transport` implements it over QUIC, `sim` over a
//! seeded network; actors see only this.
//!
//! Contract, kept by both implementations and checked by the simulation:
//! - **TR-1** Frames of one conversation with one peer arrive in order, each at most once, for as long as
//!   the session lives. A connection that breaks and is made again within [`Deadlines::lost`] resumes the
//!   session unseen.
//! - **TR-2** A session begins with [`LinkEvent::Up`] and ends with [`LinkEvent::Lost`] at each end that
//!   still lives. Frames that were not delivered by then are handed back as
//!   [`TransportEvent::Undeliverable`], after `Lost`. A later contact of the same two nodes is a new
//!   session, with a new `Up`.
//! - **TR-3** Conversations do not wait for each other: bulk never delays control.
//! - **TR-4** A peer's [`NodeId`] is authenticated before `Up`; nothing is delivered from anyone else.
//! - **TR-5** Beats are the transport's own affair. A peer that is not heard gives
//!   [`LinkEvent::Silent`] after `Deadlines::suspect` and `Lost` after `Deadlines::lost`; a peer that
//!   closes, or whose process ends in a way that the network tells, gives `Lost` at once. The end that
//!   makes the connections keeps the session for longer, so that a driver that was paused finds it
//!   again: after `Deadlines::lost` it gives `Silent` once more, and `Lost` when the bound has passed.
//!   Time in which a node was paused itself counts against none of its peers.
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
    /// Traffic that may take long, such as forwarded output; conversations are told apart by number.
    Bulk(u16),
}

/// A change of the link with a peer.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum LinkEvent {
    /// A new session: neither end has any history.
    Up,
    /// The peer has been silent for so long that it is suspected.
    Silent {
        /// Milliseconds since the peer was last heard.
        silent_ms: u64,
    },
    /// The peer was silent and is heard again, in the same session.
    Heard,
    /// The session is over.
    Lost {
        /// The cause of the loss, as this end has seen it.
        reason: LossReason,
        /// Milliseconds since the peer was last heard.
        silent_ms: u64,
    },
}

/// Cause of a session's end, as one end has seen it.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, thiserror::Error)]
pub enum LossReason {
    /// The peer was silent for `Deadlines::lost`.
    #[error("not heard for {silent_ms} ms")]
    Silence {
        /// Milliseconds since the peer was last heard.
        silent_ms: u64,
    },
    /// Nothing receives at the peer's port any more, and the peer was silent since its host said so.
    #[error("its port is closed, and it was not heard for {silent_ms} ms")]
    Refused {
        /// Milliseconds since the peer was last heard.
        silent_ms: u64,
    },
    /// The other end closed the session, with this reason.
    #[error("closed by the other end: {0}")]
    Closed(String),
    /// This end closed the session.
    #[error("closed by this end: {0}")]
    ClosedHere(String),
    /// The other end has forgotten the session (it restarted, or gave this end up).
    #[error("the other end has no memory of this session")]
    Forgotten,
}

/// Events that a transport reports to its node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum TransportEvent<P = Bytes> {
    /// The link with a peer changed.
    Link {
        /// The peer.
        peer: NodeId,
        /// The change.
        event: LinkEvent,
    },
    /// A frame arrived.
    Frame {
        /// The sender, authenticated.
        from: NodeId,
        /// Its conversation.
        conversation: Conversation,
        /// The frame.
        frame: P,
    },
    /// A frame that `send` took, that has not been delivered, and that will not be.
    Undeliverable {
        /// The receiver.
        to: NodeId,
        /// Its conversation.
        conversation: Conversation,
        /// The frame.
        frame: P,
    },
}

/// Takes the transport's events; called on the node's own thread, never from within `send`.
pub type TransportSink = Rc<dyn Fn(TransportEvent)>;

/// A frame that the transport did not take.
#[derive(Debug, thiserror::Error)]
#[error("nothing was sent to {to}: {reason}")]
pub struct SendError {
    /// The receiver.
    pub to: NodeId,
    /// The frame, given back.
    pub frame: Bytes,
    /// The reason.
    pub reason: SendErrorReason,
}

/// Reason for which the transport did not take a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum SendErrorReason {
    /// There is no session with the receiver.
    #[error("there is no session with it")]
    NoSession,
    /// The bound on undelivered frames is reached: the peer does not keep up.
    #[error("too much is on its way already")]
    Full,
    /// The frame is larger than the transport takes.
    #[error("the frame is too large")]
    TooLarge,
}

/// A node's way to reach other nodes. One per node.
pub trait Transport {
    /// The id of this node.
    fn local(&self) -> NodeId;

    /// Queues a frame.
    ///
    /// # Errors
    /// [`SendError`] gives the frame back.
    fn send(&self, to: &NodeId, conversation: Conversation, frame: Bytes) -> Result<(), SendError>;

    /// Ends the session with a peer for good, after queued frames have had a moment to leave. The peer is told
    /// the reason. Without a session this does nothing.
    fn close(&self, peer: &NodeId, reason: &str);
}
