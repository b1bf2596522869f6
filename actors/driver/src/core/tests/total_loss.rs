//! Tests of lost steps: their count, their report, and the conditions under which a job ends rather than begin again from
//! the start.

use std::time::Duration;

use elastic_protocol::messages::StatusReport;
use elastic_protocol::{JobOutcome, WorkerId};
use elastic_runtime::transport::{LinkEvent, LossReason};

use super::cluster::Cluster;
use crate::core::{DriverConfig, OnTotalLoss};

/// Two workers on two hosts that train for `seconds`, commit `steps` steps and report them.
fn trained(steps: u64, seconds: u64, change: impl FnOnce(&mut DriverConfig)) -> Cluster {
    let mut cluster = Cluster::new(|config| {
        config.np = Some(2);
        config.min_np = Some(1);
        change(config);
    });
    cluster.add_host("a", 1);
    cluster.add_host("b", 1);
    assert_eq!(cluster.sizes, [2]);
    cluster.pass(Duration::from_secs(seconds));
    cluster.train(steps);
    report(&mut cluster, steps);
    cluster
}

fn report(cluster: &mut Cluster, step: u64) {
    for worker in cluster.members() {
        cluster.say_step(&worker, step);
    }
    cluster.settle();
}

fn kill_all(cluster: &mut Cluster) {
    for worker in cluster.members() {
        cluster.report_exit(&worker, elastic_protocol::ExitStatus::Signal(9));
    }
    cluster.settle();
}

fn status(cluster: &Cluster) -> StatusReport {
    cluster.core.status(cluster.now, &|at| at.to_string())
}

#[test]
fn a_job_whose_workers_are_all_gone_says_how_many_steps_are_lost() {
    let mut cluster = trained(98, 10, |_| {});
    kill_all(&mut cluster);
    cluster.pass(Duration::from_secs(5));
    assert_eq!(cluster.losses, [(98, 0, 98)], "committed, begins at, lost");
    assert_eq!(cluster.steps_lost.first(), Some(&98), "in the reset's event");
    let status = status(&cluster);
    assert_eq!(status.steps_lost, 98);
    let warning = status.warnings.first().expect("one for the operator");
    assert!(warning.contains("began again at step 0, and step 98 had been committed"), "{warning}");
}

#[test]
fn a_survivor_that_holds_the_commit_loses_nothing() {
    let mut cluster = trained(98, 10, |config| config.on_total_loss = Some(OnTotalLoss::Fail));
    let worker = cluster.worker("a", 0);
    cluster.kill(&worker);
    cluster.pass(Duration::from_secs(5));
    assert!(cluster.losses.is_empty(), "{:?}", cluster.losses);
    assert_eq!(cluster.result, None);
    assert_eq!(cluster.steps_lost.first(), Some(&1), "what the survivor had not committed");
    assert_eq!(cluster.lost_ms.first(), Some(&10), "and how long it had trained since");
}

/// Two workers, one of which holds the commit alone: the other one's slot has a new worker that was given no state.
fn with_a_last_holder() -> (Cluster, WorkerId) {
    let mut cluster = trained(98, 10, |_| {});
    let (holder, dead) = (cluster.worker("a", 0), cluster.worker("b", 0));
    cluster.deaf.insert(holder.clone());
    cluster.kill(&dead);
    cluster.pass(Duration::from_secs(1));
    (cluster, holder)
}

#[test]
fn g_5_who_is_silent_for_long_and_does_not_alone_hold_the_commit_is_stopped() {
    let mut cluster = trained(98, 10, |_| {});
    let holder = cluster.worker("a", 0);
    cluster.worker_link(&holder, LinkEvent::Silent { silent_ms: 1_000 });
    cluster.pass(Duration::from_secs(1));
    assert_eq!(cluster.stops.first().map(|stop| &stop.0), Some(&holder));
}

#[test]
fn g_5_the_last_holder_has_the_grace_period_from_the_end_of_its_session_and_no_more() {
    let (mut cluster, holder) = with_a_last_holder();
    cluster.worker_link(&holder, LinkEvent::Silent { silent_ms: 1_000 });
    cluster.pass(Duration::from_secs(1));
    let reason = LossReason::Silence { silent_ms: 2_000 };
    cluster.worker_link(&holder, LinkEvent::Lost { reason, silent_ms: 2_000 });
    cluster.pass(Duration::from_secs(4));
    assert!(cluster.stops.is_empty(), "{:?}", cluster.stops);
    cluster.pass(Duration::from_secs(2));
    assert_eq!(cluster.stops.first().map(|stop| &stop.0), Some(&holder));
}

#[test]
fn g_5_the_last_holder_is_not_stopped_for_its_silence_where_its_host_was_lost_and_is_back() {
    let mut cluster = trained(98, 10, |_| {});
    let (holder, dead) = (cluster.worker("a", 0), cluster.worker("b", 0));
    let agent = cluster.agent("a");
    let reason = LossReason::Closed("another node answers at this address".to_owned());
    let lost = LinkEvent::Lost { reason, silent_ms: 0 };
    cluster.worker_link(&holder, LinkEvent::Silent { silent_ms: 1_000 });
    cluster.core.handle_link(cluster.now, &agent, &lost);
    cluster.kill(&dead);
    cluster.attaches = false;
    cluster.come_back(&["a"]);
    cluster.pass(Duration::from_secs(1));
    assert!(cluster.stops.is_empty(), "{:?}", cluster.stops);
    assert!(cluster.losses.is_empty(), "{:?}", cluster.losses);
    cluster.attach(&holder);
    cluster.pass(Duration::from_secs(30));
    assert!(cluster.losses.is_empty(), "{:?}", cluster.losses);
    assert_eq!(cluster.active(), 2);
}

#[test]
fn g_5_a_job_whose_only_worker_stands_still_for_a_moment_goes_on_without_a_reset() {
    let mut cluster = Cluster::new(|config| config.np = Some(1));
    cluster.add_host("a", 1);
    let only = cluster.worker("a", 0);
    let before = cluster.resets.len();
    cluster.worker_link(&only, LinkEvent::Silent { silent_ms: 1_000 });
    cluster.pass(Duration::from_millis(700));
    cluster.worker_link(&only, LinkEvent::Heard);
    cluster.pass(Duration::from_secs(30));
    assert_eq!((cluster.resets.len(), cluster.active()), (before, 1));
    assert!(cluster.stops.is_empty() && cluster.losses.is_empty());
}

#[test]
fn g_5_who_was_given_up_and_is_heard_again_in_the_same_session_takes_part_again() {
    let mut cluster = trained(98, 10, |_| {});
    let (one, other) = (cluster.worker("a", 0), cluster.worker("b", 0));
    for (worker, host) in [(&one, "a"), (&other, "b")] {
        let agent = cluster.agent(host);
        cluster.core.handle_link(cluster.now, &agent, &LinkEvent::Silent { silent_ms: 1_000 });
        cluster.worker_link(worker, LinkEvent::Silent { silent_ms: 1_000 });
        cluster.core.handle_silent_worker(cluster.now, worker, 1_000);
    }
    cluster.settle();
    assert_eq!(cluster.resets.len(), 1, "both are given up");
    for (worker, host) in [(&one, "a"), (&other, "b")] {
        let agent = cluster.agent(host);
        cluster.core.handle_link(cluster.now, &agent, &LinkEvent::Heard);
        cluster.worker_link(worker, LinkEvent::Heard);
        cluster.settle();
    }
    cluster.pass(Duration::from_secs(30));
    assert_eq!(cluster.active(), 2);
    assert!(cluster.stops.is_empty(), "{:?}", cluster.stops);
    assert!(cluster.losses.is_empty(), "{:?}", cluster.losses);
}

#[test]
fn g_5_the_last_holder_may_come_back_while_the_order_to_stop_it_could_not_leave() {
    let mut cluster = trained(98, 10, |_| {});
    let (holder, dead) = (cluster.worker("a", 0), cluster.worker("b", 0));
    cluster.deaf.insert(holder.clone());
    cluster.disk_hangs = true;
    cluster.kill(&dead);
    cluster.worker_link(&holder, LinkEvent::Silent { silent_ms: 1_000 });
    cluster.pass(Duration::from_secs(10));
    cluster.deaf.clear();
    cluster.attach(&holder);
    cluster.disk_hangs = false;
    cluster.pass(Duration::from_secs(5));
    assert!(cluster.stops.is_empty(), "{:?}", cluster.stops);
    assert!(cluster.losses.is_empty(), "{:?}", cluster.losses);
    assert_eq!(cluster.active(), 2);
}

#[test]
fn g_10_a_job_that_may_not_begin_again_ends_with_the_reason() {
    let mut cluster = trained(98, 10, |config| config.on_total_loss = Some(OnTotalLoss::Fail));
    kill_all(&mut cluster);
    cluster.pass(Duration::from_secs(5));
    let result = cluster.core.result_so_far().expect("the job has ended");
    assert_eq!(result.outcome, JobOutcome::Failed);
    assert_eq!(
        result.reason,
        "every worker that held the training state is gone: at least 98 steps, committed in 10 s of training, are lost"
    );
    assert!(result.hint.as_ref().is_some_and(|hint| hint.contains("--on-total-loss restart")));
}

/// Two workers, of which one is out of reach from step 50 on, and back when the other one, which trained on to step 98, is gone.
fn with_an_old_holder(change: impl FnOnce(&mut DriverConfig)) -> Cluster {
    let mut cluster = trained(50, 10, change);
    let gone = cluster.worker("a", 0);
    cluster.lose_host("b");
    cluster.pass(Duration::from_secs(5));
    assert_eq!(cluster.sizes.last(), Some(&1), "one trains on alone");
    cluster.train(48);
    report(&mut cluster, 98);
    cluster.kill(&gone);
    cluster.come_back(&["b"]);
    cluster.pass(Duration::from_secs(5));
    cluster
}

#[test]
fn g_10_a_holder_of_an_earlier_commit_keeps_no_job_alive_that_may_not_lose_steps() {
    let cluster = with_an_old_holder(|config| config.on_total_loss = Some(OnTotalLoss::Fail));
    let result = cluster.core.result_so_far().expect("the job has ended");
    assert!(result.reason.contains("at least 48 steps"), "{}", result.reason);
    assert!(result.hint.as_ref().is_some_and(|hint| hint.contains("holds step 50")));
    assert_eq!(status(&cluster).steps_lost, 49, "and the one of the first reset");
}

#[test]
fn without_the_flag_a_job_goes_on_with_the_earlier_commit_and_says_so() {
    let cluster = with_an_old_holder(|_| {});
    assert_eq!(cluster.result, None);
    assert_eq!(cluster.losses, [(98, 50, 48)], "committed, begins at, lost");
}

#[test]
fn without_the_flag_a_job_ends_only_if_more_than_a_minute_is_lost() {
    for (seconds, fails) in [(50, false), (70, true)] {
        let mut cluster = trained(98, seconds, |_| {});
        kill_all(&mut cluster);
        cluster.pass(Duration::from_secs(5));
        assert_eq!(cluster.core.result_so_far().is_some(), fails, "after {seconds} s");
    }
}

#[test]
fn with_restart_a_long_job_begins_again_and_counts_anew() {
    let mut cluster = trained(98, 700, |config| config.on_total_loss = Some(OnTotalLoss::Restart));
    kill_all(&mut cluster);
    cluster.pass(Duration::from_secs(5));
    assert_eq!(cluster.losses, [(98, 0, 98)]);
    cluster.train(3);
    report(&mut cluster, 3);
    kill_all(&mut cluster);
    cluster.pass(Duration::from_secs(5));
    assert_eq!(cluster.losses, [(98, 0, 98), (3, 0, 3)]);
    assert_eq!(status(&cluster).steps_lost, 101);
}

#[test]
fn steps_that_only_some_members_have_committed_are_not_lost_commits() {
    let mut cluster = trained(98, 10, |_| {});
    let ahead = cluster.worker("a", 0);
    cluster.say_step(&ahead, 99);
    cluster.kill(&ahead);
    cluster.pass(Duration::from_secs(5));
    assert!(cluster.losses.is_empty(), "step 99 was acknowledged by nobody else");
}

#[test]
fn d_3_a_new_driver_knows_what_was_committed_before_it() {
    let mut cluster = trained(90, 10, |_| {});
    for _ in 0..2 {
        cluster.pass(Duration::from_secs(11));
        report(&mut cluster, 98);
    }
    for worker in cluster.members() {
        cluster.end_unseen(&worker);
    }
    cluster.restart_driver();
    cluster.come_back(&["a", "b"]);
    cluster.pass(Duration::from_secs(60));
    assert_eq!(cluster.losses, [(98, 0, 98)]);
    cluster.restart_driver();
    cluster.come_back(&["a", "b"]);
    assert_eq!(status(&cluster).steps_lost, 98, "the count is on record");
}

/// Two workers whose driver is dead for this time. The workers live on, or have ended meanwhile.
fn without_a_driver_for(seconds: u64, live_on: bool) -> Cluster {
    let mut cluster = trained(98, 15, |_| {});
    cluster.now = cluster.now + Duration::from_secs(seconds);
    if !live_on {
        cluster.members().iter().for_each(|worker| cluster.end_unseen(worker));
    }
    cluster.restart_driver();
    cluster
}

#[test]
fn l_1_time_without_a_driver_counts_as_trained_where_all_members_are_back() {
    for (seconds, fails) in [(20, false), (80, true)] {
        let mut cluster = without_a_driver_for(seconds, true);
        cluster.come_back(&["a", "b"]);
        cluster.pass(Duration::from_secs(10));
        report(&mut cluster, 120);
        kill_all(&mut cluster);
        cluster.pass(Duration::from_secs(5));
        assert_eq!(cluster.core.result_so_far().is_some(), fails, "after {seconds} s");
    }
}

#[test]
fn l_1_time_without_a_driver_counts_for_the_driver_after_one_that_died_in_its_takeover() {
    let mut cluster = without_a_driver_for(80, true);
    cluster.come_back(&["a"]);
    report(&mut cluster, 110);
    cluster.restart_driver();
    cluster.come_back(&["a", "b"]);
    kill_all(&mut cluster);
    cluster.pass(Duration::from_secs(5));
    let result = cluster.core.result_so_far().expect("more than a minute is lost");
    assert!(result.reason.contains("s of training, are lost"), "{}", result.reason);
}

#[test]
fn l_1_time_without_a_driver_is_not_known_to_be_trained_where_nobody_is_back() {
    let mut cluster = without_a_driver_for(80, false);
    cluster.come_back(&["a", "b"]);
    cluster.pass(Duration::from_secs(60));
    assert_eq!((cluster.core.result_so_far(), cluster.losses.len()), (None, 1));
}
