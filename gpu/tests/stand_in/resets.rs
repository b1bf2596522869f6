//! A thousand resets leave nothing behind.

use crate::support::{Options, World, communicators, faults, wait_for_communicators};

#[derive(Debug)]
struct Usage {
    communicators: u32,
    descriptors: usize,
    threads: usize,
    resident_kib: usize,
}

fn usage() -> Usage {
    let entries = |folder| std::fs::read_dir(folder).expect("it is there").count();
    let status = std::fs::read_to_string("/proc/self/status").expect("it is there");
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let resident = resident.and_then(|line| line.split_whitespace().next()?.parse().ok());
    Usage {
        communicators: communicators(),
        descriptors: entries("/proc/self/fd"),
        threads: entries("/proc/self/task"),
        resident_kib: resident.expect("a number"),
    }
}

#[test]
fn a_thousand_resets_leave_nothing_behind() {
    let _turn = faults();
    let mut world = World::new(0..2, Options::default());
    let mut reset = |number: u32| {
        world.form();
        if number.is_multiple_of(10) {
            world.check();
        }
        if number.is_multiple_of(2) {
            world.abort();
        } else {
            world.collective(|group| group.close());
        }
    };
    (0..50).for_each(&mut reset);
    let before = usage();
    (50..1_050).for_each(&mut reset);
    let after = usage();
    assert!(after.communicators <= before.communicators + 2, "{before:?} {after:?}");
    assert!(after.descriptors <= before.descriptors + 4, "{before:?} {after:?}");
    assert!(after.threads <= before.threads + 4, "{before:?} {after:?}");
    assert!(after.resident_kib <= before.resident_kib + 16 * 1024, "{before:?} {after:?}");
}

#[test]
fn a_new_communicator_forms_while_the_threads_of_the_old_one_end() {
    const RANKS: u32 = 2;
    let faults = faults();
    let before = communicators();
    let mut world = World::new(0..RANKS, Options::default());
    world.form();
    world.check();
    faults.set("call=ncclCommRevoke do=slow:900");
    world.abort();
    world.form();
    assert_eq!(communicators(), before + 2 * RANKS, "the old one is not ended yet");
    world.check();
    wait_for_communicators(before + RANKS);
}
