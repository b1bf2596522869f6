//! Progress of work that takes its time: in the live line of a driver on a real terminal, and in the status.

use std::fs;
use std::process::{Command, Stdio};

use crate::data_path::agent_at;
use crate::network::Network;
use crate::support::{Job, binary, program, wait_until};

/// The bytes with which every other line begins.
const FRESH_LINE: &str = "\r\u{1b}[2K";

#[test]
fn on_a_terminal_one_line_says_how_the_job_stands_and_no_line_of_others_is_torn() {
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    for name in ["control", "log", "state"] {
        fs::create_dir(folder.path().join(name)).expect("a folder");
    }
    let at = |name: &str| folder.path().join(name).display().to_string();
    let command = format!(
        "{} run -n 1 --mode in-process --bind 127.0.0.1:0 --state-dir {} -- {} --control {} --log {}",
        binary(),
        at("state"),
        program("trainer").display(),
        at("control"),
        at("log")
    );
    // `script` gives its command a terminal.
    let mut job = Command::new("script")
        .args(["-qefc", &command, &at("typescript")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("util-linux is installed");
    let shown =
        || String::from_utf8_lossy(&fs::read(at("typescript")).unwrap_or_default()).into_owned();
    let steps = || {
        let text = shown();
        let line = "run: generation 1, 1 worker, step ";
        let steps = text
            .split(line)
            .skip(1)
            .filter_map(|rest| rest.split(|it: char| !it.is_ascii_digit()).next()?.parse().ok());
        steps.collect::<Vec<u64>>()
    };
    wait_until("two steps on the live line", || {
        let steps = steps();
        (steps.last()? > steps.first()?).then_some(())
    });
    fs::write(folder.path().join("control/finish"), "").expect("a file");
    let status = wait_until("the end of the job", || job.try_wait().expect("ours"));
    let text = shown();
    assert_eq!(status.code(), Some(0), "{text}");
    for line in text.lines().filter(|line| line.contains("INFO") || line.contains("[localhost:0]"))
    {
        let fresh = line.rsplit(FRESH_LINE).next().unwrap_or_default();
        assert!(line.contains(FRESH_LINE) && !fresh.contains("generation 1, 1 worker"), "{line:?}");
    }
    assert!(text.contains("[localhost:0]"), "the worker's own output is there: {text}");
}

/// The text of `elastic-node status` while there is a driver.
fn status_text(job: &Job) -> String {
    let output = Command::new(binary())
        .args(["status", "--driver", &job.address, "--token-file"])
        .arg(job.path("state/token"))
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_gather_the_sync_and_a_checkpoint_have_bars() {
    let Some(network) = Network::enter(2) else { return };
    // Three rounds of a sync, which take seconds on a slow cable, as a checkpoint does to a slow disk.
    let program = ["--padding-bytes", "100663296", "--step-ms", "20"];
    let flags = ["-n", "2", "--min-np", "1", "--checkpoint", "DIR/kept"];
    let slowly = ["--checkpoint-every", "30", "--checkpoint-bandwidth", "12MiB"];
    let flags = [&flags[..], &slowly].concat();
    let mut job = Job::start_trainer_at(network.place(0), &flags, &program);
    agent_at(&mut job, "a", network.place(0));
    job.wait("the bar of the gather", |job| {
        let text = status_text(job);
        text.contains("workers: 1 of 2 [████████░░░░░░░░]").then_some(())
    });

    network.place(0).limit_rate(200);
    agent_at(&mut job, "b", network.place(1));
    let is_filling = |text: &str, work: &str| {
        let line = text.lines().find(|line| line.starts_with(&format!("moves: {work} [")))?;
        (line.contains('█') && line.contains('░') && line.contains(" of 96 MiB")).then_some(())
    };
    job.wait_for_sizes(&[2]);
    // A later worker takes the state over.
    job.kill_agent("b");
    job.wait("one worker", |job| (job.sizes().last() == Some(&1)).then_some(()));
    agent_at(&mut job, "c", network.place(1));
    job.wait("the bar of the sync", |job| is_filling(&status_text(job), "takes the state over"));
    job.wait("the bar of a checkpoint", |job| is_filling(&status_text(job), "saves a checkpoint"));
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}
