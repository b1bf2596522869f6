//! Tests of stragglers: conditions and time of naming, the host at fault, and the lines of the status.

use std::time::Duration;

use elastic_protocol::messages::{
    JobShards, LinkPace, Placement, ReportedValues, StepTimes, WorkerToDriver,
};
use elastic_protocol::{Step, WorkerId};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::Cluster;
use super::hangs::seconds;
use crate::core::{DriverConfig, EventKind, OnStraggler};

/// Longest time from the first slow step to the event: the spell, the looks that do not count, and a review.
const NAMED_WITHIN: Duration = Duration::from_secs(15);

/// The part of each step in which every worker waits for its data, in microseconds.
const DATA_US: u64 = 10_000;

/// A job of which each worker tells its step times once a second.
pub(super) struct PacedJob {
    pub(super) cluster: Cluster,
    /// Whether steps are dealt by shards; then times are those of one shard.
    pub(super) carries: bool,
    /// Time for which all are blocked in collectives in each step, in milliseconds.
    pub(super) waiting_ms: u64,
    step: u64,
}

impl PacedJob {
    pub(super) fn begin(hosts: &[(&str, u32)], change: impl FnOnce(&mut DriverConfig)) -> Self {
        let mut slots: u32 = hosts.iter().map(|(_, slots)| slots).sum();
        let mut cluster = Cluster::new(|config| {
            config.min_np = Some(1);
            change(config);
            slots = config.max_np.map_or(slots, |max| max.min(slots));
            config.np = Some(slots);
        });
        for (host, slots) in hosts {
            cluster.add_host(host, *slots);
        }
        assert_eq!(cluster.sizes, [slots]);
        let carries = cluster.shards().is_some();
        Self { cluster, carries, waiting_ms: 2, step: 0 }
    }

    /// Lets a second pass. In each step, each member has computed for `compute_ms`, and has waited for the slowest one.
    pub(super) fn second(&mut self, compute_ms: impl FnMut(&WorkerId) -> u64) {
        self.second_over(compute_ms, |_| Vec::new());
    }

    /// As [`second`](Self::second), and data has come in to each member at these rates.
    pub(super) fn second_over(
        &mut self,
        mut compute_ms: impl FnMut(&WorkerId) -> u64,
        mut links: impl FnMut(&WorkerId) -> Vec<LinkPace>,
    ) {
        self.step += 10;
        let members = self.cluster.members();
        let counts: Vec<u32> = members.iter().map(|worker| self.shards_of(worker)).collect();
        let us = |(worker, shards): (&WorkerId, &u32)| {
            compute_ms(worker) * 1_000 * u64::from(*shards).max(1)
        };
        let computes: Vec<u64> = members.iter().zip(&counts).map(us).collect();
        let step_us = computes.iter().max().copied().unwrap_or_default() + self.waiting_ms * 1_000;
        for ((worker, compute_us), shards) in members.iter().zip(computes).zip(counts) {
            let waiting_us = step_us - compute_us;
            let (data_us, commit_us) = (DATA_US, 0);
            let times = StepTimes { step_us, compute_us, waiting_us, data_us, commit_us, shards };
            let (stamp, step) = (self.cluster.stamp(), Step(self.step));
            let (note, reported) = (String::new(), ReportedValues::default());
            let steps = Some(times);
            let (links, digests) = (links(worker), None);
            let message =
                WorkerToDriver::Progress { stamp, step, note, reported, steps, links, digests };
            self.cluster.say(worker, message);
        }
        self.cluster.pass(seconds(1));
    }

    /// The number of shards that a member carries, by the formation that it was sent; 0 if its program has none.
    pub(super) fn shards_of(&self, worker: &WorkerId) -> u32 {
        let told = self.cluster.placement_of(worker).filter(|_| self.carries);
        let Some(Placement { rank, assignment, shards, .. }) = told else { return 0 };
        match shards {
            JobShards::Unsaid => 0,
            JobShards::Even(total) => {
                let world = assignment.world_size();
                total / world + u32::from(*rank < total % world)
            }
            JobShards::Counted(counts) => counts[*rank as usize],
        }
    }

    pub(super) fn seconds(&mut self, count: u64, compute_ms: impl Fn(&WorkerId) -> u64) {
        (0..count).for_each(|_| self.second(&compute_ms));
    }

    /// The workers that were named, each with its ranks and whether its host was.
    pub(super) fn named(&self) -> Vec<(WorkerId, Vec<u32>, bool)> {
        let found = self.cluster.stragglers.iter().filter_map(|event| match event {
            EventKind::StragglerFound { worker, ranks, is_host, .. } => {
                Some((worker.clone(), ranks.clone(), *is_host))
            }
            _ => None,
        });
        found.collect()
    }

    fn recovered(&self) -> usize {
        let is_it = |event: &&EventKind| matches!(event, EventKind::StragglerRecovered { .. });
        self.cluster.stragglers.iter().filter(is_it).count()
    }

    pub(super) fn rank_of(&self, worker: &WorkerId) -> u32 {
        self.cluster.core.round.rank_of(worker).expect("a member")
    }
}

const THREE: [(&str, u32); 3] = [("a", 1), ("b", 1), ("c", 1)];

pub(super) fn slow_on(host: &'static str, slow_ms: u64) -> impl Fn(&WorkerId) -> u64 {
    move |worker| if worker.host.to_string() == host { slow_ms } else { 100 }
}

#[test]
fn the_step_of_the_job_is_the_median_of_its_members() {
    let mut job = PacedJob::begin(&THREE, |_| {});
    for (host, step_us) in [("a", 30_000), ("b", 10_000), ("c", 20_000)] {
        let (compute_us, waiting_us, data_us, commit_us, shards) = (step_us, 0, 0, 0, 0);
        let times = StepTimes { step_us, compute_us, waiting_us, data_us, commit_us, shards };
        let worker = job.cluster.worker(host, 0);
        let message = WorkerToDriver::Progress {
            stamp: job.cluster.stamp(),
            step: Step(1),
            note: String::new(),
            reported: ReportedValues::default(),
            steps: Some(times),
            links: Vec::new(),
            digests: None,
        };
        job.cluster.say(&worker, message);
    }
    assert_eq!(job.cluster.core.stragglers.step_us(), Some(20_000));
}

#[test]
fn who_computes_for_longer_than_the_others_is_named_and_told_when_it_is_over() {
    let mut job = PacedJob::begin(&THREE, |_| {});
    job.seconds(30, |_| 100);
    assert_eq!(job.named(), []);
    job.seconds(9, slow_on("b", 300));
    assert_eq!(job.named(), [], "not for long enough");
    job.seconds(NAMED_WITHIN.as_secs() - 9, slow_on("b", 300));
    let slow = job.cluster.worker("b", 0);
    let rank = job.rank_of(&slow);
    assert_eq!(job.named(), [(slow.clone(), vec![rank], false)]);
    let Some(EventKind::StragglerFound {
        factor, own_factor, compute_ms, peers_ms, slow_ms, ..
    }) = job.cluster.stragglers.first()
    else {
        panic!("{:?}", job.cluster.stragglers);
    };
    assert_eq!((*factor, *own_factor, *compute_ms, *peers_ms), (3.0, Some(3.0), 300.0, 100.0));
    assert!((10_000.0..15_000.0).contains(slow_ms), "{slow_ms}");

    let status = job.cluster.core.status(job.cluster.now, &|_| String::new());
    let shown = status.stragglers.first().expect("it is shown");
    assert_eq!((shown.rank, shown.host.to_string(), shown.factor), (rank, "b".to_owned(), 3.0));
    let text = shown.to_string();
    assert!(text.contains("(b:0) computes 3.0 times as long as its peers: 300.0 ms"), "{text}");
    for worker in &status.workers {
        let is_slow = worker.host == slow.host;
        let (compute, waiting) = if is_slow { (300.0, 2.0) } else { (100.0, 202.0) };
        assert_eq!(worker.step_ms, Some(302.0));
        assert_eq!((worker.compute_ms, worker.waiting_ms), (Some(compute), Some(waiting)));
    }

    job.seconds(60, slow_on("b", 300));
    assert_eq!(job.named().len(), 1, "it is told once");
    job.seconds(9, |_| 100);
    assert_eq!(job.recovered(), 0);
    job.seconds(6, |_| 100);
    assert_eq!(job.recovered(), 1);
    let status = job.cluster.core.status(job.cluster.now, &|_| String::new());
    assert_eq!(status.stragglers, []);
}

#[test]
fn what_steps_wait_for_is_told_in_turn_and_when_a_generation_ends() {
    let mut job = PacedJob::begin(&THREE, |_| {});
    job.seconds(30, |_| 100);
    assert_eq!(job.cluster.measured, [], "30 s have not passed");
    job.second(|_| 100);
    let told = |job: &PacedJob| match job.cluster.measured.last() {
        Some(EventKind::StepsMeasured { ms, data, commit, straggler, slowest }) => {
            (*ms, *data, *commit, *straggler, slowest.clone())
        }
        other => panic!("{other:?}"),
    };
    // 10 of 102 ms.
    assert_eq!(told(&job), (30_000.0, 0.098, 0.0, 0.0, vec![]));
    job.seconds(60, slow_on("b", 300));
    let slow = job.cluster.worker("b", 0);
    let (ms, data, _, straggler, slowest) = told(&job);
    // Two of three wait for 200 of 302 ms.
    assert_eq!((ms, data, straggler, slowest), (5_000.0, 0.0331, 0.4415, vec![slow.clone()]));
    job.seconds(3, slow_on("b", 300));
    let count = job.cluster.measured.len();
    job.cluster.kill(&slow);
    assert_eq!(job.cluster.measured.len(), count + 1, "its generation ends");
    assert_eq!((told(&job).3, told(&job).4), (0.4415, vec![slow]));
    assert!((1_000.0..5_000.0).contains(&told(&job).0), "{}", told(&job).0);
}

#[test]
fn two_slow_ranks_of_one_host_are_the_hosts_fault() {
    let mut job = PacedJob::begin(&[("a", 2), ("b", 2), ("c", 2)], |_| {});
    job.seconds(5, |_| 100);
    job.seconds(40, slow_on("b", 200));
    let ranks = [0, 1].map(|slot| job.rank_of(&job.cluster.worker("b", slot)));
    assert_eq!(job.named(), [(job.cluster.worker("b", 0), ranks.to_vec(), true)]);
    let status = job.cluster.core.status(job.cluster.now, &|_| String::new());
    assert!(status.stragglers.iter().all(|shown| shown.is_host && shown.host.to_string() == "b"));
    assert_eq!(status.stragglers.len(), 2);
    job.seconds(20, |_| 100);
    assert_eq!(job.recovered(), 2, "each by itself");
}

#[test]
fn two_slow_ranks_of_two_hosts_are_named_one_by_one() {
    let mut job = PacedJob::begin(&[("a", 2), ("b", 2), ("c", 2)], |_| {});
    let slow = |worker: &WorkerId| {
        let is_slow = worker.slot == 0 && worker.host.to_string() != "a";
        if is_slow { 200 } else { 100 }
    };
    job.seconds(40, slow);
    let named: Vec<(String, bool)> = job
        .named()
        .iter()
        .map(|(worker, _, is_host)| (worker.host.to_string(), *is_host))
        .collect();
    assert_eq!(named, [("b".to_owned(), false), ("c".to_owned(), false)]);
}

#[test]
fn with_off_nobody_is_compared_and_the_times_are_shown() {
    let mut job = PacedJob::begin(&THREE, |config| config.on_straggler = OnStraggler::Off);
    job.seconds(60, slow_on("b", 300));
    assert_eq!(job.named(), []);
    let status = job.cluster.core.status(job.cluster.now, &|_| String::new());
    assert!(status.workers.iter().all(|worker| worker.step_ms == Some(302.0)));
}

#[test]
fn who_remains_slow_in_the_next_generation_is_not_named_again_and_its_next_process_is() {
    let mut job = PacedJob::begin(&THREE, |_| {});
    job.seconds(20, slow_on("b", 300));
    assert_eq!(job.named().len(), 1);
    let other = job.cluster.worker("c", 0);
    job.cluster.kill(&other);
    job.cluster.pass(seconds(30));
    let status = job.cluster.core.status(job.cluster.now, &|_| String::new());
    assert!(status.workers.iter().all(|worker| worker.step_ms.is_none()), "none is measured yet");
    job.seconds(20, slow_on("b", 300));
    assert_eq!(job.named().len(), 1);
    let slow = job.cluster.worker("b", 0);
    job.cluster.kill(&slow);
    job.cluster.pass(seconds(30));
    job.seconds(20, slow_on("b", 300));
    assert_eq!(job.named().len(), 2);
}

/// Work for which a healthy rank is slow now and then: a garbage collection, a slow read, a compilation, a checkpoint or an
/// evaluation of its own.
struct LongWork {
    /// Shortest average time between two of its kind, in seconds.
    every_s: u64,
    /// Number of seconds for which the rank's steps are slow.
    lasts_s: std::ops::Range<u64>,
    /// Ratio of the time of such a step to that of a usual one.
    times: u64,
    /// Whether it is always the first rank's.
    is_roots: bool,
}

impl LongWork {
    const fn new(every_s: u64, lasts_s: std::ops::Range<u64>, times: u64, is_roots: bool) -> Self {
        Self { every_s, lasts_s, times, is_roots }
    }
}

#[test]
fn l_3_a_day_of_noise_garbage_compilations_checkpoints_and_evaluations_names_and_replaces_nobody() {
    a_day_of_noise(|config| config.on_straggler = OnStraggler::Replace);
}

#[test]
fn l_3_a_day_of_noise_moves_no_shard() {
    a_day_of_noise(|config| {
        config.on_straggler = OnStraggler::Rebalance;
        config.shards = Some(8);
    });
}

fn a_day_of_noise(answer: impl FnOnce(&mut DriverConfig)) {
    let kinds = [
        LongWork::new(20, 1..3, 5, false),
        LongWork::new(300, 1..6, 20, false),
        LongWork::new(1_800, 3..9, 10, false),
        LongWork::new(600, 2..8, 8, true),
        LongWork::new(3_600, 4..9, 30, true),
    ];
    let mut job = PacedJob::begin(&THREE, |config| {
        config.min_np = Some(1);
        answer(config);
    });
    let mut random = ChaCha8Rng::seed_from_u64(7);
    // The slow rank with its factor, and the end of its spell. After that, all are fast for the same time again.
    let (mut slow, mut until, mut quiet_until) = (None, 0, 0);
    for second in 0..24 * 3_600_u64 {
        if second >= until {
            slow = None;
        }
        if second >= quiet_until {
            let due = kinds.iter().find(|kind| random.random_range(0..kind.every_s) == 0);
            if let Some(kind) = due {
                let rank = if kind.is_roots { 0 } else { random.random_range(0..3_usize) };
                let lasts = random.random_range(kind.lasts_s.clone());
                (slow, until) = (Some((rank, kind.times)), second + lasts);
                quiet_until = second + 2 * lasts;
            }
        }
        if second % 7_200 == 7_199 {
            // A reset: all begin anew, compile and fill their caches.
            let members = job.cluster.members();
            let killed = members[random.random_range(0..members.len())].clone();
            job.cluster.kill(&killed);
            job.cluster.pass(seconds(30));
            (slow, until, quiet_until) = (Some((1, 4)), second + 3, second + 6);
        }
        let members = job.cluster.members();
        let slow = slow.map(|(rank, times): (usize, u64)| (members[rank].clone(), times));
        job.second(|worker| {
            let noise = random.random_range(80..115);
            match &slow {
                Some((late, times)) if late == worker => noise * times,
                _ => noise,
            }
        });
    }
    assert_eq!((job.named(), job.cluster.stragglers.len()), (Vec::new(), 0));
}

#[test]
fn five_hundred_planted_stragglers_are_all_named_within_their_bound() {
    let mut job = PacedJob::begin(&THREE, |_| {});
    let mut random = ChaCha8Rng::seed_from_u64(8);
    for planted in 0..500 {
        let members = job.cluster.members();
        let slow = members[random.random_range(0..members.len())].clone();
        let factor = random.random_range(20..50);
        for _ in 0..NAMED_WITHIN.as_secs() {
            job.second(|worker| {
                let noise = random.random_range(90..110);
                if *worker == slow { noise * factor / 10 } else { noise }
            });
        }
        assert_eq!(job.named().len(), planted + 1);
        assert_eq!(job.named()[planted].0, slow, "the right one");
        for _ in 0..NAMED_WITHIN.as_secs() {
            job.second(|_| random.random_range(90..110));
        }
        assert_eq!(job.recovered(), planted + 1);
    }
}
