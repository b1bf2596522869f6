//! The numbers that a training program reports by name: the places in which they are shown, and for how long.

use std::fs;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::metrics::{metrics, observed};
use crate::support::{Job, binary, signal, wait_until};

/// The reported values that the status shows of the only worker of a host.
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
    for host in ["a", "b"] {
        job.wait("what a worker reports", |job| {
            let values = reported(job, host)?;
            let is_it = values["loss"].as_f64()? > 0.0 && values["epoch"].is_f64();
            (is_it && values.as_object()?.len() == 2).then_some(())
        });
    }
    let text = table(&job);
    assert_eq!(text.matches("epoch ").count(), 2, "{text}");
    assert_eq!(text.matches(", loss ").count(), 2, "{text}");
    let is_shown = |host: &str| {
        let end = format!("host=\"{host}\",name=\"loss\"}} ");
        let is_it =
            |line: &str| line.starts_with("elastic_node_reported_value{") && line.contains(&end);
        metrics(address).lines().any(is_it)
    };
    wait_until("the metrics", || (is_shown("a") && is_shown("b")).then_some(()));

    // Nobody takes a step, so that the next process on b reports nothing.
    job.control("hold");
    signal(job.pid("b", 0), Signal::SIGKILL);
    job.wait("b without values", |job| (reported(job, "b")? == json!({})).then_some(()));
    wait_until("no metric of b", || (!is_shown("b")).then_some(()));
    fs::remove_file(job.path("control/hold")).expect("it was there");
    job.wait("what b reports then", |job| reported(job, "b")?["loss"].as_f64());
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}
