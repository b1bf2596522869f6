//! Errors of a communicator's calls, and limits of their waits.

use std::time::{Duration, Instant};

use thiserror::Error;

use super::api::NcclError;
use super::bounded::Stuck;
use crate::cuda::CudaError;

/// Polls without a pause, for calls that take microseconds.
pub(super) const EAGER_POLLS: u32 = 64;
/// The pause between later polls.
pub(super) const POLL_EVERY: Duration = Duration::from_micros(50);

/// Error of a communicator's call.
#[derive(Clone, Debug, Error)]
pub enum CommError {
    /// CUDA refused.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// NCCL refused, or told of an error that came later.
    #[error(transparent)]
    Nccl(#[from] NcclError),
    /// The communicator was ended, by this thread or another one.
    #[error("the communicator was ended")]
    Ended,
    /// Something else ended the wait.
    #[error("{call} was given up: {reason}")]
    GivenUp {
        /// The call that was waited for.
        call: &'static str,
        /// The reason.
        reason: String,
    },
    /// The deadline passed (G-9).
    #[error("{call} passed its deadline")]
    DeadlinePassed {
        /// The call that was waited for.
        call: &'static str,
    },
    /// A call does not return.
    #[error(transparent)]
    Stuck(#[from] Stuck),
    /// The version that was loaded cannot do this.
    #[error("NCCL {version} has no {call}")]
    Missing {
        /// The missing call.
        call: &'static str,
        /// The version.
        version: String,
    },
}

/// Limits of a wait.
pub struct GpuPatience<'a> {
    /// Deadline.
    pub due: Instant,
    /// Asked again and again: a reason to stop earlier.
    pub stop: &'a dyn Fn() -> Option<String>,
}

impl GpuPatience<'_> {
    /// Waits until `done` says so. Aborted work counts as done for the GPU, whatever its buffers hold: so a
    /// reason to stop is asked for after it, too (G-4).
    #[expect(clippy::disallowed_methods, reason = "this is outside of the deterministic world")]
    pub(crate) fn wait(
        &self,
        call: &'static str,
        mut done: impl FnMut() -> Result<bool, CommError>,
    ) -> Result<(), CommError> {
        let mut polls = 0;
        loop {
            let is_done = done()?;
            if let Some(reason) = (self.stop)() {
                return Err(CommError::GivenUp { call, reason });
            }
            if is_done {
                return Ok(());
            }
            polls += 1;
            if polls <= EAGER_POLLS {
                std::hint::spin_loop();
                continue;
            }
            if Instant::now() >= self.due {
                return Err(CommError::DeadlinePassed { call });
            }
            std::thread::sleep(POLL_EVERY);
        }
    }
}
