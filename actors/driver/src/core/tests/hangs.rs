//! Tests of hangs: awaited members, usual waits, naming and its time, and the operator's answer.

use std::time::Duration;

use elastic_protocol::messages::{
    Ballot, CollectivePosition, CurrentCollective, ProcessActivity, ProcessSight, TrainingSection,
    WorkerToDriver,
};
use elastic_protocol::{ResetCause, WorkerId};
use elastic_runtime::transport::LinkEvent;

use super::Cluster;
use crate::core::{DriverConfig, EventKind, OnHang};

/// Three workers that have committed in their generation.
fn three(change: impl FnOnce(&mut DriverConfig)) -> Cluster {
    let mut cluster = cold(change);
    for worker in cluster.members() {
        cluster.say_step(&worker, 5);
    }
    cluster
}

fn tell_after_five_seconds(config: &mut DriverConfig) {
    config.on_hang = OnHang::Tell;
    config.hang_timeout = Some(seconds(5));
}

/// Three workers that have not committed.
pub(super) fn cold(change: impl FnOnce(&mut DriverConfig)) -> Cluster {
    let mut cluster = Cluster::new(|config| {
        config.np = Some(3);
        config.min_np = Some(1);
        change(config);
    });
    for host in ["a", "b", "c"] {
        cluster.add_host(host, 1);
    }
    assert_eq!(cluster.sizes, [3]);
    cluster.pass(seconds(1));
    cluster
}

pub(super) fn waiting_in(sight: ProcessSight, waits_in: Option<String>) -> ProcessSight {
    ProcessSight { waits_in, ..sight }
}

pub(super) fn sight(activity: ProcessActivity) -> ProcessSight {
    ProcessSight {
        cpu_ms: if activity == ProcessActivity::Working { 200 } else { 0 },
        native_stack: "read (libc.so.6)\n".to_owned(),
        stack: "File \"train.py\", line 7 in load".to_owned(),
        ..ProcessSight::new(activity, 200)
    }
}

pub(super) fn inside() -> CollectivePosition {
    inside_of(0, 0)
}

/// A position in a collective of a group with this number of ranks; group 0 is that of all ranks.
fn inside_of(group: u64, ranks: u32) -> CollectivePosition {
    let (kind, is_of_all) = ("all_reduce".to_owned(), group == 0);
    let inside = Some(CurrentCollective { kind, is_of_all, group, ranks });
    CollectivePosition { entered: 17, inside, section: None }
}

pub(super) fn outside() -> CollectivePosition {
    CollectivePosition { entered: 16, inside: None, section: None }
}

impl Cluster {
    pub(super) fn stands(&mut self, worker: &WorkerId, position: CollectivePosition) {
        let (stamp, position) = (self.stamp(), Some(position));
        self.say(worker, WorkerToDriver::Standstill { stamp, position, for_ms: 500 });
        self.settle();
    }

    pub(super) fn goes_on(&mut self, worker: &WorkerId) {
        let stamp = self.stamp();
        self.say(worker, WorkerToDriver::Standstill { stamp, position: None, for_ms: 900 });
        self.settle();
    }

    /// Has a worker stand still outside, doing this, while all others wait for it.
    pub(super) fn hang(&mut self, late: &WorkerId, activity: ProcessActivity) {
        self.sights.insert(late.clone(), sight(activity));
        for worker in self.members() {
            let position = if worker == *late { outside() } else { inside() };
            self.stands(&worker, position);
        }
        self.pass(Duration::from_millis(20));
    }

    /// The workers that were named, with their lateness in milliseconds.
    pub(super) fn named(&self) -> Vec<(WorkerId, u64)> {
        let named = self.stalls.iter().filter_map(|event| match event {
            EventKind::WorkerStalled { worker, late_ms, .. } => Some((worker.clone(), *late_ms)),
            _ => None,
        });
        named.collect()
    }

    fn awaited(&self) -> Vec<String> {
        let status = self.core.status(self.now, &|_| String::new());
        status.awaited.into_iter().map(|awaited| awaited.worker).collect()
    }
}

pub(super) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn x_2_who_has_not_come_is_named_and_not_who_waits() {
    let mut cluster = three(|config| config.on_hang = OnHang::Tell);
    let late = cluster.worker("b", 0);
    cluster.hang(&late, ProcessActivity::Stopped);
    assert_eq!(cluster.awaited(), [late.to_string()], "known before it is called a hang");
    cluster.pass(seconds(1));
    let [
        EventKind::WorkerStalled {
            worker, rank, operation, waiting, late_ms, doing, stack, ..
        },
    ] = &cluster.stalls[..]
    else {
        panic!("one event: {:?}", cluster.stalls)
    };
    assert_eq!((worker, *rank, operation.as_str(), *waiting), (&late, 1, "all_reduce, call 17", 2));
    assert!((1_500..1_600).contains(late_ms), "{late_ms}");
    assert_eq!(doing, "is stopped by a signal or a debugger");
    assert_eq!(stack.as_deref(), None, "it is not wanted");
    cluster.pass(seconds(3600));
    assert_eq!(cluster.named().len(), 1, "once");
    let status = cluster.core.status(cluster.now, &|_| String::new());
    assert_eq!(status.stalled.len(), 1);
    assert_eq!((status.stalled[0].rank, status.stalled[0].host.as_str()), (1, "b"));
    let pid = status.workers.iter().find(|worker| worker.rank == Some(1)).and_then(|it| it.pid);
    assert!(pid.is_some() && status.stalled[0].pid == pid, "{:?}", status.stalled);
    let process = format!("and its process {} is stopped", pid.unwrap_or_default());
    assert!(status.stalled[0].to_string().contains(&process), "{}", status.stalled[0]);
    assert!(status.awaited[0].why.contains("2 others wait for it in all_reduce, call 17"));
}

#[test]
fn a_process_that_sleeps_is_named_later_than_one_that_is_stopped_and_one_that_works_last() {
    for (activity, limit_ms) in [
        (ProcessActivity::Stopped, 1_500),
        (ProcessActivity::Waiting, 10_000),
        (ProcessActivity::Uninterruptible, 10_000),
        (ProcessActivity::Working, 60_000),
    ] {
        let mut cluster = three(|config| config.on_hang = OnHang::Tell);
        let late = cluster.worker("c", 0);
        cluster.hang(&late, activity);
        cluster.pass(Duration::from_millis(limit_ms - 600));
        assert_eq!(cluster.named(), [], "{activity:?}: not yet");
        cluster.pass(Duration::from_millis(300));
        let named = cluster.named();
        assert!(
            named.len() == 1 && (limit_ms..limit_ms + 50).contains(&named[0].1),
            "{activity:?}: {named:?}"
        );
    }
}

#[test]
fn the_stack_is_taken_once_the_wait_is_too_long_and_not_before() {
    let mut cluster = three(|_config| {});
    let late = cluster.worker("b", 0);
    cluster.hang(&late, ProcessActivity::Waiting);
    cluster.pass(seconds(9));
    assert!(!cluster.looks.is_empty() && cluster.looks.iter().all(|(_, with_stack)| !with_stack));
    cluster.pass(seconds(1));
    assert_eq!(cluster.looks.last(), Some(&(late.clone(), true)));
    let [EventKind::WorkerStalled { stack: Some(stack), native_stack: Some(native), .. }] =
        &cluster.stalls[..]
    else {
        panic!("with its stacks: {:?}", cluster.stalls)
    };
    assert!(stack.contains("train.py"), "{stack}");
    assert_eq!(native, "read (libc.so.6)\n");
    let (stack, native) = (stack.clone(), native.clone());
    cluster.pass(seconds(60));
    assert!(cluster.looks.last().is_some_and(|(_, with_stack)| !with_stack), "it is looked at on");
    let [stalled] = &cluster.core.status(cluster.now, &|_| String::new()).stalled[..] else {
        panic!("it hangs on")
    };
    assert_eq!((&stalled.stack, &stalled.native_stack), (&Some(stack), &Some(native)), "kept");
}

#[test]
fn a_native_stack_alone_is_enough_to_name_a_worker() {
    let mut cluster = three(|_config| {});
    let late = cluster.worker("b", 0);
    cluster.hang(&late, ProcessActivity::Waiting);
    for sight in cluster.sights.values_mut() {
        sight.stack.clear();
    }
    cluster.pass(Duration::from_millis(9_550));
    let [EventKind::WorkerStalled { late_ms, .. }] = &cluster.stalls[..] else {
        panic!("one event: {:?}", cluster.stalls)
    };
    assert!((10_000..10_050).contains(late_ms), "no further stack is waited for: {late_ms}");
}

#[test]
fn g_9_an_agent_that_shows_no_stack_is_not_waited_for() {
    let mut cluster = three(|_config| {});
    let late = cluster.worker("b", 0);
    cluster.hang(&late, ProcessActivity::Waiting);
    cluster.sights.clear();
    cluster.pass(seconds(60));
    assert_eq!(cluster.named(), [], "of a process of which nothing is known");
    cluster.pass(seconds(3));
    assert_eq!(cluster.named().len(), 1, "two seconds after its stack was wanted");
}

#[test]
fn g_9_a_member_that_is_looked_at_is_named_although_more_than_are_shown_come_before_it() {
    let mut cluster = Cluster::new(|config| (config.np, config.min_np) = (Some(12), Some(1)));
    for host in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"] {
        cluster.add_host(host, 1);
    }
    for worker in cluster.members() {
        cluster.say_step(&worker, 5);
    }
    let late = cluster.worker("l", 0);
    cluster.hang(&late, ProcessActivity::Waiting);
    cluster.sights.clear();
    cluster.pass(seconds(61));
    assert_eq!(cluster.named(), [], "its stack is awaited");
    for host in ["a", "b", "c", "d", "e", "f", "g", "h", "i"] {
        let worker = cluster.worker(host, 0);
        cluster.stands(&worker, outside());
    }
    cluster.pass(seconds(2));
    let named: Vec<WorkerId> = cluster.named().into_iter().map(|(worker, _)| worker).collect();
    assert_eq!(named, [late]);
}

#[test]
fn a_wait_that_ended_by_itself_makes_its_length_usual() {
    let mut cluster = three(|config| config.on_hang = OnHang::Tell);
    let late = cluster.worker("a", 0);
    // A checkpoint of rank 0, as others wait: 9.5 s each time.
    for _epoch in 0..2 {
        cluster.hang(&late, ProcessActivity::Waiting);
        cluster.pass(seconds(9));
        for worker in cluster.members() {
            cluster.goes_on(&worker);
        }
        cluster.pass(seconds(5));
    }
    assert_eq!(cluster.stalls, []);
    cluster.hang(&late, ProcessActivity::Waiting);
    cluster.pass(seconds(27));
    assert_eq!(cluster.named(), [], "three times the usual wait");
    cluster.pass(seconds(2));
    assert_eq!(cluster.named().len(), 1);
    for worker in cluster.members() {
        cluster.goes_on(&worker);
    }
    cluster.pass(Duration::from_millis(20));
    let ended = cluster
        .stalls
        .iter()
        .filter(|event| matches!(event, EventKind::StallEnded { worker, .. } if *worker == late));
    assert_eq!(ended.count(), 1, "and its end is told");
    assert_eq!(cluster.awaited(), Vec::<String>::new());
}

#[test]
fn a_process_that_was_stopped_for_a_moment_is_not_named_for_it() {
    let mut cluster = three(|_config| {});
    let late = cluster.worker("a", 0);
    cluster.hang(&late, ProcessActivity::Stopped);
    cluster.pass(Duration::from_millis(700));
    assert_eq!(cluster.looks.len(), 1, "as by a profiler, just when its agent looked at it");
    cluster.sights.insert(late.clone(), sight(ProcessActivity::Waiting));
    cluster.pass(seconds(8));
    assert_eq!(cluster.named(), []);
    cluster.pass(seconds(2));
    assert_eq!(cluster.named().len(), 1, "for what it does");
}

#[test]
fn a_wait_for_a_process_that_somebody_had_stopped_makes_nothing_usual() {
    let mut cluster = three(|config| config.on_hang = OnHang::Tell);
    let late = cluster.worker("a", 0);
    cluster.hang(&late, ProcessActivity::Stopped);
    cluster.pass(seconds(600));
    for worker in cluster.members() {
        cluster.goes_on(&worker);
    }
    cluster.pass(seconds(5));
    let Some(EventKind::StallEnded { usual: false, .. }) = cluster.stalls.last() else {
        panic!("its end is told: {:?}", cluster.stalls)
    };
    cluster.hang(&late, ProcessActivity::Waiting);
    cluster.pass(seconds(10));
    assert_eq!(cluster.named().len(), 2, "after as long as without the first");
}

#[test]
fn a_section_of_the_program_has_its_own_usual_waits() {
    let mut cluster = three(|config| config.on_hang = OnHang::Tell);
    let late = cluster.worker("a", 0);
    let evaluates = CollectivePosition {
        section: Some(TrainingSection { name: "evaluation".to_owned(), within_ms: None }),
        ..outside()
    };
    cluster.hang(&late, ProcessActivity::Waiting);
    cluster.stands(&late, evaluates.clone());
    cluster.pass(seconds(50));
    for worker in cluster.members() {
        cluster.goes_on(&worker);
    }
    cluster.pass(seconds(1));
    cluster.hang(&late, ProcessActivity::Waiting);
    cluster.stands(&late, evaluates);
    cluster.pass(seconds(149));
    assert_eq!(cluster.stalls, [], "three times the usual wait in this section");
    cluster.pass(seconds(5));
    assert_eq!(cluster.named().len(), 1);
    let Some(EventKind::WorkerStalled { doing, .. }) = cluster.stalls.last() else {
        panic!("it is named: {:?}", cluster.stalls)
    };
    assert!(doing.ends_with("(in its section \"evaluation\")"), "{doing}");
}

#[test]
fn a_process_that_has_not_committed_may_compile() {
    let mut cluster = cold(|config| config.on_hang = OnHang::Tell);
    let late = cluster.worker("b", 0);
    cluster.hang(&late, ProcessActivity::Waiting);
    cluster.pass(seconds(119));
    assert_eq!(cluster.named(), []);
    cluster.pass(seconds(1));
    assert_eq!(cluster.named().len(), 1);
}

#[test]
fn members_that_all_compute_or_all_wait_are_no_hang_of_one() {
    let mut cluster = three(|_config| {});
    for position in [outside(), inside()] {
        for worker in cluster.members() {
            cluster.stands(&worker, position.clone());
        }
        cluster.pass(seconds(3600));
        assert_eq!((cluster.awaited().len(), cluster.looks.len()), (0, 0), "{position:?}");
    }
}

#[test]
fn x_15_a_member_in_another_collective_is_named_with_both_collectives() {
    let mut cluster = three(tell_after_five_seconds);
    let [a, b, c] = ["a", "b", "c"].map(|host| cluster.worker(host, 0));
    for worker in [&a, &c] {
        cluster.stands(worker, inside());
    }
    cluster.stands(&b, inside_of(9, 2));
    cluster.sights.insert(b.clone(), sight(ProcessActivity::Waiting));
    cluster.pass(seconds(5));
    let [EventKind::WorkerStalled { worker, operation, waiting, doing, .. }] = &cluster.stalls[..]
    else {
        panic!("one event: {:?}", cluster.stalls)
    };
    assert_eq!((worker, operation.as_str(), *waiting), (&b, "all_reduce, call 17", 2));
    assert_eq!(doing, "is in another collective, all_reduce of a sub-group of 2, and waits");
}

#[test]
fn of_two_collectives_the_one_of_fewer_members_is_the_other_one_and_that_of_all_is_not() {
    for (stands, expected) in [
        ([inside_of(9, 3), inside_of(9, 3), inside()], 2),
        // The collective of all ranks has more waiting members than that of the sub-group.
        ([inside_of(9, 2), inside(), inside()], 0),
    ] {
        let mut cluster = three(tell_after_five_seconds);
        for (worker, position) in cluster.members().into_iter().zip(stands) {
            cluster.stands(&worker, position);
        }
        cluster.pass(seconds(10));
        let named: Vec<WorkerId> = cluster.named().into_iter().map(|(worker, _)| worker).collect();
        assert_eq!(named, [cluster.members()[expected].clone()]);
    }
}

#[test]
fn a_sub_group_that_is_complete_or_one_whose_other_member_computes_is_no_other_collective() {
    for stands in [
        // Both ranks of the pair are in its collective: they go on when it is done.
        [Some(inside_of(9, 2)), Some(inside_of(9, 2)), Some(inside())],
        // The other rank of the pair does not stand still: it may be on its way.
        [Some(inside_of(9, 2)), None, Some(inside())],
        // Two pairs that are both complete, as far as they have members here.
        [Some(inside_of(8, 1)), Some(inside_of(9, 2)), Some(inside_of(9, 2))],
    ] {
        let mut cluster = three(tell_after_five_seconds);
        for (worker, position) in cluster.members().into_iter().zip(stands) {
            position.into_iter().for_each(|position| cluster.stands(&worker, position));
        }
        cluster.pass(seconds(60));
        assert_eq!(cluster.named(), []);
    }
}

#[test]
fn who_stands_outside_is_named_before_who_is_in_another_collective() {
    let mut cluster = three(tell_after_five_seconds);
    let [a, b, c] = ["a", "b", "c"].map(|host| cluster.worker(host, 0));
    cluster.stands(&a, inside());
    cluster.stands(&b, inside_of(9, 2));
    cluster.stands(&c, outside());
    cluster.pass(seconds(10));
    let named: Vec<WorkerId> = cluster.named().into_iter().map(|(worker, _)| worker).collect();
    assert_eq!(named, [c], "the others may wait for it");
}

#[test]
fn who_has_finished_is_no_hang_of_those_that_are_about_to() {
    let mut cluster = three(tell_after_five_seconds);
    let late = cluster.worker("b", 0);
    cluster.hang(&late, ProcessActivity::Waiting);
    cluster.pass(seconds(4));
    // All have come, and one of them was the first to finish: the others have not reported yet.
    let done = cluster.worker("a", 0);
    cluster.goes_on(&late);
    cluster.vote(&done, Ballot::Success);
    cluster.pass(seconds(4));
    let other = cluster.worker("c", 0);
    cluster.goes_on(&other);
    cluster.pass(seconds(60));
    assert_eq!(cluster.stalls, []);
}

#[test]
fn who_has_finished_while_others_wait_in_a_collective_is_named() {
    let mut cluster = three(tell_after_five_seconds);
    let done = cluster.worker("a", 0);
    cluster.vote(&done, Ballot::Success);
    for worker in cluster.members().into_iter().filter(|worker| *worker != done) {
        cluster.stands(&worker, inside());
    }
    cluster.pass(seconds(5));
    let [EventKind::WorkerStalled { worker, doing, .. }] = &cluster.stalls[..] else {
        panic!("one event: {:?}", cluster.stalls)
    };
    assert_eq!(*worker, done);
    assert_eq!(doing, "has finished, and calls no further collective");
}

#[test]
fn on_hang_restart_replaces_the_process_and_says_why() {
    let mut cluster = three(|config| config.on_hang = OnHang::Restart);
    let late = cluster.worker("b", 0);
    cluster.hang(&late, ProcessActivity::Waiting);
    cluster.pass(seconds(11));
    assert_eq!(cluster.stops.first().map(|(worker, _)| worker), Some(&late));
    let Some(ResetCause::WorkerFailed { worker, error }) = cluster.resets.first() else {
        panic!("a reset: {:?}", cluster.resets)
    };
    assert_eq!(*worker, late);
    assert!(error.starts_with("it hung: 2 others had waited for"), "{error}");
    cluster.pass(seconds(60));
    assert!(cluster.sizes.last() == Some(&3), "it has a successor: {:?}", cluster.sizes);
}

#[test]
fn x_2_a_hang_that_outlives_its_generation_is_named_and_the_others_go_on() {
    type Change = fn(&mut Cluster);
    let death: Change = |cluster| {
        let other = cluster.worker("c", 0);
        cluster.kill(&other);
    };
    let drain: Change = |cluster| cluster.drain("c", true);
    for (what, change) in [("death", death), ("planned stop", drain)] {
        let mut cluster = three(|config| config.on_hang = OnHang::Restart);
        let late = cluster.worker("b", 0);
        cluster.deaf.insert(late.clone());
        cluster.hang(&late, ProcessActivity::Waiting);
        cluster.pass(seconds(2));
        change(&mut cluster);
        cluster.pass(seconds(3));
        let status = cluster.core.status(cluster.now, &|_| String::new());
        let awaited = status.awaited.iter().find(|it| it.worker == late.to_string());
        let why = awaited.map(|it| it.why.clone()).unwrap_or_default();
        assert!(why.starts_with("to ") && why.contains("; it "), "{what}: {why:?}");
        assert_eq!(cluster.named(), [], "{what}");
        cluster.pass(seconds(6));
        let named: Vec<WorkerId> = cluster.named().into_iter().map(|(worker, _)| worker).collect();
        assert_eq!(named, std::slice::from_ref(&late), "{what}");
        assert!(cluster.stops.iter().any(|(worker, _)| *worker == late), "{what}");
        cluster.deaf.clear();
        cluster.pass(seconds(60));
        assert!(cluster.sizes.last() >= Some(&2), "{what}: {:?}", cluster.sizes);
    }
}

#[test]
fn g_5_a_member_that_alone_holds_the_last_commit_is_named_and_not_put_out() {
    let mut cluster = three(|config| config.on_hang = OnHang::Restart);
    let late = cluster.worker("b", 0);
    cluster.deaf.insert(late.clone());
    cluster.hang(&late, ProcessActivity::Waiting);
    // The others are on their way out when their links break.
    let leaver = cluster.worker("a", 0);
    cluster.drain("a", true);
    cluster.drain("c", true);
    let (stamp, peer) = (cluster.stamp(), Some(2));
    let error = "connection reset by peer".to_owned();
    cluster.say(&leaver, WorkerToDriver::CollectiveFailed { stamp, peer, told_by: None, error });
    cluster.settle();
    cluster.pass(seconds(12));
    let named: Vec<WorkerId> = cluster.named().into_iter().map(|(worker, _)| worker).collect();
    assert_eq!(named, std::slice::from_ref(&late));
    assert!(!cluster.stops.iter().any(|(worker, _)| *worker == late), "{:?}", cluster.stops);
}

#[test]
fn x_2_a_new_driver_knows_that_its_members_have_made_steps() {
    let mut cluster = cold(|config| config.on_hang = OnHang::Tell);
    cluster.train(5);
    let late = cluster.worker("b", 0);
    cluster.restart_driver();
    cluster.come_back(&["a", "b", "c"]);
    cluster.hang(&late, ProcessActivity::Waiting);
    cluster.pass(seconds(11));
    let named: Vec<WorkerId> = cluster.named().into_iter().map(|(worker, _)| worker).collect();
    assert_eq!(named, std::slice::from_ref(&late));
}

#[test]
fn x_2_a_member_that_computes_as_its_generation_ends_is_not_named() {
    let mut cluster = three(|config| config.on_hang = OnHang::Restart);
    let (late, other) = (cluster.worker("b", 0), cluster.worker("c", 0));
    cluster.deaf.insert(late.clone());
    cluster.hang(&late, ProcessActivity::Working);
    cluster.kill(&other);
    cluster.pass(seconds(50));
    assert_eq!(cluster.named(), []);
}

#[test]
fn an_end_of_the_generation_ends_the_wait_and_is_not_learnt() {
    let mut cluster = three(|config| config.on_hang = OnHang::Tell);
    let late = cluster.worker("b", 0);
    cluster.hang(&late, ProcessActivity::Working);
    cluster.pass(seconds(50));
    let other = cluster.worker("c", 0);
    cluster.kill(&other);
    cluster.pass(seconds(30));
    assert_eq!((cluster.named(), cluster.awaited().len()), (Vec::new(), 0));
}

#[test]
fn x_2_a_silent_worker_is_looked_at_and_its_cause_says_what_it_does() {
    let mut cluster = three(|_config| {});
    let silent = cluster.worker("b", 0);
    cluster.sights.insert(silent.clone(), sight(ProcessActivity::Stopped));
    cluster.worker_link(&silent, LinkEvent::Silent { silent_ms: 1_000 });
    cluster.pass(seconds(1));
    let cause = cluster.resets.first().map(ToString::to_string).expect("a reset");
    assert!(cause.ends_with("its process is stopped by a signal or a debugger"), "{cause}");
}

#[test]
fn x_2_a_silent_worker_that_somebody_has_stopped_is_named_and_another_one_is_not() {
    for (activity, is_known_to_wait) in [
        (ProcessActivity::Stopped, true),
        (ProcessActivity::Frozen, false),
        (ProcessActivity::Waiting, true),
    ] {
        let mut cluster = three(|_config| {});
        let [a, silent, c] = ["a", "b", "c"].map(|host| cluster.worker(host, 0));
        cluster.sights.insert(silent.clone(), sight(activity));
        for worker in [a, c].into_iter().filter(|_| is_known_to_wait) {
            cluster.stands(&worker, inside());
        }
        cluster.worker_link(&silent, LinkEvent::Silent { silent_ms: 1_000 });
        cluster.pass(seconds(1));
        let cause = cluster.resets.first();
        assert!(matches!(cause, Some(ResetCause::WorkerSilent { .. })), "X-2: {cause:?}");
        let (awaited_in, expected) = match is_known_to_wait {
            true => ("all_reduce, call 17", 2),
            false => ("the collectives after step 5", 0),
        };
        match &cluster.stalls[..] {
            [] => assert_eq!(activity, ProcessActivity::Waiting),
            [
                EventKind::WorkerStalled {
                    worker, rank, pid, operation, waiting, silent_ms, ..
                },
            ] => {
                assert_ne!(activity, ProcessActivity::Waiting, "it may be busy");
                assert_eq!((worker, *rank, pid.is_some()), (&silent, 1, true));
                assert_eq!((operation.as_str(), *waiting), (awaited_in, expected));
                assert_eq!(*silent_ms, Some(1_200));
            }
            other => panic!("one event: {other:?}"),
        }
    }
}
