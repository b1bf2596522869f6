//! Model check of the protocol over all interleavings that loom finds, with the buffers that it guards. No rank reads
//! while another writes, no rank sleeps for ever though the model's sleep has no timeout, and poison reaches sleepers.

use std::time::Duration;

use elastic_shm_protocol::{self as protocol, AtomicWord, Board};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

/// Most preemptions of an interleaving that is checked: bugs of this kind show with few.
const SWITCHES: usize = 2;

/// loom's atomic word.
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

/// A segment with one word of data in each buffer.
struct Table {
    steps: Vec<[Word; 2]>,
    buffers: Vec<[UnsafeCell<u32>; 2]>,
    bell: Word,
    sleepers: Word,
    poison: AtomicU64,
    /// The kernel's queue of sleepers.
    queue: (Mutex<()>, Condvar),
}

#[expect(unsafe_code, reason = "loom's cells")]
// SAFETY: loom fails the test where two threads are in one cell and one of them writes.
unsafe impl Sync for Table {}
#[expect(unsafe_code, reason = "loom's cells")]
// SAFETY: as above.
unsafe impl Send for Table {}

impl Table {
    fn new(world: u32) -> Arc<Table> {
        let word = || Word(AtomicU32::new(0));
        Arc::new(Table {
            steps: (0..world).map(|_| [word(), word()]).collect(),
            buffers: (0..world).map(|_| [UnsafeCell::new(0), UnsafeCell::new(0)]).collect(),
            bell: word(),
            sleepers: word(),
            poison: AtomicU64::new(0),
            queue: (Mutex::new(()), Condvar::new()),
        })
    }
}

impl Board for Table {
    type Word = Word;

    fn world(&self) -> u32 {
        self.steps.len() as u32
    }

    fn step(&self, rank: u32, parity: usize) -> &Word {
        &self.steps[rank as usize][parity]
    }

    fn bell(&self) -> &Word {
        &self.bell
    }

    fn sleepers(&self) -> &Word {
        &self.sleepers
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    /// futex(2) without the timeout, so that a missing wake-up shows as a deadlock.
    fn wait(&self, seen: u32, _timeout: Duration) {
        let (queue, woken) = &self.queue;
        let queue = queue.lock().unwrap();
        // The kernel compares under its queue's lock, so that no wake-up is lost in between.
        if self.bell.load(Ordering::Relaxed) == seen {
            drop(woken.wait(queue).unwrap());
        }
    }

    fn wake_all(&self) {
        let (queue, woken) = &self.queue;
        let _queue = queue.lock().unwrap();
        woken.notify_all();
    }
}

/// Meets at a step as a session does: looks, and then sleeps.
fn meet_at(table: &Table, own: u32, step: u32) {
    protocol::arrive(table, own, step);
    if protocol::all_arrived(table, &mut 0, step) {
        protocol::ring(table);
    } else {
        let here = |_| protocol::all_arrived(table, &mut 0, step).then_some(());
        protocol::sleep(table, Duration::ZERO, here);
    }
}

#[expect(unsafe_code, reason = "loom's cells")]
fn run(table: &Table, own: u32, steps: u32) {
    for step in 1..=steps {
        let parity = protocol::parity(step);
        // SAFETY: loom fails the test where another thread is in the cell.
        table.buffers[own as usize][parity].with_mut(|value| unsafe { *value = step });
        meet_at(table, own, step);
        for buffers in &table.buffers {
            // SAFETY: as above.
            let value = buffers[parity].with(|value| unsafe { *value });
            assert_eq!(value, step);
        }
    }
}

fn all_interleavings(body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(SWITCHES);
    builder.check(body);
}

fn ranks_meet(world: u32, steps: u32) {
    all_interleavings(move || {
        let table = Table::new(world);
        let spawn = |own| {
            let table = Arc::clone(&table);
            thread::spawn(move || run(&table, own, steps))
        };
        let others: Vec<_> = (1..world).map(spawn).collect();
        run(&table, 0, steps);
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

#[test]
fn two_ranks_meet_at_steps_and_share_no_buffer() {
    ranks_meet(2, 4);
}

#[test]
fn three_ranks_meet_at_steps_and_share_no_buffer() {
    ranks_meet(3, 1);
}

#[test]
fn poison_wakes_who_sleeps() {
    all_interleavings(|| {
        let table = Table::new(3);
        let waiting = |own| {
            let table = Arc::clone(&table);
            thread::spawn(move || {
                protocol::arrive(&*table, own, 1);
                let end = |_| Some(table.poison.load(Ordering::Acquire)).filter(|word| *word != 0);
                assert_eq!(protocol::sleep(&*table, Duration::ZERO, end), 7);
            })
        };
        let others = [1, 2].map(waiting);
        // Rank 0 never arrives.
        table.poison.store(7, Ordering::Release);
        protocol::ring(&*table);
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}
