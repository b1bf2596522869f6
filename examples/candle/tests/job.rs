//! The example as a job that loses workers, its driver and everything. `ELASTIC_NODE_BINARY` names the launcher; `cargo xtask ci`
//! sets it.

mod life;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use life::{EVERY, Life};
use serde_json::Value;

const EPOCHS: u64 = 8;
/// 1437 images to learn from, 32 at a time on each of two workers.
const STEPS_OF_EPOCH: u64 = 23;

/// Time between two looks at a condition, and the most looks: a minute and more.
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

/// 23 steps an epoch, of 8 shards with 8 images each.
const PLAN: [&str; 4] = ["--shards", "8", "--batch-size", "8"];

#[test]
fn c_2_its_weights_do_not_depend_on_the_number_of_workers() {
    let training = [&PLAN[..], &["--epochs", "2"]].concat();
    let example = env!("CARGO_BIN_EXE_candle-digits");
    let alone = digest_alone(&training);
    for workers in 1..=7 {
        let mut job = Command::new(launcher());
        job.args(["run", "-n", &workers.to_string(), "--", example]).args(&training);
        let output = job.output().expect("it starts");
        let output = [output.stdout, output.stderr].concat();
        assert_eq!(digests(&String::from_utf8_lossy(&output)), [alone.as_str()], "{workers}");
    }
}

#[test]
fn c_2_kills_joins_a_driver_killed_and_the_loss_of_everything_leave_its_weights_as_they_were() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let checkpoints = folder.path().join("checkpoints");
    let training = [&PLAN[..], &["--epochs", "13"]].concat();
    let live = |name: &str, workers: u32, step_ms: &str| {
        let program = [&[env!("CARGO_BIN_EXE_candle-digits")], &training[..]].concat();
        let program = [&program[..], &["--step-ms", step_ms]].concat();
        let mut life = Life::start(folder.path().join(name), &checkpoints, workers, &program);
        life.add_host(workers);
        life
    };

    let mut first = live("first", 2, "100");
    first.wait_for_event("checkpoint_saved", 0);
    first.kill_worker();
    wait_for("the world without it, or with its successor", || first.sizes().into_iter().nth(1));
    first.add_host(1);
    wait_for("the world with the new host", || first.sizes().contains(&3).then_some(()));
    first.kill_driver();
    let saved = first.events("checkpoint_saved").len();
    first.start_driver();
    first.wait_for_event("checkpoint_saved", saved);
    first.kill_everything();
    let shapes: [(&str, &[u64]); 4] = [
        ("model.hidden.weight", &[48, 64]),
        ("model.hidden.bias", &[48]),
        ("model.output.weight", &[10, 48]),
        ("model.output.bias", &[10]),
    ];
    let shapes = shapes.map(|(name, shape)| (name.to_owned(), shape.to_vec()));
    assert_eq!(arrays_of_newest(&checkpoints), shapes, "candle's tensors are named arrays");

    let second = live("second", 1, "100");
    assert!(second.wait_for_event("checkpoint_loaded", 0)["step"].as_u64() >= Some(2 * EVERY));
    second.wait_for_event("checkpoint_saved", 0);
    second.kill_everything();

    let third = live("third", 7, "20");
    assert!(third.wait_for_event("checkpoint_loaded", 0)["step"].as_u64() >= Some(3 * EVERY));
    wait_for("the world of seven", || third.sizes().contains(&7).then_some(()));
    third.kill_worker();
    wait_for("the next world", || third.sizes().into_iter().nth(1));
    assert_eq!(digests(&third.end()), [digest_alone(&training)]);
}

/// The SHA-256 that one worker prints without a driver.
fn digest_alone(training: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_candle-digits")).args(training).output();
    let stdout = String::from_utf8_lossy(&output.expect("it starts").stdout).into_owned();
    digests(&stdout).pop().unwrap_or_else(|| panic!("no digest: {stdout}"))
}

/// The different ones that workers have printed.
fn digests(output: &str) -> Vec<String> {
    let found = output.split("sha256 ").skip(1).filter_map(|rest| rest.split_whitespace().next());
    let different: BTreeSet<&str> = found.collect();
    different.into_iter().map(ToOwned::to_owned).collect()
}

/// Names and shapes of the newest checkpoint's arrays, in the order of the state.
fn arrays_of_newest(checkpoints: &Path) -> Vec<(String, Vec<u64>)> {
    let entries = fs::read_dir(checkpoints).expect("the folder").map(|it| it.expect("it").path());
    let whole = entries.map(|it| it.join("manifest.json")).filter(|it| it.exists());
    let text = fs::read(whole.max().expect("a whole one")).expect("its manifest");
    let manifest: Value = serde_json::from_slice(&text).expect("it is JSON");
    let mut tensors = manifest["tensors"].as_array().cloned().expect("arrays");
    tensors.sort_by_key(|tensor| tensor["offset"].as_u64());
    let shape = |tensor: &Value| -> Option<Vec<u64>> {
        tensor["shape"].as_array()?.iter().map(Value::as_u64).collect()
    };
    let array = |tensor: &Value| Some((tensor["name"].as_str()?.to_owned(), shape(tensor)?));
    tensors.iter().map(|tensor| array(tensor).expect("name and shape")).collect()
}

/// A job, which is ended when the test fails.
struct Job(Option<Child>);

impl Job {
    /// Waits for its end. Returns whether it succeeded, its stdout and its stderr.
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
