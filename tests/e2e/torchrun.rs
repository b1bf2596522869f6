//! `elastic-node run` in the place of `torchrun`: flags, variables, defaults, output, failures (T-1 to T-4, T-11).

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

use super::support::binary;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/programs/script.py");

/// A folder with control files; the only one is `finish` unless others are named.
fn folder(control: &[&str]) -> TempDir {
    let folder = TempDir::new().expect("a temporary folder");
    for name in ["control", "log", "state"] {
        std::fs::create_dir(folder.path().join(name)).expect("a folder");
    }
    let control = if control.is_empty() { &["finish"] } else { control };
    for name in control {
        std::fs::write(folder.path().join("control").join(name), "").expect("a file");
    }
    folder
}

fn command(folder: &Path, flags: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(["run", "--state-dir"]).arg(folder.join("state")).args(flags).current_dir(folder);
    command
}

fn run(folder: &Path, flags: &[&str]) -> Output {
    let arguments = ["control", "log", "--lr", "0.1"];
    command(folder, flags).arg(SCRIPT).args(arguments).output().expect("it runs")
}

/// The lines that the scripts logged at their start.
fn started(folder: &Path) -> Vec<Value> {
    let files = std::fs::read_dir(folder.join("log")).expect("a folder").flatten();
    let texts = files.filter_map(|file| std::fs::read_to_string(file.path()).ok());
    let mut lines: Vec<Value> =
        texts.filter_map(|text| serde_json::from_str(text.lines().next()?).ok()).collect();
    lines.sort_by_key(|line| (line["restarts"].as_u64(), line["rank"].as_u64()));
    lines
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn t_1_environment_of_one_host_of_four() {
    let folder = folder(&[]);
    let output =
        run(folder.path(), &["--nproc-per-node", "4", "--rdzv-id", "job7", "--role", "trainer"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let started = started(folder.path());
    let of = |name: &str| -> Vec<&str> {
        started.iter().map(|line| line["environment"][name].as_str().unwrap_or("absent")).collect()
    };
    assert_eq!(of("RANK"), ["0", "1", "2", "3"]);
    assert_eq!(of("LOCAL_RANK"), ["0", "1", "2", "3"]);
    assert_eq!(of("ROLE_RANK"), ["0", "1", "2", "3"]);
    for (name, value) in [
        ("WORLD_SIZE", "4"),
        ("LOCAL_WORLD_SIZE", "4"),
        ("ROLE_WORLD_SIZE", "4"),
        ("GROUP_RANK", "0"),
        ("GROUP_WORLD_SIZE", "1"),
        ("ROLE_NAME", "trainer"),
        ("TORCHELASTIC_RUN_ID", "job7"),
        ("TORCHELASTIC_RESTART_COUNT", "0"),
        ("TORCHELASTIC_MAX_RESTARTS", "0"),
        ("TORCHELASTIC_USE_AGENT_STORE", "True"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        ("OMP_NUM_THREADS", "1"),
        ("MASTER_ADDR", "127.0.0.1"),
    ] {
        assert_eq!(of(name), [value; 4], "{name}");
    }
    let error_files = of("TORCHELASTIC_ERROR_FILE");
    assert!(error_files.iter().all(|file| file.ends_with("error.json")), "{error_files:?}");
    assert_eq!(started[0]["arguments"], serde_json::json!(["--lr", "0.1"]));
}

#[test]
fn t_2_torchrun_s_flags_are_taken() {
    let folder = folder(&[]);
    let flags = [
        "--nnodes=1:1",
        "--nproc_per_node=2",
        "--standalone",
        "--max_restarts=1",
        "--monitor-interval=0.05",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=localhost:29400",
        "--rdzv-id=none",
        "--rdzv-conf=join_timeout=60",
        "--start-method=spawn",
        "--master-port=29500",
        "--log-dir=logs",
        "-r",
        "0:3",
        "-t",
        "1:1",
        "--local-ranks-filter=0,1",
    ];
    let output = run(folder.path(), &flags);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(stdout, "[localhost:1] out of rank 1\n", "rank 0 is redirected");
    assert!(stderr(&output).contains("[localhost:1] err of rank 1"));
    assert!(!stderr(&output).contains("err of rank 0"));
    let job = std::fs::read_dir(folder.path().join("logs")).expect("a folder").flatten().next();
    let generation = job.expect("the job's folder").path().join("generation_1");
    let stored = |file: &str| std::fs::read_to_string(generation.join(file)).ok();
    assert_eq!(stored("0/stdout.log").as_deref(), Some("out of rank 0\n"));
    assert_eq!(stored("0/stderr.log").as_deref(), Some("err of rank 0\n"));
    assert_eq!(stored("1/stdout.log").as_deref(), Some("out of rank 1\n"));
    assert_eq!(stored("1/stderr.log"), None);
}

#[test]
fn t_2_variables_and_ways_to_run() {
    let folder = folder(&[]);
    let text = "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])";
    std::fs::write(folder.path().join("module.py"), text).expect("a file");
    let output = command(folder.path(), &["-m", "module"])
        .env("PET_NPROC_PER_NODE", "2")
        .env("PET_LOCAL_RANKS_FILTER", "1")
        .output()
        .expect("it runs");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "[localhost:1] rank 1 of 2\n",
        "{}",
        stderr(&output)
    );
    let shell = ["--no-python", "/bin/sh", "-c", "echo $LOCAL_RANK is $0", "${local_rank}"];
    let output = command(folder.path(), &shell).output().expect("it runs");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "[localhost:0] 0 is 0\n",
        "{}",
        stderr(&output)
    );
}

#[test]
fn t_2_what_cannot_be_meant_is_refused_with_the_reason() {
    let folder = folder(&[]);
    let refused = |flags: &[&str]| {
        let output = run(folder.path(), flags);
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {}", stderr(&output));
        stderr(&output)
    };
    assert!(refused(&["--nnodes", "2:20:30"]).contains("has 3 numbers; give N or MIN:MAX"));
    assert!(refused(&["--nnodes", "2"]).contains("--role driver"));
    assert!(refused(&["-r", "0:9"]).contains("3 (both)"));
    assert!(refused(&["--nproc-per-node", "many"]).contains("nor auto, cpu or gpu"));
    assert!(refused(&["-m", "--no-python"]).contains("cannot be used with"));
    assert!(started(folder.path()).is_empty());
}

#[test]
fn t_3_four_attempts_and_the_traceback_of_the_first_real_cause() {
    let folder = folder(&["raise.1"]);
    let output = run(folder.path(), &["--nproc-per-node", "2", "--max-restarts", "3"]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = stderr(&output);
    assert!(stderr.contains("after 3 of 3 restarts"), "{stderr}");
    assert!(
        stderr.contains("Traceback (most recent call last):\nValueError: out of luck"),
        "{stderr}"
    );
    let started = started(folder.path());
    let counts: Vec<u64> = started.iter().filter_map(|line| line["restarts"].as_u64()).collect();
    assert_eq!(counts, [0, 0, 1, 1, 2, 2, 3, 3]);
}

#[test]
fn t_3_without_restarts_the_first_death_ends_the_job_and_names_the_signal() {
    let folder = folder(&["kill.1.0", "ignore-sigterm"]);
    let output = run(folder.path(), &["--nproc-per-node", "2", "--shutdown-timeout", "0.5"]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = stderr(&output);
    assert!(stderr.contains("no restart is allowed"), "{stderr}");
    assert!(stderr.contains("signal 9 (SIGKILL)"), "{stderr}");
    assert_eq!(started(folder.path()).len(), 2, "who ignores SIGTERM is killed");
}

#[test]
fn t_11_two_jobs_with_one_name_are_told_apart() {
    let folders = [folder(&[]), folder(&[])];
    let flags = ["--nproc-per-node", "2", "--rdzv-id", "same", "--master-port", "29500"];
    let running: Vec<_> = folders
        .iter()
        .map(|folder| command(folder.path(), &flags).arg(SCRIPT).args(["control", "log"]).spawn())
        .collect();
    for child in running {
        assert!(child.expect("it starts").wait().expect("it ends").success());
    }
    let ports: Vec<Value> = folders
        .iter()
        .map(|folder| started(folder.path())[0]["environment"]["MASTER_PORT"].clone())
        .collect();
    assert_ne!(ports[0], ports[1], "each has a store of its own");
}
