//! Model check of a robust lock's seat over all interleavings that loom finds: the watcher sees a death exactly when the
//! owner died with the lock, never after a release, and does not sleep through either.

use elastic_shm_protocol::AtomicWord;
use elastic_shm_protocol::owner::{self, HOLDER, OWNER_DIED, OwnerSight, Seat, WAITED_FOR};
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

/// The thread id of the owner in its own namespace of process ids.
const OWNER: u32 = 7;

/// Most preemptions of an interleaving that is checked.
const SWITCHES: usize = 3;

struct Word(AtomicU32);

impl AtomicWord for Word {
    fn load(&self, order: Ordering) -> u32 {
        self.0.load(order)
    }

    fn store(&self, value: u32, order: Ordering) {
        self.0.store(value, order);
    }

    fn fetch_add(&self, value: u32, order: Ordering) {
        self.0.fetch_add(value, order);
    }

    fn fetch_sub(&self, value: u32, order: Ordering) {
        self.0.fetch_sub(value, order);
    }
}

/// A seat whose lock is at place 0, and the kernel's queue of sleepers.
struct Table {
    claim: Word,
    lock: Word,
    queue: (Mutex<()>, Condvar),
}

impl Seat for Table {
    type Word = Word;

    fn claim(&self) -> &Word {
        &self.claim
    }

    fn lock(&self, place: u32) -> Option<&Word> {
        (place == 0).then_some(&self.lock)
    }
}

/// The end of the owner.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// It is killed before it has taken the lock.
    BeforeLock,
    /// It is killed with the lock, before it has claimed the seat.
    BeforeClaim,
    /// It is killed in its life.
    Killed,
    /// It gives the lock back, and ends.
    Clean,
}

impl Table {
    fn new() -> Arc<Table> {
        let word = || Word(AtomicU32::new(0));
        Arc::new(Table { claim: word(), lock: word(), queue: (Mutex::new(()), Condvar::new()) })
    }

    fn wake(&self) {
        let (queue, woken) = &self.queue;
        let _queue = queue.lock().unwrap();
        woken.notify_one();
    }

    /// futex(2) without a timeout: a wake-up that is missing shows as a deadlock.
    fn sleep(&self, word: &Word, seen: u32) {
        let (queue, woken) = &self.queue;
        let queue = queue.lock().unwrap();
        if word.0.load(Ordering::Relaxed) == seen {
            drop(woken.wait(queue).unwrap());
        }
    }

    /// `handle_futex_death` of the kernel.
    fn die(&self) {
        let word = self.lock.0.load(Ordering::Relaxed);
        if word & HOLDER != OWNER {
            return;
        }
        self.lock.0.store(word & WAITED_FOR | OWNER_DIED, Ordering::Release);
        if word & WAITED_FOR != 0 {
            self.wake();
        }
    }

    fn own(&self, end: End) {
        if end == End::BeforeLock {
            return self.die();
        }
        // The C library takes the lock; then it is marked as waited for.
        self.lock.0.store(OWNER, Ordering::Relaxed);
        self.lock.0.fetch_or(WAITED_FOR, Ordering::Relaxed);
        if end == End::BeforeClaim {
            return self.die();
        }
        owner::claim(self, 0);
        self.wake();
        if end == End::Killed {
            return self.die();
        }
        // The C library gives it back.
        let word = self.lock.0.swap(0, Ordering::Release);
        if word & WAITED_FOR != 0 {
            self.wake();
        }
    }

    /// Watches until the owner's fate is known. `None` where it never claims the seat.
    fn watch(&self) -> OwnerSight<u32> {
        loop {
            match owner::look(self) {
                OwnerSight::Wait(word, seen) => self.sleep(word, seen),
                OwnerSight::Released => return OwnerSight::Released,
                OwnerSight::Died => return OwnerSight::Died,
                OwnerSight::Malformed => return OwnerSight::Malformed,
            }
        }
    }
}

fn in_all_interleavings(end: End, check: impl Fn(&Arc<Table>) + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(SWITCHES);
    builder.check(move || {
        let table = Table::new();
        let owner = {
            let table = Arc::clone(&table);
            thread::spawn(move || table.own(end))
        };
        check(&table);
        owner.join().unwrap();
    });
}

#[test]
fn a_death_is_seen_and_is_nothing_else() {
    in_all_interleavings(End::Killed, |table| assert_eq!(table.watch(), OwnerSight::Died));
}

#[test]
fn a_release_is_no_death() {
    in_all_interleavings(End::Clean, |table| assert_eq!(table.watch(), OwnerSight::Released));
}

#[test]
fn an_owner_that_never_claimed_its_seat_is_left_to_the_second_witness() {
    for end in [End::BeforeLock, End::BeforeClaim] {
        in_all_interleavings(end, |table| {
            assert!(
                matches!(owner::look(&**table), OwnerSight::Wait(word, 0) if std::ptr::eq(word, &table.claim))
            );
        });
    }
}

#[test]
fn a_place_without_a_lock_is_refused() {
    loom::model(|| {
        let table = Table::new();
        owner::claim(&*table, 3);
        assert_eq!(table.watch(), OwnerSight::Malformed);
    });
}
