//! Starts the system in which actors run: an actix System on one thread. Called by `main` of each process, and by
//! tests. [`new_runtime`] is also used by threads of a process that have a runtime of their own.

use std::io;
use std::os::unix::net::UnixStream;

use actix::System;
#[cfg(any(test, feature = "test-util"))]
use actix_rt::SystemRunner;
use tokio::runtime::{Builder, Runtime};

use crate::panics::install_panic_hook;

/// Most threads of tokio's own pool. Blocking work of ours has lanes (see [`crate::lane`]). The pool is left for
/// tokio's own work, which is looking up names.
const BLOCKING_THREADS_MAX: usize = 8;

/// Pairs of sockets that take as many descriptors as the first runtime of a process.
const FIRST_RUNTIME_PAIRS: usize = 3;

/// A runtime for the calling thread.
///
/// # Errors
/// The operating system refuses what it needs. The first runtime of a process has sockets for signals, and tokio panics
/// where it does not get them: so many descriptors are tried before.
pub fn new_runtime() -> io::Result<Runtime> {
    let pairs: io::Result<Vec<_>> =
        std::iter::repeat_with(UnixStream::pair).take(FIRST_RUNTIME_PAIRS).collect();
    drop(pairs?);
    Builder::new_current_thread().enable_all().max_blocking_threads(BLOCKING_THREADS_MAX).build()
}

/// Runs a process's actors on the calling thread until `main` is done. Actors and tasks that still run then are
/// dropped. Panics of actors are recorded from here on ([`crate::take_panic`]).
///
/// # Errors
/// If the operating system refuses what the runtime needs (an event queue).
pub fn run<F: Future>(main: F) -> io::Result<F::Output> {
    install_panic_hook();
    let runtime = new_runtime()?;
    Ok(System::with_tokio_rt(|| runtime).block_on(main))
}

/// A system whose clock stands still and moves to the next timer when all is idle; it has no I/O, so a real
/// socket panics. For the simulation, and for tests.
///
/// # Panics
/// If the operating system refuses a runtime.
#[cfg(any(test, feature = "test-util"))]
pub fn paused() -> SystemRunner {
    install_panic_hook();
    System::with_tokio_rt(|| {
        Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without I/O needs nothing of the operating system")
    })
}

/// Runs a test on [`paused`].
#[cfg(any(test, feature = "test-util"))]
pub fn run_paused<F: Future>(test: F) -> F::Output {
    paused().block_on(test)
}
