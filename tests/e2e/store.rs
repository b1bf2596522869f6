//! The store that agents serve to scripts of stock torch, under load (S-8): clients are held back, none is dropped,
//! and the agent's memory stays bounded.

use std::fs;
use std::process::{Child, Command, Stdio};

use super::network::not_shown;
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

/// The user of the agent and its workers, and a stranger on the same machine.
const OWNER: &str = "65533";
const STRANGER: &str = "65534";

/// An interpreter that every user may start.
pub(crate) const PYTHON: &str = "/usr/bin/python3";

/// Holds 100 connections to a port until each is closed, again and again.
fn strangers(job: &Job, port: u64) -> Child {
    let script = format!(
        "while :; do fds=; for i in $(seq 100); do exec {{fd}}<>/dev/tcp/127.0.0.1/{port} || exit; \
         fds=\"$fds $fd\"; done; echo held; \
         for fd in $fds; do cat <&$fd >/dev/null 2>&1; exec {{fd}}>&-; done; echo closed; done"
    );
    let said = fs::File::create(job.path("strangers")).expect("a file");
    let strangers = Command::new("setpriv")
        .args([&format!("--reuid={STRANGER}"), "--clear-groups", "/bin/bash", "-c", &script])
        .stdin(Stdio::null())
        .stdout(said)
        .stderr(Stdio::null())
        .spawn();
    strangers.expect("util-linux")
}

#[test]
fn s_4_honest_clients_pass_while_another_user_s_process_holds_connections() {
    if !nix::unistd::geteuid().is_root() {
        return not_shown("other users' processes need root");
    }
    if !fs::exists(PYTHON).unwrap_or_default() {
        return not_shown("there is no interpreter that every user may start");
    }
    if !Job::is_reached_by(OWNER) {
        return;
    }
    let program = [PYTHON, CLIENTS, "CONTROL", "LOG", "64", "4096"].map(ToOwned::to_owned);
    let mut job = Job::start_program(&["-n", "1", "--mode", "restart"], &program);
    job.control("hold");
    job.agent_as(&[], OWNER, "a", 1);
    let line = job
        .wait("the store's port", |job| job.log().into_iter().find(|line| line["event"] == "port"));
    let mut strangers = strangers(&job, line["port"].as_u64().expect("a number"));
    let said = job.path("strangers");
    let rounds = |of: &str| fs::read_to_string(&said).unwrap_or_default().matches(of).count();
    job.wait("a hundred connections that were closed", |_| (rounds("closed") > 0).then_some(()));
    job.control("begin");
    let others =
        job.wait("64 clients", |job| job.log().into_iter().find(|it| it["event"] == "others"));
    assert_eq!(others["errors"], serde_json::json!([]), "{}", agent_log(&job));
    let before = rounds("closed");
    job.wait("further ones", |_| (rounds("closed") > before).then_some(()));
    assert!(agent_log(&job).contains("it is a process of another user"), "{}", agent_log(&job));
    job.control("read");
    job.control("end");
    assert_eq!(job.end(), 0, "{}", job.stderr());
    assert_eq!(job.events_of("host_lost").len(), 0);
    // Without the port they end by themselves.
    assert!(strangers.wait().expect("it is ours").success() || rounds("held") > 1);
}

/// Runs the script behind it as a process that hides its descriptors from others of its user.
const UNDUMPABLE: &str = "import ctypes, runpy, sys\n\
     assert ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0\n\
     sys.argv = sys.argv[1:]\n\
     runpy.run_path(sys.argv[0], run_name='__main__')";

/// A process of the workers' user that holds a connection to a port until it is closed.
fn stranger_of_the_owner(port: &str) -> bool {
    let script = format!("exec 3<>/dev/tcp/127.0.0.1/{port} && cat <&3");
    let closed = Command::new("setpriv")
        .args([&format!("--reuid={OWNER}"), &format!("--regid={OWNER}"), "--clear-groups"])
        .args(["timeout", "20", "/bin/bash", "-c", &script])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    closed.expect("util-linux").status.code() != Some(124)
}

#[test]
fn s_4_workers_that_hide_their_descriptors_are_let_in_and_a_stranger_of_their_user_is_not() {
    if !nix::unistd::geteuid().is_root() {
        return not_shown("an ordinary user's agent needs root");
    }
    let has_ctypes = || Command::new(PYTHON).args(["-c", "import ctypes"]).status();
    if !has_ctypes().is_ok_and(|status| status.success()) {
        return not_shown("there is no interpreter that every user may start");
    }
    if !Job::is_reached_by(OWNER) {
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/programs/script.py");
    let program = [PYTHON, "-c", UNDUMPABLE, script, "CONTROL", "LOG"].map(ToOwned::to_owned);
    let mut job = Job::start_program(&["-n", "2", "--mode", "restart"], &program);
    job.agent_as(&[], OWNER, "a", 2);
    let of = |job: &mut Job, event: &str| -> Vec<serde_json::Value> {
        job.log().into_iter().filter(|line| line["event"] == event).collect()
    };
    let start = job.wait("both workers, who meet", |job| {
        (of(job, "met").len() == 2).then(|| of(job, "start")).filter(|all| all.len() == 2)
    });
    let pid = start[0]["pid"].as_u64().expect("a number");
    let owner = std::os::unix::fs::MetadataExt::uid(
        &fs::metadata(format!("/proc/{pid}/fd")).expect("it runs"),
    );
    assert_eq!(owner, 0, "the worker can be looked at: nothing was shown");
    let port = start[0]["environment"]["MASTER_PORT"].as_str().expect("a port").to_owned();
    assert!(stranger_of_the_owner(&port), "a stranger was let in");
    let refused = "it is no process of a worker of this host";
    job.wait("the stranger's refusal", |job| agent_log(job).contains(refused).then_some(()));
    let log = agent_log(&job);
    assert_eq!(log.matches("not let in").count(), 1, "the stranger alone: {log}");
    job.control("finish");
    assert_eq!(job.end(), 0, "{}", job.stderr());
    assert_eq!(job.events_of("host_lost").len(), 0);
}

fn agent_log(job: &Job) -> String {
    fs::read_to_string(job.path("agent.a.stderr")).unwrap_or_default()
}

/// The most memory that a process has had at a time.
fn peak_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
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
