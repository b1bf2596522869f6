//! The beginning and the end of jobs.

use std::fs;
use std::io::Read as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::network::not_shown;
use crate::sick::is_taken;
use crate::sickness::{Disk, Sickness};
use crate::store::PYTHON;
use crate::support::{Job, binary, is_running, now, program, signal, wait_until};

#[test]
fn three_shells() {
    let mut job = Job::start(&["-n", "2", "--min-np", "1"], &[]);
    job.agent("a", 1);
    job.agent("b", 1);
    job.wait_for_sizes(&[2]);
    let status = job.status().expect("a status");
    for field in ["job", "term", "generation", "phase", "world_size", "min_np", "max_np", "resets"]
    {
        assert!(!status[field].is_null() || field == "max_np", "{field}: {status}");
    }
    assert_eq!(status["phase"], "run");
    assert_eq!(status["hosts"][0]["state"], "active");
    assert_eq!(status["workers"][1]["rank"], 1);
    let victim = job.pid("b", 0);
    signal(victim, Signal::SIGKILL);
    job.wait_for_sizes(&[2, 1, 2]);
    let last = job.status().expect("a status")["last_reset"].clone();
    assert!(last["cause"].is_string() && last["at"].is_string(), "{last}");
    job.agent("c", 1);
    job.wait_for_sizes(&[2, 1, 2, 3]);
    assert_eq!(job.finish(), 0);
    for host in ["a", "b", "c"] {
        assert_eq!(job.agent_end(host).code(), Some(0), "agent {host}");
    }
    job.assert_exact();
}

#[test]
fn g_10_a_host_that_is_lost_after_the_training_fails_the_job_and_the_other_ends_by_itself() {
    let mut job = Job::start(&["-n", "2", "--min-np", "1"], &[]);
    job.agent("a", 1);
    job.agent("b", 1);
    job.wait_for_sizes(&[2]);
    let other = job.pid("b", 0);
    job.control("slow-end.0");
    job.control("slow-end.1");
    job.control("finish");
    job.wait("the end of the training", |job| {
        let finished = job.log().iter().filter(|line| line["event"] == "finish").count();
        (finished == 2 && !job.events_of("job_ended").is_empty()).then_some(())
    });
    job.kill_agent("a");
    job.wait("the loss of the host", |job| job.events_of("host_lost").pop());
    assert!(is_running(other), "it may have data to write");
    for rank in [0, 1] {
        fs::remove_file(job.path(&format!("control/slow-end.{rank}"))).expect("a file");
    }
    assert_eq!(job.end(), 1);
    let stderr = job.stderr();
    let told = "a:0 was lost before its process had ended: its host was lost";
    assert!(stderr.contains(told), "{stderr}");
    let ended = job.events_of("worker_exited");
    let is_of_b = |event: &&Value| event["worker"].as_str().is_some_and(|w| w.starts_with("b[0]#"));
    let ended = ended.iter().find(is_of_b);
    assert_eq!(ended.map(|event| event["expected"].clone()), Some(Value::Bool(true)));
}

#[test]
fn h_21_a_worker_that_is_killed_when_all_others_have_finished_fails_the_job() {
    let mut job = Job::start(&["-n", "2", "--min-np", "1"], &[]);
    job.agent("a", 2);
    job.wait_for_sizes(&[2]);
    job.control("die-last.1");
    assert_eq!(job.finish(), 1);
    assert_eq!(job.sizes(), [2], "the other keeps its result");
    let (told, stderr) = ("failed before training had finished: signal 9 (SIGKILL)", job.stderr());
    assert!(stderr.contains(told), "{stderr}");
}

#[test]
fn run_is_driver_agent_and_workers_in_one() {
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    for name in ["control", "log", "state"] {
        fs::create_dir(folder.path().join(name)).expect("a folder");
    }
    fs::write(folder.path().join("control/finish"), "").expect("a file");
    let output = Command::new(binary())
        .args(["run", "-n", "2", "--bind", "127.0.0.1:0", "--state-dir"])
        .arg(folder.path().join("state"))
        .arg("--")
        .arg(program("trainer"))
        .arg("--control")
        .arg(folder.path().join("control"))
        .arg("--log")
        .arg(folder.path().join("log"))
        .output()
        .expect("it runs");
    let (stdout, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert_eq!(stdout.matches("starts").count(), 2, "workers' stdout is data: {stdout}");
}

#[test]
fn a_failed_programs_own_code_is_named() {
    let output = Command::new(binary())
        .args(["run", "-n", "1", "--bind", "127.0.0.1:0", "--max-restarts", "0", "--state-dir"])
        .arg(tempfile::TempDir::new().expect("a temporary folder").path())
        .args(["--", "/bin/sh", "-c", "echo out of luck >&2; exit 7"])
        .output()
        .expect("it runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("exit code 7") && stderr.contains("out of luck"), "{stderr}");
}

/// Runs a shell script as so many workers, by `program run`; returns the exit code, stdout and stderr.
fn run_script(program: &mut Command, workers: u32, script: &str) -> (Option<i32>, String, String) {
    let state = tempfile::TempDir::new().expect("a temporary folder");
    let output = program
        .args(["run", "-n", &workers.to_string(), "--bind", "127.0.0.1:0", "--state-dir"])
        .arg(state.path())
        .args(["--", "/bin/sh", "-c", script])
        .output()
        .expect("it runs");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_program_that_never_calls_the_library_runs() {
    let (code, stdout, stderr) =
        run_script(&mut Command::new(binary()), 2, "echo rank $RANK of $WORLD_SIZE");
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("rank 0 of 2") && stdout.contains("rank 1 of 2"), "{stdout}");
}

#[test]
fn s_12_without_a_folder_for_temporary_files_the_workers_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(binary());
    command.env("TMPDIR", folder.path().join("none"));
    let (code, stdout, stderr) = run_script(&mut command, 2, "echo rank $RANK of $WORLD_SIZE");
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("rank 0 of 2") && stdout.contains("rank 1 of 2"), "{stdout}");
    assert_eq!(stderr.matches("TMPDIR").count(), 1, "one warning: {stderr}");
}

/// Another process of a user that takes up all processes and threads that the user may have.
fn take_up_all(user: &str, threads: u32) -> Child {
    let script = format!(
        "import threading, time\n\
         for _ in range({threads}): threading.Thread(target=time.sleep, args=(1000,)).start()\n\
         print('held', flush=True)"
    );
    let mut hog = Command::new("setpriv")
        .args([&format!("--reuid={user}"), "--clear-groups", PYTHON, "-c", &script])
        .stdout(Stdio::piped())
        .spawn()
        .expect("util-linux");
    let mut said = [0; 4];
    let stdout = hog.stdout.as_mut().expect("a pipe");
    stdout.read_exact(&mut said).expect("all threads run");
    hog
}

#[test]
fn s_12_a_host_that_can_start_no_more_processes_is_named_and_tried_again() {
    // A user of this test's own: the limit counts all of a user's processes.
    const USER: &str = "65531";
    if !nix::unistd::geteuid().is_root() || !fs::exists(PYTHON).unwrap_or_default() {
        return not_shown("another user's processes need root, and Debian's python3");
    }
    if !Job::is_reached_by(USER) {
        return;
    }
    let mut job = Job::start(&["-n", "2", "--min-np", "1", "--max-restarts", "1000"], &[]);
    job.agent("a", 1);
    job.agent_as(&["prlimit", "--nproc=200:200"], USER, "b", 1);
    job.wait_for_sizes(&[2]);
    let victim = job.pid("b", 0);
    let mut hog = take_up_all(USER, 200);
    signal(victim, Signal::SIGKILL);
    job.wait("the reason, and training without that host", |job| {
        let is_told = job.stderr().contains("limits: ulimit -u, and pids.max");
        (is_told && job.sizes() == [2, 1]).then_some(())
    });
    job.wait("the back-off", |job| {
        let status = job.status()?;
        let waits = |it: &Value| it["host"] == "b" && it["state"] == "backoff";
        status["workers"].as_array()?.iter().any(waits).then_some(())
    });
    job.wait_for_steps();
    hog.kill().expect("it runs");
    hog.wait().expect("it is ours");
    job.wait("the host's next worker", |job| (job.sizes() == [2, 1, 2]).then_some(()));
    assert!(job.events_of("host_blacklisted").is_empty());
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn s_12_workers_are_asked_to_end_whatever_signals_the_launcher_had_blocked() {
    let blocked = "import os, signal, sys; \
                   signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); \
                   os.execv(sys.argv[1], sys.argv[1:])";
    let mut command = Command::new("python3");
    command.args(["-c", blocked, binary()]).env("ELASTIC_MAX_RESTARTS", "0");
    let (code, _, stderr) = run_script(&mut command, 1, "kill -TERM $$; echo survived");
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("signal 15 (SIGTERM)"), "{stderr}");
}

#[test]
fn x_2_an_agent_is_started_again_where_the_program_s_file_was_removed() {
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    let (copy, mark) = (folder.path().join("elastic-node"), folder.path().join("mark"));
    fs::copy(binary(), &copy).expect("a copy");
    let script = format!(
        "if mkdir {}; then rm {}; kill -9 $PPID; sleep 1000; fi; echo rank $RANK of $WORLD_SIZE",
        mark.display(),
        copy.display()
    );
    let (code, stdout, stderr) = run_script(&mut Command::new(&copy), 1, &script);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("rank 0 of 1"), "{stdout}");
    assert!(mark.exists() && !copy.exists(), "the file was removed meanwhile: {stderr}");
}

#[test]
fn x_14_a_program_that_never_attaches_in_process() {
    let sleep = ["/bin/sleep".to_owned(), "1000".to_owned()];
    let flags = ["-n", "1", "--mode", "in-process", "--start-timeout", "1", "--max-restarts", "0"];
    let mut job = Job::start_program(&flags, &sleep);
    job.agent("a", 1);
    assert_eq!(job.end(), 1);
    assert!(job.stderr().contains("did not attach within 1 s"), "{}", job.stderr());
}

#[test]
fn x_9_a_worker_that_ignores_sigterm_is_killed_after_the_grace_period() {
    let stubborn = ["/bin/sh", "-c", "trap '' TERM; while :; do sleep 1; done"];
    let flags = [
        "-n",
        "1",
        "--mode",
        "in-process",
        "--start-timeout",
        "1",
        "--max-restarts",
        "0",
        "--grace-period",
        "1",
    ];
    let mut job = Job::start_program(&flags, &stubborn.map(ToOwned::to_owned));
    job.agent("a", 1);
    assert_eq!(job.end(), 1);
    let exits = job.events_of("worker_exited");
    assert_eq!(exits[0]["killed_after_grace"], true, "{exits:?}");
    assert_eq!(exits[0]["status"], "signal 9 (SIGKILL)");
}

#[test]
fn h_21_nobody_is_killed_for_being_slower() {
    let mut job = Job::start(&["-H", "a:2", "--launcher", "local"], &[]);
    job.wait_for_sizes(&[2]);
    job.control("slow-finish.1");
    assert_eq!(job.finish(), 0);
    let finished = job.log().iter().filter(|line| line["event"] == "finish").count();
    assert_eq!(finished, 2);
}

#[test]
fn x_17_ctrl_c_in_every_phase() {
    for phase in ["gather", "run"] {
        let mut job = Job::start(&["-n", "1", "--grace-period", "2"], &[]);
        let mut worker = None;
        if phase == "run" {
            job.agent("a", 1);
            job.wait_for_sizes(&[1]);
            worker = Some(job.pid("a", 0));
        }
        signal(i32::try_from(job.driver.id()).expect("a pid"), Signal::SIGINT);
        assert_eq!(job.end(), 130, "{phase}: {}", job.stderr());
        if let Some(worker) = worker {
            job.agent_end("a");
            wait_until("the worker's end", || (!is_running(worker)).then_some(()));
        }
    }
}

#[test]
fn x_17_ctrl_c_twice() {
    let mut job = Job::start(&["-n", "1", "--grace-period", "30"], &[]);
    job.agent("a", 1);
    job.wait_for_sizes(&[1]);
    let worker = job.pid("a", 0);
    signal(worker, Signal::SIGSTOP);
    let driver = i32::try_from(job.driver.id()).expect("a pid");
    signal(driver, Signal::SIGINT);
    job.wait("the first one's effect", |job| {
        (!job.events_of("job_ended").is_empty()).then_some(())
    });
    signal(driver, Signal::SIGINT);
    assert_eq!(job.end(), 130);
    wait_until("the worker's end", || (!is_running(worker)).then_some(()));
}

#[test]
fn x_17_ctrl_c_twice_ends_a_driver_whose_state_directory_hangs() {
    const WITHIN: Duration = Duration::from_secs(5);
    let Some(disk) = Disk::make("state") else { return };
    let sickness = Sickness { disk: Some(disk), ..Sickness::default() };
    let mut job = Job::start_sick(sickness, &["-n", "2", "--min-np", "1"]);
    job.agent("a", 1);
    job.agent("b", 1);
    job.wait_for_sizes(&[2]);
    let (driver, victim, survivor) = (job.driver_pid(), job.pid("b", 0), job.pid("a", 0));
    job.disk.as_ref().expect("it has one").freeze();
    signal(victim, Signal::SIGKILL);
    job.wait("a decision that waits for the disk", |job| {
        job.status()?["warnings"].to_string().contains("journal: not answered for").then_some(())
    });
    signal(driver, Signal::SIGINT);
    // Two signals that are pending together count as one.
    job.wait("the first signal to be taken", |_| is_taken(driver, Signal::SIGINT).then_some(()));
    let begun = now();
    signal(driver, Signal::SIGINT);
    // Nothing of it runs any more. The kernel keeps the process for the thread that writes.
    job.wait("the end of the driver", |_| (!is_running(driver)).then_some(()));
    assert!(begun.elapsed() < WITHIN, "{:?}", begun.elapsed());
    // The workers were told, although the end of the job could not be stored.
    wait_until("the worker's end", || (!is_running(survivor)).then_some(()));
    assert!(job.agent_end("a").code().is_some());
    job.disk.as_ref().expect("it has one").thaw();
    assert_eq!(job.end(), 130);
}

#[test]
fn orphans_end_by_themselves() {
    let mut job = Job::start(&["-n", "1", "--orphan-timeout", "1"], &[]);
    job.agent("a", 1);
    job.wait_for_sizes(&[1]);
    let worker = job.pid("a", 0);
    job.driver.kill().expect("the driver is there");
    job.driver.wait().expect("the driver is there");
    assert_eq!(job.agent_end("a").code(), Some(1));
    wait_until("the worker's end", || (!is_running(worker)).then_some(()));
}

#[test]
fn x_12_two_drivers_on_one_port() {
    let job = Job::start(&["-n", "1"], &[]);
    let second = Command::new(binary())
        .args(["--role", "driver", "--bind", &job.address, "--state-dir"])
        .arg(job.path("second"))
        .args(["--", "/bin/true"])
        .output()
        .expect("it runs");
    let stderr = String::from_utf8_lossy(&second.stderr);
    assert!(!second.status.success());
    assert!(stderr.contains("error:") && stderr.contains(&job.address), "{stderr}");
}
