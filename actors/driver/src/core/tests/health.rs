//! Tests of health checks of hosts whose workers were replaced: the time of a check, and the effect of its result on slots.

use std::time::Duration;

use elastic_protocol::messages::{
    AgentToDriver, HealthCondition, HealthFailure, HostStatus, WorkerCondition,
};

use super::hangs::seconds;
use super::stragglers::{PacedJob, slow_on};
use crate::core::{DriverConfig, EventKind, HealthCheck, InvalidDriverConfig, OnStraggler};

/// Time after which a slow member is named, replaced, and gone.
const REPLACED_WITHIN: u64 = 40;

const COOL_DOWN: Duration = Duration::from_secs(600);
const TIMEOUT: Duration = Duration::from_secs(20);

const FOUR: [(&str, u32); 4] = [("a", 1), ("b", 1), ("c", 1), ("d", 1)];

fn checks(config: &mut DriverConfig) {
    config.on_straggler = OnStraggler::Replace;
    (config.min_np, config.max_np) = (Some(3), Some(3));
    config.health_check = Some(HealthCheck { command: "check all".to_owned(), timeout: TIMEOUT });
}

/// A job whose worker on `b` was replaced by one on `d`.
fn replaced() -> PacedJob {
    let mut job = PacedJob::begin(&FOUR, checks);
    job.seconds(5, |_| 100);
    job.seconds(REPLACED_WITHIN, slow_on("b", 300));
    assert_eq!(
        job.cluster.members().iter().filter(|worker| worker.host.as_str() == "b").count(),
        0
    );
    job
}

fn answer(job: &mut PacedJob, number: u64, failure: Option<(&str, &str)>) {
    let agent = job.cluster.checks.last().expect("it was asked for").0.clone();
    let failure = failure.map(|(reason, output)| HealthFailure {
        reason: reason.to_owned(),
        output: output.to_owned(),
    });
    let now = job.cluster.now;
    let message = AgentToDriver::HealthChecked { number, failure };
    job.cluster.core.handle_agent(now, &agent, message);
    job.cluster.settle();
}

fn host_b(job: &PacedJob) -> HostStatus {
    let status = job.cluster.core.status(job.cluster.now, &|_| String::new());
    status.hosts.into_iter().find(|host| host.name.as_str() == "b").expect("it is listed")
}

fn slot_b(job: &PacedJob) -> WorkerCondition {
    let status = job.cluster.core.status(job.cluster.now, &|_| String::new());
    status.workers.iter().find(|slot| slot.host.as_str() == "b").expect("a slot").state
}

/// The reported failures, and the number of reports that a check has passed.
fn told(job: &PacedJob) -> (Vec<(String, String)>, usize) {
    let failed = job.cluster.stragglers.iter().filter_map(|event| match event {
        EventKind::HealthCheckFailed { reason, output, .. } => {
            Some((reason.clone(), output.clone()))
        }
        _ => None,
    });
    let is_passed = |event: &&EventKind| matches!(event, EventKind::HealthCheckPassed { .. });
    (failed.collect(), job.cluster.stragglers.iter().filter(is_passed).count())
}

#[test]
fn a_host_is_checked_once_its_worker_is_gone_and_its_slot_opens_after_cool_down_and_check() {
    let mut job = PacedJob::begin(&FOUR, checks);
    job.seconds(5, |_| 100);
    job.cluster.slow_start = true;
    job.seconds(REPLACED_WITHIN, slow_on("b", 300));
    assert_eq!(job.cluster.checks.len(), 0, "its worker trains on until another one has come");
    let new = job.cluster.worker("d", 0);
    job.cluster.attach(&new);
    job.seconds(10, slow_on("b", 300));
    let asked = job.cluster.checks.clone();
    let [(agent, number)] = &asked[..] else { panic!("{asked:?}") };
    assert!(agent.to_string().contains('b'), "{agent}");
    assert_eq!(host_b(&job).health_check, Some(HealthCondition::Running));
    answer(&mut job, *number, None);
    assert_eq!(told(&job), (vec![], 1));
    assert_eq!(host_b(&job).health_check, Some(HealthCondition::Passed));
    assert_eq!(slot_b(&job), WorkerCondition::Resting, "it has not cooled down");
    job.cluster.pass(COOL_DOWN);
    assert_eq!(slot_b(&job), WorkerCondition::Spare);
    assert_eq!(host_b(&job).health_check, None);
    assert_eq!(job.cluster.checks.len(), 1, "once");
}

#[test]
fn a_failed_check_keeps_the_slot_closed_is_told_once_and_made_again() {
    let mut job = replaced();
    let number = job.cluster.checks[0].1;
    answer(&mut job, number, Some(("exit code 3", "GPU 5: 12 uncorrectable errors")));
    let failure = ("exit code 3".to_owned(), "GPU 5: 12 uncorrectable errors".to_owned());
    assert_eq!(told(&job), (vec![failure], 0));
    let host = host_b(&job);
    assert_eq!(host.health_check, Some(HealthCondition::Failed));
    let words = "exit code 3: GPU 5: 12 uncorrectable errors";
    assert_eq!(host.health_failure.as_deref(), Some(words));
    let status = job.cluster.core.status(job.cluster.now, &|_| String::new());
    let warning = format!("its health check has failed ({words}), and is made again");
    assert!(status.warnings.iter().any(|it| it.contains(&warning)), "{:?}", status.warnings);

    // However few others there are, it is not used.
    job.cluster.drain("c", true);
    job.cluster.pass(seconds(20));
    assert_eq!(slot_b(&job), WorkerCondition::Resting);
    job.cluster.drain("c", false);
    job.cluster.pass(seconds(20));
    let mut asked = 1;
    while job.cluster.now < elastic_protocol::Time::ZERO + COOL_DOWN + seconds(300) {
        job.cluster.pass(seconds(10));
        if job.cluster.checks.len() > asked {
            asked = job.cluster.checks.len();
            let number = job.cluster.checks[asked - 1].1;
            answer(&mut job, number, Some(("exit code 3", "the same")));
        }
    }
    assert!((15..40).contains(&asked), "twice a minute at most: {asked}");
    assert_eq!(told(&job).0.len(), 1, "it is told once");
    assert_eq!(slot_b(&job), WorkerCondition::Resting, "its cool-down is over");
    job.cluster.pass(seconds(31));
    let number = job.cluster.checks.last().expect("another one").1;
    answer(&mut job, number, None);
    job.cluster.pass(seconds(5));
    assert_eq!(slot_b(&job), WorkerCondition::Spare, "it may be used again");
}

#[test]
fn a_failed_check_is_forgotten_with_the_rest_of_a_slot_that_is_used_all_the_same() {
    let mut job = replaced();
    // Too few others: the slot is used before the check is answered.
    job.cluster.drain("c", true);
    job.cluster.pass(seconds(20));
    assert_eq!(slot_b(&job), WorkerCondition::Running);
    let number = job.cluster.checks[0].1;
    answer(&mut job, number, Some(("exit code 3", "")));
    job.cluster.pass(COOL_DOWN);
    assert_eq!(host_b(&job).health_check, None, "its rest is over");
    job.cluster.drain("c", false);
    job.cluster.pass(seconds(20));
    job.seconds(60, |_| 100);
    job.seconds(REPLACED_WITHIN, slow_on("b", 300));
    assert_eq!(slot_b(&job), WorkerCondition::Resting);
    // The new check has no result yet: the slot may be used again.
    job.cluster.drain("c", true);
    job.cluster.pass(seconds(20));
    assert_eq!(slot_b(&job), WorkerCondition::Running);
}

#[test]
fn g_9_a_check_that_is_not_answered_has_failed_and_answers_to_other_questions_count_nothing() {
    let mut job = replaced();
    let number = job.cluster.checks[0].1;
    answer(&mut job, number + 7, None);
    assert_eq!(host_b(&job).health_check, Some(HealthCondition::Running));
    job.cluster.pass(TIMEOUT + seconds(11));
    let failure = ("its agent has not answered".to_owned(), String::new());
    assert_eq!(told(&job), (vec![failure], 0));
    answer(&mut job, number, None);
    assert_eq!(host_b(&job).health_check, Some(HealthCondition::Failed), "too late");
    job.cluster.pass(seconds(31));
    assert_eq!(job.cluster.checks.len(), 2, "it is asked again");
}

#[test]
fn without_a_check_nobody_is_asked_and_a_check_without_replacements_is_refused() {
    let mut job = PacedJob::begin(&FOUR, |config| {
        checks(config);
        config.health_check = None;
    });
    job.seconds(5, |_| 100);
    job.seconds(REPLACED_WITHIN, slow_on("b", 300));
    job.cluster.pass(COOL_DOWN);
    assert_eq!((job.cluster.checks.len(), slot_b(&job)), (0, WorkerCondition::Spare));
    let mut config = DriverConfig::new(elastic_protocol::ProgramSpec {
        argv: vec!["train".to_owned()],
        environment: vec![],
    });
    checks(&mut config);
    config.on_straggler = OnStraggler::Tell;
    assert_eq!(config.validate().err(), Some(InvalidDriverConfig::HealthCheckOfNobody));
}
