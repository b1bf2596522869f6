//! The Rust API of a training program: `state`, `run`, and what the training function is given.

mod process;
mod start;

use std::sync::atomic::{AtomicBool, Ordering};

use elastic_worker::state::environment::WorkerEnvironment;
use elastic_worker::state::training::{Error, Result, State, Worker, run_alone, run_loop};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Wraps the initial training state: everything that must survive a lost worker, as one unit. On a worker
/// that joins a running job, another worker's state takes its place before training begins.
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
/// What only a finished training may do, such as writing the model, belongs at the end of `function`; `run`
/// also returns `Ok` on a worker that was told to leave early.
///
/// # Errors
/// The error of `function`; or [`Error::JobFailed`], [`Error::DriverGone`] and others that say why this
/// worker cannot go on.
pub fn run<T, F>(state: State<T>, function: F) -> Result<()>
where
    T: Serialize + DeserializeOwned,
    F: FnMut(&Worker, &mut State<T>) -> Result<()>,
{
    static RAN: AtomicBool = AtomicBool::new(false);
    let Some(environment) = WorkerEnvironment::parse(|name| std::env::var(name).ok())? else {
        return run_alone(state, function);
    };
    if RAN.swap(true, Ordering::SeqCst) {
        return Err(Error::RanBefore);
    }
    let started = start::start(environment)?;
    let mut fabric = started.fabric;
    let result = run_loop(state, started.control, &started.abort, &mut fabric, function);
    // What was said last, such as a vote, gets its moment to leave.
    let end = started.thread.join();
    match (result, end) {
        (Err(Error::ActorsGone { .. }), Ok(Err(reason))) => Err(Error::ActorsGone { reason }),
        (Err(Error::ActorsGone { .. }), Err(_)) => {
            Err(Error::ActorsGone { reason: "it panicked".to_owned() })
        }
        (result, _) => result,
    }
}
