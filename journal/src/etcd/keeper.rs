//! [`Keeper`]: a thread that renews the lease of the leading driver, and reports once when the lease has ended or the
//! leader key is not the driver's any more. Started by the driver's process. It is a thread of its own, so that a slow
//! etcd does not hold up the driver's actors. It renews the lease only while those actors run: a driver whose actors
//! stand still must lose its lease, so that a standby can take over.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use super::election::{DriverCard, Leadership};
use super::lease::{Lease, LeaseEnd};
use crate::JournalError;

/// Least timeout of one renewal; the rest of the lease if that is less.
const ATTEMPT: Duration = Duration::from_millis(500);

/// Part (1/3) of the rest of a lease that one renewal may take: a slow etcd answers within it, and another attempt follows.
const ATTEMPTS: u32 = 3;

/// Messages from the keeper's thread.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum KeeperMessage {
    /// The drivers that stand by have changed to these.
    Standbys(Vec<DriverCard>),
    /// The driver must stop acting now. Nothing follows.
    Ended(LeaseEnd),
}

/// Permission to act, readable from any thread. Clones share one lease.
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

/// Renews a lease. Dropping it gives the lease back.
#[derive(Debug)]
pub struct Keeper {
    permit: Permit,
    stalls_after: Duration,
    /// Sends the last words of a job that has ended to the thread; dropping it stops the thread.
    finish: Option<SyncSender<Vec<u8>>>,
    thread: Option<JoinHandle<Result<(), JournalError>>>,
}

impl Keeper {
    /// Starts the thread. `clock` must be the clock of the campaign that was won. `ticked_at` is the time by
    /// that clock at which the driver's actors last ran. `tell` must not block, and returns whether it took the
    /// message: standbys that it did not take are sent again.
    ///
    /// # Errors
    /// The system refused a thread.
    pub fn start(
        leadership: Leadership,
        clock: impl Fn() -> Duration + Send + 'static,
        ticked_at: impl Fn() -> Duration + Send + 'static,
        tell: impl FnMut(KeeperMessage) -> bool + Send + 'static,
    ) -> io::Result<Self> {
        let permit = Permit::until(leadership.lease().valid_until());
        let stalls_after = leadership.lease().stalls_after();
        let (finish, finished) = sync_channel(1);
        let of_thread = permit.clone();
        let thread = Builder::new()
            .name("lease".to_owned())
            .spawn(move || keep(leadership, &clock, &ticked_at, tell, &of_thread, &finished))?;
        Ok(Self { permit, stalls_after, finish: Some(finish), thread: Some(thread) })
    }

    /// Whether the driver may act.
    pub fn permit(&self) -> Permit {
        self.permit.clone()
    }

    /// The longest standstill of the driver's actors; after it the lease is not renewed.
    pub const fn stalls_after(&self) -> Duration {
        self.stalls_after
    }

    /// Ends the job: see [`Leadership::finish`].
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn finish(mut self, last_words: Vec<u8>) -> Result<(), JournalError> {
        // If the thread has ended, the lease has too, and the thread's result counts.
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
            // The thread resigns if it can; otherwise the lease ends by itself.
            let _ = thread.join();
        }
    }
}

fn keep(
    mut leadership: Leadership,
    clock: &dyn Fn() -> Duration,
    ticked_at: &dyn Fn() -> Duration,
    mut tell: impl FnMut(KeeperMessage) -> bool,
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
        // No call may outlast the lease, since its end must be reported in time.
        let patience = |lease: &Lease| {
            let left = lease.valid_until().saturating_sub(clock());
            (left / ATTEMPTS).max(ATTEMPT).min(left)
        };
        let left = patience(leadership.lease());
        let valid = leadership.lease().check(clock());
        let now = clock();
        let is_stalled = now.saturating_sub(ticked_at()) > leadership.lease().stalls_after();
        let renewed = match is_stalled {
            true => leadership.leave_unrenewed(now),
            false => valid.and_then(|()| leadership.renew(clock, left)),
        };
        match renewed {
            Ok(lease) => permit.renew(lease.valid_until()),
            Err(end) => {
                permit.renew(Duration::ZERO);
                tell(KeeperMessage::Ended(end));
                return Err(JournalError::NotLeading(end.to_string()));
            }
        }
        let left = patience(leadership.lease());
        match leadership.standbys(left) {
            Ok(found) if found != standbys => {
                if tell(KeeperMessage::Standbys(found.clone())) {
                    standbys = found;
                }
            }
            Err(error @ (JournalError::NotLeading(_) | JournalError::Fenced(_))) => {
                permit.renew(Duration::ZERO);
                let is_taken = matches!(error, JournalError::Fenced(_));
                let end = if is_taken { LeaseEnd::KeyTaken } else { LeaseEnd::KeyGone };
                tell(KeeperMessage::Ended(end));
                // Nothing is bound to the lease any more. If it is not given back, it ends by itself.
                let _ = leadership.resign();
                return Err(error);
            }
            Ok(_) | Err(_) => {}
        }
    }
}
