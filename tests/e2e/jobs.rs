//! The jobs of this user on this machine: `list`, `status` and `explain` find them without an address, also after the end.

use std::fs;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{binary, now, program, signal, wait_until};

/// `elastic-node` with a list of jobs of its own.
fn command(folder: &TempDir, line: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(line).env("XDG_STATE_HOME", folder.path()).stdin(Stdio::null());
    command
}

fn output(folder: &TempDir, line: &[&str]) -> Output {
    command(folder, line).output().expect("it runs")
}

fn json(folder: &TempDir, line: &[&str]) -> Value {
    let output = output(folder, line);
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

/// A `run` whose driver is killed where its test fails; agents and workers end with it.
struct RunningJob(Child);

impl RunningJob {
    /// Starts two workers of the test's training program, which go on until `control/finish` is there.
    fn start(folder: &TempDir) -> Self {
        for name in ["control", "log"] {
            fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        let at = |name: &str| folder.path().join(name).display().to_string();
        let (trainer, control, log) = (program("trainer"), at("control"), at("log"));
        let trainer = trainer.display().to_string();
        let line = ["run", "-n", "2", "--mode", "in-process", "--", &trainer];
        let line = [&line[..], &["--control", &control, "--log", &log]].concat();
        let mut job = command(folder, &line);
        Self(job.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts"))
    }

    /// Has the job succeed, and waits for that.
    fn finish(&mut self, folder: &TempDir) -> ExitStatus {
        fs::write(folder.path().join("control/finish"), "").expect("a file");
        wait_until("the end of the job", || self.0.try_wait().expect("ours"))
    }
}

impl Drop for RunningJob {
    fn drop(&mut self) {
        // After its end there is nothing to kill.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_job_on_a_random_port_is_found_while_it_runs_and_after_its_end() {
    let folder = tempfile::tempdir().expect("a folder");
    assert_eq!(json(&folder, &["list", "--json"]), Value::Array(Vec::new()));
    let none = output(&folder, &["status"]);
    let stderr = String::from_utf8_lossy(&none.stderr);
    assert_eq!(none.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("no job of this user") && stderr.contains("hint:"), "{stderr}");

    let mut job = RunningJob::start(&folder);
    let running = wait_until("a job that runs", || {
        let status = json(&folder, &["status", "--json"]);
        (status["phase"] == "run").then_some(status)
    });
    let listed = json(&folder, &["list", "--json"]);
    assert_eq!(listed[0]["state"], "running", "{listed}");
    assert_eq!(listed[0]["job"], running["job"], "{listed}");
    let trainer = program("trainer").display().to_string();
    assert_eq!(listed[0]["program"][0], trainer, "{listed}");
    job.finish(&folder);

    let listed = json(&folder, &["list", "--json"]);
    assert_eq!(listed[0]["state"], "succeeded", "{listed}");
    let over = json(&folder, &["status", "--json"]);
    assert_eq!((&over["job"], &over["phase"]), (&running["job"], &"succeeded".into()), "{over}");
    assert_eq!(over["result"]["code"], 0, "{over}");
    let id = &running["job"].as_str().expect("an id")[..8];
    let shown = output(&folder, &["status", id]);
    let shown = String::from_utf8_lossy(&shown.stdout);
    assert!(shown.starts_with("ended at") && !shown.contains("world size 0"), "{shown}");
    // The event log of the job is found, too: it has nothing to explain.
    let explained = output(&folder, &["explain", "--job", id]);
    let stderr = String::from_utf8_lossy(&explained.stderr);
    assert!(!stderr.contains("cannot be read"), "{stderr}");
}

#[test]
fn a_job_that_is_over_is_known_by_its_state_directory_also_where_no_list_has_it() {
    let [folder, elsewhere] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let state = folder.path().join("state").display().to_string();
    let line = ["run", "-n", "1", "--mode", "restart", "--state-dir", &state, "--", "true"];
    let ran = output(&folder, &line);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let listed = json(&folder, &["status", "--json", "--state-dir", &state]);
    assert_eq!(listed["phase"], "succeeded", "the last status: {listed}");
    for folder in [&folder, &elsewhere] {
        let over = json(folder, &["status", "--json", "--state-dir", &state]);
        assert_eq!((&over["job"], &over["result"]), (&listed["job"], &listed["result"]), "{over}");
        for more in [&[][..], &["--watch"], &["--driver", "127.0.0.1:1"]] {
            let shown = output(folder, &[&["status", "--state-dir", &state], more].concat());
            let text = String::from_utf8_lossy(&shown.stdout);
            assert!(shown.status.success() && text.starts_with("ended at"), "{more:?} {shown:?}");
        }
        for request in [&["stop"][..], &["drain", "localhost"]] {
            let refused = output(folder, &[request, &["--state-dir", &state]].concat());
            let stderr = String::from_utf8_lossy(&refused.stderr);
            assert_eq!(refused.status.code(), Some(2), "{stderr}");
            assert!(stderr.contains("does not run any more: succeeded"), "{stderr}");
        }
    }
}

#[test]
fn s_7_a_run_that_stands_still_for_a_minute_goes_on_with_the_same_workers() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut job = RunningJob::start(&folder);
    let workers = || {
        let status = json(&folder, &["status", "--json"]);
        let pids = status["workers"].as_array()?.iter().map(|it| it["pid"].as_u64());
        (status["phase"] == "run").then(|| pids.collect::<Option<Vec<u64>>>()).flatten()
    };
    let before = wait_until("a job that runs", workers);
    // As Ctrl-Z does it: the agent and the workers have process groups of their own.
    let driver = i32::try_from(job.0.id()).expect("a pid");
    signal(driver, Signal::SIGSTOP);
    // Longer than idle workers and agents wait for a driver (`--orphan-timeout`, 30 s).
    let until = now() + Duration::from_secs(60);
    wait_until("a minute to pass", || (now() >= until).then_some(()));
    signal(driver, Signal::SIGCONT);
    assert_eq!(wait_until("the job to run on", workers), before, "nobody was started again");
    assert_eq!(job.finish(&folder).code(), Some(0));
    assert_eq!(json(&folder, &["status", "--json"])["resets"], 0, "D-3");
}
