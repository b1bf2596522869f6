//! Tests of members that begin from a checkpoint together, over real sockets and files.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use elastic_checkpoint::{
    CheckpointTensor, Dtype, FileSystem, LocalFiles, SaveAttempt, SeekableRead, Snapshot,
    SyncedWrite, seal, step_directory, write_part,
};
use elastic_collectives::{AbortHandle, TcpFabric};
use elastic_protocol::messages::{BulkWork, CheckpointSource, MovedBytes, SyncPlan};
use elastic_protocol::{GenerationId, Step};
use serde_json::Value;
use tempfile::TempDir;

use super::super::State;
use super::super::checkpoint::ResumePorts;
use super::super::sync::{SyncError, sync};
use super::syncing::{Weights, group_spec, weights};
use crate::state::sampler::SampleLedger;

pub(super) const RANKS: u32 = 3;

/// A host without the directory of checkpoints.
pub(super) struct ElsewhereMounted;

impl FileSystem for ElsewhereMounted {
    fn make_directory(&self, _: &Path) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn list(&self, _: &Path) -> io::Result<Vec<String>> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn create(&self, _: &Path) -> io::Result<Box<dyn SyncedWrite>> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn open(&self, _: &Path) -> io::Result<Box<dyn SeekableRead>> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn remove_file(&self, _: &Path) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn remove_directory(&self, _: &Path) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn sync_directory(&self, _: &Path) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }
}

/// A directory of checkpoints, each of the weights and a step, written by two ranks.
pub(super) fn checkpoints(steps: &[u64]) -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    steps.iter().for_each(|step| save(directory.path(), *step, &ledger()));
    directory
}

/// The place in the data of a program that has no sampler.
pub(super) fn ledger() -> Value {
    serde_json::to_value(SampleLedger::default()).expect("a ledger is JSON")
}

pub(super) fn save(directory: &Path, step: u64, position: &Value) {
    let mut state = State::new(Weights { numbers: weights() });
    state.save().expect("it encodes");
    let bytes = state.whole_commit().expect("it is in memory").to_vec();
    // Arrays of 7 MiB, with a byte between them.
    let array = |number: usize| CheckpointTensor {
        name: format!("numbers.{number}"),
        dtype: Dtype::U8,
        shape: vec![(7 << 20) - 1],
        offset: 100 + number * (7 << 20),
    };
    let tensors: Vec<CheckpointTensor> = (0..8).map(array).collect();
    let snapshot = Snapshot { bytes: &bytes, tensors: &tensors, position };
    let job = "9d1f".to_owned();
    let attempt = SaveAttempt { job, name: None, term: 1, generation: 1, step, world_size: 2 };
    for rank in 0..2 {
        write_part(&LocalFiles, directory, &attempt, rank, &snapshot, &mut |_| Ok(()))
            .expect("it is written");
    }
    seal(&LocalFiles, directory, &attempt, 0, 3).expect("it is sealed");
}

/// What became of a rank.
struct Resumption {
    synced: Result<bool, SyncError>,
    /// Whether it has the weights.
    is_right: bool,
    step: Step,
    /// What it told the driver.
    told: Vec<(Option<Step>, Vec<String>)>,
    /// Bytes of checkpoints that it read.
    read: u64,
}

/// Lets all ranks begin from the newest checkpoint, each on a host of its own. Those that `lack` names have another file system.
fn resume(directory: &Path, lack: &[u32]) -> Vec<Resumption> {
    resume_on(directory, lack, false)
}

/// As [`resume`]; whether on one host is said.
fn resume_on(directory: &Path, lack: &[u32], is_one_host: bool) -> Vec<Resumption> {
    on_ranks(RANKS, directory, lack, move |rank, fabric, peers, source, files| {
        resume_rank(rank, fabric, peers, source, (files, is_one_host))
    })
}

/// Runs `rank` for each rank on a thread of its own, with its number, its fabric, all addresses, the checkpoints and their file system.
/// Those ranks that `lack` names have another file system.
pub(super) fn on_ranks<R: Send + 'static>(
    world: u32,
    directory: &Path,
    lack: &[u32],
    rank: impl Fn(u32, TcpFabric, Vec<SocketAddr>, &CheckpointSource, &dyn FileSystem) -> R
    + Clone
    + Send
    + 'static,
) -> Vec<R> {
    let bind = |_| TcpFabric::bind(([127, 0, 0, 1], 0).into()).expect("a port is free");
    let fabrics: Vec<TcpFabric> = (0..world).map(bind).collect();
    let peers: Vec<SocketAddr> = fabrics.iter().map(TcpFabric::local_address).collect();
    let threads: Vec<_> = (0..world)
        .zip(fabrics)
        .map(|(number, fabric)| {
            let (peers, lacks, rank) = (peers.clone(), lack.contains(&number), rank.clone());
            let source = CheckpointSource {
                directory: directory.display().to_string(),
                exactly: None,
                begins_anew: false,
                name: None,
            };
            let body = move || {
                let files: &dyn FileSystem = if lacks { &ElsewhereMounted } else { &LocalFiles };
                rank(number, fabric, peers, &source, files)
            };
            std::thread::Builder::new().spawn(body).expect("a thread")
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
}

fn resume_rank(
    rank: u32,
    mut fabric: TcpFabric,
    peers: Vec<SocketAddr>,
    source: &CheckpointSource,
    (files, is_one_host): (&dyn FileSystem, bool),
) -> Resumption {
    let abort = AbortHandle::new().expect("a descriptor");
    let mut group = fabric.form(&group_spec(1, rank, peers), &abort).expect("all are there");
    let (told, read) = (RefCell::default(), RefCell::new(0));
    let resumed = |step, notes| {
        let told: &RefCell<Vec<_>> = &told;
        told.borrow_mut().push((step, notes));
    };
    let show = |moved: MovedBytes| {
        if moved.work == BulkWork::LoadsCheckpoint && moved.done == moved.total {
            *read.borrow_mut() += moved.total;
        }
    };
    let mut state = State::new(Weights::default());
    let ports = ResumePorts { files, resumed: &resumed, show: &show, is_one_host };
    let plan = SyncPlan::FromRoot { root: 0 };
    let synced = sync(&mut state, &mut group, plan, Some(source), ports, GenerationId(1));
    let (is_right, step) = (state.numbers == weights(), state.step());
    Resumption { synced, is_right, step, told: told.into_inner(), read: read.into_inner() }
}

/// Checks that all begin from this step, and returns what the root says.
fn notes_of(ranks: &[Resumption], step: u64) -> Vec<String> {
    for rank in ranks {
        assert!(matches!(rank.synced, Ok(true)), "training goes on");
        assert!(rank.is_right);
        assert_eq!(rank.step, Step(step));
    }
    assert!(ranks[1..].iter().all(|rank| rank.told.is_empty()), "the root tells");
    let [(Some(told), notes)] = &ranks[0].told[..] else { panic!("{:?}", ranks[0].told) };
    assert_eq!(*told, Step(step));
    notes.clone()
}

/// The files of arrays of a checkpoint, in order.
pub(super) fn files_of(directory: &Path, step: u64) -> Vec<PathBuf> {
    let names = std::fs::read_dir(directory.join(step_directory(step))).expect("it is there");
    let paths = names.map(|entry| entry.expect("an entry").path());
    let mut files: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|it| it == "safetensors")).collect();
    files.sort();
    files
}

#[test]
fn each_rank_reads_a_share_and_all_have_the_whole() {
    let directory = checkpoints(&[5, 9]);
    let ranks = resume(directory.path(), &[]);
    assert_eq!(notes_of(&ranks, 9), Vec::<String>::new());
    let length = |path: &Path| std::fs::metadata(path).expect("it is there").len();
    let of_step = directory.path().join(step_directory(9));
    let names = std::fs::read_dir(of_step).expect("it is there");
    let files = names.map(|entry| entry.expect("an entry").path());
    let bytes: u64 =
        files.filter(|path| !path.ends_with("manifest.json")).map(|path| length(&path)).sum();
    assert_eq!(ranks.iter().map(|rank| rank.read).sum::<u64>(), bytes, "no byte is read twice");
    assert!(ranks.iter().all(|rank| rank.read > 0));
}

#[test]
fn on_one_host_each_rank_reads_all_and_what_one_cannot_read_comes_from_the_root() {
    let directory = checkpoints(&[5, 9]);
    let ranks = resume_on(directory.path(), &[], true);
    assert_eq!(notes_of(&ranks, 9), Vec::<String>::new());
    assert!(ranks.iter().all(|rank| rank.read == ranks[0].read), "all of it");
    assert_eq!(notes_of(&resume_on(directory.path(), &[2], true), 9).len(), 1);
    let path = &files_of(directory.path(), 9)[1];
    let mut content = std::fs::read(path).expect("it is there");
    content[1 << 20] ^= 1;
    std::fs::write(path, content).expect("it is written");
    let notes = notes_of(&resume_on(directory.path(), &[], true), 5);
    assert!(notes[0].contains("has other content"), "{notes:?}");
}

#[test]
fn the_root_reads_the_share_of_a_host_that_does_not_have_the_directory() {
    let directory = checkpoints(&[9]);
    let ranks = resume(directory.path(), &[1, 2]);
    let notes = notes_of(&ranks, 9);
    let of_step = directory.path().join(step_directory(9));
    let said =
        format!("rank 0 read the shares of ranks that cannot read {}: 1, 2", of_step.display());
    assert_eq!(notes, [said]);
}

#[test]
fn damage_in_any_share_is_named_by_its_file_and_the_one_before_is_taken() {
    let files = files_of(checkpoints(&[9]).path(), 9).len();
    assert_eq!(files, 2, "of arrays");
    for file in 0..files {
        for at_end in [false, true] {
            let directory = checkpoints(&[5, 9]);
            let path = &files_of(directory.path(), 9)[file];
            let mut content = std::fs::read(path).expect("it is there");
            let at = if at_end { content.len() - 1 } else { 1 << 20 };
            content[at] ^= 1;
            std::fs::write(path, content).expect("it is written");
            let notes = notes_of(&resume(directory.path(), &[]), 5);
            let name = path.file_name().expect("a file").display().to_string();
            let damage = format!("step-0000000009 was passed over: {name} has other content");
            assert!(notes[0].starts_with(&damage), "{notes:?}");
            assert_eq!(notes[1..], ["set aside as set-aside-1-step-0000000009"]);
        }
    }
}

#[test]
fn a_checkpoint_with_the_ledger_of_another_step_is_passed_over_by_all() {
    let directory = checkpoints(&[5]);
    save(directory.path(), 9, &Value::from(3));
    let notes = notes_of(&resume(directory.path(), &[]), 5);
    assert!(notes[0].contains("the sampler's ledger is that of another step"), "{notes:?}");
}

#[test]
fn without_a_checkpoint_training_begins_from_the_start() {
    let directory = checkpoints(&[]);
    for rank in resume(directory.path(), &[]) {
        assert!(matches!(rank.synced, Ok(false)), "training begins");
        assert_eq!(rank.step, Step(0));
    }
}

#[test]
fn if_none_is_whole_the_root_says_so_and_nobody_begins() {
    let directory = checkpoints(&[9]);
    let path = &files_of(directory.path(), 9)[0];
    std::fs::write(path, "short").expect("it is written");
    let ranks = resume(directory.path(), &[]);
    let Err(SyncError::Fatal(error)) = &ranks[0].synced else { panic!("the root begins") };
    assert!(error.chain().contains("none of the checkpoints in"), "{}", error.chain());
    assert!(ranks[1..].iter().all(|rank| matches!(rank.synced, Err(SyncError::Collective(_)))));
}
