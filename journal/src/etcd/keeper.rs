//! [`Keeper`]: a thread that renews the lease of the driver that acts, and tells once when it has ended. A thread of its
//! own, so that whatever keeps the driver busy does not cost the lease. Started by the driver's process.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use super::election::{DriverCard, Leadership};
use super::lease::{Lease, LeaseEnd};

/// How long one attempt at a renewal may take; the rest of the lease if that is less.
const ATTEMPT: Duration = Duration::from_millis(500);

/// What the keeper tells, from its own thread.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Told {
    /// The drivers that stand by have changed to these.
    Standbys(Vec<DriverCard>),
    /// The driver must stop acting now. Nothing follows.
    Ended(LeaseEnd),
}

/// Renews a lease until it is dropped, which gives the lease back.
#[derive(Debug)]
pub struct Keeper {
    /// Dropping it stops the thread.
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Starts. `clock` must be the one that the campaign was won by.
    ///
    /// # Errors
    /// The system refused a thread.
    pub fn start(
        leadership: Leadership,
        clock: impl Fn() -> Duration + Send + 'static,
        tell: impl FnMut(Told) + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, stopped) = sync_channel(0);
        let thread = Builder::new()
            .name("lease".to_owned())
            .spawn(move || keep(leadership, &clock, tell, &stopped))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn keep(
    mut leadership: Leadership,
    clock: &dyn Fn() -> Duration,
    mut tell: impl FnMut(Told),
    stopped: &Receiver<()>,
) {
    let mut standbys = Vec::new();
    loop {
        let wait = leadership.lease().poll_timeout().saturating_sub(clock());
        if !matches!(stopped.recv_timeout(wait), Err(RecvTimeoutError::Timeout)) {
            // Best effort: it ends by itself otherwise.
            let _ = leadership.resign();
            return;
        }
        // No call may outlast the lease: its end must be told in time.
        let patience = |lease: &Lease| lease.valid_until().saturating_sub(clock()).min(ATTEMPT);
        let left = patience(leadership.lease());
        let renewed = leadership.lease().check(clock());
        if let Err(end) = renewed.and_then(|()| leadership.renew(clock, left)) {
            return tell(Told::Ended(end));
        }
        let left = patience(leadership.lease());
        if let Ok(found) = leadership.standbys(left)
            && found != standbys
        {
            standbys.clone_from(&found);
            tell(Told::Standbys(found));
        }
    }
}
