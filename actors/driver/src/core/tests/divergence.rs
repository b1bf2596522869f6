//! Tests of replicas that differ (C-6): the named members and step, members that are never accused, and the effect of each
//! answer.

use elastic_protocol::messages::{
    ReportedValues, StateDigests, StatusReport, TensorDigest, TensorName, WorkerToDriver,
};
use elastic_protocol::{ResetCause, Step, WorkerId};

use super::Cluster;
use crate::core::config::OnDivergence;
use crate::core::{DriverConfig, EventKind};

/// A job whose members tell digests of their commits: of `weights`, which each step changes alike, and of arrays of a test.
struct ReplicatedJob {
    cluster: Cluster,
    step: u64,
}

const WEIGHTS: u64 = 1;
const OTHER: u64 = 2;

/// A member's digest of an array: its content, and whether the step changed it. None: it sends no digest.
type Told = Option<(u64, bool)>;

impl ReplicatedJob {
    fn begin(hosts: &[&str], change: impl FnOnce(&mut DriverConfig)) -> Self {
        let mut cluster = Cluster::new(|config| {
            config.np = Some(hosts.len() as u32);
            config.min_np = Some(1);
            change(config);
        });
        hosts.iter().for_each(|host| cluster.add_host(host, 1));
        assert_eq!(cluster.sizes, [hosts.len() as u32]);
        Self { cluster, step: 0 }
    }

    fn answering(hosts: &[&str], answer: OnDivergence) -> Self {
        Self::begin(hosts, |config| config.on_divergence = answer)
    }

    /// All members commit a step, and send their digests.
    fn commit(&mut self, told: impl Fn(&WorkerId, u64) -> Told) {
        self.step += 1;
        let members = self.cluster.members();
        self.cluster.train(1);
        members.iter().for_each(|worker| self.tell(worker, self.step - 1, self.step, &told));
    }

    fn tell(
        &mut self,
        worker: &WorkerId,
        since: u64,
        through: u64,
        told: impl Fn(&WorkerId, u64) -> Told,
    ) {
        let mut digests = Vec::new();
        for step in since + 1..=through {
            for tensor in [WEIGHTS, OTHER] {
                let told = told(worker, tensor);
                digests.extend(told.map(|(content, changed)| TensorDigest {
                    step,
                    tensor,
                    digest: content,
                    changed,
                }));
            }
        }
        let name = |(id, name): (u64, &str)| TensorName { id, tensor: name.to_owned() };
        let names = [(WEIGHTS, "model.weights"), (OTHER, "averages")].map(name).to_vec();
        self.say(worker, StateDigests { since, through, digests, names });
    }

    /// A worker tells the digests of its commits with its progress.
    fn say(&mut self, worker: &WorkerId, digests: StateDigests) {
        let message = WorkerToDriver::Progress {
            stamp: self.cluster.stamp(),
            step: Step(digests.through),
            note: String::new(),
            reported: ReportedValues::default(),
            steps: None,
            links: Vec::new(),
            digests: Some(digests),
        };
        self.cluster.say(worker, message);
        self.cluster.settle();
    }

    fn status(&self) -> StatusReport {
        self.cluster.core.status(self.cluster.now, &|_| String::new())
    }

    /// Differences that were told: array, step, ranks, ranks that agree.
    fn found(&self) -> Vec<(String, u64, Vec<u32>, u32)> {
        let found = self.cluster.divergence.iter().filter_map(|event| match event {
            EventKind::ReplicasDiffer { tensor, step, ranks, agreeing, .. } => {
                Some((tensor.clone(), *step, ranks.clone(), *agreeing))
            }
            _ => None,
        });
        found.collect()
    }

    fn rank_of(&self, worker: &WorkerId) -> u32 {
        self.cluster.core.round.rank_of(worker).expect("a member")
    }
}

/// All hold the same weights, which each step changes; the member of this host holds others.
fn flipped_on(host: &'static str) -> impl Fn(&WorkerId, u64) -> Told {
    move |worker, tensor| match tensor {
        WEIGHTS => Some((7 + u64::from(worker.host.as_str() == host), true)),
        _ => None,
    }
}

fn alike(_: &WorkerId, tensor: u64) -> Told {
    (tensor == WEIGHTS).then_some((7, true))
}

#[test]
fn c_6_a_replica_that_differs_is_named_with_array_rank_host_and_first_step() {
    let mut job = ReplicatedJob::answering(&["a", "b", "c"], OnDivergence::Tell);
    (0..4).for_each(|_| job.commit(alike));
    assert_eq!(job.found(), []);
    (0..4).for_each(|_| job.commit(flipped_on("b")));
    let worker = job.cluster.worker("b", 0);
    let rank = job.rank_of(&worker);
    assert_eq!(job.found(), [("model.weights".to_owned(), 5, vec![rank], 2)], "once");
    let shown = job.status().divergence;
    assert_eq!(shown.len(), 1);
    let text = shown[0].to_string();
    let expected = format!(
        "rank {rank} (b:0) differs in model.weights since step 5: 2 of 3 ranks agree on other content"
    );
    assert_eq!(text, expected);
    assert!(job.cluster.resets.is_empty() && job.cluster.result.is_none(), "told, no more");
}

#[test]
fn c_6_of_two_ranks_nobody_knows_which_is_right() {
    let mut job = ReplicatedJob::answering(&["a", "b"], OnDivergence::Repair);
    job.commit(alike);
    job.commit(flipped_on("b"));
    assert_eq!(job.found(), [("model.weights".to_owned(), 2, vec![0, 1], 1)]);
    assert!(job.status().divergence.iter().all(|shown| !shown.is_outvoted()));
    assert!(job.cluster.resets.is_empty(), "there is no content to take over");
}

#[test]
fn c_6_a_step_is_compared_once_all_have_told_it() {
    let mut job = ReplicatedJob::answering(&["a", "b", "c"], OnDivergence::Tell);
    job.commit(alike);
    let [a, b, c] = ["a", "b", "c"].map(|host| job.cluster.worker(host, 0));
    job.tell(&b, 1, 9, flipped_on("b"));
    job.tell(&a, 1, 5, alike);
    assert_eq!(job.found(), []);
    job.tell(&c, 1, 3, alike);
    let rank = job.rank_of(&b);
    assert_eq!(job.found(), [("model.weights".to_owned(), 2, vec![rank], 2)]);
}

#[test]
fn c_6_steps_that_a_member_left_out_are_not_compared() {
    let mut job = ReplicatedJob::answering(&["a", "b", "c"], OnDivergence::Tell);
    job.commit(alike);
    let [a, b, c] = ["a", "b", "c"].map(|host| job.cluster.worker(host, 0));
    job.tell(&b, 1, 9, flipped_on("b"));
    job.tell(&a, 4, 9, alike);
    job.tell(&c, 6, 9, alike);
    let rank = job.rank_of(&b);
    assert_eq!(job.found(), [("model.weights".to_owned(), 7, vec![rank], 2)]);
}

#[test]
fn what_each_rank_has_of_its_own_is_accused_of_nothing_and_said_to_be_left_out() {
    let mut job = ReplicatedJob::answering(&["a", "b", "c"], OnDivergence::Fail);
    for _ in 0..200 {
        job.commit(|worker, tensor| match tensor {
            WEIGHTS => Some((7, true)),
            _ => Some((u64::from(worker.host.as_str().as_bytes()[0]), true)),
        });
    }
    assert_eq!(job.found(), []);
    assert_eq!(job.cluster.result, None);
    let left_out = job.status().not_compared;
    assert_eq!(left_out.len(), 1);
    let text = left_out[0].to_string();
    assert!(text.starts_with("averages is not compared: at step 1, rank 0 held another"), "{text}");
}

#[test]
fn arrays_that_no_step_has_changed_are_accused_of_nothing() {
    // Averages that only rank 0 keeps, from some step on.
    let mut job = ReplicatedJob::answering(&["a", "b", "c"], OnDivergence::Fail);
    let frozen = |_: &WorkerId, _| Some((7, false));
    (0..100).for_each(|_| job.commit(frozen));
    (0..100).for_each(|_| {
        job.commit(|worker, _| {
            Some(if worker.host.as_str() == "a" { (9, true) } else { (7, false) })
        })
    });
    assert_eq!((job.found(), job.cluster.result.is_none()), (Vec::new(), true));
}

#[test]
fn a_rank_without_an_array_is_named_and_not_accused() {
    let mut job = ReplicatedJob::answering(&["a", "b", "c"], OnDivergence::Fail);
    job.commit(alike);
    let lacking = |worker: &WorkerId, _| (worker.host.as_str() != "c").then_some((7, true));
    (0..3).for_each(|_| job.commit(lacking));
    assert_eq!(job.found(), []);
    let rank = job.rank_of(&job.cluster.worker("c", 0));
    let left_out = job.status().not_compared.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(
        left_out[0],
        format!("model.weights is not compared: rank {rank} has no digest of it")
    );
}

#[test]
fn a_state_without_arrays_is_said_to_be_left_out() {
    let mut job = ReplicatedJob::answering(&["a", "b"], OnDivergence::Tell);
    (0..70).for_each(|_| job.commit(|_, _| None));
    let left_out = job.status().not_compared;
    assert_eq!(left_out.len(), 1);
    assert!(
        left_out[0].to_string().starts_with("nothing of the state is compared"),
        "{left_out:?}"
    );
}

#[test]
fn c_6_a_rank_that_sends_no_digests_is_named_once_and_until_it_sends_some() {
    let mut job = ReplicatedJob::answering(&["a", "b", "c"], OnDivergence::Fail);
    let silent = job.cluster.worker("b", 0);
    let rank = job.rank_of(&silent);
    let commit = |job: &mut ReplicatedJob| {
        job.step += 1;
        job.cluster.train(1);
        for worker in job.cluster.members() {
            match worker == silent {
                true => job.cluster.say_step(&worker, job.step),
                false => job.tell(&worker, job.step - 1, job.step, alike),
            }
        }
        job.cluster.settle();
    };
    (0..100).for_each(|_| commit(&mut job));
    assert_eq!(job.status().not_compared, [], "it may be slow to digest");
    (0..200).for_each(|_| commit(&mut job));
    let said: Vec<&EventKind> = job.cluster.divergence.iter().collect();
    let [EventKind::NotCompared { tensor, reason }] = said[..] else { panic!("{said:?}") };
    assert_eq!(tensor, "");
    assert!(reason.contains(&format!("rank {rank} ({silent}) sends no digests")), "{reason}");
    let shown: Vec<String> = job.status().not_compared.iter().map(ToString::to_string).collect();
    let line =
        format!("nothing of the state is compared: rank {rank} sends no digests of its commits");
    assert_eq!(shown, [line]);
    job.commit(alike);
    assert_eq!(job.status().not_compared, [], "it has sent some");
}

#[test]
fn c_6_fail_ends_the_job_with_the_array_and_the_rank() {
    let mut job = ReplicatedJob::answering(&["a", "b", "c"], OnDivergence::Fail);
    job.commit(alike);
    job.commit(flipped_on("c"));
    job.cluster.pass(std::time::Duration::from_secs(1));
    let result = job.cluster.result.clone().expect("it has ended");
    assert_eq!(result.code, 1);
    assert!(
        result.reason.contains("(c:0) differs in model.weights since step 2"),
        "{}",
        result.reason
    );
}

#[test]
fn c_6_g_6_repair_is_a_planned_end_whose_next_generation_begins_from_the_majority() {
    for host in ["a", "b", "c"] {
        let mut job = ReplicatedJob::answering(&["a", "b", "c"], OnDivergence::Repair);
        job.commit(alike);
        let damaged = job.cluster.worker(host, 0);
        let rank = job.rank_of(&damaged);
        job.cluster.damaged.insert(damaged.clone());
        job.commit(flipped_on(host));
        let expected = ResetCause::ReplicasDiffer {
            workers: vec![damaged.clone()],
            tensor: "model.weights".to_owned(),
            step: 2,
        };
        assert_eq!(job.cluster.resets, [expected]);
        assert_eq!(job.cluster.sizes, [3, 3]);
        assert_eq!(job.cluster.steps_lost, [0]);
        let root = job.cluster.roots.last().copied().flatten().expect("G-6: no sync is skipped");
        assert_ne!(root, rank, "the root is one of the majority");
        assert!(job.status().divergence.is_empty(), "all hold the same again");
        job.cluster.damaged.clear();
        job.step = 10;
        job.commit(alike);
        assert_eq!((job.found().len(), job.cluster.resets.len()), (1, 1));
    }
}

#[test]
fn c_6_a_process_is_repaired_three_times_at_most() {
    let mut job = ReplicatedJob::answering(&["a", "b", "c"], OnDivergence::Repair);
    job.commit(alike);
    for _ in 0..8 {
        job.cluster.damaged.insert(job.cluster.worker("b", 0));
        job.commit(flipped_on("b"));
    }
    assert_eq!(job.cluster.resets.len(), 3);
    assert_eq!(job.status().divergence.len(), 1, "it remains told");
}

#[test]
fn c_6_g_5_whoever_differs_is_not_the_root_where_another_holds_the_commit_and_is_where_it_alone_does()
 {
    let mut job = ReplicatedJob::answering(&["a", "b", "c"], OnDivergence::Tell);
    job.commit(alike);
    let damaged = job.cluster.members()[0].clone();
    let host = damaged.host.as_str().to_owned();
    job.cluster.damaged.insert(damaged);
    let flipped = |worker: &WorkerId, tensor| {
        (tensor == WEIGHTS).then_some((7 + u64::from(worker.host.as_str() == host), true))
    };
    job.commit(flipped);
    assert_eq!(job.found().len(), 1);
    let killed = job.cluster.members()[1].clone();
    job.cluster.kill(&killed);
    job.cluster.pass(std::time::Duration::from_secs(5));
    assert_eq!(job.cluster.roots[1], Some(1), "rank 0 is the one that differs");

    let mut job = ReplicatedJob::answering(&["a", "b", "c"], OnDivergence::Tell);
    job.commit(alike);
    let members = job.cluster.members();
    let host = members[0].host.as_str().to_owned();
    job.commit(|worker, tensor| {
        (tensor == WEIGHTS).then_some((7 + u64::from(worker.host.as_str() == host), true))
    });
    job.cluster.report_exit(&members[1], elastic_protocol::ExitStatus::Signal(9));
    job.cluster.kill(&members[2]);
    job.cluster.pass(std::time::Duration::from_secs(5));
    assert_eq!(job.cluster.losses, [], "G-5: the only holder's commit counts");
    let warned = job.cluster.warnings.iter().any(|warning| warning.contains("only it holds"));
    assert!(warned, "{:?}", job.cluster.warnings);
}

#[test]
fn c_6_a_driver_that_takes_over_compares_from_there_on() {
    let mut job = ReplicatedJob::answering(&["a", "b", "c"], OnDivergence::Tell);
    job.commit(alike);
    job.cluster.restart_driver();
    job.cluster.come_back(&["a", "b", "c"]);
    job.cluster.pass(std::time::Duration::from_secs(5));
    job.commit(alike);
    job.commit(flipped_on("b"));
    let rank = job.rank_of(&job.cluster.worker("b", 0));
    assert_eq!(job.found(), [("model.weights".to_owned(), 3, vec![rank], 2)]);
}

#[test]
fn c_6_d_3_a_driver_that_takes_over_repairs_what_its_predecessor_found() {
    let mut job = ReplicatedJob::answering(&["a", "b", "c"], OnDivergence::Repair);
    job.commit(alike);
    let damaged = job.cluster.members()[0].clone();
    let host = damaged.host.as_str().to_owned();
    job.cluster.damaged.insert(damaged.clone());
    let flipped = |worker: &WorkerId, tensor| {
        (tensor == WEIGHTS).then_some((7 + u64::from(worker.host.as_str() == host), true))
    };
    // The driver dies once the difference is on record, before it orders the repair.
    job.step += 1;
    job.cluster.train(1);
    for worker in job.cluster.members() {
        let told = StateDigests {
            since: 1,
            through: 2,
            digests: flipped(&worker, WEIGHTS)
                .map(|(digest, changed)| TensorDigest { step: 2, tensor: WEIGHTS, digest, changed })
                .into_iter()
                .collect(),
            names: Vec::new(),
        };
        let (now, stamp) = (job.cluster.now, job.cluster.stamp());
        job.cluster.core.handle_digests(now, &worker, stamp, told);
    }
    assert!(job.cluster.store());
    assert!(job.cluster.resets.is_empty());
    job.cluster.restart_driver();
    let shown = job.status().divergence;
    assert_eq!(shown.len(), 1, "the successor shows it");
    assert_eq!((shown[0].tensor.as_str(), shown[0].step), ("model.weights", 2));
    job.cluster.come_back(&["a", "b", "c"]);
    job.cluster.pass(std::time::Duration::from_secs(5));
    let expected = ResetCause::ReplicasDiffer {
        workers: vec![damaged],
        tensor: "model.weights".to_owned(),
        step: 2,
    };
    assert_eq!(job.cluster.resets, [expected]);
    let root = job.cluster.roots.last().copied().flatten().expect("G-6: no sync is skipped");
    assert_ne!(root, 0, "the root is one of the majority");
    assert!(job.status().divergence.is_empty(), "all hold the same again");
    // A repaired difference is forgotten in the journal, too.
    job.cluster.damaged.clear();
    job.cluster.restart_driver();
    assert!(job.status().divergence.is_empty());
}

#[test]
fn more_digests_than_a_message_may_have_are_dropped() {
    let mut job = ReplicatedJob::answering(&["a", "b"], OnDivergence::Tell);
    let worker = job.cluster.worker("a", 0);
    let dropped = job.status().dropped_messages;
    job.tell(&worker, 0, StateDigests::DIGESTS_MAX as u64 + 1, alike);
    assert_eq!(job.status().dropped_messages, dropped + 1);
}

/// All ranks train, and go through a pass as a test says.
fn drawing(job: &mut ReplicatedJob, way: impl Fn(u32) -> Option<&'static str>) {
    job.step += 1;
    let (since, through) = (job.step - 1, job.step);
    let members = job.cluster.members();
    job.cluster.train(1);
    let pass = TensorDigest::pass_id(3);
    for worker in members {
        let way = way(job.rank_of(&worker));
        let id = |way: &str| TensorDigest::pass_id(way.len() as u64);
        let told =
            |way| TensorDigest { step: through, tensor: pass, digest: id(way), changed: true };
        let named = |way: &'static str| {
            [(pass, "pass \"\""), (id(way), way)]
                .map(|(id, words)| TensorName { id, tensor: words.to_owned() })
        };
        let digests = way.map(told).into_iter().collect();
        let names = way.into_iter().flat_map(named).collect();
        job.say(&worker, StateDigests { since, through, digests, names });
    }
}

#[test]
fn h_23_a_job_whose_ranks_go_through_a_pass_apart_fails_with_the_values_of_each() {
    let mut job = ReplicatedJob::answering(&["a", "b", "c"], OnDivergence::Tell);
    drawing(&mut job, |_| Some("batches of 4, seed 5"));
    drawing(&mut job, |rank| (rank == 0).then_some("batches of 16, in order"));
    assert!(job.cluster.result.is_none(), "a validation on rank 0 is no difference");
    assert!(job.status().not_compared.is_empty(), "and nothing that is told");
    drawing(&mut job, |rank| {
        Some(["batches of 16, seed 5", "batches of 4, seed 5"][(rank.min(1)) as usize])
    });
    let result = job.cluster.result.as_ref().expect("it failed");
    assert_eq!(
        result.reason,
        "the ranks' places in the data differ at commit 3: they go through the pass \"\" by batches of 16, seed 5 \
         on rank 0; batches of 4, seed 5 on ranks 1, 2"
    );
    assert!(result.hint.as_ref().is_some_and(|hint| hint.contains("`named`")), "{result:?}");
}
