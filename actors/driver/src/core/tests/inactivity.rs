//! Tests of members by restart that are inactive against their peers: the named members, their grounds, and members that
//! are not named.

use std::time::Duration;

use elastic_protocol::messages::{HangSureness, ProcessActivity, RecordedCollectives};
use elastic_protocol::{ResetCause, WorkerId};

use super::Cluster;
use super::hangs::{seconds, sight};
use crate::core::{DriverConfig, ElasticMode, EventKind, OnHang};

/// Four processes by restart on two hosts, which work.
fn four(change: impl FnOnce(&mut DriverConfig)) -> (Cluster, Vec<WorkerId>) {
    let mut cluster = super::restart::four(change);
    let workers: Vec<WorkerId> = cluster.live().cloned().collect();
    assert_eq!((cluster.sizes.as_slice(), workers.len()), (&[4][..], 4));
    for worker in &workers {
        does(&mut cluster, worker, ProcessActivity::Working, "");
    }
    cluster.pass(seconds(120));
    assert_eq!(cluster.stalls, [], "all work");
    (cluster, workers)
}

fn does(cluster: &mut Cluster, worker: &WorkerId, activity: ProcessActivity, waits_in: &str) {
    let waits_in = Some(waits_in.to_owned()).filter(|it| !it.is_empty());
    cluster.sights.insert(worker.clone(), super::hangs::waiting_in(sight(activity), waits_in));
}

/// The counts of a member that waits in no collective.
fn completed(count: u64) -> RecordedCollectives {
    RecordedCollectives { entered: count, completed: count }
}

/// All wait in the same place, and each has entered and completed this number of collectives; none: it has no recorder.
fn all_wait(cluster: &mut Cluster, workers: &[WorkerId], counts: [Option<u64>; 4]) {
    for (worker, count) in workers.iter().zip(counts) {
        does(cluster, worker, ProcessActivity::Waiting, "an event");
        let sight = cluster.sights.get_mut(worker).expect("it is there");
        sight.collectives = count.map(completed);
    }
}

/// The only event, as worker, sureness and grounds.
fn named(cluster: &Cluster) -> (WorkerId, HangSureness, String) {
    match &cluster.stalls[..] {
        [EventKind::WorkerStalled { worker, grounds: Some(grounds), .. }] => {
            (worker.clone(), grounds.sureness, grounds.why.clone())
        }
        other => panic!("one event: {other:?}"),
    }
}

#[test]
fn who_does_nothing_while_most_others_work_is_named_with_its_stacks_and_how_sure_that_is() {
    let (mut cluster, workers) = four(|_| {});
    does(&mut cluster, &workers[2], ProcessActivity::Waiting, "a lock");
    cluster.pass(seconds(50));
    assert_eq!(cluster.stalls, [], "not yet");
    cluster.pass(seconds(40));
    let (worker, sureness, why) = named(&cluster);
    assert_eq!((&worker, sureness), (&workers[2], HangSureness::Possible));
    assert_eq!(why, "it has done nothing, while 3 others work: it hangs, or waits for them");
    let [EventKind::WorkerStalled { native_stack: Some(_), stack: Some(_), late_ms, .. }] =
        &cluster.stalls[..]
    else {
        panic!("with its stacks: {:?}", cluster.stalls)
    };
    assert!((60_000..71_000).contains(late_ms), "{late_ms}");
    let status = cluster.core.status(cluster.now, &|_| String::new());
    assert_eq!((status.stalled.len(), status.stalled[0].rank), (1, 2));
    // It goes on.
    does(&mut cluster, &workers[2], ProcessActivity::Working, "");
    cluster.pass(seconds(20));
    assert!(
        matches!(&cluster.stalls[1..], [EventKind::StallEnded { worker, usual: false, .. }] if *worker == workers[2])
    );
    assert!(cluster.core.status(cluster.now, &|_| String::new()).stalled.is_empty());
    assert_eq!(cluster.resets.len(), 0, "nobody was disturbed");
}

#[test]
fn who_waits_in_something_else_than_all_others_is_named_where_nobody_works() {
    let (mut cluster, workers) = four(|config| config.on_hang = OnHang::Tell);
    for worker in &workers {
        does(&mut cluster, worker, ProcessActivity::Waiting, "an event at its file descriptors");
    }
    does(
        &mut cluster,
        &workers[1],
        ProcessActivity::Waiting,
        "read from file descriptor 7 (a pipe)",
    );
    cluster.pass(seconds(90));
    let (worker, sureness, why) = named(&cluster);
    assert_eq!((&worker, sureness), (&workers[1], HangSureness::Likely));
    assert!(why.contains("3 others wait in something else: an event"), "{why}");
}

#[test]
fn where_all_wait_in_the_same_nobody_is_named() {
    let (mut cluster, workers) = four(|config| config.on_hang = OnHang::Tell);
    for worker in &workers {
        does(&mut cluster, worker, ProcessActivity::Waiting, "an event");
    }
    cluster.pass(seconds(3_600));
    assert_eq!(cluster.stalls, []);
    // Two differ: neither is the one.
    for worker in &workers[2..] {
        does(&mut cluster, worker, ProcessActivity::Waiting, "a lock");
    }
    cluster.pass(seconds(3_600));
    assert_eq!(cluster.stalls, []);
}

#[test]
fn who_alone_works_is_named_later_and_only_as_a_possibility() {
    let (mut cluster, workers) = four(|_| {});
    for worker in &workers[1..] {
        does(&mut cluster, worker, ProcessActivity::Waiting, "an event");
    }
    cluster.pass(seconds(280));
    assert_eq!(cluster.stalls, [], "it may evaluate");
    cluster.pass(seconds(60));
    let (worker, sureness, why) = named(&cluster);
    assert_eq!((&worker, sureness), (&workers[0], HangSureness::Possible));
    assert!(why.contains("3 others seem to wait for it"), "{why}");
}

#[test]
fn a_stopped_process_is_named_for_certain_whatever_the_others_do() {
    let (mut cluster, workers) = four(|config| config.hang_timeout = Some(seconds(5)));
    for worker in &workers[..3] {
        does(&mut cluster, worker, ProcessActivity::Waiting, "an event");
    }
    does(&mut cluster, &workers[3], ProcessActivity::Stopped, "");
    cluster.pass(seconds(8));
    let (worker, sureness, _) = named(&cluster);
    assert_eq!((&worker, sureness), (&workers[3], HangSureness::Certain));
}

#[test]
fn on_hang_restart_starts_the_generation_anew_where_it_is_certain_and_nowhere_else() {
    let answers = |config: &mut DriverConfig| {
        config.hang_timeout = Some(seconds(5));
        config.on_hang = OnHang::Restart;
    };
    let (mut cluster, workers) = four(answers);
    for worker in &workers[..3] {
        does(&mut cluster, worker, ProcessActivity::Waiting, "an event");
    }
    does(&mut cluster, &workers[3], ProcessActivity::Waiting, "a lock");
    cluster.pass(seconds(60));
    let (worker, sureness, _) = named(&cluster);
    assert_eq!((&worker, sureness), (&workers[3], HangSureness::Likely));
    assert_eq!(cluster.resets, [], "likely is not enough");

    let (mut cluster, workers) = four(answers);
    does(&mut cluster, &workers[3], ProcessActivity::Frozen, "");
    cluster.pass(seconds(8));
    let (worker, sureness, _) = named(&cluster);
    assert_eq!((&worker, sureness), (&workers[3], HangSureness::Certain));
    let Some(ResetCause::WorkerFailed { worker, error }) = cluster.resets.first() else {
        panic!("a reset: {:?}", cluster.resets)
    };
    assert_eq!(*worker, workers[3]);
    assert!(error.starts_with("it hung: its process was stopped, and it is frozen"), "{error}");
    cluster.pass(seconds(60));
    assert_eq!(cluster.sizes, [4, 4], "all were started anew");
}

#[test]
fn of_two_the_one_that_works_is_named_as_a_possibility_where_the_other_waits() {
    let mut cluster = Cluster::new(|config| {
        config.mode = ElasticMode::Restart;
        config.np = Some(2);
        config.on_hang = OnHang::Tell;
    });
    cluster.add_host("a", 1);
    cluster.add_host("b", 1);
    let workers: Vec<WorkerId> = cluster.live().cloned().collect();
    does(&mut cluster, &workers[0], ProcessActivity::Working, "");
    does(&mut cluster, &workers[1], ProcessActivity::Waiting, "an event");
    cluster.pass(seconds(280));
    assert_eq!(cluster.stalls, [], "it may evaluate");
    cluster.pass(seconds(60));
    let (worker, sureness, why) = named(&cluster);
    assert_eq!((&worker, sureness), (&workers[0], HangSureness::Possible));
    assert_eq!(why, "it alone works, and the other one seems to wait for it");
}

#[test]
fn x_2_who_has_entered_fewer_collectives_is_named_where_all_wait_alike() {
    let (mut cluster, workers) = four(|_| {});
    all_wait(&mut cluster, &workers, [Some(8), Some(8), Some(7), Some(8)]);
    cluster.pass(seconds(60));
    assert_eq!(cluster.stalls, [], "not yet");
    cluster.pass(seconds(30));
    let (worker, sureness, why) = named(&cluster);
    assert_eq!((&worker, sureness), (&workers[2], HangSureness::Likely));
    assert_eq!(
        why,
        "torch has recorded 7 collectives of it, and 8 of each of 3 others, which wait"
    );
    // It computes, and is still behind.
    does(&mut cluster, &workers[2], ProcessActivity::Working, "");
    cluster.sights.get_mut(&workers[2]).expect("it is there").collectives = Some(completed(7));
    cluster.pass(seconds(20));
    assert_eq!(cluster.stalls.len(), 1, "it is awaited still");
    all_wait(&mut cluster, &workers, [Some(8); 4]);
    cluster.pass(seconds(20));
    assert!(
        matches!(&cluster.stalls[1..], [EventKind::StallEnded { worker, .. }] if *worker == workers[2])
    );
    assert_eq!(cluster.resets.len(), 0, "nobody was disturbed");
}

#[test]
fn who_works_and_has_entered_fewer_collectives_is_named_later_and_only_as_possible() {
    let (mut cluster, workers) = four(|_| {});
    all_wait(&mut cluster, &workers, [Some(8), Some(8), Some(8), Some(7)]);
    for (worker, count) in [(&workers[0], 8), (&workers[3], 7)] {
        does(&mut cluster, worker, ProcessActivity::Working, "");
        cluster.sights.get_mut(worker).expect("it is there").collectives = Some(completed(count));
    }
    cluster.pass(seconds(280));
    assert_eq!(cluster.stalls, [], "it may evaluate");
    cluster.pass(seconds(60));
    let (worker, sureness, _) = named(&cluster);
    assert_eq!((&worker, sureness), (&workers[3], HangSureness::Possible));
}

#[test]
fn counts_of_collectives_that_say_nothing_name_nobody() {
    for counts in [
        // All have entered the same one.
        [Some(8); 4],
        // One has no recorder.
        [Some(8), Some(8), Some(7), None],
        // The stages of a pipeline.
        [Some(16), Some(32), Some(32), Some(15)],
        // Half of the members are behind, or more.
        [Some(8), Some(8), Some(7), Some(7)],
        [Some(8), Some(7), Some(7), Some(7)],
    ] {
        let (mut cluster, workers) = four(|_| {});
        all_wait(&mut cluster, &workers, counts);
        cluster.pass(seconds(600));
        assert_eq!(cluster.stalls, [], "{counts:?}");
    }
    // The path of a member to the others is cut: it waits for their data in the collective before.
    let (mut cluster, workers) = four(|_| {});
    all_wait(&mut cluster, &workers, [Some(8), Some(8), Some(7), Some(8)]);
    cluster.sights.get_mut(&workers[2]).expect("it is there").collectives =
        Some(RecordedCollectives { entered: 7, completed: 6 });
    cluster.pass(seconds(600));
    assert_eq!(cluster.stalls, [], "it waits itself");
    // The members enter collectives all the time, and the same member is always the last one.
    let (mut cluster, workers) = four(|_| {});
    for step in 1..60 {
        all_wait(
            &mut cluster,
            &workers,
            [Some(step + 1), Some(step), Some(step + 1), Some(step + 1)],
        );
        cluster.pass(seconds(10));
    }
    assert_eq!(cluster.stalls, [], "training goes on");
}

#[test]
fn who_is_not_seen_keeps_all_from_being_named() {
    let (mut cluster, workers) = four(|config| config.on_hang = OnHang::Tell);
    does(&mut cluster, &workers[2], ProcessActivity::Waiting, "a lock");
    cluster.sights.remove(&workers[0]);
    cluster.pass(seconds(3_600));
    assert_eq!(cluster.stalls, []);
}

#[test]
fn an_answer_long_after_those_of_the_others_is_not_compared_with_them() {
    let (mut cluster, workers) = four(|config| config.on_hang = OnHang::Tell);
    all_wait(&mut cluster, &workers, [None; 4]);
    cluster.pass(seconds(75));
    assert_eq!(cluster.stalls, [], "all wait in the same");
    // The host of the last one is starved when it is asked, and the others have gone on when it answers.
    let (last, _) = workers.split_last().expect("there are four");
    cluster.sights.remove(last);
    let looks = cluster.looks.len();
    while cluster.looks.len() == looks {
        cluster.pass(Duration::from_millis(100));
    }
    cluster.pass(seconds(3));
    let elsewhere =
        super::hangs::waiting_in(sight(ProcessActivity::Waiting), Some("a lock".to_owned()));
    cluster.core.handle_activity(cluster.now, last, elsewhere);
    cluster.pass(seconds(1));
    assert_eq!(cluster.stalls, []);
    // A look at all of them at one time is.
    does(&mut cluster, last, ProcessActivity::Waiting, "a lock");
    cluster.pass(seconds(15));
    assert_eq!(named(&cluster).0, *last);
}

#[test]
fn g_9_an_agent_that_shows_no_stack_is_not_waited_for() {
    let (mut cluster, workers) = four(|_| {});
    does(&mut cluster, &workers[2], ProcessActivity::Waiting, "a lock");
    let sight = cluster.sights.get_mut(&workers[2]).expect("it is there");
    sight.drop_stacks();
    cluster.pass(seconds(90));
    let [EventKind::WorkerStalled { stack: None, native_stack: None, late_ms, .. }] =
        &cluster.stalls[..]
    else {
        panic!("without its stacks: {:?}", cluster.stalls)
    };
    assert!(*late_ms >= 62_000, "two seconds after they were wanted: {late_ms}");
}

#[test]
fn a_later_hang_is_not_told_with_the_stacks_of_the_one_before() {
    let (mut cluster, workers) = four(|_| {});
    let without_stacks = |cluster: &mut Cluster, activity, waits_in| {
        does(cluster, &workers[2], activity, waits_in);
        cluster.sights.get_mut(&workers[2]).expect("it is there").drop_stacks();
    };
    does(&mut cluster, &workers[2], ProcessActivity::Waiting, "a lock");
    cluster.pass(seconds(90));
    without_stacks(&mut cluster, ProcessActivity::Working, "");
    cluster.pass(seconds(60));
    without_stacks(&mut cluster, ProcessActivity::Waiting, "a lock");
    cluster.pass(seconds(90));
    let [
        EventKind::WorkerStalled { stack: Some(_), .. },
        EventKind::StallEnded { .. },
        EventKind::WorkerStalled { stack: None, native_stack: None, .. },
    ] = &cluster.stalls[..]
    else {
        panic!("the second one without stacks: {:?}", cluster.stalls)
    };
}

#[test]
fn the_answers_of_one_look_are_compared_once_and_not_with_each() {
    let (mut cluster, workers) = four(|_| {});
    let compared_at = |cluster: &Cluster| cluster.core.inactivity.review_at;
    // The last look is over, and the next one not due.
    cluster.pass(seconds(1));
    assert_eq!(compared_at(&cluster), None);
    let first = cluster.now;
    cluster.core.handle_activity(first, &workers[0], sight(ProcessActivity::Working));
    let due = compared_at(&cluster).expect("a moment later");
    assert!(due > first);
    for worker in &workers[1..] {
        cluster.core.handle_activity(due, worker, sight(ProcessActivity::Working));
        assert_eq!(compared_at(&cluster), Some(due), "with the first one");
    }
    cluster.pass(due.since(first));
    assert_eq!(compared_at(&cluster), None);
}

#[test]
fn a_worker_alone_is_not_looked_at() {
    let mut cluster = Cluster::new(|config| config.mode = ElasticMode::Restart);
    cluster.add_host("a", 1);
    cluster.pass(Duration::from_secs(600));
    assert_eq!(cluster.looks, []);
}
