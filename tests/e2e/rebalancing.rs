//! A slow worker carries fewer logical shards (L-4, C-2): as planned, without anybody coming or leaving, and with the bits of
//! one undisturbed worker.

use serde_json::{Value, json};

use crate::observe::run_explain;
use crate::shards::{undisturbed, weights};
use crate::stragglers::DutyCycle;
use crate::support::{Job, program};

/// The training: 480 steps.
const TRAINING: [&str; 4] = ["--epochs", "40", "--batch-size", "16"];
/// A shorter one, of 360 steps.
const SHORT: [&str; 4] = ["--epochs", "30", "--batch-size", "16"];

/// The number of shards of each rank, as the status tells.
fn carried(job: &Job) -> Option<Vec<u64>> {
    let status = job.status()?;
    let workers = status["workers"].as_array()?.iter().filter(|it| it["rank"].is_u64());
    workers.map(|worker| worker["shards"].as_u64()).collect()
}

fn start(answer: &[&str], training: &[&str]) -> Job {
    let flags = ["--mode", "in-process", "-H", "a:1,b:1,c:1", "--launcher", "local", "--np", "3"];
    let digits = program("digits").display().to_string();
    let own = ["--shards", "8", "--shard-ms", "20", "--save", "DIR/weights"];
    let words = [&[digits.as_str()], training, &own].concat();
    let words: Vec<String> = words.into_iter().map(ToOwned::to_owned).collect();
    let mut job = Job::start_program(&[&flags[..], answer].concat(), &words);
    job.wait("three workers", |job| (job.sizes() == [3]).then_some(()));
    job
}

/// The host of the first rank, which carries three of eight shards.
fn first_host(job: &Job) -> String {
    let host = job.status().and_then(|status| {
        let mut workers = status["workers"].as_array()?.iter();
        workers.find(|it| it["rank"] == 0)?["host"].as_str().map(ToOwned::to_owned)
    });
    host.expect("the first rank has a host")
}

#[test]
fn l_4_a_worker_slowed_to_half_carries_fewer_shards_and_the_weights_are_those_of_one_worker() {
    let mut job = start(&["--shards", "8", "--on-straggler", "rebalance"], &TRAINING);
    assert_eq!(job.wait("the deal", |job| carried(job)), [3, 3, 2]);
    let slow = first_host(&job);
    let cycle = DutyCycle::half(job.pid(&slow, 0));
    let dealt = job.wait("another deal", |job| job.events_of("shards_rebalanced").pop());
    assert_eq!((&dealt["ranks"], &dealt["counts_before"]), (&json!([0]), &json!([3, 3, 2])));
    let counts: Vec<u64> =
        dealt["shard_counts"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
    assert!(counts[0] < 3 && counts.iter().sum::<u64>() == 8, "{dealt}");
    assert!(counts[1] >= 3 && counts[2] >= 2, "nobody else carries fewer: {dealt}");
    job.wait("the status", |job| (carried(job)? == counts).then_some(()));

    let effect = job.wait("the effect", |job| job.events_of("rebalance_took").pop());
    let ms = ["before_ms", "after_ms"].map(|name| effect[name].as_f64().unwrap_or_default());
    assert!(ms[1] < 0.9 * ms[0], "{effect}");
    let status = job.status().expect("it trains");
    let straggler = &status["stragglers"][0];
    assert_eq!((&straggler["rank"], &straggler["shards"]), (&json!(0), &json!(counts[0])));
    let (code, text, stderr) = run_explain(&job, &["last"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(text.contains("shards are dealt anew for the pace of"), "{text}");
    let decided = job.events_of("reset_decided");
    assert!(decided.iter().all(|it| it["way"] == "interrupt"), "{decided:?}");
    assert_eq!(job.events_of("worker_exited").len(), 0);

    drop(cycle);
    assert_eq!(job.end(), 0);
    assert_eq!(weights(&job.path("weights")), undisturbed(&TRAINING), "C-2");
}

#[test]
fn without_the_drivers_shards_rebalance_says_once_that_it_cannot() {
    let mut job = start(&["--on-straggler", "rebalance"], &SHORT);
    let cycle = DutyCycle::half(job.pid(&first_host(&job), 0));
    let told = job.wait("the reason", |job| job.events_of("not_rebalanced").pop());
    let reason = told["reason"].as_str().unwrap_or_default();
    assert!(reason.starts_with("the driver was given no --shards"), "{told}");
    drop(cycle);
    assert_eq!(job.end(), 0);
    assert_eq!(job.events_of("not_rebalanced").len(), 1);
    assert_eq!(job.events_of("reset_decided").len(), 0);
}
