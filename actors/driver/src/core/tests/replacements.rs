//! Tests of replaced members (L-4, X-2, G-11): the replaced member and its replacement, its departure, and conditions under
//! which no member is replaced.

use std::time::Duration;

use elastic_protocol::messages::{HostCondition, ProcessActivity, WorkerCondition};
use elastic_protocol::{ResetCause, WorkerId};

use elastic_runtime::transport::LinkEvent;

use super::cluster::host;
use super::hangs::seconds;
use super::stragglers::{PacedJob, slow_on};
use crate::core::table::SlotId;
use crate::core::{DriverConfig, EventKind, OnHang, OnStraggler, ReplacedFor};

/// Time after which a slow member is named, with its replacement's start.
const REPLACED_WITHIN: u64 = 20;

/// The first cool-down.
const COOL_DOWN: Duration = Duration::from_secs(600);

const FOUR: [(&str, u32); 4] = [("a", 1), ("b", 1), ("c", 1), ("d", 1)];

fn replaces(config: &mut DriverConfig) {
    config.on_straggler = OnStraggler::Replace;
}

/// Three of four slots train; no fewer may.
fn with_a_spare(config: &mut DriverConfig) {
    replaces(config);
    (config.min_np, config.max_np) = (Some(3), Some(3));
}

fn hosts_of(job: &PacedJob) -> Vec<String> {
    job.cluster.members().iter().map(|worker| worker.host.to_string()).collect()
}

/// The replacements: the worker, the number of ranks, whether its host is at fault, and the number of spare slots.
fn replaced(job: &PacedJob) -> Vec<(WorkerId, usize, bool, u32)> {
    let replaced = job.cluster.stragglers.iter().filter_map(|event| match event {
        EventKind::WorkerReplaced { worker, ranks, is_host, spares, .. } => {
            Some((worker.clone(), ranks.len(), *is_host, *spares))
        }
        _ => None,
    });
    replaced.collect()
}

/// Reasons for which members were not replaced.
fn refusals(job: &PacedJob) -> Vec<&str> {
    let refused = job.cluster.stragglers.iter().filter_map(|event| match event {
        EventKind::WorkerNotReplaced { reason, .. } => Some(reason.as_str()),
        _ => None,
    });
    refused.collect()
}

#[test]
fn l_4_a_slow_member_trains_on_until_a_spare_slot_has_another_one_and_leaves_as_planned() {
    let mut job = PacedJob::begin(&FOUR, with_a_spare);
    assert_eq!(hosts_of(&job), ["a", "b", "c"]);
    job.seconds(5, |_| 100);
    let slow = job.cluster.worker("b", 0);
    job.cluster.slow_start = true;
    job.seconds(REPLACED_WITHIN, slow_on("b", 300));
    assert_eq!(replaced(&job), [(slow.clone(), 1, false, 1)]);
    job.seconds(60, slow_on("b", 300));
    assert_eq!(hosts_of(&job), ["a", "b", "c"], "nobody has come for it");
    let new = job.cluster.worker("d", 0);
    job.cluster.attach(&new);
    job.seconds(30, slow_on("b", 300));
    assert_eq!(hosts_of(&job), ["a", "c", "d"]);
    assert_eq!(job.cluster.sizes, [3, 3], "never fewer");
    assert_eq!((&job.cluster.left[..], job.cluster.stops.len()), (&[slow.clone()][..], 0), "G-11");
    let Some(ResetCause::WorkerLeaves { worker, reason }) = job.cluster.resets.last() else {
        panic!("{:?}", job.cluster.resets);
    };
    assert_eq!(*worker, slow);
    assert_eq!(*reason, format!("replaced, since it is slow; {new} takes its place"));

    let effect = job.cluster.stragglers.iter().find_map(|event| match event {
        EventKind::ReplacementTook { worker, by, world_size, before_ms, after_ms, .. } => {
            Some((worker.clone(), by.clone(), *world_size, *before_ms, *after_ms))
        }
        _ => None,
    });
    assert_eq!(effect, Some((slow, vec![new], 3, Some(302.0), 102.0)));

    let rest_s = job.cluster.stragglers.iter().find_map(|event| match event {
        EventKind::WorkerReplaced { rest_s, .. } => Some(*rest_s),
        _ => None,
    });
    assert_eq!(rest_s, Some(job.cluster.core.config.cool_down.as_secs_f64()));
    let status = job.cluster.core.status(job.cluster.now, &|_| "then".to_owned());
    let host = status.hosts.iter().find(|host| host.name.as_str() == "b").expect("it is listed");
    assert_eq!((host.state, host.until.as_deref()), (HostCondition::Resting, Some("then")));
    let slot = status.workers.iter().find(|slot| slot.host.as_str() == "b").expect("a slot");
    assert_eq!(slot.state, WorkerCondition::Resting);
    let rests = "b[0] rests: its worker was replaced, since it is slow";
    assert!(status.warnings.iter().any(|it| it.starts_with(rests)), "{:?}", status.warnings);

    // After the cool-down its slot is a spare like any other.
    job.cluster.pass(COOL_DOWN);
    let status = job.cluster.core.status(job.cluster.now, &|_| String::new());
    let slot = status.workers.iter().find(|slot| slot.host.as_str() == "b").expect("a slot");
    assert_eq!(slot.state, WorkerCondition::Spare);
    assert!(matches!(job.cluster.stragglers.last(), Some(EventKind::SlotRested { .. })));
}

#[test]
fn a_slow_member_without_a_spare_slot_leaves_if_enough_are_left_and_comes_back_after_its_rest() {
    let mut job = PacedJob::begin(&FOUR[..3], |config| {
        replaces(config);
        config.min_np = Some(2);
    });
    job.seconds(5, |_| 100);
    job.seconds(REPLACED_WITHIN, slow_on("c", 300));
    assert_eq!(replaced(&job), [(job.cluster.left[0].clone(), 1, false, 0)]);
    assert_eq!(
        (hosts_of(&job), job.cluster.stops.len()),
        (vec!["a".to_owned(), "b".to_owned()], 0)
    );
    job.cluster.pass(COOL_DOWN);
    assert_eq!(job.cluster.sizes, [3, 2, 3], "refilled after the cool-down");
}

#[test]
fn min_np_is_kept_and_the_reason_is_told_once() {
    let mut job = PacedJob::begin(&FOUR[..3], |config| {
        replaces(config);
        config.min_np = Some(3);
    });
    job.seconds(5, |_| 100);
    job.seconds(120, slow_on("c", 300));
    assert_eq!(replaced(&job), []);
    let [reason] = refusals(&job)[..] else { panic!("{:?}", refusals(&job)) };
    assert!(reason.contains("2 slots would be left, and --min-np is 3"), "{reason}");
    assert_eq!(job.cluster.sizes, [3]);
    // A host comes: now there is a place for it.
    job.cluster.add_host("d", 1);
    job.seconds(60, slow_on("c", 300));
    assert_eq!(hosts_of(&job), ["a", "b", "d"]);
}

#[test]
fn whoever_is_to_be_replaced_takes_part_again_where_the_others_are_too_few() {
    let mut job = PacedJob::begin(&FOUR, with_a_spare);
    job.seconds(5, |_| 100);
    job.cluster.slow_start = true;
    job.seconds(30, slow_on("b", 300));
    assert_eq!(replaced(&job).len(), 1);
    // The worker on the spare slot starts still; a third one dies, and its successor is there at once.
    let dead = job.cluster.worker("c", 0);
    job.cluster.kill(&dead);
    job.cluster.pass(seconds(1));
    let new = job.cluster.worker("c", 0);
    job.cluster.attach(&new);
    job.cluster.pass(seconds(10));
    assert_eq!(hosts_of(&job), ["a", "b", "c"]);
}

#[test]
fn g_3_whoever_is_to_be_replaced_and_alone_holds_the_commit_takes_part_once() {
    let mut job = PacedJob::begin(&FOUR, with_a_spare);
    job.seconds(5, |_| 100);
    job.cluster.slow_start = true;
    job.seconds(30, slow_on("b", 300));
    assert_eq!(replaced(&job).len(), 1);
    // The worker on the spare slot starts still; all others die, and their successors hold nothing.
    for host in ["a", "c"] {
        let dead = job.cluster.worker(host, 0);
        job.cluster.kill(&dead);
    }
    job.cluster.pass(seconds(1));
    for host in ["a", "c"] {
        let new = job.cluster.worker(host, 0);
        job.cluster.attach(&new);
    }
    job.cluster.pass(seconds(10));
    assert_eq!(hosts_of(&job), ["a", "b", "c"]);
    assert_eq!(job.cluster.roots.last(), Some(&Some(1)), "the others take its state over");
}

#[test]
fn two_slow_ranks_of_one_host_are_replaced_with_all_of_the_hosts() {
    let hosts = [("a", 3), ("b", 3), ("c", 3)];
    let mut job = PacedJob::begin(&hosts, |config| {
        replaces(config);
        (config.min_np, config.max_np) = (Some(6), Some(6));
    });
    assert_eq!(hosts_of(&job), ["a", "a", "a", "b", "b", "b"]);
    let slow = |worker: &WorkerId| {
        if worker.host.as_str() == "b" && worker.slot < 2 { 300 } else { 100 }
    };
    job.seconds(5, |_| 100);
    job.seconds(60, slow);
    let [(_, 3, true, 3)] = replaced(&job)[..] else { panic!("{:?}", replaced(&job)) };
    assert_eq!(hosts_of(&job), ["a", "a", "a", "c", "c", "c"]);
    assert_eq!(job.cluster.stops, [], "G-11");
}

#[test]
fn a_second_slow_rank_of_a_host_makes_it_the_hosts_fault() {
    let mut job = PacedJob::begin(&[("a", 2), ("b", 3), ("c", 3)], |config| {
        replaces(config);
        config.min_np = Some(3);
    });
    job.seconds(5, |_| 100);
    let slow = |slots: u32| {
        move |worker: &WorkerId| {
            if worker.host.as_str() == "b" && worker.slot < slots { 300 } else { 100 }
        }
    };
    job.seconds(40, slow(1));
    assert_eq!(replaced(&job).len(), 1);
    assert_eq!(hosts_of(&job).iter().filter(|host| *host == "b").count(), 2);
    job.seconds(40, slow(2));
    let [(_, 1, false, 0), (_, 2, true, 0)] = replaced(&job)[..] else {
        panic!("{:?}", replaced(&job))
    };
    assert!(!hosts_of(&job).contains(&"b".to_owned()));
}

#[test]
fn a_rank_that_is_slow_on_two_hosts_has_more_work_and_is_not_replaced_again() {
    let hosts = [("a", 1), ("b", 1), ("c", 1), ("d", 1), ("e", 1)];
    let mut job = PacedJob::begin(&hosts, with_a_spare);
    job.seconds(5, |_| 100);
    // The second rank has more work than the others, wherever it is.
    for _ in 0..120 {
        let slow = job.cluster.members()[1].clone();
        job.second(|worker| if *worker == slow { 300 } else { 100 });
    }
    assert_eq!(replaced(&job).len(), 1);
    let refused = refusals(&job);
    assert!(refused[0].starts_with("rank 1 was slow on host b, too"), "{refused:?}");
}

#[test]
fn no_more_members_are_replaced_in_an_hour_than_the_bound() {
    let hosts: Vec<String> = (0..12).map(|number| format!("h{number:02}")).collect();
    let hosts: Vec<(&str, u32)> = hosts.iter().map(|host| (host.as_str(), 1)).collect();
    let mut job = PacedJob::begin(&hosts, |config| {
        replaces(config);
        (config.min_np, config.max_np) = (Some(6), Some(6));
    });
    job.seconds(5, |_| 100);
    for number in 0..6 {
        // Another rank each time: the last host that has not been slow so far.
        let members = job.cluster.members();
        let slow = members[5 - number].clone();
        job.seconds(40, move |worker| if *worker == slow { 300 } else { 100 });
    }
    assert_eq!(replaced(&job).len(), 4);
    assert!(refusals(&job).iter().any(|reason| reason.contains("4 were replaced within an hour")));
    // An hour later, it may be again.
    job.seconds(3_600, |_| 100);
    let slow = job.cluster.members()[5].clone();
    job.seconds(40, move |worker| if *worker == slow { 300 } else { 100 });
    assert_eq!(replaced(&job).len(), 5);
}

#[test]
fn of_two_members_the_slower_one_is_replaced_only_if_it_was_faster_before() {
    let two = |slow_at: u64| {
        let mut job = PacedJob::begin(&FOUR[..3], |config| {
            replaces(config);
            (config.min_np, config.max_np) = (Some(2), Some(2));
        });
        job.seconds(slow_at, |_| 100);
        job.seconds(60, slow_on("b", 300));
        job
    };
    let job = two(0);
    assert_eq!(replaced(&job), []);
    assert!(refusals(&job)[0].starts_with("too few steps"), "{:?}", refusals(&job));
    assert_eq!(replaced(&two(30)).len(), 1);
}

#[test]
fn a_cool_down_is_taken_over_by_the_next_driver() {
    let mut job = PacedJob::begin(&FOUR, with_a_spare);
    job.seconds(5, |_| 100);
    job.seconds(40, slow_on("b", 300));
    assert_eq!(hosts_of(&job), ["a", "c", "d"]);
    job.cluster.restart_driver();
    job.cluster.come_back(&["a", "b", "c", "d"]);
    job.cluster.pass(seconds(30));
    assert_eq!(hosts_of(&job), ["a", "c", "d"]);
    let state = |job: &PacedJob| {
        let status = job.cluster.core.status(job.cluster.now, &|_| String::new());
        status.workers.iter().find(|slot| slot.host.as_str() == "b").map(|slot| slot.state)
    };
    assert_eq!(state(&job), Some(WorkerCondition::Resting));
    job.cluster.pass(COOL_DOWN);
    assert_eq!(state(&job), Some(WorkerCondition::Spare));
}

/// Slots at rest, as a driver has recorded them.
fn rests_of(slots: &[(&str, u32)]) -> Vec<(SlotId, ReplacedFor)> {
    slots.iter().map(|(name, slot)| ((host(name), *slot), ReplacedFor::Slow)).collect()
}

#[test]
fn rests_that_are_taken_over_count_up_to_the_bound() {
    let mut job = PacedJob::begin(&FOUR, |config| {
        with_a_spare(config);
        config.replacements_max = 2;
    });
    let now = job.cluster.now;
    job.cluster.core.restore_rests(now, rests_of(&[("a", 0), ("b", 0), ("b", 1), ("c", 0)]));
    assert_eq!(job.cluster.core.replacements.check(2), Ok(()));
    job.cluster.core.replacements.check(1).expect_err("two hosts are counted");
}

#[test]
fn members_of_two_hosts_that_leave_are_not_one_replacement() {
    let mut job = PacedJob::begin(&[("a", 2), ("b", 2)], replaces);
    let now = job.cluster.now;
    job.cluster.core.restore_rests(now, rests_of(&[("a", 0), ("a", 1), ("b", 0)]));
    let cause = |job: &PacedJob, leave: &[(&str, u32)]| {
        let leave: Vec<WorkerId> =
            leave.iter().map(|(name, slot)| job.cluster.worker(name, *slot)).collect();
        job.cluster.core.replacement_cause(&[], &leave)
    };
    assert!(cause(&job, &[("a", 0), ("a", 1)]).is_some());
    assert_eq!(cause(&job, &[("a", 0), ("b", 0)]), None);
    assert_eq!(cause(&job, &[("b", 0), ("b", 1)]), None, "one of them leaves for another reason");
}

#[test]
fn x_2_a_member_that_is_stopped_is_replaced_by_a_spare_slot_at_once() {
    let mut job = PacedJob::begin(&FOUR, |config| {
        config.on_hang = OnHang::Replace;
        (config.min_np, config.max_np) = (Some(3), Some(3));
    });
    let late = job.cluster.worker("b", 0);
    job.cluster.hang(&late, ProcessActivity::Stopped);
    job.cluster.pass(seconds(3));
    assert_eq!(job.cluster.stops.first().map(|(worker, _)| worker), Some(&late));
    let is_it = |event: &EventKind| {
        matches!(event, EventKind::WorkerReplaced { why: ReplacedFor::Hang, spares: 1, .. })
    };
    assert!(job.cluster.stragglers.iter().any(is_it), "{:?}", job.cluster.stragglers);
    job.cluster.pass(seconds(60));
    assert_eq!(hosts_of(&job), ["a", "c", "d"]);
}

#[test]
fn x_2_a_member_that_is_silent_while_its_host_is_heard_is_replaced_by_a_spare_slot() {
    let mut job = PacedJob::begin(&FOUR, |config| {
        config.on_hang = OnHang::Replace;
        (config.min_np, config.max_np) = (Some(3), Some(3));
    });
    let silent = job.cluster.worker("b", 0);
    job.cluster.worker_link(&silent, LinkEvent::Silent { silent_ms: 1_000 });
    job.cluster.pass(seconds(60));
    assert_eq!(hosts_of(&job), ["a", "c", "d"]);
}

#[test]
fn x_2_a_limit_that_was_learnt_from_few_waits_names_a_member_and_replaces_it_later() {
    let mut job = PacedJob::begin(&FOUR, |config| {
        config.on_hang = OnHang::Replace;
        (config.min_np, config.max_np) = (Some(3), Some(3));
    });
    let late = job.cluster.worker("b", 0);
    for worker in job.cluster.members() {
        job.cluster.say_step(&worker, 10);
    }
    job.cluster.hang(&late, ProcessActivity::Waiting);
    job.cluster.pass(seconds(60));
    assert_eq!((job.cluster.named().len(), job.cluster.stops.len()), (1, 0));
    job.cluster.pass(seconds(65));
    assert_eq!(job.cluster.stops.len(), 1);
    job.cluster.pass(seconds(60));
    assert_eq!(hosts_of(&job), ["a", "c", "d"]);
}

#[test]
fn x_2_a_rank_that_hangs_on_one_host_after_another_is_replaced_each_time() {
    let hosts = [("a", 1), ("b", 1), ("c", 1), ("d", 1), ("e", 1)];
    let mut job = PacedJob::begin(&hosts, |config| {
        config.on_hang = OnHang::Replace;
        (config.min_np, config.max_np) = (Some(3), Some(3));
    });
    for left in [["a", "c", "d"], ["a", "d", "e"]] {
        let late = job.cluster.members()[1].clone();
        assert_eq!(job.rank_of(&late), 1);
        job.cluster.hang(&late, ProcessActivity::Stopped);
        job.cluster.pass(seconds(60));
        assert_eq!(hosts_of(&job), left, "{late} hung");
    }
    assert_eq!(replaced(&job).len(), 2);
}

#[test]
fn x_2_a_hanging_member_without_a_spare_slot_is_refilled_where_it_was() {
    let mut job = PacedJob::begin(&FOUR[..3], |config| {
        config.on_hang = OnHang::Replace;
        config.min_np = Some(3);
    });
    let late = job.cluster.worker("b", 0);
    job.cluster.hang(&late, ProcessActivity::Stopped);
    job.cluster.pass(seconds(60));
    assert_eq!(hosts_of(&job), ["a", "b", "c"]);
    assert_ne!(job.cluster.worker("b", 0), late);
    assert!(refusals(&job)[0].contains("--min-np is 3"), "{:?}", refusals(&job));
}
