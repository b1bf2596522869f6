//! The Rust API of a training program: `state`, `run`, and the arguments of the training function.

mod attach;
mod data_address;
pub(crate) mod device;
mod gpu;
mod patient_start;
mod process;
mod start;

pub use attach::{AttachOptions, Attachment, WhileWaiting, attach};

use elastic_worker::state::training::{Result, State, Worker, run_loop};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Wraps the initial training state: everything that must survive a lost worker, as one unit. On a worker that
/// joins a running job, another worker's state replaces it before training begins.
pub fn state<T: Serialize + DeserializeOwned>(initial: T) -> State<T> {
    State::new(initial)
}

/// Trains: calls `function` in every generation that this worker takes part in, until it has returned
/// `Ok` on every rank, or this worker is told to leave.
///
/// Before each call the ranks are new and the state is in step with all others. When the world changes, the
/// collectives and commits in `function` return an error, which `?` carries out; then the state goes back to
/// the last commit, or is kept if the change was planned, and `function` is called again. So it begins where
/// the state says, not at the beginning.
///
/// Without `ELASTIC_DRIVER` in the environment it is a world of one, without threads or network.
///
/// Work that only a finished training may do, such as writing the model, belongs at the end of `function`:
/// `run` also returns `Ok` on a worker that was told to leave early.
///
/// # Errors
/// The error of `function`; or [`JobFailed`](crate::Error::JobFailed), [`DriverGone`](crate::Error::DriverGone) and
/// others that say why this worker cannot go on.
pub fn run<T, F>(state: State<T>, function: F) -> Result<()>
where
    T: Serialize + DeserializeOwned,
    F: FnMut(&Worker, &mut State<T>) -> Result<()>,
{
    let mut attachment = attach(AttachOptions::default())?;
    let result = run_loop(state, attachment.membership(), function);
    attachment.finish(result)
}
