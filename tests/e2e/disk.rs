//! Drivers with a full or read-only disk, or with a journal that was damaged (D-4).

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use nix::sys::signal::Signal;

use crate::operate::operate;
use crate::sickness::{Disk, Sickness};
use crate::support::{Job, binary, signal};

/// Starts a driver that must refuse this state directory with this exit code; returns its stderr.
fn refused(wrapper: &[&str], state: &str, code: i32) -> String {
    let flags = ["--role", "driver", "--bind", "127.0.0.1:0", "--state-dir", state, "--"];
    let line = [wrapper, &[binary()], &flags, &["/bin/true"]].concat();
    let output = Command::new(line[0]).args(&line[1..]).output().expect("it runs");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert!(stderr.contains("hint:"), "{stderr}");
    stderr
}

#[test]
fn a_read_only_state_directory_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o555)).expect("it is ours");
    // The superuser can write everywhere, unless that capability is taken away.
    let as_anybody = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"];
    let wrapper = if nix::unistd::geteuid().is_root() { &as_anybody[..] } else { &[] };
    let stderr = refused(wrapper, &folder.path().display().to_string(), 2);
    assert!(stderr.contains("state directory") && stderr.contains("denied"), "{stderr}");
}

#[test]
fn a_disk_that_is_full_from_the_start_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let wrapper = ["sh", "-c", "ulimit -f 8; exec \"$@\"", "sh"];
    let stderr = refused(&wrapper, &folder.path().display().to_string(), 1);
    assert!(stderr.contains("no space is left"), "{stderr}");
    assert!(!folder.path().join("journal.redb").exists(), "no half of a journal is left");
}

/// Limits the size, in bytes, to which this process can write any file.
pub(crate) fn limit_files(pid: u32, bytes: &str) {
    let limit = format!("--fsize={bytes}:");
    let status = Command::new("prlimit").args(["--pid", &pid.to_string(), &limit]).status();
    assert!(status.expect("prlimit can be run").success());
}

#[test]
fn d_4_a_disk_that_fills_up_stops_decisions_and_not_the_training() {
    let flags = ["-n", "2", "--min-np", "1"];
    let mut job = Job::start(&flags, &[]);
    job.agent("a", 1);
    job.agent("b", 1);
    job.wait_for_sizes(&[2]);
    let (driver, victim) = (job.driver.id(), job.pid("b", 0));
    limit_files(driver, "0");
    let before = job.log().len();
    job.wait("commits", |job| (job.log().len() > before + 10).then_some(()));
    signal(victim, Signal::SIGKILL);
    job.wait("the warning", |job| {
        job.status()?["warnings"].to_string().contains("no space is left").then_some(())
    });
    limit_files(driver, "unlimited");
    job.wait("two workers again", |job| (job.status()?["world_size"] == 2).then_some(()));
    let status = job.status().expect("a status");
    assert!(!status["warnings"].to_string().contains("no space"), "{status}");
    // The decisions made then are in the journal: the successor knows them.
    job.kill_driver();
    job.start_driver_again();
    job.wait("the takeover", |job| job.events_of("takeover_done").pop());
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn d_4_a_stop_that_cannot_be_stored_is_not_acknowledged() {
    let mut job = Job::start(&["-n", "1"], &[]);
    job.agent("a", 1);
    job.wait_for_sizes(&[1]);
    let driver = job.driver.id();
    limit_files(driver, "0");
    let refused = operate(&job, &["stop"]);
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("the job is to end, but this is not stored"), "{stderr}");
    limit_files(driver, "unlimited");
    assert_eq!(job.end(), 128 + 2, "the driver that was asked still leads, and ends it");
}

#[test]
fn d_4_a_drain_that_cannot_be_stored_is_not_acknowledged() {
    let mut job = Job::start(&["-n", "2", "--min-np", "1"], &[]);
    job.agent("a", 1);
    job.agent("b", 1);
    job.wait_for_sizes(&[2]);
    let driver = job.driver.id();
    limit_files(driver, "0");
    for (command, state) in [("drain", "is drained"), ("readmit", "may have workers again")] {
        let refused = operate(&job, &[command, "b"]);
        let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(1), "{command}: {stderr}");
        let says = |text: &str| assert!(stderr.contains(text), "{command}: {stderr}");
        says(state);
        says("is not stored");
        says("give the command again");
        assert!(!stderr.contains("did not answer"), "{command}: {stderr}");
    }
    operate(&job, &["drain", "b"]);
    limit_files(driver, "unlimited");
    let drained = operate(&job, &["drain", "b"]);
    assert_eq!(drained.status.code(), Some(0), "{}", String::from_utf8_lossy(&drained.stderr));
    job.kill_driver();
    job.start_driver_again();
    job.wait("the takeover", |job| job.events_of("takeover_done").pop());
    let known = operate(&job, &["drain", "b"]);
    let stdout = String::from_utf8_lossy(&known.stdout).into_owned();
    assert!(stdout.contains("is drained already"), "the next driver knows: {stdout}");
    assert_eq!(operate(&job, &["readmit", "b"]).status.code(), Some(0));
    job.wait("two workers again", |job| (job.status()?["world_size"] == 2).then_some(()));
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn s_12_a_state_directory_that_is_removed_while_its_disk_is_full_is_written_anew() {
    let mut job = Job::start(&["-n", "2", "--min-np", "1"], &[]);
    job.agent("a", 1);
    job.agent("b", 1);
    job.wait_for_sizes(&[2]);
    let (driver, victim) = (job.driver.id(), job.pid("b", 0));
    limit_files(driver, "0");
    signal(victim, Signal::SIGKILL);
    job.wait("the warning", |job| {
        job.status()?["warnings"].to_string().contains("no space is left").then_some(())
    });
    // An operator who makes room does this.
    fs::remove_dir_all(job.path("state")).expect("it is there");
    limit_files(driver, "unlimited");
    job.wait("two workers again", |job| {
        let status = job.status()?;
        (status["world_size"] == 2 && status["generation"].as_u64() > Some(2)).then_some(())
    });
    job.wait_for_steps();
    job.kill_driver();
    job.start_driver_again();
    job.wait("the takeover", |job| job.events_of("takeover_done").pop());
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn d_4_a_driver_that_is_started_again_on_a_full_disk_goes_on_once_there_is_room() {
    let Some(disk) = Disk::make("state") else { return };
    let filler = disk.path().join("filler");
    let mut job = Job::start_sick(Sickness { disk: Some(disk), stderr: None }, &["-n", "1"]);
    job.agent("a", 1);
    job.wait_for_sizes(&[1]);
    job.kill_driver();
    let mut file = fs::File::create(&filler).expect("ours");
    while std::io::Write::write_all(&mut file, &[1; 512]).is_ok() {}
    drop(file);
    job.start_driver_again();
    job.wait("the warning", |job| {
        job.stderr().contains("the job waits for its driver").then_some(())
    });
    job.wait_for_progress();
    fs::remove_file(&filler).expect("ours");
    job.wait("the takeover", |job| job.events_of("takeover_done").pop());
    assert_eq!(job.finish(), 0);
    assert_eq!(job.sizes(), [1], "no reset");
    job.assert_exact();
}

#[test]
fn d_4_a_driver_that_is_started_again_on_a_read_only_disk_goes_on_once_it_can_be_written() {
    let Some(disk) = Disk::make("state") else { return };
    let (other, sickness) =
        (disk.path().join("other"), Sickness { disk: Some(disk), stderr: None });
    let mut job = Job::start_sick(sickness, &["-n", "2", "--min-np", "1"]);
    job.agent("a", 1);
    job.agent("b", 1);
    job.wait_for_sizes(&[2]);
    job.kill_driver();
    assert!(job.disk.as_ref().expect("it has one").remount("ro"));
    let stderr = refused(&[], &other.display().to_string(), 2);
    assert!(
        stderr.contains("Read-only file system"),
        "a job that begins waits for nothing: {stderr}"
    );
    job.start_driver_again();
    job.wait("the warning", |job| {
        let stderr = job.stderr();
        let is_told =
            stderr.contains("the job waits for its driver") && stderr.contains("os error 30");
        (is_told && stderr.contains("writable for this user again")).then_some(())
    });
    job.wait_for_steps();
    assert!(job.driver.try_wait().expect("ours").is_none(), "it waits");
    assert!(job.disk.as_ref().expect("it has one").remount("rw"));
    job.wait("the takeover", |job| job.events_of("takeover_done").pop());
    job.wait_for_steps();
    assert_eq!(job.finish(), 0);
    assert_eq!(job.sizes(), [2], "no reset");
    job.assert_exact();
}

#[test]
fn d_4_a_damaged_journal_is_repaired_or_refused() {
    let mut job = Job::start(&["-n", "1"], &[]);
    job.agent("a", 1);
    job.wait_for_sizes(&[1]);
    job.kill_driver();
    let journal = job.path("state/journal.redb");
    let whole = fs::read(&journal).expect("a journal");
    let state = job.path("state").display().to_string();
    let pages = whole.len() / 4096;
    let used = (0..pages).filter(|page| whole[page * 4096..][..4096].iter().any(|byte| *byte != 0));
    let mut refusals = 0;
    for page in used.collect::<Vec<_>>() {
        let mut damaged = whole.clone();
        for byte in &mut damaged[page * 4096..][..4096] {
            *byte ^= 0x55;
        }
        fs::write(&journal, &damaged).expect("it is ours");
        // The driver either reads the job and refuses this program as another job's, or reports the damage.
        let stderr = refused(&[], &state, 1);
        let is_refused = stderr.contains("damaged");
        assert!(is_refused || stderr.contains("unfinished job"), "page {page}: {stderr}");
        refusals += u32::from(is_refused);
    }
    assert!(refusals > 0, "no page mattered");
    fs::write(&journal, &whole).expect("mended");
    job.start_driver_again();
    job.wait("the takeover", |job| job.events_of("takeover_done").pop());
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}
