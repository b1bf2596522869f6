//! Durable checkpoints: a job whose every process is gone goes on from them (C-1 to C-5).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::data_path::{agent_at, agent_in};
use crate::network::Network;
use crate::operate::operate;
use crate::support::{Job, Random, binary, signal};

/// Commits between two checkpoints of these tests.
pub(crate) const EVERY: u64 = 20;

pub(crate) fn start(workers: u32, folder: &Path, more: &[&str]) -> Job {
    start_with(EVERY, workers, folder, more)
}

/// Starts a job with so many commits between two checkpoints.
fn start_with(every: u64, workers: u32, folder: &Path, more: &[&str]) -> Job {
    let (np, folder, every) =
        (workers.to_string(), folder.display().to_string(), every.to_string());
    let flags = ["-n", &np, "--checkpoint", &folder, "--checkpoint-every", &every];
    let mut job = Job::start(&[&flags, more].concat(), &["--samples", "960"]);
    for host in 0..workers {
        job.agent(&format!("h{host}"), 1);
    }
    job
}

fn kill_everything(job: &mut Job) {
    job.kill_driver();
    let hosts: Vec<String> = job.agents.keys().cloned().collect();
    hosts.iter().for_each(|host| job.kill_agent(host));
    job.wait("the end of every process", |job| (!job.has_processes()).then_some(()));
}

/// Exchanges two paths at once: the job makes a folder again wherever it misses one.
pub(crate) fn exchange(one: &Path, other: &Path) {
    renameat2(AT_FDCWD, one, AT_FDCWD, other, RenameFlags::RENAME_EXCHANGE).expect("both are ours");
}

pub(crate) fn steps_of(job: &Job, kind: &str) -> Vec<u64> {
    job.events_of(kind).iter().filter_map(|event| event["step"].as_u64()).collect()
}

/// Waits for so many checkpoints; returns the step of the last one.
pub(crate) fn wait_for_checkpoints(job: &mut Job, count: usize) -> u64 {
    job.wait("checkpoints", |job| {
        let steps = steps_of(job, "checkpoint_saved");
        steps.last().copied().filter(|_| steps.len() >= count)
    })
}

pub(crate) fn loaded(job: &mut Job) -> Value {
    job.wait("the checkpoint that is loaded", |job| job.events_of("checkpoint_loaded").pop())
}

/// Runs `checkpoint` with these arguments; returns its exit code and its output.
fn checkpoint(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(binary()).arg("checkpoint").args(arguments).output();
    let output = output.expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// The step of the newest whole checkpoint.
pub(crate) fn newest_of(folder: &Path) -> Option<u64> {
    steps_listed(folder).into_iter().filter(|(_, is_whole)| *is_whole).map(|(step, _)| step).max()
}

/// The highest step that the workers have told.
pub(crate) fn last_step_of(job: &Job) -> Option<u64> {
    job.log().iter().filter_map(|line| line["steps"].as_u64()).max()
}

pub(crate) fn steps_listed(folder: &Path) -> Vec<(u64, bool)> {
    let (code, stdout, stderr) = checkpoint(&["list", &folder.display().to_string(), "--json"]);
    assert_eq!(code, Some(0), "{stderr}");
    let rows: Vec<Value> = serde_json::from_str(&stdout).expect("JSON");
    let of_row = |row: &Value| Some((row["step"].as_u64()?, row["complete"].as_bool()?));
    rows.iter().filter_map(of_row).collect()
}

fn files_of(folder: &Path, step: u64) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder.join(format!("step-{step:010}"))).expect("it is there");
    entries.map(|entry| entry.expect("an entry").path()).collect()
}

#[test]
fn l_1_a_folder_of_checkpoints_that_is_not_there_ends_a_job_that_may_lose_nothing() {
    let shared = TempDir::new().expect("a folder");
    let [folder, empty] = ["checkpoints", "not-mounted"].map(|name| shared.path().join(name));
    fs::create_dir(&empty).expect("a folder");
    let mut job = start(2, &folder, &["--on-total-loss", "fail"]);
    let saved = wait_for_checkpoints(&mut job, 2);
    let workers = [job.pid("h0", 0), job.pid("h1", 0)];
    // Nothing is saved into the other folder.
    workers.into_iter().for_each(|pid| signal(pid, Signal::SIGSTOP));
    exchange(&folder, &empty);
    workers.into_iter().for_each(|pid| signal(pid, Signal::SIGKILL));
    assert_eq!(job.end(), 1, "{}", job.stderr());
    let stderr = job.stderr();
    let last = steps_of(&job, "checkpoint_saved").pop().expect("it has saved");
    assert!(last >= saved, "{last}");
    let reason =
        format!("the checkpoint of step {last}, which this job has saved or loaded, is not in");
    assert!(stderr.contains(&reason) && stderr.contains("mounted"), "{stderr}");
    assert_eq!(job.events_of("checkpoint_loaded").len(), 1, "it began from the start once");
    let begins = job.log().into_iter().filter(|line| line["event"] == "enter");
    let generations: Vec<u64> = begins.filter_map(|line| line["generation"].as_u64()).collect();
    assert_eq!(generations, [1, 1], "the program does not begin again");
}

#[test]
fn l_1_steps_that_are_lost_with_the_last_checkpoint_are_counted_once() {
    let shared = TempDir::new().expect("a folder");
    let [folder, old] = ["checkpoints", "old"].map(|name| shared.path().join(name));
    let flags = ["--on-total-loss", "restart", "--max-restarts", "100"];
    let mut job = start(2, &folder, &flags);
    let early = wait_for_checkpoints(&mut job, 1);
    let of_step = format!("step-{early:010}");
    fs::create_dir_all(old.join(&of_step)).expect("a folder");
    for file in files_of(&folder, early) {
        let name = file.file_name().expect("a file");
        fs::copy(&file, old.join(&of_step).join(name)).expect("it is copied");
    }
    let saved = wait_for_checkpoints(&mut job, 4);
    let workers = [job.pid("h0", 0), job.pid("h1", 0)];
    workers.into_iter().for_each(|pid| signal(pid, Signal::SIGSTOP));
    exchange(&folder, &old);
    workers.into_iter().for_each(|pid| signal(pid, Signal::SIGKILL));
    job.wait("the earlier checkpoint", |job| {
        let loads = job.events_of("checkpoint_loaded");
        loads.into_iter().find(|event| event["step"] == early)
    });
    job.wait_for_progress();
    let lost = |job: &mut Job| job.status()?["steps_lost"].as_u64().filter(|lost| *lost > 0);
    let counted = job.wait("the count of lost steps", lost);
    assert!(counted >= saved - early, "{counted}");
    let victim = job.pid("h1", 0);
    signal(victim, Signal::SIGKILL);
    let runs = job.events_of("generation_running").len();
    job.wait("the next generation", |job| {
        (job.events_of("generation_running").len() > runs).then_some(())
    });
    let again = job.wait("the count of lost steps", lost);
    assert!(again < counted + EVERY, "{again}, {counted}");
    assert_eq!(job.events_of("state_lost").len(), 1, "a worker has held the state since");
    job.finish();
}

#[test]
fn c_1_a_job_whose_every_process_was_killed_goes_on_at_most_one_interval_behind() {
    let shared = TempDir::new().expect("a folder");
    let folder = shared.path().join("checkpoints");
    let mut job = start(2, &folder, &["--checkpoint-keep", "2"]);
    let began = loaded(&mut job);
    assert_eq!(began["step"], Value::Null, "there is none to begin with");
    let saved = wait_for_checkpoints(&mut job, 3);
    kill_everything(&mut job);
    // A save may have ended after its event was looked at, or may not have ended at all.
    let whole: Vec<u64> = steps_listed(&folder)
        .into_iter()
        .filter(|(_, whole)| *whole)
        .map(|(step, _)| step)
        .collect();
    assert!(whole.contains(&saved) && whole.len() <= 3, "{whole:?}");
    let reached = last_step_of(&job);
    let mut again = start(3, &folder, &[]);
    let from = loaded(&mut again)["step"].as_u64().expect("a checkpoint");
    assert_eq!(Some(&from), whole.last(), "C-2: the newest, by another number of workers");
    // One interval, the one being saved, and the commits of a save's duration.
    let behind = reached.expect("it trained").saturating_sub(from);
    assert!(behind <= 10 * EVERY, "{behind} steps are lost");
    again.wait_for_sizes(&[3]);
    assert_eq!(again.finish(), 0);
    again.assert_exact();
    let log = again.log();
    let first = log.iter().find(|line| line["event"] == "enter").expect("it trained");
    assert!(first["steps"].as_u64() > Some(0), "it did not begin from the start: {first}");
}

#[test]
fn c_1_c_3_every_process_killed_again_and_again_also_while_a_checkpoint_is_written() {
    let shared = TempDir::new().expect("a folder");
    let folder = shared.path().join("checkpoints");
    let mut random = Random::new(17);
    let (mut newest, mut reached) = (None, 0);
    for life in 0..6 {
        let mut job = start(1 + random.below(3) as u32, &folder, &[]);
        let from = loaded(&mut job)["step"].as_u64();
        assert_eq!(from, newest, "life {life} begins from the newest that is whole");
        // One interval, the one being saved, and the commits of a save's duration.
        assert!(reached <= from.unwrap_or_default() + 10 * EVERY, "{reached} was reached");
        job.wait("a step", |job| (last_step_of(job) > from).then_some(()));
        if life == 5 {
            assert_eq!(job.finish(), 0);
            job.assert_exact();
            return;
        }
        if life % 2 == 0 {
            job.pass_ms(random.below(1_500));
        } else {
            let known = steps_of_folders(&folder);
            let is_partial = |step: &u64| !known.contains(step) && !has_manifest(&folder, *step);
            job.wait("a checkpoint that is being written", |_| {
                steps_of_folders(&folder).iter().any(is_partial).then_some(())
            });
        }
        kill_everything(&mut job);
        reached = last_step_of(&job).unwrap_or_default();
        let is_whole = |step: &u64| {
            let path = folder.join(format!("step-{step:010}"));
            let (code, ..) = checkpoint(&["verify", &path.display().to_string()]);
            code == Some(0)
        };
        newest = steps_of_folders(&folder).into_iter().filter(is_whole).max();
    }
}

fn has_manifest(folder: &Path, step: u64) -> bool {
    folder.join(format!("step-{step:010}/manifest.json")).exists()
}

/// The steps of all checkpoints, whole or not.
fn steps_of_folders(folder: &Path) -> Vec<u64> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let step =
        |name: String| name.strip_prefix("step-").and_then(|digits| digits.parse::<u64>().ok());
    entries.filter_map(|entry| step(entry.file_name().to_string_lossy().into_owned())).collect()
}

#[test]
fn c_3_a_damaged_checkpoint_is_named_and_passed_over() {
    let shared = TempDir::new().expect("a folder");
    let folder = shared.path().to_owned();
    let mut job = start(1, &folder, &[]);
    wait_for_checkpoints(&mut job, 2);
    kill_everything(&mut job);
    let whole: Vec<u64> = steps_listed(&folder)
        .into_iter()
        .filter(|(_, whole)| *whole)
        .map(|(step, _)| step)
        .collect();
    let [.., before, newest] = whole[..] else { panic!("{whole:?}") };
    let is_data = |file: &&PathBuf| file.extension().is_some_and(|extension| extension == "bin");
    let files = files_of(&folder, newest);
    let data = files.iter().find(is_data).expect("what is no array");
    let mut content = fs::read(data).expect("it is ours");
    content[0] ^= 1;
    fs::write(data, content).expect("it is ours");
    let path = folder.display().to_string();
    let (code, stdout, stderr) = checkpoint(&["verify", &path]);
    assert_eq!(code, Some(1), "{stderr}");
    let name = data.file_name().expect("a file").to_string_lossy().into_owned();
    assert!(stdout.contains(&name) && stderr.contains(&newest.to_string()), "{stdout}{stderr}");
    let mut again = start(1, &folder, &[]);
    let event = loaded(&mut again);
    assert_eq!(event["step"], before);
    let notes = event["notes"].to_string();
    assert!(notes.contains(&name) && notes.contains("passed over"), "{notes}");
    assert!(notes.contains("set aside as set-aside-1-"), "{notes}");
    assert_eq!(again.finish(), 0);
    again.assert_exact();
}

/// Starts a job that saves some checkpoints and loses every process; returns the steps of those that are whole.
pub(crate) fn killed_after_checkpoints(folder: &Path, count: usize) -> Vec<u64> {
    let mut job = start(2, folder, &[]);
    wait_for_checkpoints(&mut job, count);
    kill_everything(&mut job);
    let whole = steps_listed(folder).into_iter().filter(|(_, whole)| *whole);
    whole.map(|(step, _)| step).collect()
}

/// The names of the checkpoints that were set aside, by step.
pub(crate) fn set_aside(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("it is there");
    let name = |entry: std::io::Result<fs::DirEntry>| {
        entry.expect("an entry").file_name().to_string_lossy().into_owned()
    };
    let mut names: Vec<String> =
        entries.map(name).filter(|name| name.starts_with("set-aside-")).collect();
    names.sort_unstable();
    names
}

#[test]
fn c_2_resume_never_begins_from_the_start_and_removes_nothing() {
    let shared = TempDir::new().expect("a folder");
    let whole = killed_after_checkpoints(shared.path(), 2);
    let mut again = start(1, shared.path(), &["--resume", "never"]);
    let event = loaded(&mut again);
    assert_eq!(event["step"], Value::Null, "{event}");
    let log = again.wait("a step", |job| {
        let log = job.log();
        log.iter().any(|line| line["steps"].as_u64() > Some(0)).then_some(log)
    });
    let first = log.iter().find(|line| line["event"] == "enter").expect("it trained");
    assert_eq!(first["steps"], 0, "it began from the start: {first}");
    assert_eq!(again.finish(), 0);
    again.assert_exact();
    let aside: Vec<String> =
        whole.iter().map(|step| format!("set-aside-1-step-{step:010}")).collect();
    assert_eq!(set_aside(shared.path()), aside);
    aside.iter().for_each(|name| assert!(event["notes"].to_string().contains(name), "{event}"));
}

#[test]
fn c_2_resume_of_a_step_begins_from_it_though_there_is_a_newer_one() {
    let shared = TempDir::new().expect("a folder");
    let whole = killed_after_checkpoints(shared.path(), 3);
    let [.., chosen, newest] = whole[..] else { panic!("{whole:?}") };
    let from = shared.path().join(format!("step-{chosen:010}")).display().to_string();
    let mut again = start(1, shared.path(), &["--resume", &from]);
    let event = loaded(&mut again);
    assert_eq!(event["step"], chosen, "{event}");
    assert_eq!(set_aside(shared.path()), [format!("set-aside-1-step-{newest:010}")]);
    // Once the job has made a checkpoint of its own, the choice is behind it.
    let saved = wait_for_checkpoints(&mut again, 1);
    let victim = again.pid("h0", 0);
    signal(victim, Signal::SIGKILL);
    let second =
        again.wait("the second load", |job| job.events_of("checkpoint_loaded").into_iter().nth(1));
    assert!(second["step"].as_u64() >= Some(saved), "{second}, {saved}");
    assert_eq!(again.finish(), 0);
    again.assert_exact();
}

#[test]
fn c_2_a_step_of_another_folder_is_gone_on_from_until_the_job_has_saved_one() {
    let (base, own) = (TempDir::new().expect("a folder"), TempDir::new().expect("a folder"));
    let whole = killed_after_checkpoints(base.path(), 2);
    let chosen = *whole.last().expect("two");
    let from = base.path().join(format!("step-{chosen:010}")).display().to_string();
    // So rarely that it saves none meanwhile.
    let flags = ["--resume", &from, "--on-total-loss", "fail"];
    let mut again = start_with(1_000_000, 2, own.path(), &flags);
    assert_eq!(loaded(&mut again)["step"], chosen);
    again.wait_for_progress();
    let workers = [again.pid("h0", 0), again.pid("h1", 0)];
    workers.into_iter().for_each(|pid| signal(pid, Signal::SIGKILL));
    let second =
        again.wait("the second load", |job| job.events_of("checkpoint_loaded").into_iter().nth(1));
    assert_eq!(second["step"], chosen, "{second}");
    assert_eq!(again.finish(), 0, "{}", again.stderr());
    again.assert_exact();
    assert!(base.path().join(format!("step-{chosen:010}")).exists(), "it is left as it is");
}

#[test]
fn c_2_a_step_that_is_damaged_is_not_replaced_by_another_one_when_it_was_asked_for() {
    let shared = TempDir::new().expect("a folder");
    let whole = killed_after_checkpoints(shared.path(), 2);
    let newest = *whole.last().expect("two");
    for file in files_of(shared.path(), newest) {
        if file.extension().is_some_and(|it| it == "bin") {
            fs::write(&file, "damage").expect("it is ours");
        }
    }
    let from = shared.path().join(format!("step-{newest:010}")).display().to_string();
    let mut again = start(1, shared.path(), &["--resume", &from]);
    assert_ne!(again.end(), 0);
    let stderr = again.stderr();
    assert!(stderr.contains(&format!("step-{newest:010}")), "{stderr}");
    assert_eq!(set_aside(shared.path()), [""; 0], "nothing was touched");
}

#[test]
fn c_5_show_and_verify_print_json() {
    let shared = TempDir::new().expect("a folder");
    let whole = killed_after_checkpoints(shared.path(), 2);
    let newest = *whole.last().expect("two");
    let folder = shared.path().display().to_string();
    let json = |command: &str, expected: i32| -> Value {
        let (code, stdout, stderr) = checkpoint(&[command, &folder, "--json"]);
        assert_eq!(code, Some(expected), "{stderr}");
        serde_json::from_str(&stdout).expect("JSON, and nothing else")
    };
    let shown = json("show", 0);
    assert_eq!((&shown["step"], &shown["world_size"]), (&newest.into(), &2.into()), "{shown}");
    let consumed = shown["position"]["entries"][0]["consumed"].as_u64();
    assert!(consumed > Some(0), "the place in the data: {shown}");
    let files: Vec<&str> = shown["files"]
        .as_array()
        .expect("files")
        .iter()
        .filter_map(|it| it["name"].as_str())
        .collect();
    assert!(files.contains(&shown["rest"].as_str().expect("what is no array")), "{shown}");
    let row = |step: &u64| serde_json::json!({ "step": step, "complete": true, "damage": null });
    let verified = json("verify", 0);
    let complete: Vec<Value> = verified
        .as_array()
        .expect("rows")
        .iter()
        .filter(|row| row["complete"] == true)
        .cloned()
        .collect();
    assert_eq!(complete, whole.iter().map(row).collect::<Vec<_>>());
    let rest = shared
        .path()
        .join(format!("step-{newest:010}"))
        .join(shown["rest"].as_str().expect("a name"));
    fs::write(&rest, "damage").expect("it is ours");
    let damaged = json("verify", 1);
    let rows = damaged.as_array().expect("rows");
    let of_newest = rows.iter().find(|row| row["step"] == newest).expect("a row");
    let name = rest.file_name().expect("a file").to_string_lossy().into_owned();
    assert_eq!(of_newest["complete"], false);
    assert!(of_newest["damage"].as_str().is_some_and(|why| why.contains(&name)), "{of_newest}");
}

#[test]
fn c_2_the_root_reads_the_share_of_a_host_that_does_not_have_the_folder() {
    let Some(network) = Network::enter(3) else { return };
    let shared = TempDir::new().expect("a folder");
    let mut job = start(1, shared.path(), &[]);
    wait_for_checkpoints(&mut job, 1);
    kill_everything(&mut job);
    let (folder, every) = (shared.path().display().to_string(), EVERY.to_string());
    let flags = ["-n", "2", "--checkpoint", &folder, "--checkpoint-every", &every];
    let mut again = Job::start_trainer_at(network.place(0), &flags, &["--samples", "960"]);
    // The oldest host has the root.
    agent_at(&mut again, "a", network.place(1));
    again.wait("the first host", |job| job.events_of("host_joined").pop());
    let hide = format!("mount -t tmpfs elsewhere {folder} && exec \"$@\"");
    let own_mounts = ["unshare", "--mount", "sh", "-c", &hide, "sh"].map(ToOwned::to_owned);
    agent_in(&mut again, "b", 1, &[network.place(2).wrapper(), own_mounts.to_vec()].concat());
    let event = loaded(&mut again);
    assert!(event["step"].is_u64(), "{event}");
    let note = format!("rank 0 read the shares of ranks that cannot read {folder}/step-");
    assert!(event["notes"][0].as_str().is_some_and(|it| it.starts_with(&note)), "{event}");
    assert_eq!(again.finish(), 0);
    assert_eq!(again.sizes(), [2], "nobody was lost");
    again.assert_exact();
}

#[test]
fn a_job_that_loses_its_last_holder_goes_on_from_its_checkpoint() {
    let shared = TempDir::new().expect("a folder");
    let mut job = start(1, shared.path(), &["--on-total-loss", "fail"]);
    let saved = wait_for_checkpoints(&mut job, 1);
    let victim = job.pid("h0", 0);
    signal(victim, Signal::SIGKILL);
    let event = job.wait("the checkpoint that is loaded", |job| {
        job.events_of("checkpoint_loaded").into_iter().find(|event| event["step"].is_u64())
    });
    assert!(event["step"].as_u64() >= Some(saved), "{event}");
    assert_eq!(job.events_of("state_lost").len(), 1, "what is lost is told");
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn c_1_c_4_a_bounded_bandwidth_makes_checkpoints_rarer_and_no_step_waits_for_them() {
    const BYTES_PER_S: u64 = 2 << 10;
    let shared = TempDir::new().expect("a folder");
    let rate = BYTES_PER_S.to_string();
    let mut job = start(1, shared.path(), &["--checkpoint-bandwidth", &rate]);
    wait_for_checkpoints(&mut job, 2);
    let saved = job.events_of("checkpoint_saved");
    for event in &saved {
        let number = |name: &str| event[name].as_f64().expect("a number");
        let least_ms = number("bytes") * 1_000.0 / BYTES_PER_S as f64;
        assert!(number("ms") >= least_ms, "the bound is kept: {event}");
    }
    let steps = steps_of(&job, "checkpoint_saved");
    let apart = steps[1] - steps[0];
    assert!(apart > EVERY && apart.is_multiple_of(EVERY), "intervals are passed over: {steps:?}");
    let status = job.status().expect("a status");
    assert_eq!(status["checkpoint"]["failed"], Value::Null, "that is no trouble: {status}");
    assert_eq!(job.finish(), 0);
    assert_eq!(job.sizes(), [1], "no reset");
    job.assert_exact();
}

#[test]
fn c_5_arrays_are_exported_under_the_names_of_their_fields() {
    let shared = TempDir::new().expect("a folder");
    let folder = shared.path().display().to_string();
    let (np, every) = ("2", EVERY.to_string());
    let digits = crate::support::program("digits").display().to_string();
    let program = [digits.as_str(), "--epochs", "3", "--step-ms", "2"].map(ToOwned::to_owned);
    let flags =
        ["-n", np, "--mode", "in-process", "--checkpoint", &folder, "--checkpoint-every", &every];
    let mut job = Job::start_program(&flags, &program);
    job.agent("a", 2);
    assert_eq!(job.end(), 0);
    let last = steps_of(&job, "checkpoint_saved").pop();
    assert!(last > Some(0) && newest_of(shared.path()) == last, "it is the job's last commit");
    let into = shared.path().join("model.safetensors").display().to_string();
    let (code, stdout, stderr) = checkpoint(&["export", &folder, "--into", &into, "--json"]);
    assert_eq!(code, Some(0), "{stderr}");
    let (_, shown, _) = checkpoint(&["show", &folder]);
    assert!(shown.contains("model."), "{shown}");
    let row: Value = serde_json::from_str(&stdout).expect("JSON");
    assert!(row["arrays"].as_u64() > Some(0), "{row}");
    let content = fs::read(&into).expect("written");
    let length = u64::from_le_bytes(content[..8].try_into().expect("eight bytes")) as usize;
    let header: Value =
        serde_json::from_slice(&content[8..8 + length]).expect("its header is JSON");
    let names =
        header.as_object().expect("an object").keys().filter(|name| name.starts_with("model."));
    assert!(names.count() > 0, "{header}");
}

#[test]
fn flags_without_a_folder_and_folders_of_no_step_are_wrong_use() {
    let refused = |flags: &[&str]| {
        let run = ["run", "-n", "1"];
        let line = [&run[..], flags, &["--", "/bin/true"]].concat();
        let output = Command::new(binary()).args(line).output().expect("it runs");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains("hint:") || stderr.contains("error:"), "{stderr}");
        stderr
    };
    assert!(refused(&["--resume", "auto"]).contains("no --checkpoint"));
    assert!(refused(&["--checkpoint-keep", "2"]).contains("no --checkpoint"));
    let folder = ["--checkpoint", "x"];
    assert!(refused(&[&folder[..], &["--resume", "y"]].concat()).contains("folder of a step"));
    assert!(refused(&[&folder[..], &["--checkpoint-every", "0"]].concat()).contains("at least 1"));
    assert!(refused(&[&folder[..], &["--checkpoint-every", "often"]].concat()).contains("30s"));
    assert!(refused(&[&folder[..], &["--mode", "restart"]].concat()).contains("--mode restart"));
    let (code, _, stderr) = checkpoint(&["list", "/nowhere"]);
    assert_eq!(code, Some(2), "{stderr}");
}

#[test]
fn c_1_a_job_that_is_stopped_saves_a_commit_first() {
    let shared = TempDir::new().expect("a folder");
    for asked in [true, false] {
        let folder = shared.path().join(format!("asked-{asked}"));
        // The next step that is due lies far ahead.
        let mut job = start_with(1_000_000, 2, &folder, &[]);
        job.wait_for_sizes(&[2]);
        let reached = job.wait("steps", |job| last_step_of(job).filter(|it| *it > 20));
        match asked {
            true => assert!(operate(&job, &["stop"]).status.success()),
            false => signal(job.driver_pid(), Signal::SIGINT),
        }
        assert_eq!(job.end(), 130, "{}", job.stderr());
        assert_eq!(job.events_of("stopping").len(), 1);
        let [(step, true)] = steps_listed(&folder)[..] else {
            panic!("one checkpoint: {:?}", steps_listed(&folder));
        };
        assert!(step >= reached, "step {step} is saved, {reached} had been reached");
    }
}

#[test]
fn c_1_a_job_that_is_stopped_after_a_save_was_made_vain_saves_a_commit_first() {
    // A save takes some seconds, and the one that a reset or a new driver makes vain is still being written at the stop.
    const SAVE_BYTES: u64 = 6 << 20;
    let shared = TempDir::new().expect("a folder");
    for by in ["a reset", "a new driver"] {
        let path = shared.path().join(by);
        let (folder, every) = (path.display().to_string(), EVERY.to_string());
        let flags = ["-n", "2", "--checkpoint", &folder, "--checkpoint-every", &every];
        let slowly = ["--checkpoint-bandwidth", "1MiB", "--grace-period", "60"];
        let padding = SAVE_BYTES.to_string();
        let program = ["--padding-bytes", &padding, "--samples", "960"];
        let mut job = Job::start(&[&flags[..], &slowly].concat(), &program);
        for host in ["h0", "h1"] {
            job.agent(host, 1);
        }
        job.wait("a save that is being written", |_| {
            let steps = steps_of_folders(&path).into_iter().filter(|it| !has_manifest(&path, *it));
            let files = steps.flat_map(|step| files_of(&path, step));
            let bytes = files.filter_map(|file| Some(fs::metadata(file).ok()?.len())).sum::<u64>();
            (bytes > 0).then_some(())
        });
        if by == "a reset" {
            // Rank 0 has what is no array, and the other one the padding.
            let first = job.wait("rank 0", |job| {
                let workers = job.status()?["workers"].as_array()?.clone();
                workers.iter().find(|it| it["rank"] == 0)?["pid"].as_i64()
            });
            signal(i32::try_from(first).expect("a pid"), Signal::SIGKILL);
            job.wait_for_sizes(&[2, 2]);
        } else {
            job.kill_driver();
            job.start_driver_again();
            job.wait("the takeover", |job| job.events_of("takeover_done").pop());
        }
        let reached = last_step_of(&job);
        assert!(operate(&job, &["stop"]).status.success());
        assert_eq!(job.end(), 130, "{}", job.stderr());
        assert_eq!(job.events_of("checkpoint_failed"), Vec::<Value>::new(), "{by}");
        let newest = newest_of(&path);
        assert!(newest >= reached, "{by}: step {newest:?} is saved, {reached:?} had been reached");
    }
}

#[test]
fn c_2_where_no_checkpoint_is_whole_a_job_of_two_hosts_ends_with_the_reasons_and_blames_no_host() {
    let shared = TempDir::new().expect("a folder");
    let folder = shared.path().join("checkpoints");
    let mut job = start(2, &folder, &[]);
    wait_for_checkpoints(&mut job, 1);
    assert_eq!(job.finish(), 0);
    for (step, _) in steps_listed(&folder) {
        let is_data = |path: &&PathBuf| path.extension().is_some_and(|it| it != "json");
        let damaged = files_of(&folder, step);
        for path in damaged.iter().filter(is_data) {
            fs::write(path, "other content").expect("ours");
        }
    }
    let mut again = start(2, &folder, &[]);
    assert_eq!(again.end(), 1, "{}", again.stderr());
    assert!(again.stderr().contains("none of the checkpoints in"), "{}", again.stderr());
    assert!(again.stderr().contains("checkpoint verify"), "{}", again.stderr());
    for kind in ["host_blacklisted", "state_lost"] {
        assert_eq!(again.events_of(kind), Vec::<Value>::new());
    }
}
