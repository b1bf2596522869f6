//! Tests of deaths: an agent tells of a worker's death before its process has ended.

use std::time::Duration;

use elastic_protocol::messages::{AgentToDriver, StoppedBy, WorkerToDriver};
use elastic_protocol::{ExitStatus, JobOutcome, ResetCause, WorkerId};
use elastic_runtime::transport::LinkEvent;

use super::Cluster;
use super::cluster::lost;
use crate::core::DriverConfig;

const KILLED: ExitStatus = ExitStatus::Signal(9);

fn two_by_two(change: impl FnOnce(&mut DriverConfig)) -> Cluster {
    let mut cluster = Cluster::new(|config| {
        config.np = Some(4);
        config.min_np = Some(1);
        change(config);
    });
    cluster.add_host("a", 2);
    cluster.add_host("b", 2);
    cluster.train(10);
    cluster
}

fn die(cluster: &mut Cluster, worker: &WorkerId) {
    cluster.hear_agent(worker.host.as_str(), AgentToDriver::Dying { worker: worker.clone() });
    cluster.settle();
}

fn died(worker: &WorkerId) -> ResetCause {
    ResetCause::WorkerDied { worker: worker.clone() }
}

/// The cause of the last reset that is over.
fn last_cause(cluster: &Cluster) -> String {
    let status = cluster.core.status(cluster.now, &|time| time.to_string());
    status.last_reset.map(|reset| reset.cause).unwrap_or_default()
}

#[test]
fn g_12_a_death_ends_its_generation_before_the_process_has_ended() {
    let mut cluster = two_by_two(|_| {});
    let victim = cluster.worker("b", 1);
    die(&mut cluster, &victim);
    assert_eq!(cluster.resets, [died(&victim)]);
    assert_eq!(cluster.sizes, [4, 3], "the others go on");
    cluster.pass(Duration::from_secs(2));
    assert_eq!(cluster.sizes, [4, 3], "the slot is not free yet");
    assert_eq!(last_cause(&cluster), format!("{victim} died; its exit status is not known yet"));
}

#[test]
fn the_exit_status_of_a_death_reaches_its_reset_though_the_others_train_again() {
    let mut cluster = two_by_two(|_| {});
    let victim = cluster.worker("b", 1);
    die(&mut cluster, &victim);
    cluster.kill(&victim);
    assert_eq!(last_cause(&cluster), format!("{victim} ended: signal 9 (SIGKILL)"));
    cluster.pass(Duration::from_secs(2));
    assert_eq!(cluster.resets.first(), Some(&died(&victim)), "it was one loss");
    assert!(cluster.resets[1..].iter().all(ResetCause::is_planned), "{:?}", cluster.resets);
    assert_eq!(cluster.sizes.last(), Some(&4), "the slot is filled again");
}

#[test]
fn a_reset_is_reported_with_the_exit_status_of_its_death_or_without_after_a_second() {
    let mut cluster = two_by_two(|_| {});
    let victim = cluster.worker("b", 1);
    die(&mut cluster, &victim);
    cluster.pass(Duration::from_millis(500));
    assert_eq!(cluster.sizes, [4, 3], "the others train again");
    assert!(cluster.reported.is_empty(), "{:?}", cluster.reported);
    cluster.kill(&victim);
    let exited = ResetCause::WorkerExited { worker: victim, status: KILLED };
    assert_eq!(cluster.reported, [exited]);

    let mut cluster = two_by_two(|_| {});
    let victim = cluster.worker("b", 1);
    die(&mut cluster, &victim);
    cluster.pass(Duration::from_secs(2));
    assert_eq!(cluster.reported, [died(&victim)]);
    cluster.kill(&victim);
    assert_eq!(cluster.reported, [died(&victim)], "it is reported once");
}

#[test]
fn the_next_reset_and_the_jobs_end_are_reported_after_the_one_before() {
    let mut cluster = two_by_two(|_| {});
    let (first, second) = (cluster.worker("b", 1), cluster.worker("b", 0));
    die(&mut cluster, &first);
    die(&mut cluster, &second);
    assert_eq!(cluster.sizes, [4, 3, 2]);
    assert_eq!(cluster.reported, [died(&first)]);
    cluster.finish_all();
    assert_eq!(cluster.reported, [died(&first), died(&second)]);
}

#[test]
fn a_death_is_one_failure_of_its_slot() {
    let mut cluster = two_by_two(|config| config.max_restarts = 2);
    for failures in 1..=2 {
        let victim = cluster.worker("b", 1);
        die(&mut cluster, &victim);
        cluster.kill(&victim);
        cluster.pass(Duration::from_secs(2));
        assert_eq!(cluster.sizes.last(), Some(&4), "failure {failures}");
    }
    assert!(cluster.failed_hosts.is_empty(), "{:?}", cluster.failed_hosts);
}

#[test]
fn the_death_of_who_leaves_waits_for_its_exit_status() {
    let mut cluster = two_by_two(|_| {});
    let victim = cluster.worker("b", 1);
    let reason = "SIGTERM".to_owned();
    cluster.say(&victim, WorkerToDriver::Leaving { reason });
    die(&mut cluster, &victim);
    let is_death = |cause: &ResetCause| *cause == died(&victim);
    assert!(!cluster.resets.iter().any(is_death), "its exit code says whether it left well");
}

#[test]
fn g_10_a_job_that_ends_by_a_death_names_its_exit_status() {
    let mut cluster = two_by_two(|config| (config.min_np, config.reset_limit) = (Some(4), Some(0)));
    cluster.is_silent_at_end = true;
    let victim = cluster.worker("b", 1);
    die(&mut cluster, &victim);
    assert!(cluster.result.is_none(), "the status is waited for");
    cluster.exit(&victim, KILLED);
    let (worker, tail) = (victim.clone(), "a line of stderr".to_owned());
    let words = AgentToDriver::LastWords { worker, tail, error: None, out_of_memory: None };
    cluster.hear_agent("b", words);
    cluster.settle();
    let result = cluster.result.expect("the limit is reached");
    let first = result.first_failure.expect("a first cause");
    assert_eq!((first.worker, first.status), (victim.clone(), Some(KILLED)));
    let expected = format!("first {victim}: signal 9 (SIGKILL): a line of stderr");
    assert!(result.reason.ends_with(&expected), "{}", result.reason);
}

#[test]
fn g_10_a_job_that_ends_by_a_peers_report_of_a_death_names_who_died() {
    for dies in [true, false] {
        let mut cluster =
            two_by_two(|config| (config.min_np, config.reset_limit) = (Some(4), Some(0)));
        cluster.is_silent_at_end = true;
        let (reporter, victim) = (cluster.worker("a", 0), cluster.worker("b", 1));
        cluster.accuse(&reporter, &victim);
        cluster.settle();
        assert!(cluster.result.is_none(), "its agent may tell how it ended");
        if dies {
            cluster.exit(&victim, KILLED);
        }
        cluster.pass(Duration::from_secs(10));
        let first = cluster.result.and_then(|result| result.first_failure).expect("a first cause");
        assert_eq!(first.worker, victim);
        let (status, message) = if dies { (Some(KILLED), "") } else { (None, "no route to it") };
        assert_eq!((first.status, first.message.as_str()), (status, message));
    }
}

#[test]
fn a_process_that_lives_on_after_its_workers_death_is_killed() {
    let mut cluster = two_by_two(|_| {});
    let victim = cluster.worker("b", 1);
    die(&mut cluster, &victim);
    // As after exec(2): the process has another program.
    cluster.pass(Duration::from_secs(60));
    assert!(cluster.worker("b", 1).incarnation > victim.incarnation, "its slot has another worker");
    assert_eq!(cluster.sizes.last(), Some(&4));
}

#[test]
fn an_exit_status_that_comes_before_the_verdict_upon_its_death_is_the_cause() {
    let mut cluster = two_by_two(|_| {});
    let victim = cluster.worker("b", 1);
    // The registry answers after the agent has reported both.
    let agent = cluster.agent("b");
    let dying = AgentToDriver::Dying { worker: victim.clone() };
    cluster.core.handle_agent(cluster.now, &agent, dying);
    cluster.kill(&victim);
    assert_eq!(last_cause(&cluster), format!("{victim} ended: signal 9 (SIGKILL)"));
    let exited = ResetCause::WorkerExited { worker: victim, status: KILLED };
    assert_eq!(cluster.resets.first(), Some(&exited));
    assert_eq!(cluster.reported.first(), Some(&exited));
}

#[test]
fn g_10_an_exit_status_after_the_success_of_those_who_went_on_does_not_fail_the_job() {
    let mut cluster = two_by_two(|_| {});
    let victim = cluster.worker("b", 1);
    die(&mut cluster, &victim);
    assert_eq!(cluster.sizes, [4, 3], "the others go on");
    cluster.finish_all();
    cluster.kill(&victim);
    cluster.pass(Duration::from_secs(1));
    let result = cluster.result.expect("the job has ended");
    assert_eq!((result.outcome, result.code), (JobOutcome::Succeeded, 0), "{}", result.reason);
}

/// Ends the session of a worker.
fn hang_up(cluster: &mut Cluster, worker: &WorkerId) {
    cluster.worker_link(worker, lost());
    cluster.settle();
}

#[test]
fn a_failure_counts_against_its_slot_though_the_connection_ended_before_the_report() {
    let mut cluster = two_by_two(|config| config.max_restarts = 0);
    let victim = cluster.worker("b", 1);
    hang_up(&mut cluster, &victim);
    assert_eq!(cluster.sizes, [4, 3], "the others go on");
    cluster.exit(&victim, ExitStatus::Code(1));
    assert_eq!(cluster.failed_hosts.len(), 1, "the slot's failure");
    assert_eq!(cluster.resets.iter().filter(|cause| cause.is_failure()).count(), 1);
}

#[test]
fn the_end_of_a_lost_worker_that_may_have_missed_its_driver_is_no_failure() {
    let mut cluster = two_by_two(|config| config.max_restarts = 0);
    let victim = cluster.worker("b", 1);
    let agent = cluster.agent("b");
    cluster.core.handle_link(cluster.now, &agent, &LinkEvent::Silent { silent_ms: 1000 });
    hang_up(&mut cluster, &victim);
    cluster.pass(cluster.core.config.deadlines.orphan);
    cluster.exit(&victim, ExitStatus::Code(1));
    assert!(cluster.failed_hosts.is_empty(), "{:?}", cluster.failed_hosts);

    let mut cluster = two_by_two(|config| config.max_restarts = 0);
    let victim = cluster.worker("b", 1);
    hang_up(&mut cluster, &victim);
    cluster.report_end(&victim, KILLED, Some(StoppedBy::Agent), None);
    cluster.settle();
    assert!(
        cluster.failed_hosts.is_empty(),
        "its agent has stopped it: {:?}",
        cluster.failed_hosts
    );
}

#[test]
fn g_10_the_end_of_a_lost_worker_does_not_fail_the_job_that_the_others_finish() {
    let mut cluster = two_by_two(|_| {});
    let victim = cluster.worker("b", 1);
    hang_up(&mut cluster, &victim);
    cluster.is_silent_at_end = true;
    cluster.finish_all();
    cluster.exit(&victim, ExitStatus::Code(1));
    cluster.pass(Duration::from_secs(60));
    let result = cluster.result.expect("the end");
    assert_eq!(result.outcome, JobOutcome::Succeeded, "{}", result.reason);
}

#[test]
fn s_12_a_worker_that_the_oom_killer_ends_is_told_of_and_the_job_s_result_says_so() {
    let mut cluster = two_by_two(|config| (config.min_np, config.reset_limit) = (Some(4), Some(0)));
    cluster.is_silent_at_end = true;
    let victim = cluster.worker("b", 1);
    die(&mut cluster, &victim);
    cluster.exit(&victim, KILLED);
    let words = AgentToDriver::LastWords {
        worker: victim.clone(),
        tail: "a line of stderr".to_owned(),
        error: None,
        out_of_memory: Some("killed for want of memory".to_owned()),
    };
    cluster.hear_agent("b", words);
    cluster.settle();
    assert_eq!(cluster.out_of_memory, std::slice::from_ref(&victim));
    let reason = cluster.result.expect("the limit is reached").reason;
    let expected =
        format!("first {victim}: signal 9 (SIGKILL): a line of stderr\nkilled for want of memory");
    assert!(reason.ends_with(&expected), "{reason}");
}
