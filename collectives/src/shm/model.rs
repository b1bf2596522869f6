//! The protocol of [`super::meet`] over all interleavings that loom finds, with its buffers: no rank reads
//! what another writes, nobody sleeps for ever though there is no time-out here, and poison reaches sleepers.
//!
//! `RUSTFLAGS="--cfg model_checked" cargo test -p elastic-collectives --lib shm::model`, as `cargo xtask test`
//! does.

use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::meet::{self, Board};
use super::sync::{AtomicU32, AtomicU64, Ordering};

/// Interleavings with this many forced switches are looked at: bugs of this kind show with few.
const SWITCHES: usize = 2;

struct Table {
    steps: Vec<[AtomicU32; 2]>,
    buffers: Vec<[UnsafeCell<u32>; 2]>,
    bell: AtomicU32,
    sleepers: AtomicU32,
    poison: AtomicU64,
}

#[expect(unsafe_code, reason = "loom's cells")]
// SAFETY: loom fails the test where two threads are in one cell and one of them writes.
unsafe impl Sync for Table {}
#[expect(unsafe_code, reason = "loom's cells")]
// SAFETY: as above.
unsafe impl Send for Table {}

impl Table {
    fn new(world: u32) -> Arc<Table> {
        Arc::new(Table {
            steps: (0..world).map(|_| [AtomicU32::new(0), AtomicU32::new(0)]).collect(),
            buffers: (0..world).map(|_| [UnsafeCell::new(0), UnsafeCell::new(0)]).collect(),
            bell: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            poison: AtomicU64::new(0),
        })
    }
}

impl Board for Table {
    fn world(&self) -> u32 {
        self.steps.len() as u32
    }

    fn step(&self, rank: u32, parity: usize) -> &AtomicU32 {
        &self.steps[rank as usize][parity]
    }

    fn bell(&self) -> &AtomicU32 {
        &self.bell
    }

    fn sleepers(&self) -> &AtomicU32 {
        &self.sleepers
    }
}

/// What a session does at a step: looks, and then sleeps.
fn meet_at(table: &Table, own: u32, step: u32) {
    meet::arrive(table, own, step);
    if meet::all_arrived(table, &mut 0, step) {
        meet::ring(table);
    } else {
        let here = |_| meet::all_arrived(table, &mut 0, step).then_some(());
        meet::sleep(table, Duration::ZERO, here);
    }
}

#[expect(unsafe_code, reason = "loom's cells")]
fn run(table: &Table, own: u32, steps: u32) {
    for step in 1..=steps {
        let parity = meet::parity(step);
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
                meet::arrive(&*table, own, 1);
                let end = |_| Some(table.poison.load(Ordering::Acquire)).filter(|word| *word != 0);
                assert_eq!(meet::sleep(&*table, Duration::ZERO, end), 7);
            })
        };
        let others = [1, 2].map(waiting);
        // Rank 0 never comes.
        table.poison.store(7, Ordering::Release);
        meet::ring(&*table);
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}
