//! Replicas that differ, on real processes (C-6): one bit of one rank's weights is flipped.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::metrics::{metrics, observed_on};
use crate::observe::run_explain;
use crate::support::{Job, wait_until};

/// Weights of 400 KB: a 32nd is digested in each commit.
const LARGE: [&str; 6] = ["--step-ms", "2", "--weights", "100000", "--averages", "4"];

/// Commits of a rank so far.
fn commits_of(job: &Job, rank: u64) -> u64 {
    let is_commit = |line: &&Value| line["event"] == "commit" && line["rank"] == rank;
    job.log().iter().filter(is_commit).count() as u64
}

/// Waits until the ranks have made so many commits, flips a bit at a rank, and returns the step before which it happened.
fn flip(job: &mut Job, rank: u64) -> u64 {
    let begun = commits_of(job, rank);
    job.wait("commits", |job| (commits_of(job, rank) > begun + 3).then_some(()));
    let step = job.status().map(|status| status["workers"][0]["step"].as_u64().unwrap_or_default());
    job.control(&format!("flip.{rank}"));
    step.unwrap_or_default()
}

/// The first entry of `divergence`, once there is one.
fn divergence(job: &mut Job) -> Value {
    job.wait("the difference in the status", |job| {
        job.status()?["divergence"].as_array()?.first().cloned()
    })
}

/// The folded weights of each step of a generation, of all ranks that have logged it.
fn weights_of(job: &Job, generation: u64) -> BTreeMap<u64, (BTreeSet<String>, usize)> {
    let mut weights: BTreeMap<u64, (BTreeSet<String>, usize)> = BTreeMap::new();
    for line in job.log() {
        if line["event"] == "commit" && line["generation"] == generation {
            let of_step = weights.entry(line["steps"].as_u64().unwrap_or_default()).or_default();
            of_step.0.insert(line["weights"].to_string());
            of_step.1 += 1;
        }
    }
    weights
}

#[test]
fn c_6_a_flipped_bit_is_named_with_array_rank_host_and_step_within_64_commits() {
    let (mut job, address) = observed_on("a:1,b:1,c:1", &[], &LARGE);
    job.wait_for_sizes(&[3]);
    let before = flip(&mut job, 1);
    let found = divergence(&mut job);
    let expected = job.status().expect("a status");
    let worker = &expected["workers"][1];
    assert_eq!(found["tensor"], "weights", "{found}");
    assert_eq!(found["rank"], 1, "{found}");
    assert_eq!((&found["host"], &found["slot"]), (&worker["host"], &worker["slot"]), "{found}");
    assert_eq!((&found["agreeing"], &found["members"]), (&2.into(), &3.into()), "{found}");
    let step = found["step"].as_u64().expect("a step");
    // The flip takes place within some steps of the order, and is seen within 64 commits of it.
    let first = job.wait("the flip in the log", |job| {
        let differ =
            |(step, (all, _)): (&u64, &(BTreeSet<String>, usize))| (all.len() > 1).then_some(*step);
        weights_of(job, job.generation()).iter().find_map(differ)
    });
    assert!(first >= before && (first..=first + 64).contains(&step), "{before} {first} {step}");
    let events = job.events_of("replicas_differ");
    assert_eq!(events.len(), 1, "once: {events:?}");
    assert_eq!((&events[0]["tensor"], &events[0]["step"]), (&"weights".into(), &step.into()));
    assert_eq!(events[0]["ranks"], serde_json::json!([1]));
    // Each rank's own averages are left out, and that is said of those that are not declared.
    let left_out = expected["not_compared"].as_array().cloned().unwrap_or_default();
    let names: Vec<&str> = left_out.iter().filter_map(|it| it["tensor"].as_str()).collect();
    assert_eq!(names, ["averages"]);
    let (code, text, stderr) = run_explain(&job, &["now"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(
        text.contains("Replicas differ: rank 1") && text.contains("in weights since"),
        "{text}"
    );
    let is_counted = |line: &str| line.starts_with("elastic_node_replicas_differed_total{} 1");
    wait_until("the metric", || metrics(address).lines().any(is_counted).then_some(()));
    assert_eq!(job.finish(), 0, "it is told, and nothing else happens");
    assert_eq!(job.sizes(), [3]);
    job.assert_exact();
}

#[test]
fn c_6_repair_gives_the_rank_the_majoritys_content_and_training_goes_on() {
    for rank in [0, 2] {
        let mut job = Job::start(&["--on-divergence", "repair"], &LARGE);
        job.agent("a", 2);
        job.agent("b", 1);
        job.wait_for_sizes(&[3]);
        let first = job.generation();
        flip(&mut job, rank);
        let reset = job.first_reset();
        assert!(
            reset["cause"].as_str().is_some_and(|it| it.contains("in weights at step")),
            "{reset}"
        );
        assert_eq!(reset["steps_lost"], 0, "{reset}");
        job.wait_for_sizes(&[3, 3]);
        let generation = job.generation();
        // All ranks now have the majority's weights.
        let whole = |job: &Job, generation: u64| {
            let weights = weights_of(job, generation);
            weights.into_iter().filter(|(_, (_, ranks))| *ranks == 3).collect::<Vec<_>>()
        };
        job.wait("commits of the next generation", |job| {
            (whole(job, generation).len() > 80).then_some(())
        });
        assert!(whole(&job, first).iter().any(|(_, (all, _))| all.len() > 1), "it was flipped");
        let differing = whole(&job, generation).into_iter().find(|(_, (all, _))| all.len() > 1);
        assert_eq!(differing, None, "the replicas are equal again");
        let status = job.status().expect("a status");
        assert_eq!(status["divergence"], serde_json::json!([]));
        assert_eq!(job.events_of("replicas_differ").len(), 1);
        assert_eq!(job.finish(), 0);
        assert_eq!(job.sizes(), [3, 3]);
        job.assert_exact();
    }
}

#[test]
fn c_6_fail_ends_the_job_with_exit_code_1_and_the_reason() {
    let mut job = Job::start(&["--on-divergence", "fail"], &["--step-ms", "5"]);
    job.agent("a", 2);
    job.wait_for_sizes(&[2]);
    flip(&mut job, 1);
    assert_eq!(job.end(), 1);
    let stderr = job.stderr();
    assert!(
        stderr.contains("replicas of the state differ: rank 0 (a:0) differs in weights"),
        "{stderr}"
    );
    assert!(stderr.contains("no majority of the 2 ranks agrees"), "{stderr}");
}
