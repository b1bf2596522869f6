//! Errors of this crate: [`FormError`] of forming a group, and [`CollectiveError`] of an operation.

use std::io;
use std::sync::Arc;

use thiserror::Error;

use crate::abort::Abort;
use crate::wire::{FrameError, FrameHeader, OperationKind};

/// The reason why a peer counts as lost.
#[derive(Clone, Debug, Error)]
pub enum PeerLoss {
    /// The peer's end of the connection closed without a farewell: the process died or gave up mid-message.
    #[error("it closed the connection without a farewell")]
    Closed,
    /// The peer's process is ending: the lock that shows its life has lost its owner.
    #[error("its process died")]
    Died,
    /// The connection failed.
    #[error("the connection to it failed")]
    Connection(#[source] Arc<io::Error>),
    /// The peer closed its communicator in good order, but this operation still needs it.
    #[error(
        "it left in good order, and this operation still needs it: its training function has returned, or it closed the group"
    )]
    Left,
    /// The peer's generation was aborted there.
    #[error("it aborted the generation")]
    Aborted,
    /// The peer ended after an error of its own.
    #[error("it gave up after an error of its own")]
    Failed,
    /// Another rank detected the loss, and reported it before this rank detected it.
    #[error("rank {by} reported it lost")]
    Reported {
        /// The rank that reported it.
        by: u32,
    },
}

/// Details of a wait whose deadline has passed, beside the ranks that were waited for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitDetails {
    /// The hosts of the ranks that were waited for, in the same order; empty where they are unknown.
    pub hosts: Vec<Arc<str>>,
    /// Whether those ranks had entered the operation, and had only not done their part.
    pub entered: bool,
    /// The number of other ranks that have entered the operation.
    pub others: u32,
}

impl WaitDetails {
    fn list(&self, ranks: &[u32]) -> String {
        let name = |(index, rank): (usize, &u32)| match self.hosts.get(index) {
            Some(host) => format!("rank {rank} on host {host}"),
            None => format!("rank {rank}"),
        };
        ranks.iter().enumerate().map(name).collect::<Vec<_>>().join(" and ")
    }

    fn have_not(&self, ranks: &[u32]) -> &'static str {
        match (ranks.len() > 1, self.entered) {
            (false, false) => "has not entered",
            (true, false) => "have not entered",
            (false, true) => "has not done its part in",
            (true, true) => "have not done their part in",
        }
    }

    fn others(&self) -> String {
        match self.others {
            1 => "1 other waits".to_owned(),
            others => format!("{others} others wait"),
        }
    }
}

/// The reason why an operation failed. All but [`CollectiveError::InvalidArgument`] end the communicator: each
/// further call returns the same error, and training continues in the next generation.
#[derive(Clone, Debug, Error)]
pub enum CollectiveError {
    /// [`crate::AbortHandle::abort`] was called for this generation or a newer one.
    #[error("generation {generation} of term {term} was aborted: {reason}")]
    Aborted {
        /// The term of the abort.
        term: u64,
        /// The generation that was aborted.
        generation: u64,
        /// The first reason that was given.
        reason: Arc<str>,
    },
    /// A peer is gone.
    #[error("rank {rank} was lost")]
    PeerLost {
        /// The rank that is gone.
        rank: u32,
        /// The way in which the loss was detected.
        source: PeerLoss,
    },
    /// The deadline of an operation passed (G-9).
    #[error(
        "{} {} {operation} #{sequence}, {}",
        details.list(waiting_for),
        details.have_not(waiting_for),
        details.others()
    )]
    DeadlinePassed {
        /// The operation that waited.
        operation: OperationKind,
        /// The operation's number in this generation.
        sequence: u64,
        /// The ranks that have not done their part.
        waiting_for: Vec<u32>,
        /// Further details of the wait.
        details: Box<WaitDetails>,
    },
    /// Another rank is in another operation, or in the same one with other arguments.
    #[error(
        "{} #{sequence}: rank {rank} is in {theirs}, this rank is in {ours}{}",
        ours.operation.name(),
        ours.operation.difference(&theirs.operation)
    )]
    Mismatch {
        /// The operation of this rank.
        operation: OperationKind,
        /// The operation's number in this generation.
        sequence: u64,
        /// The rank that differs.
        rank: u32,
        /// The header that this rank announced.
        ours: Box<FrameHeader>,
        /// The header that the other rank announced.
        theirs: Box<FrameHeader>,
    },
    /// The caller's arguments are wrong. Nothing was sent, and the communicator still works.
    #[error("{operation}: {reason}")]
    InvalidArgument {
        /// The operation that was called.
        operation: OperationKind,
        /// The fault of the arguments, and its remedy.
        reason: String,
    },
    /// An authenticated peer sent bytes that are not a frame.
    #[error("rank {rank} sent a malformed frame")]
    Protocol {
        /// The rank that sent it.
        rank: u32,
        /// The fault of the frame.
        source: FrameError,
    },
    /// The device, or the library that carries its data, has failed.
    #[error("{operation} #{sequence} failed on its device")]
    Device {
        /// The operation.
        operation: OperationKind,
        /// The operation's number in this generation.
        sequence: u64,
        /// The error of the device's library.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// The communicator was closed by its owner.
    #[error("the communicator was closed")]
    Closed,
    /// The operating system refused to wait for the connections.
    #[error("waiting for the connections failed")]
    System(#[source] Arc<io::Error>),
}

/// The result of an operation, which leaves its data in the caller's memory.
pub type CollectiveResult = Result<(), CollectiveError>;

impl CollectiveError {
    /// The mismatch error: `rank` announced `theirs` where `ours` is due.
    pub(crate) fn mismatch(rank: u32, ours: FrameHeader, theirs: FrameHeader) -> CollectiveError {
        let (operation, sequence) = (ours.operation.kind, ours.sequence);
        let (ours, theirs) = (Box::new(ours), Box::new(theirs));
        CollectiveError::Mismatch { operation, sequence, rank, ours, theirs }
    }
}

impl From<Abort> for CollectiveError {
    fn from(Abort { term, generation, reason }: Abort) -> CollectiveError {
        CollectiveError::Aborted { term, generation, reason }
    }
}

/// The reason why a group could not be formed.
#[derive(Debug, Error)]
pub enum FormError {
    /// The generation was aborted, before or while it was forming.
    #[error("generation {generation} of term {term} was aborted: {reason}")]
    Aborted {
        /// The term of the abort.
        term: u64,
        /// The generation that was aborted.
        generation: u64,
        /// The first reason that was given.
        reason: Arc<str>,
    },
    /// The deadline passed (G-9).
    #[error("forming passed its deadline; missing: {}", describe(missing))]
    DeadlinePassed {
        /// The ranks without a connection, each with what was last seen of it.
        missing: Vec<MissingPeer>,
    },
    /// A generation older than one that this fabric has formed already (G-2).
    #[error("generation {generation} of term {term} is older than the last one formed here")]
    Stale {
        /// The term asked for.
        term: u64,
        /// The generation asked for.
        generation: u64,
    },
    /// The group's description is inconsistent.
    #[error("invalid group: {0}")]
    InvalidGroup(String),
    /// A rank that was connected is lost, before the ranks had agreed on how they communicate.
    #[error("the group broke while it formed")]
    Broken {
        /// The rank that is at fault.
        rank: u32,
        /// The error of the exchange.
        source: Box<CollectiveError>,
    },
    /// A device, or its library, cannot take part.
    #[error("{what}")]
    Device {
        /// The step that was attempted, or the requirement that is not met.
        what: String,
        /// The error of the device's library.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The operating system refused a socket, or randomness.
    #[error("the operating system refused what forming needs")]
    System(#[source] io::Error),
}

impl From<CollectiveError> for FormError {
    /// The meaning of a failed operation among the ranks that form.
    fn from(error: CollectiveError) -> FormError {
        match error {
            CollectiveError::Aborted { term, generation, reason } => {
                FormError::Aborted { term, generation, reason }
            }
            CollectiveError::DeadlinePassed { waiting_for, .. } => {
                let last_seen = "it connected, and said nothing more".to_owned();
                let peer = |rank| MissingPeer { rank, last_seen: last_seen.clone() };
                FormError::DeadlinePassed { missing: waiting_for.into_iter().map(peer).collect() }
            }
            CollectiveError::PeerLost { rank, .. }
            | CollectiveError::Protocol { rank, .. }
            | CollectiveError::Mismatch { rank, .. } => {
                FormError::Broken { rank, source: Box::new(error) }
            }
            error => FormError::System(io::Error::other(error)),
        }
    }
}

/// A peer without a connection when forming ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingPeer {
    /// The peer's rank.
    pub rank: u32,
    /// The last known state of its connection, for people.
    pub last_seen: String,
}

fn describe(peers: &[MissingPeer]) -> String {
    let described: Vec<_> =
        peers.iter().map(|peer| format!("rank {} ({})", peer.rank, peer.last_seen)).collect();
    described.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_is_lost_while_a_group_forms_is_at_fault_and_not_the_system_of_who_tells() {
        let lost = CollectiveError::PeerLost { rank: 3, source: PeerLoss::Closed };
        let error = FormError::from(lost);
        assert!(matches!(error, FormError::Broken { rank: 3, .. }), "{error:?}");
        let refused = CollectiveError::System(Arc::new(io::Error::other("no descriptor")));
        assert!(matches!(FormError::from(refused), FormError::System(_)));
    }

    #[test]
    fn who_did_not_come_is_named_with_its_host() {
        let details = WaitDetails { hosts: vec!["b".into()], entered: false, others: 3 };
        let (operation, details) = (OperationKind::AllReduce, Box::new(details));
        let error = CollectiveError::DeadlinePassed {
            operation,
            sequence: 1841,
            waiting_for: vec![2],
            details,
        };
        let due = "rank 2 on host b has not entered all_reduce #1841, 3 others wait";
        assert_eq!(error.to_string(), due);
    }
}
