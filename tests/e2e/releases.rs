//! Training programs whose library is of another release than the driver: refused before they have shown which worker they
//! are, and named with both releases. No host is blamed.

use std::fs;
use std::path::{Path, PathBuf};

use elastic_transport::{PROTOCOL_VERSION, alpn};

use crate::support::{Job, make_executable, program};

/// The digest of this build's messages, and that of a build with others.
fn digests() -> (String, String) {
    let ours = String::from_utf8(alpn(PROTOCOL_VERSION)).expect("ASCII");
    let ours = ours.rsplit_once('.').expect("protocol and digest").1.to_owned();
    let other = |digit: char| if digit == '9' { '8' } else { '9' };
    let theirs = ours.chars().map(other).collect();
    (ours, theirs)
}

/// The trainer as if its library had other messages, in a file of this name.
fn other_trainer(path: &Path) {
    let (ours, theirs) = digests();
    let mut bytes = fs::read(program("trainer")).expect("it is built");
    let mut at = 0;
    let mut count = 0;
    while let Some(found) = bytes[at..].windows(ours.len()).position(|it| it == ours.as_bytes()) {
        at += found;
        bytes[at..at + theirs.len()].copy_from_slice(theirs.as_bytes());
        count += 1;
    }
    assert!(count > 0, "the trainer has the digest of its messages in it");
    fs::write(path, bytes).expect("a file");
    make_executable(path);
}

fn trainer_at(path: &Path) -> [String; 5] {
    let path = path.to_str().expect("UTF-8");
    [path, "--control", "CONTROL", "--log", "LOG"].map(ToOwned::to_owned)
}

#[test]
fn x_12_a_library_of_another_release_ends_a_job_that_needs_it_and_both_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let path: PathBuf = folder.path().join("trainer");
    other_trainer(&path);
    let flags = ["-n", "2", "-H", "a:2", "--launcher", "local"];
    let mut job = Job::start_program(&flags, &trainer_at(&path));
    assert_eq!(job.end(), 1);
    let (stderr, (_, theirs), release) = (job.stderr(), digests(), env!("CARGO_PKG_VERSION"));
    let refused = format!(
        "the library of its program is elastic-node {release}, protocol {PROTOCOL_VERSION}.{theirs}, \
         and this driver is elastic-node {release}, of another build"
    );
    assert!(stderr.contains(&refused), "{stderr}");
    assert!(stderr.contains("install driver and library from the same build"), "{stderr}");
    assert!(!stderr.contains("pip install"), "both are of this release: {stderr}");
    assert!(!stderr.contains("blacklisted"), "{stderr}");
    let started = job.events_of("worker_started").len();
    assert!(started <= 2, "once on each slot: {started}");
}

#[test]
fn x_12_a_host_whose_library_is_of_another_release_is_taken_once_it_is_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trainer");
    other_trainer(&path);
    let (good, other) = (program("trainer"), path.display());
    let script = format!(
        "case $ELASTIC_WORKER in b*) p={other};; *) p={};; esac; exec $p --control CONTROL --log LOG",
        good.display()
    );
    let program = ["/bin/sh", "-c", &script].map(ToOwned::to_owned);
    let flags = ["-n", "1", "--max-np", "2", "--mode", "in-process", "--max-restarts", "0"];
    let mut job = Job::start_program(&flags, &program);
    job.agent("a", 1);
    job.wait_for_sizes(&[1]);
    job.agent("b", 1);
    let warned = |job: &mut Job| job.stderr().contains("b:0 was refused").then_some(());
    job.wait("a warning", warned);
    fs::remove_file(&path).expect("it is there");
    fs::copy(good, &path).expect("copied");
    job.wait_for_sizes(&[1, 2]);
    assert!(!job.stderr().contains("blacklisted"), "{}", job.stderr());
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}
