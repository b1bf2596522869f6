//! Storage of durable checkpoints that fails, hangs or fills up: training goes on (C-2, C-4).

use std::fs;

use nix::sys::signal::Signal;
use nix::sys::statvfs::statvfs;
use serde_json::Value;
use tempfile::TempDir;

use crate::checkpoints::{
    EVERY, exchange, loaded, start, steps_listed, steps_of, wait_for_checkpoints,
};
use crate::sickness::{Disk, Sickness};
use crate::support::{Job, signal, trainer};

#[test]
fn c_4_a_folder_of_checkpoints_that_gives_errors_for_a_while_blames_no_host() {
    let shared = TempDir::new().expect("a folder");
    let [folder, file] = ["checkpoints", "no-folder"].map(|name| shared.path().join(name));
    fs::write(&file, "an error of the system for whoever lists it").expect("it is written");
    let mut job = start(2, &folder, &[]);
    let saved = wait_for_checkpoints(&mut job, 2);
    let workers = [job.pid("h0", 0), job.pid("h1", 0)];
    workers.into_iter().for_each(|pid| signal(pid, Signal::SIGSTOP));
    exchange(&folder, &file);
    workers.into_iter().for_each(|pid| signal(pid, Signal::SIGKILL));
    job.wait("a warning", |job| {
        let warned = job.stderr().contains("cannot be listed: Not a directory");
        warned.then_some(())
    });
    exchange(&folder, &file);
    job.wait("the next generation", |job| (job.sizes() == [2, 2]).then_some(()));
    let from = loaded(&mut job)["step"].as_u64();
    assert!(from >= Some(saved), "{from:?}");
    let resets = job.status().expect("a status")["resets"].clone();
    assert_eq!(resets, 1, "the loss of all workers, and no other");
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn c_4_a_folder_that_cannot_be_written_stops_no_training() {
    let shared = TempDir::new().expect("a folder");
    let folder = shared.path().join("checkpoints");
    let mut job = start(2, &folder, &[]);
    wait_for_checkpoints(&mut job, 1);
    let aside = shared.path().join("aside");
    fs::write(&aside, "in the way").expect("ours");
    exchange(&folder, &aside);
    let status = job.wait("the trouble in the status", |job| {
        job.status().filter(|status| status["checkpoint"]["failed"].is_string())
    });
    assert!(status["warnings"].to_string().contains("was not saved"), "{status}");
    job.wait_for_progress();
    exchange(&folder, &aside);
    let before = steps_of(&job, "checkpoint_saved").len();
    wait_for_checkpoints(&mut job, before + 1);
    let status = job.status().expect("a status");
    assert_eq!(status["checkpoint"]["failed"], Value::Null, "{status}");
    assert!(status["checkpoint"]["last_step"].is_u64(), "{status}");
    assert_eq!(job.finish(), 0);
    assert_eq!(job.sizes(), [2], "no reset");
    job.assert_exact();
}

#[test]
fn c_4_a_quota_that_is_used_up_stops_no_training_and_keeps_the_old_ones() {
    let Some(disk) = Disk::with_a_quota("out") else { return };
    let sickness = Sickness { disk: Some(disk), stderr: None };
    let every = EVERY.to_string();
    let flags = ["-n", "1", "--checkpoint", "DIR/out", "--checkpoint-every", &every];
    let mut job = Job::start_sick(sickness, &flags);
    job.agent("h0", 1);
    wait_for_checkpoints(&mut job, 1);
    job.disk.as_ref().expect("it has one").use_quota_up();
    let before = steps_listed(&job.path("out"));
    wait_for_trouble(&mut job, "Disk quota exceeded");
    job.wait_for_progress();
    let kept: Vec<(u64, bool)> =
        steps_listed(&job.path("out")).into_iter().filter(|(_, whole)| *whole).collect();
    assert!(!kept.is_empty() && kept.len() <= before.len() + 1, "{before:?}, {kept:?}");
    job.disk.as_ref().expect("it has one").lift_quota();
    let before = steps_of(&job, "checkpoint_saved").len();
    wait_for_checkpoints(&mut job, before + 1);
    assert_eq!(job.finish(), 0);
    assert_eq!(job.sizes(), [1], "no reset");
    job.assert_exact();
}

#[test]
fn c_4_a_full_disk_stops_no_training_and_keeps_the_old_ones() {
    let Some(disk) = Disk::make("out") else { return };
    let filler = disk.path().join("filler");
    let sickness = Sickness { disk: Some(disk), stderr: None };
    let every = EVERY.to_string();
    let flags = ["-n", "1", "--checkpoint", "DIR/out", "--checkpoint-every", &every];
    let mut job = Job::start_sick(sickness, &flags);
    job.agent("h0", 1);
    wait_for_checkpoints(&mut job, 1);
    let mut file = fs::File::create(&filler).expect("ours");
    let status = job.wait("the trouble in the status", |job| {
        // An old checkpoint that is removed makes room again.
        while std::io::Write::write_all(&mut file, &[1; 512]).is_ok() {}
        job.status().filter(|status| status["checkpoint"]["failed"].is_string())
    });
    assert!(status["checkpoint"]["failed"].to_string().contains("No space left"), "{status}");
    job.wait_for_progress();
    fs::remove_file(&filler).expect("ours");
    drop(file);
    let before = steps_of(&job, "checkpoint_saved").len();
    wait_for_checkpoints(&mut job, before + 1);
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn c_4_a_save_that_fails_leaves_nothing_and_room_for_one_more_is_enough_for_the_next() {
    const SAVE_BYTES: u64 = 4 << 20;
    let Some(disk) = Disk::make("out") else { return };
    let filler = disk.path().join("filler");
    // Root may use what is reserved for it, too.
    let found = statvfs(&disk.path()).expect("it is mounted");
    let room = found.blocks_free() * found.fragment_size();
    let sickness = Sickness { disk: Some(disk), stderr: None };
    let (every, padding) = (EVERY.to_string(), SAVE_BYTES.to_string());
    let flags = ["-n", "1", "--checkpoint", "DIR/out", "--checkpoint-every", &every];
    let flags = [&flags[..], &["--checkpoint-keep", "1"]].concat();
    let program = ["--padding-bytes", &padding, "--samples", "960"];
    let mut job = Job::start_sick_trainer(sickness, &flags, &program);
    job.agent("h0", 1);
    wait_for_checkpoints(&mut job, 1);
    // One checkpoint is there, and half of another one has room.
    let mut file = fs::File::create(&filler).expect("ours");
    let (taken, mut written) = (room - SAVE_BYTES * 3 / 2, 0);
    job.wait("room for the file that fills the disk", |_| {
        while written < taken {
            written += std::io::Write::write(&mut file, &[1; 4096]).ok()? as u64;
        }
        Some(())
    });
    wait_for_trouble(&mut job, "No space left");
    job.wait_for_progress();
    let partial = steps_listed(&job.path("out")).into_iter().filter(|(_, whole)| !whole).count();
    assert!(partial <= 1, "at most the one that is being saved: {partial}");
    // A quarter more than one checkpoint: with the remains of a failed save, there would be no room for it.
    let before = steps_of(&job, "checkpoint_saved").len();
    file.set_len(taken - SAVE_BYTES * 3 / 4).expect("ours");
    wait_for_checkpoints(&mut job, before + 1);
    assert_eq!(job.finish(), 0);
    assert_eq!(job.sizes(), [1], "no reset");
    job.assert_exact();
}

#[test]
fn c_4_a_limit_of_file_sizes_stops_no_training() {
    let (every, padding) = (EVERY.to_string(), (16_u32 << 20).to_string());
    let flags = ["-n", "2", "--checkpoint", "DIR/out", "--checkpoint-every", &every];
    let flags = [&flags[..], &["--mode", "in-process"]].concat();
    // In blocks of 512 or 1,024 bytes: less than the half of a checkpoint that each of them writes.
    let limited = ["sh", "-c", "ulimit -f 2048; exec \"$@\"", "sh"].map(str::to_owned);
    let program = [&limited[..], &trainer(&["--padding-bytes", &padding])].concat();
    let mut job = Job::start_program(&flags, &program);
    job.agent("a", 2);
    job.wait_for_sizes(&[2]);
    wait_for_trouble(&mut job, "ulimit -f");
    wait_for_trouble(&mut job, "File too large");
    job.wait_for_progress();
    assert_eq!(steps_listed(&job.path("out")).into_iter().filter(|(_, whole)| *whole).count(), 0);
    assert_eq!(job.finish(), 0);
    assert_eq!(job.sizes(), [2], "no reset");
    job.assert_exact();
}

/// A job of two workers that has saved to a disk of its own.
fn start_on_a_disk() -> Option<Job> {
    let sickness = Sickness { disk: Some(Disk::make("out")?), stderr: None };
    let every = EVERY.to_string();
    let flags = ["-n", "2", "--checkpoint", "DIR/out", "--checkpoint-every", &every];
    let mut job = Job::start_sick(sickness, &flags);
    job.agent("h0", 1);
    job.agent("h1", 1);
    wait_for_checkpoints(&mut job, 1);
    Some(job)
}

/// Waits until the trouble with saves in the status says this.
fn wait_for_trouble(job: &mut Job, words: &str) {
    job.wait("the trouble in the status", |job| {
        let failed = job.status()?["checkpoint"]["failed"].as_str()?.to_owned();
        failed.contains(words).then_some(())
    });
}

#[test]
fn c_4_a_read_only_disk_stops_no_training() {
    let Some(mut job) = start_on_a_disk() else { return };
    job.wait("a moment without a save", |job| job.disk.as_ref()?.remount("ro").then_some(()));
    wait_for_trouble(&mut job, "Read-only file system");
    job.wait_for_progress();
    assert!(job.disk.as_ref().expect("it has one").remount("rw"));
    let before = steps_of(&job, "checkpoint_saved").len();
    wait_for_checkpoints(&mut job, before + 1);
    assert_eq!(job.finish(), 0);
    assert_eq!(job.sizes().last(), Some(&2));
    job.assert_exact();
}

#[test]
fn c_4_storage_that_hangs_stops_no_training_and_is_named() {
    let Some(mut job) = start_on_a_disk() else { return };
    let resets = job.status().expect("a status")["resets"].clone();
    job.disk.as_ref().expect("it has one").freeze();
    wait_for_trouble(&mut job, "the save is slow: waiting for");
    job.wait_for_progress();
    assert_eq!(job.status().expect("a status")["resets"], resets, "nobody was lost");
    job.disk.as_ref().expect("it has one").thaw();
    let before = steps_of(&job, "checkpoint_saved").len();
    wait_for_checkpoints(&mut job, before + 1);
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn c_4_a_job_that_is_stopped_does_not_wait_for_a_disk_that_hangs() {
    let Some(disk) = Disk::make("stopped") else { return };
    let folder = disk.path().join("checkpoints");
    let mut job = start(2, &folder, &["--grace-period", "1"]);
    wait_for_checkpoints(&mut job, 1);
    disk.freeze();
    signal(job.driver_pid(), Signal::SIGINT);
    let failed = job.wait("the save to be given up", |job| {
        job.events_of("checkpoint_failed").into_iter().last()
    });
    assert!(failed["reason"].as_str().is_some_and(|it| it.contains("--grace-period")), "{failed}");
    disk.thaw();
    assert_eq!(job.end(), 130, "{}", job.stderr());
}

#[test]
fn c_2_a_folder_that_does_not_answer_a_resume_is_named_and_training_begins_when_it_does() {
    let Some(disk) = Disk::make("resumed") else { return };
    let folder = disk.path().join("checkpoints");
    // The leftovers of a save are removed at the start, and a frozen disk does not answer that.
    fs::create_dir_all(folder.join("step-0000000007")).expect("ours");
    disk.freeze();
    let mut job = start(2, &folder, &[]);
    let folder = folder.display().to_string();
    let is_said = |words: &Value| {
        let words = words.as_str().unwrap_or_default();
        words.contains(&folder) && words.contains("nothing was read for 10 s")
    };
    job.wait("the folder in the status", |job| {
        let warnings = job.status()?["warnings"].as_array()?.clone();
        warnings.iter().any(is_said).then_some(())
    });
    assert!(job.events_of("warning").iter().any(|event| is_said(&event["message"])));
    disk.thaw();
    job.wait_for_sizes(&[2]);
    assert_eq!(job.status().expect("a status")["warnings"], serde_json::json!([]));
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}
