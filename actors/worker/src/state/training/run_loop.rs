//! The run loop, called by the Rust API: form, sync, train; restore on abort, keep on interrupt; repeat until
//! told to leave. This is the loop of Horovod's `hvd.elastic.run`, but the driver decides when.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::Result;
use super::membership::Membership;
use super::state::State;
use super::worker::Worker;

/// Trains until told to leave.
///
/// # Errors
/// The training function's own error. Or: the job failed, the driver is gone, or this library has a fault.
pub fn run_loop<T, F>(
    mut state: State<T>,
    membership: &mut Membership,
    mut function: F,
) -> Result<()>
where
    T: Serialize + DeserializeOwned,
    F: FnMut(&Worker, &mut State<T>) -> Result<()>,
{
    while let Some(worker) = membership.enter(&mut state)? {
        // Unwind safety: after a panic, this worker ends, or its state goes back to a commit.
        match catch_unwind(AssertUnwindSafe(|| function(&worker, &mut state))) {
            Ok(result) => membership.conclude(&mut state, &worker, result)?,
            Err(panic) => membership.panicked(&mut state, &worker, panic)?,
        }
    }
    Ok(())
}
