//! `--config`: a driver, an agent and `run` take their flags from a file. `--output-prefix`: the prefix of lines of
//! output.

use std::fs;
use std::process::{Command, Stdio};

use crate::support::{binary, wait_until};

/// A program that says how many workers there are.
const PROGRAM: [&str; 4] = ["--", "sh", "-c", "echo size=$WORLD_SIZE"];

#[test]
fn run_takes_its_flags_from_a_file_and_the_command_line_goes_first() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("job.toml");
    // The agent that `run` starts has no part in the file: it is told what to do.
    fs::write(&file, "mode = \"restart\"\n[run]\nnp = 2\n[worker]\nslots = 1\n").expect("written");
    for (flags, size) in [(&[][..], 2), (&["-n", "3"][..], 3)] {
        let output = Command::new(binary())
            .arg("run")
            .args(flags)
            .args(PROGRAM)
            .env("ELASTIC_CONFIG", &file)
            .env("XDG_STATE_HOME", folder.path())
            .stdin(Stdio::null())
            .output()
            .expect("it runs");
        let stdout = String::from_utf8_lossy(&output.stdout);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        let said = format!("size={size}");
        assert_eq!(stdout.lines().filter(|line| line.ends_with(&said)).count(), size, "{stdout}");
    }
}

#[test]
fn a_flag_goes_before_the_variable_of_one_that_says_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    for (variable, flag, size) in [
        ("ELASTIC_NP", "--nproc-per-node=2", 2),
        ("PET_NPROC_PER_NODE", "-n2", 2),
        ("ELASTIC_NP", "--shutdown-timeout=1", 3),
    ] {
        let run = |line: &[&str]| {
            let mut command = Command::new(binary());
            command.args(line).args(["run", flag]).args(PROGRAM).env(variable, "3");
            command.env("XDG_STATE_HOME", folder.path()).stdin(Stdio::null());
            let output = command.output().expect("it runs");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let (ran, said) = (run(&[]), format!("size={size}"));
        assert_eq!(ran.lines().filter(|line| line.ends_with(&said)).count(), size, "{ran}");
        let shown = run(&["config", "show"]);
        let note = format!("# not in force: {variable}; a flag goes first");
        assert_eq!(shown.contains(&note), size == 2, "{shown}");
    }
}

#[test]
fn a_driver_and_its_agent_share_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state");
    let file = folder.path().join("job.toml");
    let text = format!(
        "state-dir = {:?}\nmode = \"restart\"\n[driver]\nbind = \"127.0.0.1:0\"\nnp = 2\n[worker]\nhost = \
         \"filed\"\nslots = 2\n",
        state.display().to_string()
    );
    fs::write(&file, text).expect("written");
    let command = |role: &str| {
        let mut command = Command::new(binary());
        command.args(["--role", role]).arg("--config").arg(&file).stdin(Stdio::null());
        command.env("XDG_STATE_HOME", folder.path()).stderr(Stdio::null()).stdout(Stdio::piped());
        command
    };
    let mut driver = command("driver").args(PROGRAM).spawn().expect("it starts");
    let address = wait_until("the driver's address", || {
        fs::read_to_string(state.join("address")).ok().filter(|it| !it.trim().is_empty())
    });
    let agent = command("worker").args(["--join", address.trim()]).spawn().expect("it starts");
    let agent = agent.wait_with_output().expect("it ends");
    let stdout = String::from_utf8_lossy(&agent.stdout);
    assert_eq!(stdout.lines().filter(|line| line.ends_with("size=2")).count(), 2, "{stdout}");
    assert!(wait_until("the end", || driver.try_wait().expect("ours")).success());
}

#[test]
fn lines_of_workers_have_one_prefix_which_can_be_set() {
    let folder = tempfile::tempdir().expect("a folder");
    let said = |flags: &[&str]| {
        let output = Command::new(binary())
            .args(["run", "-n", "1", "--mode", "restart", "-H", "a:1"])
            .args(flags)
            .args(["--", "echo", "word"])
            .env("XDG_STATE_HOME", folder.path())
            .stdin(Stdio::null())
            .output()
            .expect("it runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(said(&[]), "[a:0] word\n");
    assert_eq!(said(&["--output-prefix", "none"]), "word\n");
    assert_eq!(said(&["--output-prefix", "rank"]), "[0] word\n");
    assert_eq!(said(&["--output-prefix", "{rank}@{host}/{slot}> "]), "0@a/0> word\n");
    assert_eq!(
        said(&["--log-line-prefix-template", "[${role_name}${rank}]: "]),
        "[default0]: word\n"
    );
    let timed = said(&["--output-prefix", "{time} "]);
    let (time, word) = timed.split_once(' ').expect("a time");
    assert!(humantime::parse_rfc3339(time).is_ok() && word == "word\n", "{timed}");
}
