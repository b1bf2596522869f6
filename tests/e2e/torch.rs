//! Unmodified scripts of stock torch (T-6, T-12). `ELASTIC_TEST_PYTHON` names an interpreter that has torch; without
//! it these tests say that they were skipped.

use std::ffi::OsString;
use std::process::{Command, Output};

use tempfile::TempDir;

use super::support::binary;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/programs/ddp.py");

/// The interpreter that has torch; without one the test says that it was skipped.
#[expect(clippy::print_stderr, reason = "a test that was skipped says so")]
pub(crate) fn interpreter() -> Option<OsString> {
    let python = std::env::var_os("ELASTIC_TEST_PYTHON");
    if python.is_none() {
        eprintln!("skipped: ELASTIC_TEST_PYTHON names no interpreter with torch");
    }
    python
}

/// Trains on `workers` workers; none if there is no torch.
fn train(workers: u32, max_restarts: u32, control: Option<&str>) -> Option<Output> {
    let python = interpreter()?;
    let folder = TempDir::new().expect("a temporary folder");
    if let Some(control) = control {
        std::fs::write(folder.path().join(control), "").expect("a file");
    }
    let output = Command::new(binary())
        .args(["run", "--state-dir"])
        .arg(folder.path().join("state"))
        .args(["--nproc-per-node", &workers.to_string()])
        .args(["--max-restarts", &max_restarts.to_string(), SCRIPT])
        .arg(folder.path())
        .env("PYTHON_EXEC", python)
        .output()
        .expect("it runs");
    Some(output)
}

fn assert_trained(output: &Output, expected: &str) {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert_eq!(stdout.matches(expected).count(), 2, "{stdout}\n{stderr}");
}

#[test]
fn t_12_ddp_over_gloo_trains_through_the_shared_store() {
    let Some(output) = train(2, 0, None) else { return };
    assert_trained(&output, "trained 2 restarts 0 loss");
}

#[test]
fn t_6_ddp_survives_a_killed_worker_with_one_restart() {
    let Some(output) = train(2, 3, Some("kill.1.0")) else { return };
    assert_trained(&output, "trained 2 restarts 1 loss");
}
