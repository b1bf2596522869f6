//! Tests of programs that join the job and end without having trained.

use std::time::Duration;

use elastic_protocol::messages::LibraryTrace;
use elastic_protocol::{ExitStatus, JobOutcome, WorkerId};

use super::cluster::{Cluster, lost};
use super::restart::four;
use crate::core::ElasticMode;

const DONE: ExitStatus = ExitStatus::Code(0);

/// Four workers whose program has called `init()`.
fn four_that_have_joined() -> (Cluster, Vec<WorkerId>) {
    let mut cluster = four(|config| {
        config.mode = ElasticMode::Auto;
        config.max_restarts = 1;
    });
    let live: Vec<WorkerId> = cluster.live().cloned().collect();
    cluster.library = LibraryTrace::Used;
    for worker in &live {
        cluster.init(worker);
    }
    cluster.settle();
    assert_eq!((live.len(), cluster.core.is_by_restart()), (4, false));
    (cluster, live)
}

/// The program of a slot calls `init()` and ends.
fn join_and_end(cluster: &mut Cluster, host: &str, slot: u32) {
    let worker = cluster.worker(host, slot);
    cluster.init(&worker);
    cluster.exit(&worker, DONE);
}

fn outcome(cluster: &Cluster) -> Option<JobOutcome> {
    cluster.result.as_ref().map(|it| it.outcome)
}

#[test]
fn g_10_a_job_whose_processes_join_and_end_with_code_0_has_succeeded() {
    let (mut cluster, live) = four_that_have_joined();
    let (last, others) = live.split_last().expect("four");
    for worker in others {
        cluster.exit(worker, DONE);
    }
    cluster.pass(Duration::from_secs(20));
    assert_eq!((cluster.environments.len(), cluster.result.is_none()), (4, true), "one still runs");
    cluster.exit(last, DONE);
    let result = cluster.result.as_ref().expect("the job has ended");
    assert_eq!((result.outcome, result.code), (JobOutcome::Succeeded, 0));
    assert_eq!(result.reason, "4 workers ended with code 0, and the program has not trained");
    assert!(cluster.failed_hosts.is_empty());
}

#[test]
fn g_10_a_process_that_ends_with_code_0_while_another_comes_to_train_has_failed() {
    let (mut cluster, live) = four_that_have_joined();
    cluster.exit(&live[0], DONE);
    cluster.pass(Duration::from_secs(5));
    assert_eq!(cluster.environments.len(), 4, "its slot is not refilled yet");
    for worker in &live[1..] {
        cluster.attach(worker);
    }
    cluster.pass(Duration::from_secs(5));
    assert_eq!((cluster.environments.len(), cluster.members().len()), (5, 4), "it is now");
    cluster.finish_all();
    assert_eq!(outcome(&cluster), Some(JobOutcome::Succeeded));
}

#[test]
fn g_10_a_process_that_ends_with_code_0_when_others_wait_to_train_has_failed() {
    let (mut cluster, live) = four_that_have_joined();
    for worker in &live[1..] {
        cluster.attach(worker);
    }
    cluster.exit(&live[0], DONE);
    cluster.pass(Duration::from_secs(2));
    assert_eq!(cluster.environments.len(), 5, "it is started again");
}

#[test]
fn g_10_a_process_that_joins_and_fails_is_started_again_and_the_others_are_not() {
    let (mut cluster, live) = four_that_have_joined();
    cluster.slow_start = true;
    for worker in &live[1..] {
        cluster.exit(worker, DONE);
    }
    cluster.exit(&live[0], ExitStatus::Code(3));
    assert!(cluster.result.is_none());
    cluster.pass(Duration::from_secs(2));
    assert_eq!(cluster.environments.len(), 5);
    let again = cluster.worker(live[0].host.as_str(), live[0].slot);
    let environment = &cluster.environments[&again];
    assert_eq!(
        [&environment["RANK"], &environment["WORLD_SIZE"]],
        ["0", "4"],
        "others keep theirs"
    );
    cluster.init(&again);
    cluster.exit(&again, DONE);
    assert_eq!(outcome(&cluster), Some(JobOutcome::Succeeded));
}

#[test]
fn g_10_processes_that_end_before_enough_hosts_have_joined_wait_for_the_others() {
    let mut cluster = Cluster::new(|config| config.np = Some(2));
    cluster.slow_start = true;
    cluster.add_host("a", 1);
    join_and_end(&mut cluster, "a", 0);
    cluster.pass(Duration::from_secs(5));
    assert_eq!((cluster.environments.len(), cluster.result.is_none()), (1, true));
    cluster.add_host("b", 1);
    join_and_end(&mut cluster, "b", 0);
    assert_eq!(outcome(&cluster), Some(JobOutcome::Succeeded));
}

#[test]
fn g_10_processes_that_have_ended_do_not_wait_for_a_host_that_is_out_of_reach_if_they_are_enough() {
    for was_told_to_leave in [false, true] {
        let mut cluster = Cluster::new(|config| config.np = Some(2));
        cluster.slow_start = true;
        cluster.add_host("a", 2);
        cluster.add_host("b", 1);
        for worker in [cluster.worker("a", 0), cluster.worker("a", 1), cluster.worker("b", 0)] {
            cluster.init(&worker);
        }
        if was_told_to_leave {
            cluster.hold_stops = true;
            cluster.drain("b", true);
            cluster.settle();
        }
        for slot in [0, 1] {
            let worker = cluster.worker("a", slot);
            cluster.exit(&worker, DONE);
        }
        assert!(cluster.result.is_none(), "the one of host b runs");
        cluster.lose_host("b");
        cluster.pass(Duration::from_secs(1));
        assert!(cluster.result.is_none(), "it may run on, and come back");
        cluster.pass(cluster.core.ended_alone_within());
        assert_eq!(outcome(&cluster), Some(JobOutcome::Succeeded), "{was_told_to_leave}");
    }
}

#[test]
fn g_10_a_member_that_comes_back_in_a_new_session_and_ends_has_not_ended_without_training() {
    let mut cluster = Cluster::new(|config| config.np = Some(1));
    cluster.add_host("a", 1);
    let member = cluster.members()[0].clone();
    // It was told to end, and its word of that was lost with the session.
    cluster.worker_link(&member, lost());
    cluster.init(&member);
    cluster.exit(&member, DONE);
    cluster.pass(Duration::from_secs(2));
    assert_eq!((outcome(&cluster), cluster.environments.len()), (None, 2), "it is started again");
}
