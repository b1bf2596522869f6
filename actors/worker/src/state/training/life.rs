//! `GenerationLife`: whether a generation is alive at this worker, and why it ended. The first cause that is seen
//! decides. Shared by the worker's groups and by the operations that they have launched.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use elastic_collectives::{AbortHandle, CollectiveError, FormError, PeerLoss};
use elastic_protocol::Stamp;

use super::beginning::{Beginning, Begun};
use super::control::TrainingControl;
use super::error::{Error, Result, causes_from};

/// The rank that the failure of a collective blames.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Blame {
    Unknown,
    Peer(u32),
    /// The rank that was lost, and the rank that has reported this: it alone has seen it.
    Reported {
        rank: u32,
        by: u32,
    },
    /// The system refused this process a resource, such as descriptors.
    Own,
}

impl Blame {
    /// The blamed rank, if this worker has rank `own`.
    pub(super) const fn rank(self, own: u32) -> Option<u32> {
        match self {
            Self::Unknown => None,
            Self::Peer(rank) | Self::Reported { rank, .. } => Some(rank),
            Self::Own => Some(own),
        }
    }

    /// The rank whose report this is, unless it is this worker's own.
    pub(super) const fn told_by(self) -> Option<u32> {
        match self {
            Self::Reported { by, .. } => Some(by),
            Self::Unknown | Self::Peer(_) | Self::Own => None,
        }
    }

    /// The blame for the failure of a collective. A mismatch is nobody's fault: either rank may be in the wrong
    /// operation, and the path between the two carries data.
    fn of(error: &CollectiveError) -> Self {
        match error {
            CollectiveError::PeerLost { rank, source: PeerLoss::Reported { by } } => {
                Self::Reported { rank: *rank, by: *by }
            }
            CollectiveError::PeerLost { rank, .. } | CollectiveError::Protocol { rank, .. } => {
                Self::Peer(*rank)
            }
            CollectiveError::DeadlinePassed { waiting_for, .. } => {
                waiting_for.first().map_or(Self::Unknown, |rank| Self::Peer(*rank))
            }
            CollectiveError::System(_) => Self::Own,
            _ => Self::Unknown,
        }
    }

    /// The blame for a group that could not be formed.
    pub(super) fn of_forming(error: &FormError) -> Self {
        match error {
            FormError::DeadlinePassed { missing } => {
                missing.first().map_or(Self::Unknown, |peer| Self::Peer(peer.rank))
            }
            FormError::Broken { rank, source } => match Self::of(source) {
                reported @ Self::Reported { .. } => reported,
                _ => Self::Peer(*rank),
            },
            FormError::System(_) => Self::Own,
            _ => Self::Unknown,
        }
    }
}

/// The cause of a generation's end at this worker.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum GenerationEnd {
    /// The abort word, or the verdict at a boundary, ended it.
    Aborted { reason: String },
    /// A collective failed here first.
    Failed { blame: Blame, error: String },
    /// The generation was stopped at a boundary. `committed`: a commit was made there.
    Interrupted { committed: bool },
    /// The actor thread is gone.
    ActorsGone,
}

/// One generation at the training thread.
pub(super) struct GenerationLife {
    stamp: Stamp,
    /// `None` in a world of one without a driver.
    control: Option<Rc<TrainingControl>>,
    abort: Option<AbortHandle>,
    /// The begin that the thread trains ahead of, until it was waited for.
    beginning: Cell<Option<Beginning>>,
    /// Whether the driver has given its `Go`, as far as the thread knows.
    has_begun: Cell<bool>,
    end: RefCell<Option<GenerationEnd>>,
}

impl GenerationLife {
    /// A generation that has begun.
    pub(super) fn new(stamp: Stamp, control: Option<(Rc<TrainingControl>, AbortHandle)>) -> Self {
        let (control, abort) = control.unzip();
        let (beginning, has_begun) = (Cell::new(None), Cell::new(true));
        Self { stamp, control, abort, beginning, has_begun, end: RefCell::new(None) }
    }

    /// The same, which begins when `beginning` says so.
    pub(super) fn with_beginning(self, beginning: Beginning) -> Self {
        let (beginning, has_begun) = (Cell::new(Some(beginning)), Cell::new(false));
        Self { beginning, has_begun, ..self }
    }

    /// Whether the generation has begun here. It may have ended since.
    pub(super) const fn has_begun(&self) -> bool {
        self.has_begun.get()
    }

    /// Waits until the generation has begun, if that was not waited for before.
    fn begin(&self) -> Result<()> {
        let (Some(beginning), Some(control)) = (self.beginning.take(), &self.control) else {
            return Ok(());
        };
        match beginning.wait(control) {
            Ok(Begun::Goes) => {
                self.has_begun.set(true);
                Ok(())
            }
            Ok(Begun::Ended(end)) => Err(self.ended(end)),
            Err(error) => {
                self.ended(GenerationEnd::ActorsGone);
                Err(error)
            }
        }
    }

    pub(super) const fn stamp(&self) -> Stamp {
        self.stamp
    }

    pub(super) const fn control(&self) -> Option<&Rc<TrainingControl>> {
        self.control.as_ref()
    }

    pub(super) fn abort(&self) -> Option<AbortHandle> {
        self.abort.clone()
    }

    /// Fails if the generation has ended here; checks the abort word too (G-4). Waits until it has begun.
    pub(super) fn alive(&self) -> Result<()> {
        self.begin()?;
        if let Some(end) = self.end.borrow().as_ref() {
            return Err(self.error(end));
        }
        match self.abort_reason() {
            Some(reason) => Err(self.ended(GenerationEnd::Aborted { reason })),
            None => Ok(()),
        }
    }

    pub(super) fn abort_reason(&self) -> Option<String> {
        let abort = self.abort.as_ref()?;
        let abort = abort.aborted(self.stamp.term.0, self.stamp.generation.0)?;
        Some(abort.reason.to_string())
    }

    /// The end of the generation, if it has ended. `None`: the training function's own result counts.
    pub(super) fn end(&self) -> Option<GenerationEnd> {
        let _ = self.alive();
        self.end.borrow().clone()
    }

    /// Ends the generation with this cause, unless it has ended before. Returns the error of the first cause.
    pub(super) fn ended(&self, end: GenerationEnd) -> Error {
        let mut slot = self.end.borrow_mut();
        let end = slot.get_or_insert(end);
        self.error(end)
    }

    /// Maps the result of a collective; a failure ends the generation, as in `failed`.
    pub(super) fn outcome<T>(&self, result: Result<T, CollectiveError>) -> Result<T> {
        result.map_err(|error| self.failed(error))
    }

    /// Takes the failure of a collective: it ends the generation, unless only the arguments were invalid.
    pub(super) fn failed(&self, error: CollectiveError) -> Error {
        match error {
            CollectiveError::InvalidArgument { .. } => Error::Collective(error),
            CollectiveError::Aborted { reason, .. } => {
                self.ended(GenerationEnd::Aborted { reason: reason.to_string() })
            }
            error => {
                // If the group was not formed, that is the cause.
                let _ = self.begin();
                self.ended(failure(&error))
            }
        }
    }

    fn error(&self, end: &GenerationEnd) -> Error {
        let generation = self.stamp.generation.0;
        match end {
            GenerationEnd::Aborted { reason } | GenerationEnd::Failed { error: reason, .. } => {
                Error::Aborted { generation, reason: reason.clone() }
            }
            GenerationEnd::Interrupted { .. } => Error::Interrupted { generation },
            GenerationEnd::ActorsGone => match &self.control {
                Some(control) => control.gone(),
                None => Error::ActorsGone { reason: String::new() },
            },
        }
    }
}

/// The end of the generation that a failed collective means, with the rank to blame.
pub(super) fn failure(error: &CollectiveError) -> GenerationEnd {
    GenerationEnd::Failed { blame: Blame::of(error), error: chain(error) }
}

/// An error with its causes, on one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    causes_from(error.source()).fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[cfg(test)]
mod tests {
    use elastic_collectives::wire::{FrameHeader, OperationKind, OperationSignature};

    use super::*;

    #[test]
    fn who_only_passes_a_report_on_names_the_rank_that_made_it() {
        let lost = |source| CollectiveError::PeerLost { rank: 3, source };
        let seen = Blame::of(&lost(PeerLoss::Closed));
        assert_eq!((seen.rank(0), seen.told_by()), (Some(3), None));
        let told = Blame::of(&lost(PeerLoss::Reported { by: 1 }));
        assert_eq!((told.rank(0), told.told_by()), (Some(3), Some(1)));
        let broken = |source| FormError::from(lost(source));
        assert_eq!(Blame::of_forming(&broken(PeerLoss::Reported { by: 1 })).told_by(), Some(1));
        assert_eq!(Blame::of_forming(&broken(PeerLoss::Died)), Blame::Peer(3));
    }

    #[test]
    fn x_15_ranks_in_different_collectives_blame_nobody() {
        let operation = OperationSignature::plain(OperationKind::AllReduce, 80);
        let header = FrameHeader { generation: 1, sequence: 46, operation };
        let error = CollectiveError::Mismatch {
            operation: OperationKind::AllReduce,
            sequence: 46,
            rank: 3,
            ours: Box::new(header),
            theirs: Box::new(header),
        };
        assert_eq!(Blame::of(&error), Blame::Unknown);
    }
}
