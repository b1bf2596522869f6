//! `elastic-node logs`: the output of workers, found by rank, host and generation.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

use crate::support::{binary, wait_until};

fn logs(folder: &Path, flags: &[&str]) -> Output {
    let state = folder.join("state");
    Command::new(binary()).arg("logs").arg(state).args(flags).output().expect("it runs")
}

fn printed(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Two workers by restart that run this text.
fn start(folder: &Path, text: &str, flags: &[&str]) -> Child {
    Command::new(binary())
        .args(["run", "-n", "2", "--mode", "restart", "--bind", "127.0.0.1:0", "--state-dir"])
        .arg(folder.join("state"))
        .args(flags)
        .args(["--", "/bin/sh", "-c", text])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it runs")
}

#[test]
fn x_16_the_output_of_a_rank_is_found_and_streams_stay_apart() {
    let folder = TempDir::new().expect("a temporary folder");
    let output = folder.path().join("output").display().to_string();
    let text = "echo out of $RANK; echo err of $RANK >&2; printf 'no end'";
    let ended = start(folder.path(), text, &["--output-dir", &output]).wait();
    assert!(ended.expect("it ends").success());

    let (code, stdout, stderr) = printed(&logs(folder.path(), &[]));
    assert_eq!(code, Some(0), "{stderr}");
    let of = |rank: u32| format!("[localhost:{rank}] out of {rank}\n[localhost:{rank}] no end\n");
    assert_eq!(stdout, of(0) + &of(1));
    assert_eq!(stderr, "[localhost:0] err of 0\n[localhost:1] err of 1\n");
    let of_one = printed(&logs(folder.path(), &["--rank", "1"]));
    assert_eq!(
        of_one,
        (Some(0), "out of 1\nno end".to_owned(), "err of 1\n".to_owned()),
        "as it is"
    );
    let same = printed(&logs(folder.path(), &["--rank", "1", "--generation", "1"]));
    assert_eq!(same, of_one);

    for (flags, words) in [
        (&["--rank", "2"][..], "there is no rank 2 in generation 1, which has 2 workers"),
        (&["--host", "b"], "no such worker of generation 1 is on b; its hosts are localhost"),
        (&["--generation", "9"], "there is no generation 9 in the log: the newest is 1"),
    ] {
        let (code, stdout, stderr) = printed(&logs(folder.path(), flags));
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{stderr}");
        assert!(stderr.contains(words), "{stderr}");
    }
    let elsewhere = folder.path().display().to_string();
    let (code, _, stderr) = printed(&logs(folder.path(), &["--output-dir", &elsewhere]));
    assert_eq!(code, Some(1));
    assert!(stderr.contains("there is no output of localhost:0, localhost:1 in"), "{stderr}");
    assert!(stderr.contains("hint: each host stores the output of its own workers"), "{stderr}");
}

#[test]
fn logs_follow_a_job_to_its_end() {
    let folder = TempDir::new().expect("a temporary folder");
    let output = folder.path().join("output").display().to_string();
    let (gate, begun) = (folder.path().join("gate"), folder.path().join("begun"));
    let text = format!(
        "echo first; touch '{}'; while [ ! -e '{}' ]; do sleep 0.05; done; echo last",
        begun.display(),
        gate.display()
    );
    let mut job = start(folder.path(), &text, &["--output-dir", &output]);
    wait_until("a worker that writes", || begun.exists().then_some(()));
    let path = folder.path().join("followed");
    let mut follower = Command::new(binary())
        .arg("logs")
        .arg(folder.path().join("state"))
        .arg("--follow")
        .stdout(fs::File::create(&path).expect("ours"))
        .spawn()
        .expect("it runs");
    let followed = || fs::read_to_string(&path).expect("ours");
    wait_until("the first lines", || (followed().matches("first").count() == 2).then_some(()));
    assert!(!followed().contains("last"));
    fs::write(&gate, "").expect("ours");
    assert!(job.wait().expect("it ends").success());
    assert!(follower.wait().expect("it ends with the job").success());
    for line in ["[localhost:0] last\n", "[localhost:1] last\n"] {
        assert!(followed().contains(line), "{}", followed());
    }
}

#[test]
fn x_16_logs_are_followed_through_a_rotation_of_the_output_and_of_the_event_log() {
    let folder = TempDir::new().expect("a temporary folder");
    let output = folder.path().join("output");
    let gate = |name: &str| folder.path().join(name);
    let wait_at =
        |name: &str| format!("while [ ! -e '{}' ]; do sleep 0.05; done", gate(name).display());
    let text = format!(
        "echo the first line, and the longest; {}; echo second; {}; echo third; {}; echo last",
        wait_at("gate-1"),
        wait_at("gate-2"),
        wait_at("gate-3"),
    );
    let stored_in = output.display().to_string();
    let mut job = start(folder.path(), &text, &["--output-dir", &stored_in]);
    let path = |rank: u32| output.join(format!("generation_1/{rank}/stdout.log"));
    let is_written = |rank| fs::read(path(rank)).is_ok_and(|written| !written.is_empty());
    wait_until("the first lines", || (is_written(0) && is_written(1)).then_some(()));
    let printed = folder.path().join("followed");
    let mut follower = Command::new(binary())
        .arg("logs")
        .arg(folder.path().join("state"))
        .arg("--follow")
        .stdout(fs::File::create(&printed).expect("ours"))
        .spawn()
        .expect("it runs");
    let followed = || fs::read_to_string(&printed).expect("ours");
    let wait_for = |word: &str| {
        wait_until(word, || (followed().matches(word).count() == 2).then_some(()));
    };
    wait_for("first");
    // As logrotate with copytruncate.
    for rank in 0..2 {
        fs::File::options().write(true).truncate(true).open(path(rank)).expect("there");
    }
    fs::write(gate("gate-1"), "").expect("ours");
    wait_for("second");
    // As logrotate without: the worker's agent goes on in the file that was moved away.
    for rank in 0..2 {
        fs::rename(path(rank), path(rank).with_extension("log.1")).expect("there");
    }
    let events = folder.path().join("state/events.jsonl");
    fs::rename(&events, events.with_extension("jsonl.1")).expect("there");
    fs::write(gate("gate-2"), "").expect("ours");
    wait_for("third");
    fs::write(gate("gate-3"), "").expect("ours");
    assert!(job.wait().expect("it ends").success());
    assert!(follower.wait().expect("it ends with the job").success());
    wait_for("last");
    assert_eq!(followed().lines().count(), 8, "each line once: {}", followed());
}

#[test]
fn x_16_a_folder_that_has_served_another_job_shows_each_its_own_output() {
    let folder = TempDir::new().expect("a temporary folder");
    let output = folder.path().join("output").display().to_string();
    let jobs = ["former", "later"].map(|job| (job, folder.path().join(job)));
    for (job, of_job) in &jobs {
        fs::create_dir(of_job).expect("ours");
        let text = format!("echo output of the {job} job");
        let ended = start(of_job, &text, &["--output-dir", &output]).wait();
        assert!(ended.expect("it ends").success());
    }
    for (job, of_job) in &jobs {
        let (code, stdout, stderr) = printed(&logs(of_job, &["--rank", "0"]));
        assert_eq!(code, Some(0), "{stderr}");
        assert_eq!(stdout, format!("output of the {job} job\n"));
    }
}

#[test]
fn a_job_that_stores_no_output_is_named_with_the_flag() {
    let folder = TempDir::new().expect("a temporary folder");
    assert!(start(folder.path(), "true", &[]).wait().expect("it ends").success());
    let (code, _, stderr) = printed(&logs(folder.path(), &[]));
    assert_eq!(code, Some(2));
    assert!(stderr.contains("hint: start it with --output-dir FOLDER"), "{stderr}");
}
