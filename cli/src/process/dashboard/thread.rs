//! [`DashboardThread`]: the thread of a dashboard. It begins as soon as there is one to be had, and ends when its dashboard
//! does: a driver that does not lead any more shows no page, and one that leads again in the same process has a fresh one.
//! Used by `dashboard`.

use std::convert::Infallible;
use std::io;
use std::rc::Weak;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::sleep;

use super::DashboardJob;
use super::follow::record_of;
use super::server::{Unserved, serve};

/// Interval between two attempts to start the thread.
const START_AGAIN: Duration = Duration::from_secs(2);

/// The parts of the server until its thread takes them; none once it has, or the dashboard has ended before. So a thread
/// that still reads the event log, from a disk that hangs, has no listener.
type UnservedSlot = Arc<Mutex<Option<(Unserved, oneshot::Receiver<Infallible>)>>>;

/// A dashboard's thread, as the actors' thread has it, which never waits for it. The thread ends when this is dropped.
pub(super) struct DashboardThread {
    job: DashboardJob,
    unserved: UnservedSlot,
    /// Nothing is ever sent: its end is that of the thread.
    _ends: oneshot::Sender<Infallible>,
}

impl DashboardThread {
    /// A thread that is not started yet.
    pub(super) fn new(job: DashboardJob, unserved: Unserved) -> Self {
        let (ends, ended) = oneshot::channel();
        Self { job, unserved: Arc::new(Mutex::new(Some((unserved, ended)))), _ends: ends }
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// The system refuses it; it may be started later.
    pub(super) fn start(&self) -> io::Result<()> {
        let (job, unserved) = (self.job.clone(), Arc::clone(&self.unserved));
        let run = move || {
            let record = record_of(&job);
            if let Some((unserved, ended)) = taken(&unserved) {
                serve(unserved, record, ended);
            }
        };
        Builder::new().name("dashboard".to_owned()).spawn(run).map(drop)
    }
}

impl Drop for DashboardThread {
    fn drop(&mut self) {
        drop(taken(&self.unserved));
    }
}

/// Starts a thread as soon as the system grants it, unless its dashboard ends before.
pub(super) async fn start_later(thread: Weak<DashboardThread>) {
    loop {
        sleep(START_AGAIN).await;
        let Some(thread) = thread.upgrade() else { return };
        if thread.start().is_ok() {
            tracing::info!("there is a thread for the dashboard: it answers");
            return;
        }
    }
}

fn taken<T>(slot: &Mutex<Option<T>>) -> Option<T> {
    // Nothing can panic while it is locked.
    slot.lock().unwrap_or_else(PoisonError::into_inner).take()
}
