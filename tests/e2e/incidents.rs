//! Explanations of incidents, one after the other in the life of a job: each names the culprit, its host, and the
//! cause. More of them are in `observe`, `memory`, `stragglers` and `operate`.

use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::data_path::agent_at;
use crate::network::Network;
use crate::observe::explanation;
use crate::support::{Job, binary, signal};

/// Lets something happen, and waits until a reset whose cause has these words is over; its explanation names this host.
fn incident(job: &mut Job, (way, words, host): (&str, &str, &str), happen: impl FnOnce(&mut Job)) {
    let before = job.events_of("reset_done").len();
    happen(job);
    let from = job.wait(&format!("the reset for {words:?}"), |job| {
        let done = job.events_of("reset_done");
        let is_it = |it: &&Value| it["cause"].as_str().is_some_and(|cause| cause.contains(words));
        done.get(before..)?.iter().find(is_it)?["from"].as_u64()
    });
    let explained = explanation(job, &from.to_string());
    assert_eq!((&explained["way"], &explained["host"]), (&way.into(), &host.into()), "{explained}");
    let cause = explained["cause"].as_str().unwrap_or_default();
    assert!(cause.contains(words), "{explained}");
    // The next incident meets a whole job.
    job.wait("all train again", |job| {
        let status = job.status()?;
        (status["phase"] == "run").then_some(())
    });
    job.wait_for_steps();
}

/// Waits until so many train.
fn whole(job: &mut Job, world_size: u64) {
    job.wait("a whole job", |job| {
        let status = job.status()?;
        (status["phase"] == "run" && status["world_size"] == world_size).then_some(())
    });
    job.wait_for_steps();
}

fn operate(job: &Job, line: &[&str]) {
    let mut command = Command::new(binary());
    command.args(line).args(["--driver", &job.address, "--token-file"]);
    let output = command.arg(job.path("state/token")).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

pub(crate) fn agent_pid(job: &Job, host: &str) -> i32 {
    i32::try_from(job.agents[host].id()).expect("a process id")
}

#[test]
fn explain_names_worker_host_and_cause_of_one_incident_after_the_other() {
    let mut job = Job::start(&["-n", "3", "--min-np", "1", "--max-restarts", "100"], &[]);
    for host in ["a", "b", "c"] {
        job.agent(host, 1);
    }
    whole(&mut job, 3);
    for (number, name) in [
        (Signal::SIGILL, "signal 4 (SIGILL)"),
        (Signal::SIGABRT, "signal 6 (SIGABRT)"),
        (Signal::SIGFPE, "signal 8 (SIGFPE)"),
    ] {
        incident(&mut job, ("abort", name, "b"), |job| signal(job.pid("b", 0), number));
        whole(&mut job, 3);
    }
    let slot_back = ("interrupt", "added c[0]", "c");
    incident(&mut job, slot_back, |job| signal(job.pid("c", 0), Signal::SIGKILL));
    whole(&mut job, 3);
    incident(&mut job, ("interrupt", "removed b[0]", "b"), |job| operate(job, &["drain", "b"]));
    incident(&mut job, ("interrupt", "added b[0]", "b"), |job| operate(job, &["readmit", "b"]));
    whole(&mut job, 3);
    // The operator of host c wants it back.
    incident(&mut job, ("interrupt", "c[0]", "c"), |job| {
        signal(agent_pid(job, "c"), Signal::SIGTERM);
    });
    assert_eq!(job.agent_end("c").code(), Some(0));
    incident(&mut job, ("interrupt", "added c[0]", "c"), |job| job.agent("c", 1));
    whole(&mut job, 3);
    // A host that stands still as a whole, as a machine that swaps.
    incident(&mut job, ("abort", "not heard for", "c"), |job| {
        let (worker, agent) = (job.pid("c", 0), agent_pid(job, "c"));
        signal(agent, Signal::SIGSTOP);
        signal(worker, Signal::SIGSTOP);
    });
    signal(agent_pid(&job, "c"), Signal::SIGCONT);
    job.kill_agent("c");
    whole(&mut job, 2);
    operate(&job, &["stop"]);
    assert_eq!(job.end(), 130);
    let explained = explanation(&job, "last");
    assert_eq!(explained["way"], "end", "{explained}");
    assert!(
        explained["cause"].to_string().contains("stopped by `elastic-node stop`"),
        "{explained}"
    );
}

#[test]
fn explain_names_hosts_that_the_list_gains_and_loses() {
    let folder = tempfile::tempdir().expect("a folder");
    let list = folder.path().join("hosts");
    let write = |text: &str| std::fs::write(&list, text).expect("a file");
    write("a:1\nb:1\n");
    let file = list.display().to_string();
    let mut job =
        Job::start(&["--hostfile", &file, "--launcher", "local", "-n", "2", "--min-np", "1"], &[]);
    whole(&mut job, 2);
    incident(&mut job, ("interrupt", "removed b[0]", "b"), |_| write("a:1\n"));
    incident(&mut job, ("interrupt", "added d[0]", "d"), |_| write("a:1\nd:1\n"));
    assert_eq!(job.finish(), 0);
}

#[test]
fn explain_says_why_a_job_that_never_trained_failed() {
    let shell = |script: &str| ["sh", "-c", script].map(ToOwned::to_owned).to_vec();
    let cases = [
        (&["-n", "2", "--elastic-timeout", "1"][..], shell("true"), "elastic timeout"),
        (
            &["-H", "a:1", "--launcher", "local"][..],
            vec!["/nope/program".to_owned()],
            "/nope/program",
        ),
        (
            &["-H", "a:1", "--launcher", "local", "--max-restarts", "0"][..],
            shell("echo wrong >&2; exit 3"),
            "exit code 3",
        ),
    ];
    for (flags, program, words) in cases {
        let mut job = Job::start_program(flags, &program);
        assert_eq!(job.end(), 1);
        let explained = explanation(&job, "last");
        assert_eq!(explained["way"], "end", "{explained}");
        let text = explained.to_string();
        assert!(text.contains(words), "{words}: {explained}");
    }
}

#[test]
fn explain_names_the_host_whose_cable_was_cut() {
    let Some(network) = Network::enter(3) else { return };
    let mut job = Job::start_at(network.place(0), &["-n", "2", "--min-np", "1"]);
    agent_at(&mut job, "a", network.place(1));
    agent_at(&mut job, "b", network.place(2));
    whole(&mut job, 2);
    incident(&mut job, ("abort", "b", "b"), |_| network.place(2).cut());
    network.place(2).mend();
    incident(&mut job, ("interrupt", "added b[0]", "b"), |_| {});
    assert_eq!(job.finish(), 0);
}
