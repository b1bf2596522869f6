//! The numbers that a training program reports by name: where they are shown, and for how long.

use std::fs;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::metrics::{metrics, observed};
use crate::support::{Job, binary, signal, wait_until};

/// What the status shows of the worker on a host, which has one.
fn reported(job: &Job, host: &str) -> Option<Value> {
    let status = job.status()?;
    let worker = status["workers"].as_array()?.iter().find(|worker| worker["host"] == host)?;
    Some(worker["reported"].clone())
}

fn table(job: &Job) -> String {
    let output = Command::new(binary())
        .args(["status", "--driver", &job.address, "--token-file"])
        .arg(job.path("state/token"))
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn what_a_program_reports_is_shown_by_status_and_metrics_until_its_worker_is_gone() {
    let (mut job, address) = observed(&[]);
    let rank = job.wait("what b reports", |job| reported(job, "b")?["rank"].as_f64());
    let first = job.wait("what a reports", |job| reported(job, "a"));
    assert_eq!(first["rank"], json!(1.0 - rank), "{first}");
    assert!(first["epoch"].is_number(), "{first}");
    let text = table(&job);
    assert!(text.contains("epoch ") && text.contains(&format!(", rank {rank}")), "{text}");
    let line =
        format!("elastic_node_reported_value{{rank=\"{rank}\",host=\"b\",name=\"rank\"}} {rank}");
    wait_until("the metric", || metrics(address).contains(&line).then_some(()));

    // Nobody takes a step, so that the next process on b reports nothing.
    job.control("hold");
    signal(job.pid("b", 0), Signal::SIGKILL);
    job.wait("b without values", |job| (reported(job, "b")? == json!({})).then_some(()));
    wait_until("no metric", || (!metrics(address).contains(&line)).then_some(()));
    fs::remove_file(job.path("control/hold")).expect("it was there");
    job.wait("what b reports then", |job| reported(job, "b")?["rank"].as_f64());
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}
