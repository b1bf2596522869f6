//! Tests of resets without progress: the pauses between them, and the job's end (G-9, G-10).

use std::time::Duration;

use elastic_protocol::messages::WorkerToDriver;
use elastic_protocol::{ExitStatus, ResetCause, WorkerId};
use elastic_runtime::transport::LinkEvent;

use super::cluster::Cluster;
use super::restart::four;
use crate::core::DriverConfig;

fn of(hosts: &[&str], min_np: u32) -> Cluster {
    with(hosts, |config| config.min_np = Some(min_np))
}

fn with(hosts: &[&str], change: impl FnOnce(&mut DriverConfig)) -> Cluster {
    let mut cluster = Cluster::new(change);
    for name in hosts {
        cluster.add_host(name, 1);
    }
    cluster.pass(Duration::from_secs(2));
    cluster.sizes.clear();
    cluster
}

impl Cluster {
    /// Has a worker's collective fail; the worker names this rank.
    fn fail(&mut self, worker: &WorkerId, peer: Option<u32>) {
        let (stamp, error) = (self.stamp(), "too many open files".to_owned());
        self.say(worker, WorkerToDriver::CollectiveFailed { stamp, peer, told_by: None, error });
    }

    /// Lets every generation fail as soon as it runs, for this long.
    pub(super) fn fail_always(&mut self, time: Duration) {
        let end = self.now + time;
        let worker = self.worker("a", 0);
        while self.now < end && self.result.is_none() {
            let before = self.sizes.len();
            self.fail(&worker, None);
            self.settle();
            while self.sizes.len() == before && self.now < end && self.result.is_none() {
                self.pass(Duration::from_millis(10));
            }
        }
    }
}

#[test]
fn resets_without_progress_follow_each_other_more_and_more_slowly() {
    let mut cluster = of(&["a", "b"], 2);
    cluster.fail_always(Duration::from_secs(1));
    assert!((3..12).contains(&cluster.sizes.len()), "{}", cluster.sizes.len());
    let before = cluster.sizes.len();
    cluster.fail_always(Duration::from_secs(60));
    assert!(cluster.sizes.len() < before + 12, "{before} {}", cluster.sizes.len());
    let why = cluster.core.status(cluster.now, &|_| String::new()).waiting_for.unwrap_or_default();
    assert!(why.contains("resets in a row without progress"), "{why}");
}

#[test]
fn g_10_resets_without_progress_end_the_job_when_a_gather_would() {
    let mut cluster = of(&["a", "b"], 2);
    cluster.fail_always(Duration::from_secs(700));
    let result = cluster.result.expect("an end");
    assert!(result.reason.contains("have brought the job no further"), "{}", result.reason);
    assert!(result.reason.contains("too many open files"), "{}", result.reason);
}

#[test]
fn g_10_a_pause_that_is_longer_than_the_elastic_timeout_does_not_end_the_job() {
    let mut cluster = with(&["a", "b"], |config| {
        config.min_np = Some(2);
        config.deadlines.elastic = Duration::from_secs(3);
    });
    cluster.fail_always(Duration::from_secs(25));
    assert_eq!(cluster.result, None, "it waits for itself, not for workers");
    cluster.train(1);
    cluster.fail_always(Duration::from_secs(700));
    let result = cluster.result.expect("an end");
    assert!(result.reason.contains("have brought the job no further"), "{}", result.reason);
}

#[test]
fn progress_and_steady_training_are_not_held_against_the_next_reset() {
    let mut cluster = of(&["a", "b"], 2);
    let worker = cluster.worker("a", 0);
    for number in 0..30 {
        if number % 2 == 0 {
            cluster.train(1)
        } else {
            cluster.pass(Duration::from_secs(11))
        }
        cluster.fail(&worker, None);
        cluster.settle();
        assert_eq!(cluster.sizes.len(), number + 1, "the next generation forms at once");
    }
}

#[test]
fn progress_of_a_generation_that_ends_by_plan_is_not_held_against_the_next_reset() {
    let mut cluster = of(&["a", "b"], 2);
    let worker = cluster.worker("a", 0);
    for _ in 0..10 {
        cluster.fail(&worker, None);
        cluster.pass(Duration::from_secs(8));
    }
    cluster.train(5);
    cluster.add_host("c", 1);
    cluster.pass(Duration::from_secs(3));
    assert_eq!(cluster.sizes.last(), Some(&3), "the new host is taken in");
    let before = cluster.sizes.len();
    cluster.fail(&worker, None);
    cluster.settle();
    assert_eq!(cluster.sizes.len(), before + 1, "the next generation forms at once");
}

#[test]
fn who_is_refused_by_its_own_system_is_replaced() {
    let mut cluster = of(&["a", "b", "c"], 2);
    let (worker, rank) = (cluster.worker("b", 0), 1);
    assert_eq!(cluster.members()[rank as usize], worker);
    cluster.fail(&worker, Some(rank));
    cluster.settle();
    let cause = cluster.resets.pop().expect("a reset");
    let ResetCause::WorkerFailed { worker: blamed, error } = &cause else { panic!("{cause}") };
    assert_eq!((blamed, error.as_str()), (&worker, "too many open files"));
    cluster.pass(Duration::from_secs(40));
    assert_ne!(cluster.worker("b", 0), worker, "its slot has another process");
    assert_eq!(cluster.sizes.last(), Some(&3));
}

#[test]
fn g_9_who_is_refused_while_a_record_is_being_stored_is_replaced_before_the_next_generation() {
    let mut cluster = of(&["a", "b", "c"], 2);
    let (worker, rank) = (cluster.worker("b", 0), 1);
    assert_eq!(cluster.members()[rank as usize], worker);
    cluster.disk_hangs = true;
    let (first, before) = (cluster.worker("a", 0), cluster.stamp());
    cluster.fail(&first, None);
    cluster.pass(Duration::from_secs(1));
    assert_ne!(cluster.stamp(), before, "the members have been told the next generation");
    cluster.fail(&worker, Some(rank));
    cluster.settle();
    assert!(cluster.stops.iter().all(|(stopped, _)| *stopped != worker), "the order would wait");
    cluster.disk_hangs = false;
    cluster.pass(Duration::from_secs(2));
    assert!(cluster.stops.iter().any(|(stopped, _)| *stopped == worker));
    assert!(!cluster.members().contains(&worker), "{:?}", cluster.members());
}

#[test]
fn g_5_the_only_holder_that_is_heard_is_kept_although_its_system_refuses_it() {
    let mut cluster = Cluster::new(|config| config.min_np = Some(1));
    cluster.add_host("a", 1);
    cluster.add_host("b", 1);
    cluster.pass(Duration::from_secs(2));
    let (worker, silent) = (cluster.worker("a", 0), cluster.worker("b", 0));
    cluster.worker_link(&silent, LinkEvent::Silent { silent_ms: 1000 });
    let stops = cluster.stops.len();
    cluster.deaf.insert(silent);
    let rank = cluster.members().iter().position(|member| *member == worker);
    let peer = Some(u32::try_from(rank.expect("it is a member")).expect("a small world"));
    cluster.fail(&worker, peer);
    cluster.settle();
    assert_eq!(cluster.stops.len(), stops, "the silent one may be gone, and its commit with it");
    assert!(cluster.has_worker("a", 0));
}

/// Has a worker's process end whenever its generation has committed a step and trained for this time, for an hour.
fn end_again_and_again(cluster: &mut Cluster, trains: Duration) {
    let end = cluster.now + Duration::from_secs(3600);
    while cluster.now < end && cluster.result.is_none() {
        cluster.train(1);
        cluster.pass(trains);
        let (worker, before) = (cluster.worker("a", 0), cluster.sizes.len());
        cluster.exit(&worker, ExitStatus::Code(1));
        while cluster.sizes.len() == before && cluster.now < end && cluster.result.is_none() {
            cluster.pass(Duration::from_millis(100));
        }
    }
}

/// Two workers in process, four by restart, of which none can be spared; any number of failures.
fn without_a_bound_of_failures(config: &mut DriverConfig) {
    config.min_np = config.np.or(Some(2));
    config.max_restarts = 1_000_000;
}

fn warnings_of_the_rate(cluster: &Cluster) -> usize {
    let of_rate = |warning: &&String| warning.contains("resets within ten minutes");
    cluster.warnings.iter().filter(of_rate).count()
}

#[test]
fn g_10_resets_that_leave_hardly_any_time_to_train_are_told_and_then_end_the_job() {
    let mut cluster = with(&["a", "b"], without_a_bound_of_failures);
    let begun = cluster.now;
    end_again_and_again(&mut cluster, Duration::from_millis(100));
    let result = cluster.result.as_ref().expect("an end");
    assert!(result.reason.contains("resets within ten minutes have left"), "{}", result.reason);
    assert_eq!(warnings_of_the_rate(&cluster), 1);
    assert!(cluster.now >= begun + Duration::from_secs(600));
}

#[test]
fn g_10_the_same_by_restart() {
    let mut cluster = four(without_a_bound_of_failures);
    end_again_and_again(&mut cluster, Duration::from_millis(100));
    let result = cluster.result.as_ref().expect("an end");
    assert!(result.reason.contains("resets within ten minutes have left"), "{}", result.reason);
}

#[test]
fn any_number_of_resets_is_borne_where_the_job_trains_between_them() {
    for mut cluster in
        [with(&["a", "b"], without_a_bound_of_failures), four(without_a_bound_of_failures)]
    {
        end_again_and_again(&mut cluster, Duration::from_secs(5));
        assert_eq!(cluster.result, None);
        assert!(cluster.sizes.len() > 100, "{}", cluster.sizes.len());
    }
}
