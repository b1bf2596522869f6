//! The store that agents serve to scripts of stock torch, under load (S-8): clients are held back, none is dropped,
//! and the agent's memory stays bounded.

use std::process::Command;

use super::support::Job;

const CLIENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/programs/store_clients.py");

/// Clients of one agent, and bytes of each value: 192 MiB in all.
const NUMBER: &str = "48";
const BYTES: &str = "4194304";

/// Most memory of the agent, in KiB: far below what its clients store and read.
const PEAK_KIB_MAX: u64 = 160 << 10;

#[test]
fn s_8_clients_with_long_values_are_held_back_and_none_is_dropped() {
    let program = [CLIENTS, "CONTROL", "LOG", NUMBER, BYTES].map(ToOwned::to_owned);
    let mut job = Job::start_program(&["-n", "1", "--mode", "restart"], &program);
    job.agent("a", 1);
    let told = |job: &mut Job, event: &str| {
        job.wait(event, |job| job.log().into_iter().find(|line| line["event"] == event))
    };
    let others = told(&mut job, "others");
    assert_eq!(others["errors"], serde_json::json!([]), "{}", agent_log(&job));
    job.control("read");
    let all = told(&mut job, "all");
    assert_eq!(all["errors"], serde_json::json!([]), "{}", agent_log(&job));
    let peak = peak_kib(job.agents["a"].id());
    assert!(peak < PEAK_KIB_MAX, "the agent took {peak} KiB");
    job.control("end");
    assert_eq!(job.end(), 0, "{}", job.stderr());
}

fn agent_log(job: &Job) -> String {
    std::fs::read_to_string(job.path("agent.a.stderr")).unwrap_or_default()
}

/// The most memory that a process has had at a time.
fn peak_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// The same through torch's own client, where an interpreter with torch is named.
#[test]
fn s_8_torch_s_clients_are_held_back_and_none_is_dropped() {
    let Some(python) = super::torch::interpreter() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/programs/torch_store.py");
    let output = Command::new(super::support::binary())
        .args(["run", "--state-dir"])
        .arg(folder.path().join("state"))
        .args(["--nproc-per-node", "1", "--max-restarts", "0", script])
        .env("PYTHON_EXEC", python)
        .output()
        .expect("it runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("read 16 values"), "{stderr}");
}
