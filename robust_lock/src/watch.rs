//! [`LockWatch`]: the agent's side. One thread waits for the locks of all workers of the host.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use elastic_shm_protocol::owner::{self, OwnerSight};

use crate::futex;
use crate::table::{LockTable, SEATS, pass_on};

/// The action at an owner's death, on the watcher's thread.
type OnDeath = Box<dyn FnOnce() + Send>;

/// Watches the locks of a host's workers. Dropping it ends the watch.
#[derive(Debug)]
pub struct LockWatch {
    shared: Arc<WatchShared>,
    token: u128,
}

struct WatchShared {
    table: LockTable,
    seats: Mutex<Seats>,
    /// Whether the watch is over: nobody watches any more, or the system cannot wait for several words.
    is_over: AtomicBool,
}

impl std::fmt::Debug for WatchShared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("WatchShared").field("table", &self.table).finish_non_exhaustive()
    }
}

/// The seats in use.
#[derive(Default)]
struct Seats {
    /// Seats in use, each with the action at its owner's death while it is watched.
    used: BTreeMap<u32, Option<OnDeath>>,
    /// The next seat to be given out. Seats take turns, so that one is not used again at once.
    next: u32,
}

/// A seat for one process. Dropping it ends the watch over that process; to be kept until the process has ended.
#[derive(Debug)]
pub struct LockSeat {
    shared: Arc<WatchShared>,
    number: u32,
    token: u128,
}

impl LockWatch {
    /// Begins to watch. `token` is random.
    ///
    /// # Errors
    /// The system has no memory, descriptor or thread for it.
    pub fn new(token: u128) -> io::Result<Self> {
        let table = LockTable::create([(token >> 64) as u64, token as u64])?;
        let (seats, is_over) = (Mutex::default(), AtomicBool::new(false));
        let shared = Arc::new(WatchShared { table, seats, is_over });
        let watched = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("robust locks".to_owned())
            .spawn(move || watched.watch())?;
        Ok(Self { shared, token })
    }

    /// A seat for a process about to be started, which is told its [`LockSeat::name`]. `on_death` is called, once, if the
    /// process takes the lock and its owner then dies with it. `None` if all seats are taken, or the system cannot watch
    /// them (Linux before 5.16): such a process is seen to end by its pidfd alone.
    pub fn seat(&self, on_death: impl FnOnce() + Send + 'static) -> Option<LockSeat> {
        if self.shared.is_over.load(Ordering::Acquire) {
            return None;
        }
        let number = {
            let mut seats = self.shared.seats();
            let from = seats.next;
            let mut all = (0..SEATS).map(|offset| (from + offset) % SEATS);
            let number = all.find(|number| !seats.used.contains_key(number))?;
            self.shared.table.seat(number)?.clear();
            seats.next = (number + 1) % SEATS;
            seats.used.insert(number, Some(Box::new(on_death)));
            number
        };
        self.shared.ring();
        Some(LockSeat { shared: Arc::clone(&self.shared), number, token: self.token })
    }
}

impl Drop for LockWatch {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        self.shared.ring();
    }
}

impl LockSeat {
    /// The seat's name, for the environment of the process; `None` in a process that only inherited the table.
    pub fn name(&self) -> Option<String> {
        let descriptor = self.shared.table.descriptor()?.as_raw_fd();
        Some(format!("{descriptor}:{}:{:x}", self.number, self.token))
    }

    /// The note that the process has left for the agent ([`RobustLock::leave_note`](crate::RobustLock::leave_note)).
    pub fn note(&self) -> Option<String> {
        self.shared.table.seat(self.number)?.note()
    }

    /// Whether the process has begun to use the seat: its program uses the library.
    pub fn was_taken(&self) -> bool {
        self.shared
            .table
            .seat(self.number)
            .is_some_and(|seat| seat.taken.load(Ordering::Acquire) != 0)
    }

    /// Lets the process inherit the table. Makes one system call: to be called in the new process, between fork and exec.
    ///
    /// # Errors
    /// The system's.
    pub fn pass_on(&self) -> io::Result<()> {
        self.shared.table.descriptor().map_or(Ok(()), pass_on)
    }
}

impl Drop for LockSeat {
    fn drop(&mut self) {
        let _ended = self.shared.seats().used.remove(&self.number);
        self.shared.ring();
    }
}

impl WatchShared {
    fn seats(&self) -> MutexGuard<'_, Seats> {
        // The map is consistent between any two statements, so a panic elsewhere does not spoil it.
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the watcher look at all seats again.
    fn ring(&self) {
        self.table.bell().fetch_add(1, Ordering::AcqRel);
        futex::wake(self.table.bell());
    }

    fn watch(&self) {
        while !self.is_over.load(Ordering::Acquire) {
            let bell = self.table.bell();
            let mut words = vec![(bell, bell.load(Ordering::Acquire))];
            let deaths = self.look(&mut words);
            if !deaths.is_empty() {
                self.table.deaths().fetch_add(1, Ordering::AcqRel);
                futex::wake(self.table.deaths());
                deaths.into_iter().for_each(|on_death| on_death());
                continue;
            }
            if let Err(error) = futex::wait_any(&words, None) {
                self.is_over.store(true, Ordering::Release);
                self.seats().used.values_mut().for_each(|on_death| *on_death = None);
                tracing::debug!(%error, "deaths of workers are seen by their pidfds alone");
            }
        }
    }

    /// Looks at all watched seats: adds the words to wait for, and returns the actions for owners that died.
    fn look<'a>(
        &'a self,
        words: &mut Vec<(&'a std::sync::atomic::AtomicU32, u32)>,
    ) -> Vec<OnDeath> {
        let mut deaths = Vec::new();
        for (number, watched) in &mut self.seats().used {
            let Some(seat) = self.table.seat(*number).filter(|_| watched.is_some()) else {
                continue;
            };
            match owner::look(seat) {
                OwnerSight::Wait(word, seen) => words.push((word, seen)),
                OwnerSight::Died => deaths.extend(watched.take()),
                OwnerSight::Released => *watched = None,
                OwnerSight::Malformed => {
                    tracing::warn!(seat = number, "a worker has spoilt the place of its lock");
                    *watched = None;
                }
            }
        }
        deaths
    }
}
