//! The thread that drives all QUIC connections of a process. Started by the endpoint.

use std::io;
use std::sync::{Mutex, PoisonError};

use tokio::runtime::{Builder, Handle};

/// The running thread's runtime, once the thread has started.
static RUNNING: Mutex<Option<Handle>> = Mutex::new(None);

/// The runtime of the thread. The first call starts the thread, which lives as long as the process.
///
/// # Errors
///
/// The system gives no thread, or no descriptors.
pub(super) fn handle() -> io::Result<Handle> {
    let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(handle) = &*running {
        return Ok(handle.clone());
    }
    let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
    let handle = runtime.handle().clone();
    let run = move || runtime.block_on(std::future::pending::<()>());
    std::thread::Builder::new().name("elastic-quic".to_owned()).spawn(run)?;
    *running = Some(handle.clone());
    Ok(handle)
}
