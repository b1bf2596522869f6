//! The example as a job that loses a worker in the middle. `ELASTIC_NODE_BINARY` names the launcher; `cargo xtask test`
//! sets it.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;

const EPOCHS: u64 = 8;
/// 1437 images to learn from, 32 at a time on each of two workers.
const STEPS_OF_EPOCH: u64 = 23;

/// How often what is waited for is looked at, and how many times at most: a minute and more.
const POLL: Duration = Duration::from_millis(50);
const POLLS_MAX: u32 = 1200;

#[test]
fn it_reads_digits_though_a_worker_is_killed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let state = folder.path().join("state");
    let job = Command::new(launcher())
        .args(["run", "-n", "2", "--min-np", "2", "--state-dir"])
        .arg(&state)
        .args(["--", env!("CARGO_BIN_EXE_candle-digits"), "--step-ms", "50", "--epochs"])
        .arg(EPOCHS.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the launcher starts");
    let job = Job(Some(job));

    let victim = wait_for("a worker that has committed", || a_worker_in_training(&state));
    let killed = Command::new("kill").args(["-9", &victim.to_string()]).status();
    assert!(killed.is_ok_and(|status| status.success()), "worker {victim} is gone already");

    let (succeeded, stdout, stderr) = job.end();
    assert!(succeeded, "{stdout}\n{stderr}");
    let aborts: Vec<&str> = stderr.lines().filter(|line| line.contains("ends (abort)")).collect();
    assert_eq!(aborts.len(), 1, "one worker was killed:\n{stderr}");
    // The others go on before the exit status is known, which has a line of its own.
    assert!(stderr.contains("signal 9"), "{stderr}");
    let ends: Vec<&str> =
        stdout.lines().filter_map(|line| Some(&line[line.find("after ")?..])).collect();
    let [first, second] = ends[..] else { panic!("each worker tells its end:\n{stdout}") };
    assert_eq!(first, second, "G-5: one final state");
    let steps = EPOCHS * STEPS_OF_EPOCH;
    assert!(first.starts_with(&format!("after {steps} steps")), "each step counts once: {first}");
    assert!(number_after(first, "accuracy ") >= 0.9, "{first}");
    let early = number_after(&stderr, "epoch 1: loss ");
    assert!(number_after(first, "loss ") < early, "it was {early}, in the end {first}");
}

#[test]
fn c_2_its_weights_do_not_depend_on_the_number_of_workers() {
    let digest = |output: std::process::Output| {
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        let found = stdout.split("sha256 ").nth(1).and_then(|rest| rest.lines().next());
        found
            .unwrap_or_else(|| panic!("{stdout}{}", String::from_utf8_lossy(&output.stderr)))
            .to_owned()
    };
    let plan = ["--shards", "8", "--batch-size", "8", "--epochs", "2"];
    let example = env!("CARGO_BIN_EXE_candle-digits");
    let alone = digest(Command::new(example).args(plan).output().expect("it starts"));
    for workers in ["2", "3"] {
        let mut job = Command::new(launcher());
        job.args(["run", "-n", workers, "--", example]).args(plan);
        assert_eq!(digest(job.output().expect("it starts")), alone, "{workers} workers");
    }
}

/// A job, which is ended when the test fails.
struct Job(Option<Child>);

impl Job {
    /// Waits for its end: whether it succeeded, what it said, and what it told.
    fn end(mut self) -> (bool, String, String) {
        let output = self.0.take().expect("it ends once").wait_with_output().expect("its output");
        let [stdout, stderr] =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        (output.status.success(), stdout, stderr)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if let Some(job) = &mut self.0 {
            // Its agents and workers end with it.
            let _ = job.kill();
            let _ = job.wait();
        }
    }
}

fn launcher() -> OsString {
    std::env::var_os("ELASTIC_NODE_BINARY").expect("ELASTIC_NODE_BINARY names `elastic-node`")
}

/// The process of a worker that has made ten steps, but is not done.
fn a_worker_in_training(state: &Path) -> Option<u64> {
    let address = fs::read_to_string(state.join("address")).ok()?;
    let status = Command::new(launcher())
        .args(["status", "--json", "--driver", address.trim(), "--state-dir"])
        .arg(state)
        .output()
        .ok()?;
    let status: Value = serde_json::from_slice(&status.stdout).ok()?;
    let workers = status["workers"].as_array()?;
    workers.iter().find(|worker| worker["step"].as_u64() >= Some(10))?["pid"].as_u64()
}

fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    for _ in 0..POLLS_MAX {
        if let Some(found) = condition() {
            return found;
        }
        #[expect(clippy::disallowed_methods, reason = "real processes are waited for")]
        thread::sleep(POLL);
    }
    panic!("there was never {what}");
}

fn number_after(text: &str, words: &str) -> f32 {
    let number = text.split(words).nth(1).and_then(|rest| rest.split([' ', ',', '\n']).next());
    number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no {words}in: {text}"))
}
