//! Tests of last words: an agent reports the end of a process at once, and later the process's last words.

use std::time::Duration;

use elastic_protocol::messages::{AgentToDriver, ProgramError};
use elastic_protocol::{ExitStatus, JobOutcome, WorkerId};

use super::cluster::Cluster;
use crate::core::{DriverConfig, ElasticMode};

const FAILED: ExitStatus = ExitStatus::Code(1);

/// Two slots of a program that never attaches; their agents keep last words back.
fn two(change: impl FnOnce(&mut DriverConfig)) -> Cluster {
    let mut cluster = Cluster::new(|config| {
        (config.mode, config.np) = (ElasticMode::Restart, Some(2));
        change(config);
    });
    cluster.is_silent_at_end = true;
    cluster.add_host("a", 2);
    cluster
}

fn say(cluster: &mut Cluster, worker: &WorkerId, error: Option<(&str, u64)>) {
    let error = error.map(|(message, at)| {
        let (message, at) = (message.to_owned(), Some(at));
        ProgramError { message, at }
    });
    let (worker, tail) = (worker.clone(), "a line of stderr".to_owned());
    let words = AgentToDriver::LastWords { worker, tail, error, out_of_memory: None };
    cluster.hear_agent("a", words);
}

fn reason(cluster: &Cluster) -> &str {
    cluster.result.as_ref().map_or("the job goes on", |result| &result.reason)
}

#[test]
fn g_12_a_death_ends_its_generation_before_a_word_is_said() {
    let mut cluster = two(|_| {});
    let worker = cluster.worker("a", 0);
    cluster.exit(&worker, FAILED);
    assert_eq!(cluster.resets.len(), 1);
    cluster.pass(Duration::from_secs(1));
    assert_eq!(cluster.sizes, [2, 2], "nor does the next generation wait for it");
}

#[test]
fn g_10_a_job_that_fails_names_what_its_first_process_wrote_last() {
    let mut cluster = two(|config| config.max_job_restarts = Some(0));
    let worker = cluster.worker("a", 0);
    cluster.exit(&worker, FAILED);
    assert_eq!(reason(&cluster), "the job goes on", "its reason is not complete");
    say(&mut cluster, &worker, None);
    let expected = format!(
        "a worker failed, and no restart is allowed; first {worker}: exit code 1: a line of stderr"
    );
    assert_eq!(reason(&cluster), expected);
}

#[test]
fn g_9_words_that_do_not_come_are_waited_for_no_longer_than_they_can_take() {
    let mut cluster = two(|config| config.max_job_restarts = Some(0));
    let worker = cluster.worker("a", 0);
    cluster.exit(&worker, FAILED);
    cluster.pass(Duration::from_millis(2_900));
    assert!(cluster.result.is_none());
    cluster.pass(Duration::from_millis(200));
    let result = cluster.result.as_ref().expect("the job has ended");
    assert_eq!(result.outcome, JobOutcome::Failed);
    let expected =
        format!("a worker failed, and no restart is allowed; first {worker}: exit code 1");
    assert_eq!(result.reason, expected);
}

#[test]
fn x_17_an_operator_need_not_wait_for_words() {
    let mut cluster = two(|config| config.max_job_restarts = Some(0));
    let worker = cluster.worker("a", 0);
    cluster.exit(&worker, FAILED);
    cluster.core.handle_stop(cluster.now, 2);
    cluster.settle();
    assert!(reason(&cluster).starts_with("a worker failed"), "{}", reason(&cluster));
}

#[test]
fn t_3_the_program_that_failed_first_is_the_cause_in_whatever_order_its_words_come() {
    for first_to_speak in [0, 1] {
        let mut cluster = two(|config| config.max_job_restarts = Some(0));
        cluster.hold_stops = true;
        let workers = [cluster.worker("a", 0), cluster.worker("a", 1)];
        cluster.exit(&workers[0], FAILED);
        cluster.exit(&workers[1], FAILED);
        for turn in [first_to_speak, 1 - first_to_speak] {
            let at = [7, 5][turn];
            say(&mut cluster, &workers[turn], Some(("it broke", at)));
        }
        cluster.release_stops();
        let first = format!("; first {}: exit code 1: it broke", workers[1]);
        assert!(reason(&cluster).ends_with(&first), "{}", reason(&cluster));
    }
}

#[test]
fn g_10_a_job_that_fails_waits_for_the_words_of_its_first_process_whoever_speaks_before() {
    let mut cluster = two(|config| config.max_job_restarts = Some(0));
    let [first, second] = [cluster.worker("a", 0), cluster.worker("a", 1)];
    cluster.exit(&first, FAILED);
    cluster.exit(&second, FAILED);
    say(&mut cluster, &second, Some(("the peer is gone", 2_000)));
    assert_eq!(reason(&cluster), "the job goes on", "its reason is not complete");
    say(&mut cluster, &first, Some(("out of tea", 1_000)));
    assert!(reason(&cluster).contains("out of tea"), "{}", reason(&cluster));
}
