//! [`Keeper`]: a thread that renews the lease of the driver that acts, and tells once when it has ended. A thread of its
//! own, so that whatever keeps the driver busy does not cost the lease. Started by the driver's process.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use super::election::{DriverCard, Leadership};
use super::lease::{Lease, LeaseEnd};
use crate::JournalError;

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

/// Whether the driver may act, seen from any thread. Clones are of the same lease.
#[derive(Clone, Debug)]
pub struct Permit(Arc<AtomicU64>);

impl Permit {
    fn until(moment: Duration) -> Self {
        let permit = Self(Arc::default());
        permit.renew(moment);
        permit
    }

    fn renew(&self, until: Duration) {
        self.0.store(u64::try_from(until.as_nanos()).unwrap_or(u64::MAX), Ordering::Release);
    }

    /// Whether the driver may act at this moment of the keeper's clock.
    pub fn is_valid(&self, now: Duration) -> bool {
        now < Duration::from_nanos(self.0.load(Ordering::Acquire))
    }
}

/// Renews a lease until it is dropped, which gives the lease back.
#[derive(Debug)]
pub struct Keeper {
    permit: Permit,
    /// Takes the last words of a job that is over; dropping it stops the thread.
    finish: Option<SyncSender<Vec<u8>>>,
    thread: Option<JoinHandle<Result<(), JournalError>>>,
}

impl Keeper {
    /// Starts. `clock` must be the one that the campaign was won by. `tell` must not block, and says whether it took
    /// what it was told: standbys that it did not are told again.
    ///
    /// # Errors
    /// The system refused a thread.
    pub fn start(
        leadership: Leadership,
        clock: impl Fn() -> Duration + Send + 'static,
        tell: impl FnMut(Told) -> bool + Send + 'static,
    ) -> io::Result<Self> {
        let permit = Permit::until(leadership.lease().valid_until());
        let (finish, finished) = sync_channel(1);
        let of_thread = permit.clone();
        let thread = Builder::new()
            .name("lease".to_owned())
            .spawn(move || keep(leadership, &clock, tell, &of_thread, &finished))?;
        Ok(Self { permit, finish: Some(finish), thread: Some(thread) })
    }

    /// Whether the driver may act.
    pub fn permit(&self) -> Permit {
        self.permit.clone()
    }

    /// The job is over: see [`Leadership::finish`].
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn finish(mut self, last_words: Vec<u8>) -> Result<(), JournalError> {
        // Where the thread has ended, the lease has too, and its own word counts.
        let _ = self.finish.take().map(|finish| finish.try_send(last_words));
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(finished)) => finished,
            _ => Err(JournalError::Io(io::Error::other("the lease's thread panicked"))),
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.finish = None;
        if let Some(thread) = self.thread.take() {
            // It resigns as well as it can: the lease ends by itself otherwise.
            let _ = thread.join();
        }
    }
}

fn keep(
    mut leadership: Leadership,
    clock: &dyn Fn() -> Duration,
    mut tell: impl FnMut(Told) -> bool,
    permit: &Permit,
    finished: &Receiver<Vec<u8>>,
) -> Result<(), JournalError> {
    let mut standbys = Vec::new();
    loop {
        let wait = leadership.lease().poll_timeout().saturating_sub(clock());
        match finished.recv_timeout(wait) {
            Ok(last_words) => return leadership.finish(last_words),
            Err(RecvTimeoutError::Disconnected) => return leadership.resign(),
            Err(RecvTimeoutError::Timeout) => {}
        }
        // No call may outlast the lease: its end must be told in time.
        let patience = |lease: &Lease| lease.valid_until().saturating_sub(clock()).min(ATTEMPT);
        let left = patience(leadership.lease());
        let valid = leadership.lease().check(clock());
        match valid.and_then(|()| leadership.renew(clock, left)) {
            Ok(lease) => permit.renew(lease.valid_until()),
            Err(end) => {
                permit.renew(Duration::ZERO);
                tell(Told::Ended(end));
                return Err(JournalError::Fenced(end.to_string()));
            }
        }
        let left = patience(leadership.lease());
        if let Ok(found) = leadership.standbys(left)
            && found != standbys
            && tell(Told::Standbys(found.clone()))
        {
            standbys = found;
        }
    }
}
