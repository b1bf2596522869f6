//! How long a generation lives at a worker, and why it ended: decided once, by what was seen first. Shared by the
//! worker's groups and by the operations that they have launched.

use std::cell::RefCell;
use std::rc::Rc;

use elastic_collectives::{AbortHandle, CollectiveError};
use elastic_protocol::Stamp;

use super::control::Control;
use super::error::{Error, Result, causes_from};

/// Why the generation is over at this worker.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum End {
    /// Told by the abort word, or at a boundary.
    Aborted { reason: String },
    /// A collective failed here first.
    Failed { peer: Option<u32>, error: String },
    /// Stopped at a boundary, where a commit was made, or not.
    Interrupted { committed: bool },
    /// The actor thread is gone.
    ActorsGone,
}

/// One generation at the training thread.
pub(super) struct Life {
    stamp: Stamp,
    /// `None` in a world of one without a driver.
    control: Option<Rc<Control>>,
    abort: Option<AbortHandle>,
    end: RefCell<Option<End>>,
}

impl Life {
    pub(super) fn new(stamp: Stamp, control: Option<(Rc<Control>, AbortHandle)>) -> Self {
        let (control, abort) = control.unzip();
        Self { stamp, control, abort, end: RefCell::new(None) }
    }

    pub(super) const fn stamp(&self) -> Stamp {
        self.stamp
    }

    pub(super) const fn control(&self) -> Option<&Rc<Control>> {
        self.control.as_ref()
    }

    pub(super) fn abort(&self) -> Option<AbortHandle> {
        self.abort.clone()
    }

    /// Whether the generation goes on here; asks the abort word too (G-4).
    pub(super) fn alive(&self) -> Result<()> {
        if let Some(end) = self.end.borrow().as_ref() {
            return Err(self.error(end));
        }
        match self.abort_reason() {
            Some(reason) => Err(self.ended(End::Aborted { reason })),
            None => Ok(()),
        }
    }

    pub(super) fn abort_reason(&self) -> Option<String> {
        let abort = self.abort.as_ref()?;
        let abort = abort.aborted(self.stamp.term.0, self.stamp.generation.0)?;
        Some(abort.reason.to_string())
    }

    /// How it ended, if it did. `None`: the training function's own result stands.
    pub(super) fn end(&self) -> Option<End> {
        let _ = self.alive();
        self.end.borrow().clone()
    }

    /// It ends so, unless it has ended before.
    pub(super) fn ended(&self, end: End) -> Error {
        let mut slot = self.end.borrow_mut();
        let end = slot.get_or_insert(end);
        self.error(end)
    }

    /// What a collective's result means for it.
    pub(super) fn outcome<T>(&self, result: Result<T, CollectiveError>) -> Result<T> {
        result.map_err(|error| self.failed(error))
    }

    /// What a collective's failure means for it.
    pub(super) fn failed(&self, error: CollectiveError) -> Error {
        match error {
            CollectiveError::InvalidArgument { .. } => Error::Collective(error),
            CollectiveError::Aborted { reason, .. } => {
                self.ended(End::Aborted { reason: reason.to_string() })
            }
            error => self.ended(failure(&error)),
        }
    }

    fn error(&self, end: &End) -> Error {
        let generation = self.stamp.generation.0;
        match end {
            End::Aborted { reason } | End::Failed { error: reason, .. } => {
                Error::Aborted { generation, reason: reason.clone() }
            }
            End::Interrupted { .. } => Error::Interrupted { generation },
            End::ActorsGone => match &self.control {
                Some(control) => control.gone(),
                None => Error::ActorsGone { reason: String::new() },
            },
        }
    }
}

/// What a failed collective means for the generation.
pub(super) fn failure(error: &CollectiveError) -> End {
    let peer = match error {
        CollectiveError::PeerLost { rank, .. }
        | CollectiveError::Protocol { rank, .. }
        | CollectiveError::Mismatch { rank, .. } => Some(*rank),
        CollectiveError::DeadlinePassed { waiting_for, .. } => waiting_for.first().copied(),
        _ => None,
    };
    End::Failed { peer, error: chain(error) }
}

/// An error with its causes, on one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    causes_from(error.source()).fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
