//! GPUs through the binary: what `doctor` reports, and a job whose state is on GPUs. Without a GPU, the stand-in of
//! CUDA and NCCL (`gpu/stand_in`) takes its place.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{binary, program, signal, wait_until};

/// A Python environment with an `nvidia-nccl` wheel; the tests of NCCL's own library need it.
const ENVIRONMENT: &str = "ELASTIC_TEST_NCCL_ENVIRONMENT";

/// The path of the stand-in: cargo puts it beside the tests that depend on it.
fn stand_in() -> PathBuf {
    let tests = std::env::current_exe().expect("the test's own path");
    tests.with_file_name("libelastic_gpu_stand_in.so")
}

/// A command of the binary, without any environment variable that leads to a library.
fn node(arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(arguments);
    for name in ["ELASTIC_CUDA_LIBRARY", "ELASTIC_NCCL_LIBRARY", "ELASTIC_BACKEND", "VIRTUAL_ENV"] {
        command.env_remove(name);
    }
    command
}

/// The same command, on a machine whose libraries are the stand-in.
fn with_stand_in(mut command: Command) -> Command {
    command.env("ELASTIC_CUDA_LIBRARY", stand_in()).env("ELASTIC_NCCL_LIBRARY", stand_in());
    command
}

fn report(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn has_a_driver() -> bool {
    let output = node(&["doctor", "--json"]).output().expect("it starts");
    !report(&output)["driver"].is_null()
}

#[test]
fn where_nothing_is_installed_the_cpu_is_used_and_one_line_says_why() {
    if has_a_driver() {
        return;
    }
    let output = node(&["doctor", "--json"]).output().expect("it starts");
    let found = report(&output);
    assert_eq!(found["used"]["collectives"], "cpu", "{found}");
    assert_eq!(found["used"]["reason"], "no CUDA driver", "{found}");

    let digits = program("digits").display().to_string();
    let train = ["run", "-n", "2", "--backend", "auto", "--", &digits, "--epochs", "1"];
    let output = node(&train).env("ELASTIC_LOG", "info").output().expect("it starts");
    assert!(output.status.success(), "{}", stderr(&output));

    let demand = ["run", "-n", "1", "--backend", "nccl", "--max-restarts", "0", "--", &digits];
    let output = node(&demand).output().expect("it starts");
    assert!(!output.status.success());
    let said = stderr(&output);
    assert!(said.contains("no CUDA driver (libcuda.so.1) is installed"), "{said}");
}

#[test]
fn a_library_that_is_broken_is_named() {
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("libnccl.so.2");
    fs::write(&file, "no library").expect("it is written");
    let name = file.display().to_string();
    let output = with_stand_in(node(&["doctor", "--json"]))
        .env("ELASTIC_NCCL_LIBRARY", &file)
        .output()
        .expect("it starts");
    assert!(!output.status.success());
    let problems = report(&output)["problems"].to_string();
    assert!(problems.contains(&name), "{problems}");

    let digits = program("digits").display().to_string();
    let demand = ["run", "-n", "1", "--backend", "nccl", "--max-restarts", "0", "--", &digits];
    let output = with_stand_in(node(&demand))
        .env("ELASTIC_NCCL_LIBRARY", &file)
        .output()
        .expect("it starts");
    assert!(!output.status.success());
    assert!(stderr(&output).contains(&name), "{}", stderr(&output));
}

#[test]
fn nccls_own_wheel_is_found_without_a_gpu() {
    let Some(environment) = std::env::var_os(ENVIRONMENT) else { return };
    let output =
        node(&["doctor", "--json"]).env("VIRTUAL_ENV", &environment).output().expect("it starts");
    let nccl = report(&output)["nccl"].clone();
    let file = nccl["file"].as_str().unwrap_or_default();
    assert!(Path::new(file).starts_with(&environment), "{nccl}");
    assert_eq!(nccl["found"], "in a Python environment", "{nccl}");
    assert!(nccl["version"].as_str().is_some_and(|version| version.starts_with("2.")), "{nccl}");
}

#[test]
fn digits_train_over_nccls_interface() {
    let digits = program("digits").display().to_string();
    let train = ["run", "-n", "2", "--backend", "nccl", "--", &digits, "--epochs", "2"];
    let output = with_stand_in(node(&train)).output().expect("it starts");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("accuracy 0."));
}

/// A job of `device_trainer`.
struct Job {
    folder: TempDir,
    driver: Child,
}

impl Job {
    fn start(workers: u32) -> Job {
        let folder = TempDir::new().expect("a folder");
        for name in ["control", "log"] {
            fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        let at = |name: &str| folder.path().join(name).display().to_string();
        let (workers, trainer) = (workers.to_string(), program("device_trainer"));
        let (trainer, control, log) = (trainer.display().to_string(), at("control"), at("log"));
        let mut flags = vec!["run", "-n", &workers, "--min-np", "1", "--backend", "nccl", "--"];
        flags.extend([trainer.as_str(), "--control", &control, "--log", &log]);
        let mut command = with_stand_in(node(&flags));
        let stderr = fs::File::create(folder.path().join("stderr")).expect("a file");
        let driver = command.stdout(Stdio::null()).stderr(stderr).spawn().expect("it starts");
        Job { folder, driver }
    }

    /// The lines that the workers have logged, those of each worker in order.
    fn log(&self) -> Vec<Value> {
        let mut lines = Vec::new();
        for entry in fs::read_dir(self.folder.path().join("log")).expect("it is there") {
            let text = fs::read_to_string(entry.expect("a file").path()).expect("it is text");
            // The last line may be half written.
            lines.extend(text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()));
        }
        lines
    }

    /// Waits until all of a world of this size train in a generation later than `after`; returns that generation.
    fn wait_for_world(&self, size: u64, after: u64) -> u64 {
        wait_until("the world is at work", || {
            let log = self.log();
            let newest = log.iter().filter_map(|line| line["generation"].as_u64()).max()?;
            let at_work = |rank: u64| {
                let of = |line: &&Value| line["generation"] == newest && line["rank"] == rank;
                log.iter().filter(of).any(|line| line["size"] == size)
            };
            (newest > after && (0..size).all(at_work)).then_some(newest)
        })
    }

    fn finish(mut self) -> (Vec<Value>, String) {
        fs::write(self.folder.path().join("control/finish"), "").expect("it is written");
        let status = wait_until("the job ends", || self.driver.try_wait().expect("it is ours"));
        let said = fs::read_to_string(self.folder.path().join("stderr")).expect("it is text");
        assert!(status.success(), "{said}");
        (self.log(), said)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // The driver has ended, unless the test failed.
        if self.driver.try_wait().is_ok_and(|status| status.is_none()) {
            signal(self.driver.id() as i32, Signal::SIGTERM);
            let _ = self.driver.wait();
        }
    }
}

#[test]
fn h_7_h_22_state_on_gpus_survives_a_kill_as_one_with_the_rest() {
    let job = Job::start(3);
    let first = job.wait_for_world(3, 0);
    let log = job.log();
    let victim = log.iter().find(|line| line["rank"] == 1).expect("rank 1 is at work");
    let (victim, step) =
        (victim["pid"].clone(), log.iter().filter_map(|l| l["step"].as_u64()).max());
    signal(victim.as_i64().expect("a number") as i32, Signal::SIGKILL);
    let step = step.expect("there are steps");
    // The slot is refilled by a process that takes the weights over.
    let newcomer_is_at_work = || {
        let log = job.log();
        let old: Vec<_> = log
            .iter()
            .filter(|line| line["generation"] == first)
            .map(|line| &line["pid"])
            .collect();
        log.iter().find(|line| !old.contains(&&line["pid"])).cloned()
    };
    let taken_over = wait_until("a new process is at work", newcomer_is_at_work);
    assert!(taken_over["step"].as_u64() >= Some(step), "it goes on: {taken_over} after {step}");
    job.wait_for_world(3, first);
    // Each step has checked all weights; torn ones would have failed the job.
    let (log, _) = job.finish();
    assert!(log.iter().any(|line| line["commits"].as_u64() > Some(0)), "{log:?}");
}
