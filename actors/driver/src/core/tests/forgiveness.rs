//! Tests of a slot's failures, and of the time after which they are forgiven (H-8).

use std::time::Duration;

use elastic_protocol::ExitStatus;
use proptest::prelude::*;

use super::{Cluster, host};

/// More than the longest back-off of so few failures.
const REFILLED: Duration = Duration::from_secs(20);
const FORGIVEN_AFTER: Duration = Duration::from_secs(600);

/// Four members on two hosts; the third failure of a slot is one too many.
fn two_by_two() -> Cluster {
    let mut cluster = Cluster::new(|config| {
        config.np = Some(4);
        config.min_np = Some(1);
        config.max_restarts = 2;
        config.forgiven_after = FORGIVEN_AFTER;
        config.deadlines.start = 4 * FORGIVEN_AFTER;
    });
    cluster.add_host("a", 2);
    cluster.add_host("b", 2);
    cluster.train(10);
    cluster
}

fn fail(cluster: &mut Cluster, name: &str, slot: u32) {
    let victim = cluster.worker(name, slot);
    cluster.kill(&victim);
}

/// Has a slot fail, and get a process again that trains.
fn fail_and_refill(cluster: &mut Cluster, name: &str, slot: u32) {
    fail(cluster, name, slot);
    cluster.pass(REFILLED);
    assert_eq!(cluster.sizes.last(), Some(&4), "{name}[{slot}] is refilled");
}

#[test]
fn a_slot_that_trains_for_long_begins_from_nothing() {
    let mut cluster = two_by_two();
    for _month in 0..5 {
        fail_and_refill(&mut cluster, "b", 1);
        fail_and_refill(&mut cluster, "b", 1);
        cluster.pass(FORGIVEN_AFTER);
    }
    assert!(cluster.failed_hosts.is_empty());
    fail(&mut cluster, "b", 1);
    cluster.pass(Duration::from_millis(300));
    assert_eq!(cluster.sizes.last(), Some(&4), "the back-off is the least again");
}

#[test]
fn a_slot_that_fails_before_its_time_is_up_is_not_forgiven() {
    let mut cluster = two_by_two();
    for _failure in 0..2 {
        fail_and_refill(&mut cluster, "b", 1);
        cluster.pass(FORGIVEN_AFTER - 2 * REFILLED);
    }
    fail(&mut cluster, "b", 1);
    cluster.pass(REFILLED);
    assert_eq!(cluster.failed_hosts, [host("b")]);
}

#[test]
fn the_failures_of_others_take_nothing_from_the_time_that_a_slot_was_well() {
    let mut cluster = two_by_two();
    fail_and_refill(&mut cluster, "b", 1);
    fail_and_refill(&mut cluster, "b", 1);
    for (name, slot) in [("a", 0), ("a", 1), ("b", 0)] {
        cluster.pass(FORGIVEN_AFTER / 3);
        fail_and_refill(&mut cluster, name, slot);
    }
    fail_and_refill(&mut cluster, "b", 1);
    assert!(cluster.failed_hosts.is_empty());
}

#[test]
fn a_slot_whose_processes_never_train_is_not_forgiven() {
    let mut cluster = two_by_two();
    cluster.slow_start = true;
    for _failure in 0..2 {
        let victim = cluster.worker("b", 1);
        cluster.exit(&victim, ExitStatus::Code(1));
        cluster.pass(2 * FORGIVEN_AFTER);
        assert!(
            cluster.has_worker("b", 1),
            "its next process is there, and does not come to the library"
        );
    }
    let victim = cluster.worker("b", 1);
    cluster.exit(&victim, ExitStatus::Code(1));
    cluster.pass(REFILLED);
    assert_eq!(cluster.failed_hosts, [host("b")]);
}

#[test]
fn d_4_what_is_held_against_a_slot_and_what_was_forgiven_outlive_the_driver() {
    for (trains, is_out) in [(Duration::ZERO, true), (FORGIVEN_AFTER, false)] {
        let mut cluster = two_by_two();
        fail_and_refill(&mut cluster, "b", 1);
        fail_and_refill(&mut cluster, "b", 1);
        cluster.pass(trains);
        cluster.restart_driver();
        cluster.come_back(&["a", "b"]);
        cluster.pass(REFILLED);
        fail(&mut cluster, "b", 1);
        cluster.pass(REFILLED);
        assert_eq!(!cluster.failed_hosts.is_empty(), is_out, "after {trains:?} of training");
    }
}

#[test]
fn a_new_driver_forgives_after_the_whole_time_again() {
    let mut cluster = two_by_two();
    fail_and_refill(&mut cluster, "b", 1);
    fail_and_refill(&mut cluster, "b", 1);
    cluster.restart_driver();
    cluster.come_back(&["a", "b"]);
    cluster.pass(FORGIVEN_AFTER + REFILLED);
    fail_and_refill(&mut cluster, "b", 1);
    assert!(cluster.failed_hosts.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// A host is out exactly when one of its slots failed too often with no long time of training in between.
    #[test]
    fn only_failures_that_come_close_together_add_up(
        gaps in prop::collection::vec(prop_oneof![0..500_u64, 700..2_000_u64], 1..8),
    ) {
        let mut cluster = two_by_two();
        let mut held = 0;
        for gap in gaps {
            fail(&mut cluster, "b", 1);
            cluster.pass(REFILLED);
            held += 1;
            prop_assert_eq!(!cluster.failed_hosts.is_empty(), held > 2);
            if held > 2 {
                break;
            }
            cluster.pass(Duration::from_secs(gap));
            if Duration::from_secs(gap) >= FORGIVEN_AFTER {
                held = 0;
            }
        }
    }
}
