//! Tests of the end of jobs.

use std::time::Duration;

use elastic_protocol::messages::{AgentToDriver, Ballot};
use elastic_protocol::{ExitStatus, JobOutcome, WorkerId};
use elastic_runtime::transport::LinkEvent;

use super::cluster::lost;
use super::{Cluster, host};
use crate::core::{DriverInput, ElasticMode};

fn pair(change: impl FnOnce(&mut crate::core::DriverConfig)) -> Cluster {
    let mut cluster = Cluster::new(|config| {
        config.np = Some(2);
        config.min_np = Some(1);
        change(config);
    });
    cluster.add_host("a", 2);
    cluster
}

#[test]
fn everyone_finishes() {
    let mut cluster = pair(|_| {});
    cluster.train(3);
    cluster.finish_all();
    assert_eq!(cluster.finished.len(), 2);
    let result = cluster.result.clone().expect("the job has ended");
    assert_eq!((result.outcome, result.code), (JobOutcome::Succeeded, 0));
    // The same holds once the job has ended and the process is about to end.
    let status = cluster.core.status(cluster.now, &|_| String::new());
    assert_eq!((status.phase.name(), status.result), ("succeeded", Some(result)));
}

#[test]
fn h_21_nobody_is_killed_for_being_slower() {
    let mut cluster = pair(|_| {});
    let [fast, slow] = [cluster.worker("a", 0), cluster.worker("a", 1)];
    cluster.vote(&fast, Ballot::Success);
    cluster.pass(Duration::from_secs(120));
    assert!(cluster.result.is_none());
    cluster.vote(&slow, Ballot::Success);
    assert_eq!(cluster.result.expect("the job has ended").outcome, JobOutcome::Succeeded);
}

#[test]
fn g_9_a_job_that_waits_names_the_process_that_does_not_end() {
    let mut cluster = pair(|config| config.min_np = Some(2));
    cluster.train(3);
    cluster.hold_stops = true;
    let stuck = cluster.worker("a", 1);
    cluster.worker_link(&stuck, LinkEvent::Silent { silent_ms: 1_000 });
    cluster.pass(Duration::from_secs(20));
    let waiting_for = cluster.core.status(cluster.now, &|_| String::new()).waiting_for;
    let told = waiting_for.expect("it waits");
    assert!(told.ends_with(&format!("{stuck} (its process has not ended)")), "{told}");
}

#[test]
fn g_9_a_finished_job_names_the_processes_that_it_waits_for() {
    let mut cluster = pair(|_| {});
    let [first, second] = [cluster.worker("a", 0), cluster.worker("a", 1)];
    cluster.deaf.insert(second.clone());
    cluster.vote(&first, Ballot::Success);
    cluster.vote(&second, Ballot::Success);
    cluster.pass(Duration::from_secs(6));
    let told = |text: &str| text.contains("still running: a[1]") && !text.contains("a[0]");
    assert!(cluster.warnings.iter().any(|warning| told(warning)), "{:?}", cluster.warnings);
    let status = cluster.core.status(cluster.now, &|_| String::new());
    assert!(told(&status.waiting_for.expect("it waits")));
    cluster.exit(&second, ExitStatus::Code(0));
    let status = cluster.core.status(cluster.now, &|_| String::new());
    assert_eq!(status.waiting_for, None);
}

/// A member that has finished, and one that its agent sees die: `fast` has finished before the driver hears of the death.
fn one_of_two_has_finished(is_silent: bool) -> (Cluster, [WorkerId; 2]) {
    let mut cluster = pair(|_| {});
    cluster.is_silent_at_end = is_silent;
    let [fast, slow] = [cluster.worker("a", 0), cluster.worker("a", 1)];
    cluster.deaf.extend([fast.clone(), slow.clone()]);
    cluster.vote(&fast, Ballot::Success);
    (cluster, [fast, slow])
}

fn assert_failed_late(cluster: &mut Cluster, fast: &WorkerId, lost: &WorkerId, reason: &str) {
    assert_eq!(cluster.resets, [], "those who finished keep their result");
    assert_eq!(cluster.result, None, "{fast} may have data to write");
    assert!(cluster.stops.is_empty() && cluster.left.is_empty());
    cluster.exit(fast, ExitStatus::Code(0));
    let result = cluster.result.clone().expect("the job has ended");
    assert_eq!((result.outcome, result.code), (JobOutcome::Failed, 1), "{}", result.reason);
    assert_eq!(result.reason, format!("{lost} {reason}"));
    assert_eq!(result.first_failure.expect("who was lost").worker, *lost);
    assert!(cluster.warnings.contains(&result.reason), "{:?}", cluster.warnings);
}

#[test]
fn h_21_those_who_finished_are_not_reset_and_who_failed_before_it_had_is_told() {
    const REASON: &str = "failed before training had finished: signal 9 (SIGKILL)";
    // The exit status comes first.
    let (mut cluster, [fast, slow]) = one_of_two_has_finished(false);
    cluster.kill(&slow);
    assert_failed_late(&mut cluster, &fast, &slow, REASON);
    // The end of the connection comes first.
    let (mut cluster, [fast, slow]) = one_of_two_has_finished(false);
    cluster.worker_link(&slow, lost());
    cluster.settle();
    assert!(cluster.warnings.iter().any(|it| it.contains("was lost before it had finished")));
    cluster.kill(&slow);
    assert_failed_late(&mut cluster, &fast, &slow, REASON);
    // The death comes first.
    let (mut cluster, [fast, slow]) = one_of_two_has_finished(true);
    cluster.hear_agent("a", AgentToDriver::Dying { worker: slow.clone() });
    cluster.kill(&slow);
    assert_failed_late(&mut cluster, &fast, &slow, REASON);
    // The death comes first, and the verdict after the exit status.
    let (mut cluster, [fast, slow]) = one_of_two_has_finished(true);
    let agent = cluster.agent("a");
    let dying = AgentToDriver::Dying { worker: slow.clone() };
    cluster.core.handle_agent(cluster.now, &agent, dying);
    cluster.report_exit(&slow, ExitStatus::Signal(9));
    cluster.settle();
    assert_failed_late(&mut cluster, &fast, &slow, REASON);
}

#[test]
fn g_10_a_member_that_votes_and_dies_before_the_verdict_fails_the_job() {
    let (mut cluster, [fast, slow]) = one_of_two_has_finished(false);
    cluster.vote_quietly(&slow, Ballot::Success);
    cluster.report_exit(&slow, ExitStatus::Code(3));
    cluster.settle();
    let reason = "failed before training had finished: exit code 3";
    assert_failed_late(&mut cluster, &fast, &slow, reason);
}

#[test]
fn h_21_a_lost_member_whose_process_ends_well_does_not_fail_the_job() {
    let (mut cluster, [fast, slow]) = one_of_two_has_finished(false);
    cluster.worker_link(&slow, lost());
    cluster.settle();
    cluster.exit(&slow, ExitStatus::Code(0));
    cluster.exit(&fast, ExitStatus::Code(0));
    let result = cluster.result.expect("the job has ended");
    assert_eq!(result.outcome, JobOutcome::Succeeded, "{}", result.reason);
    assert_eq!(result.reason, "1 of 2 workers finished in generation 1");
}

#[test]
fn g_10_an_error_of_the_program_after_others_have_finished_fails_the_job() {
    let (mut cluster, [fast, slow]) = one_of_two_has_finished(false);
    cluster.vote(&slow, Ballot::Failure { status: None, message: "no such column".to_owned() });
    cluster.exit(&slow, ExitStatus::Code(1));
    let reason = "failed before training had finished: no such column";
    assert_failed_late(&mut cluster, &fast, &slow, reason);
}

/// Two hosts of a slot each, whose members have finished and still have something to do.
fn two_hosts_have_finished() -> (Cluster, [WorkerId; 2]) {
    let mut cluster = Cluster::new(|config| (config.np, config.min_np) = (Some(2), Some(1)));
    cluster.add_host("a", 1);
    cluster.add_host("b", 1);
    let workers = [cluster.worker("a", 0), cluster.worker("b", 0)];
    cluster.deaf.extend(workers.clone());
    cluster.finish_all();
    assert_eq!(cluster.result, None, "their processes have not ended");
    (cluster, workers)
}

#[test]
fn g_10_a_host_that_is_lost_after_the_training_fails_the_job_if_its_process_had_not_ended() {
    let (mut cluster, [first, second]) = two_hosts_have_finished();
    cluster.lose_host("a");
    let reason =
        "was lost before its process had ended: its host was lost (closed by the other end: gone)";
    assert_failed_late(&mut cluster, &second, &first, reason);
    assert_eq!(cluster.lost_hosts, [host("a")]);

    let (mut cluster, [first, second]) = two_hosts_have_finished();
    cluster.exit(&first, ExitStatus::Code(0));
    cluster.lose_host("a");
    cluster.exit(&second, ExitStatus::Code(0));
    let result = cluster.result.expect("the job has ended");
    assert_eq!(result.outcome, JobOutcome::Succeeded, "{}", result.reason);
    assert_eq!(cluster.lost_hosts, []);
}

#[test]
fn g_10_a_host_that_a_new_driver_misses_after_the_training_fails_the_job() {
    for comes_back in [false, true] {
        let (mut cluster, [first, second]) = two_hosts_have_finished();
        cluster.restart_driver();
        cluster.come_back(if comes_back { &["a", "b"] } else { &["b"] });
        cluster.pass(Duration::from_secs(30));
        cluster.exit(&second, ExitStatus::Code(0));
        if comes_back {
            cluster.exit(&first, ExitStatus::Code(0));
        }
        let result = cluster.result.clone().expect("the job has ended");
        let outcome = if comes_back { JobOutcome::Succeeded } else { JobOutcome::Failed };
        assert_eq!(result.outcome, outcome, "{}", result.reason);
        assert!(comes_back || result.reason.contains("its host was lost"), "{}", result.reason);
    }
}

#[test]
fn g_10_a_failure_after_the_training_is_not_silent() {
    let mut cluster = pair(|_| {});
    let [first, second] = [cluster.worker("a", 0), cluster.worker("a", 1)];
    cluster.deaf.insert(second.clone());
    cluster.vote(&first, Ballot::Success);
    cluster.vote(&second, Ballot::Success);
    cluster.exit(&second, ExitStatus::Code(3));
    let result = cluster.result.expect("the job has ended");
    assert_eq!((result.outcome, result.code), (JobOutcome::Failed, 1));
    assert!(result.reason.contains("exit code 3"), "{}", result.reason);
    let failure = result.first_failure.expect("a process has failed");
    assert_eq!((failure.worker, failure.status), (second, Some(ExitStatus::Code(3))));
}

/// Found by the simulation (cores, seed 17178 of 20 hosts): the last worker to arrive could not start.
#[test]
fn a_job_that_is_over_does_not_wait_for_a_process_that_could_not_start() {
    let mut cluster = pair(|_| {});
    cluster.slow_start = true;
    cluster.add_host("b", 1);
    let starting = cluster.worker("b", 0);
    cluster.fail_to_start(&starting);
    cluster.finish_all();
    assert!(cluster.result.is_none(), "it is told to stop, and has not");
    let reason = "no such file".to_owned();
    let failed = AgentToDriver::StartFailed { worker: starting, reason, is_programs: false };
    cluster.hear_agent("b", failed);
    let result = cluster.result.expect("the job has ended");
    assert_eq!(result.outcome, JobOutcome::Succeeded);
}

#[test]
fn an_order_to_start_that_crosses_the_drain_of_its_host_is_no_failure() {
    for drains in [true, false] {
        let mut cluster = pair(|_| {});
        cluster.slow_start = true;
        cluster.add_host("b", 1);
        let starting = cluster.worker("b", 0);
        cluster.fail_to_start(&starting);
        if drains {
            cluster.hear_agent("b", AgentToDriver::Drain { reason: "SIGTERM".to_owned() });
        }
        let reason = "host b is leaving: SIGTERM".to_owned();
        let failed = AgentToDriver::StartFailed { worker: starting, reason, is_programs: false };
        cluster.hear_agent("b", failed);
        let failures = cluster.core.roster.slot(&(host("b"), 0));
        assert_eq!(failures.map(|slot| slot.failures), Some(u32::from(!drains)));
    }
}

fn without_program(cluster: &mut Cluster, host: &str) {
    let (worker, reason) = (cluster.worker(host, 0), "cannot start \"trian\"".to_owned());
    cluster.hear_agent(host, AgentToDriver::StartFailed { worker, reason, is_programs: true });
}

/// The program has started on host a, as this worker, and cannot be started on host b.
fn with_program_on_one_host() -> (Cluster, WorkerId) {
    let mut cluster = Cluster::new(|config| (config.np, config.min_np) = (Some(2), Some(1)));
    cluster.add_host("a", 1);
    cluster.slow_start = true;
    cluster.add_host("b", 1);
    let worker = cluster.worker("a", 0);
    cluster.hear_agent("a", AgentToDriver::Started { worker: worker.clone(), pid: 7 });
    without_program(&mut cluster, "b");
    (cluster, worker)
}

#[test]
fn g_10_a_program_that_ran_under_an_earlier_driver_is_not_missing_everywhere() {
    let mut cluster = Cluster::new(|config| (config.np, config.max_restarts) = (Some(1), 3));
    cluster.add_host("a", 1);
    cluster.train(3);
    let before = cluster.worker("a", 0);
    cluster.restart_driver();
    cluster.end_unseen(&before);
    cluster.slow_start = true;
    cluster.come_back(&["a"]);
    cluster.pass(Duration::from_secs(30));
    without_program(&mut cluster, "a");
    assert_eq!(cluster.result, None, "its folder may be mounted again in a moment");
}

#[test]
fn g_10_a_program_that_no_host_can_start_ends_the_job_at_once() {
    for hosts_join in [false, true] {
        let mut cluster = Cluster::new(|config| {
            (config.np, config.hosts_join) = (Some(2), hosts_join);
        });
        cluster.slow_start = true;
        cluster.add_host("a", 1);
        if hosts_join {
            without_program(&mut cluster, "a");
            assert_eq!(cluster.result, None, "the next host may have it");
            cluster.add_host("b", 1);
        } else {
            cluster.add_host("b", 1);
            without_program(&mut cluster, "a");
            assert_eq!(cluster.result, None, "host b may have it");
        }
        without_program(&mut cluster, "b");
        let result = cluster.result.expect("the job has ended");
        assert_eq!(result.outcome, JobOutcome::Failed);
        let reason = result.reason;
        assert!(reason.starts_with("the program cannot be started on any host"), "{reason}");
        assert!(reason.contains("cannot start \"trian\""), "{reason}");
    }
}

#[test]
fn a_job_that_uses_few_of_its_hosts_looks_for_the_program_on_all_of_them() {
    let begun = || {
        let mut cluster = Cluster::new(|config| (config.np, config.max_np) = (Some(1), Some(1)));
        cluster.slow_start = true;
        cluster.add_host("a", 1);
        cluster.add_host("b", 1);
        without_program(&mut cluster, "a");
        assert_eq!(cluster.result, None, "host b may have it");
        cluster.pass(Duration::from_millis(10));
        cluster
    };
    let mut cluster = begun();
    without_program(&mut cluster, "b");
    let result = cluster.result.expect("the job has ended");
    assert!(result.reason.contains("cannot be started on any host"), "{}", result.reason);
    let mut cluster = begun();
    let worker = cluster.worker("b", 0);
    cluster.attach(&worker);
    cluster.pass(Duration::from_secs(5));
    assert_eq!((cluster.result.clone(), cluster.active()), (None, 1));
}

#[test]
fn a_program_that_one_host_lacks_is_tried_there_again() {
    let (mut cluster, _) = with_program_on_one_host();
    cluster.pass(Duration::from_secs(2));
    assert_eq!(cluster.result, None);
    assert!(cluster.stops.is_empty());
}

#[test]
fn x_14_a_program_that_never_attaches_is_named() {
    let mut cluster = Cluster::new(|config| {
        config.np = Some(1);
        config.mode = ElasticMode::InProcess;
        config.max_restarts = 0;
        config.deadlines.start = Duration::from_secs(3);
    });
    cluster.slow_start = true;
    cluster.add_host("a", 1);
    cluster.pass(Duration::from_secs(60));
    let result = cluster.result.expect("the job has ended");
    assert!(result.reason.contains("did not attach within 3 s"), "{}", result.reason);
}

#[test]
fn x_17_the_operator_stops_the_job() {
    for (is_asked, reason) in
        [(false, "stopped by signal 2"), (true, "stopped by `elastic-node stop`")]
    {
        let mut cluster = pair(|_| {});
        match is_asked {
            true => cluster.core.handle_stop_asked(cluster.now),
            false => cluster.core.handle_stop(cluster.now, 2),
        }
        cluster.pass(Duration::from_secs(20));
        let result = cluster.result.expect("the job has ended");
        assert_eq!((result.outcome, result.code), (JobOutcome::Stopped, 130));
        assert_eq!(result.reason, reason);
    }
}

#[test]
fn x_17_a_second_request_waits_for_nobody() {
    let mut cluster = pair(|_| {});
    cluster.hold_stops = true;
    cluster.core.handle_stop(cluster.now, 2);
    cluster.settle();
    assert_eq!(cluster.result, None, "agents are to leave in order");
    cluster.core.handle_stop(cluster.now, 2);
    cluster.settle();
    assert_eq!(cluster.result.as_ref().map(|end| end.outcome), Some(JobOutcome::Stopped));
    assert!(cluster.stops.iter().all(|(_, grace_ms)| *grace_ms == 0), "{:?}", cluster.stops);
}

#[test]
fn a_fatal_fault_ends_the_job_with_its_reason_and_its_hint() {
    let mut cluster = pair(|config| config.np = Some(3));
    cluster.train(3);
    cluster.slow_start = true;
    cluster.add_host("b", 1);
    assert!(cluster.has_worker("b", 0), "it is still starting");
    let (reason, hint) = ("the journal cannot be read".to_owned(), "look at its disk".to_owned());
    cluster.core.handle(cluster.now, DriverInput::Fatal { reason, hint: Some(hint) });
    cluster.settle();
    let result = cluster.result.expect("the job has ended");
    assert_eq!((result.outcome, result.code), (JobOutcome::Failed, 1));
    assert_eq!(result.reason, "the journal cannot be read");
    assert_eq!(result.hint.as_deref(), Some("look at its disk"));
    assert_eq!(cluster.stops, [], "the job's end stops them all");
}

#[test]
fn a_program_that_has_started_once_is_not_missing_on_every_host() {
    let (mut cluster, worker) = with_program_on_one_host();
    cluster.kill(&worker);
    cluster.pass(Duration::from_secs(2));
    without_program(&mut cluster, "a");
    assert_eq!(cluster.result, None, "its file may come back");
}
