//! Tests of members on one host whose states leave the arrays of a checkpoint in its files.

use std::cell::RefCell;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use elastic_checkpoint::{FileSystem, Manifest, step_directory};
use elastic_collectives::{AbortHandle, Communicator as _, TcpFabric};
use elastic_protocol::messages::{BulkWork, CheckpointSource, MovedBytes, SyncPlan};
use elastic_protocol::{GenerationId, Step};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::checkpoint::ResumePorts;
use super::super::sync::sync;
use super::super::{RestoredBlock, State};
use super::resuming::{RANKS, checkpoints, files_of, on_ranks, save};
use super::syncing::{group_spec, weights};

/// As a binding has the state of the checkpoints: it copies the block when it has memory for it.
#[derive(Debug, Deserialize, Serialize)]
struct Blocks {
    numbers: RestoredBlock,
}

impl Blocks {
    fn empty() -> Self {
        postcard::from_bytes(&[0]).expect("a block of no bytes")
    }

    /// Its content is that of the checkpoints.
    fn is_right(&self) -> bool {
        let mut numbers = vec![0_u64; weights().len()];
        if self.numbers.length() != numbers.len() * 8 {
            return false;
        }
        let copied = self.numbers.copy_into(bytemuck::cast_slice_mut(&mut numbers));
        copied.is_ok() && numbers == weights()
    }
}

/// Result of a rank: its state, the bytes of checkpoints that it read for the sync, and its notes to the driver.
struct Resumed {
    state: State<Blocks>,
    read: u64,
    notes: Vec<String>,
}

/// Lets all ranks of one host begin from the newest checkpoint, and looks at each of them. Those that `lack` names have another file
/// system.
fn resume(directory: &Path, lack: &[u32], look: impl Fn(u32, Resumed) + Clone + Send + 'static) {
    resume_in_world(RANKS, directory, lack, look);
}

fn resume_in_world(
    world: u32,
    directory: &Path,
    lack: &[u32],
    look: impl Fn(u32, Resumed) + Clone + Send + 'static,
) {
    on_ranks(world, directory, lack, move |rank, fabric, peers, source, files| {
        look(rank, resume_rank(rank, fabric, peers, source, files));
    });
}

fn resume_rank(
    rank: u32,
    mut fabric: TcpFabric,
    peers: Vec<SocketAddr>,
    source: &CheckpointSource,
    files: &dyn FileSystem,
) -> Resumed {
    let abort = AbortHandle::new().expect("a descriptor");
    let mut group = fabric.form(&group_spec(1, rank, peers), &abort).expect("all are there");
    let (notes, read) = (RefCell::new(Vec::new()), RefCell::new(0));
    let resumed = |_, _, told: Vec<String>| notes.borrow_mut().extend(told);
    let show = |moved: MovedBytes| {
        if moved.work == BulkWork::LoadsCheckpoint && moved.done == moved.total {
            *read.borrow_mut() += moved.total;
        }
    };
    let mut state = State::new(Blocks::empty());
    state.take_blocks();
    let (resumed, warn, pause, show) = (&resumed, &|_| {}, &|_| {}, &show);
    let ports = ResumePorts { files, resumed, warn, pause, show, is_one_host: true, fields: None };
    // Not the first rank, so that shares lie on both sides of it.
    let plan = SyncPlan::FromRoot { root: u32::from(group.world_size() > 1) };
    let synced = sync(&mut state, &mut group, plan, Some(source), ports, GenerationId(1));
    assert!(matches!(synced, Ok(true)), "training goes on");
    let (notes, read) = (notes.into_inner(), read.into_inner());
    Resumed { state, read, notes }
}

#[test]
fn arrays_are_checked_once_for_all_and_read_into_the_memory_that_they_are_for() {
    let directory = checkpoints(&[5, 9]);
    resume(directory.path(), &[], |rank, Resumed { mut state, read, notes }| {
        let length = state.content_id().expect("there is a commit").length;
        if rank == 1 {
            assert!(read == length, "the root reads the commit, and no header: {read}");
        } else {
            // Half of the chunks, of up to 16 MiB each.
            assert!(read.abs_diff(length / 2) <= 16 << 20, "{read} of {length}");
        }
        assert!(state.is_right());
        assert_eq!((state.step(), notes), (Step(9), Vec::new()));
    });
}

#[test]
fn a_rank_that_is_alone_checks_all_by_itself() {
    let directory = checkpoints(&[9]);
    resume_in_world(1, directory.path(), &[], |_, Resumed { mut state, read, .. }| {
        let length = state.content_id().expect("there is a commit").length;
        assert!(read > length * 2, "the digest, and each chunk with its header: {read}");
        assert!(state.is_right());
    });
}

#[test]
fn before_its_first_commit_a_rank_goes_back_to_the_checkpoint_and_gives_it_to_newcomers() {
    let directory = checkpoints(&[9]);
    resume(directory.path(), &[], |_, Resumed { mut state, .. }| {
        let commit = state.content_id().expect("there is a commit");
        for _ in 0..2 {
            state.numbers = Blocks::empty().numbers;
            state.restore().expect("it is there");
            assert!(state.is_right());
        }
        // While a block of it is read, and after that.
        let whole = state.whole_commit().expect("it is there").to_vec();
        assert_eq!(xxhash_rust::xxh3::xxh3_64(&whole), commit.digest);
        assert!(state.is_right());
        state.restore().expect("it is in memory");
        assert!(state.is_right());
        assert_eq!(state.content_id(), Some(commit));
    });
}

#[test]
fn a_commit_of_its_own_takes_the_place_of_the_files() {
    let directory = checkpoints(&[9]);
    resume(directory.path(), &[], |_, Resumed { mut state, .. }| {
        state.save().expect("it encodes");
        let own = state.whole_commit().expect("it is in memory").to_vec();
        assert_eq!(state.step(), Step(10));
        assert!(own.ends_with(bytemuck::cast_slice(&weights())));
        assert!(state.is_right(), "the block is still there");
    });
}

#[test]
fn files_that_are_removed_are_read_all_the_same() {
    let directory = checkpoints(&[9]);
    let path = directory.path().to_owned();
    resume_in_world(1, directory.path(), &[], move |_, Resumed { mut state, .. }| {
        let commit = state.content_id().expect("there is a commit");
        fs::remove_dir_all(path.join(step_directory(9))).expect("it is there");
        assert!(state.is_right());
        let whole = state.whole_commit().expect("it is open");
        assert_eq!(xxhash_rust::xxh3::xxh3_64(whole), commit.digest);
    });
}

#[test]
fn files_that_change_after_the_check_are_named_when_they_are_read() {
    let directory = checkpoints(&[9]);
    let path = directory.path().to_owned();
    resume_in_world(1, directory.path(), &[], move |_, Resumed { mut state, .. }| {
        let file = &files_of(&path, 9)[0];
        let mut content = fs::read(file).expect("it is there");
        content[1 << 20] ^= 1;
        fs::write(file, content).expect("it is written");
        let length = state.numbers.length();
        let copied = state.numbers.copy_into(&mut vec![0; length]);
        let error = copied.expect_err("a bit has flipped").to_string();
        let name = file.file_name().expect("a file").display().to_string();
        assert!(error.contains(&name) && error.contains("has other content"), "{error}");
        state.whole_commit().expect_err("it is not given to others");
        assert!(state.content_id().is_some());
    });
}

#[test]
fn damage_is_named_and_the_one_before_is_taken() {
    // In the header of a file, in an array, and at the end.
    for (file, at) in [(0, 20), (0, 1 << 20), (1, 9), (1, (28 << 20) - 5)] {
        let directory = checkpoints(&[5, 9]);
        let path = &files_of(directory.path(), 9)[file];
        let mut content = fs::read(path).expect("it is there");
        content[at] ^= 1;
        fs::write(path, content).expect("it is written");
        resume(directory.path(), &[], |rank, Resumed { mut state, notes, .. }| {
            assert_eq!(state.step(), Step(5));
            assert!(state.is_right());
            assert!(state.content_id().is_some());
            if rank == 1 {
                assert!(notes[0].starts_with("step-0000000009 was passed over"), "{notes:?}");
                assert!(notes[0].contains("has other content"), "{notes:?}");
            }
        });
    }
}

#[test]
fn a_checkpoint_that_does_not_make_the_commit_that_it_names_is_passed_over() {
    let directory = checkpoints(&[5, 9]);
    let path = directory.path().join(step_directory(9)).join("manifest.json");
    let text = fs::read(&path).expect("it is there");
    let mut manifest = Manifest::decode(&text).expect("it is one");
    manifest.digest = "00000000000000ff".to_owned();
    fs::write(&path, manifest.encode()).expect("it is written");
    resume(directory.path(), &[], |rank, Resumed { state, notes, .. }| {
        assert_eq!(state.step(), Step(5));
        let is_named = notes.iter().any(|note| note.contains("do not make the commit"));
        assert_eq!(is_named, rank == 1, "{notes:?}");
    });
    save(directory.path(), 12, &Value::from(3));
    resume(directory.path(), &[], |rank, Resumed { state, notes, .. }| {
        assert_eq!(state.step(), Step(5));
        let is_named = notes.iter().any(|note| note.contains("that of another step"));
        assert_eq!(is_named, rank == 1, "{notes:?}");
    });
}

#[test]
fn a_rank_that_cannot_see_the_files_gets_the_commit_from_the_root() {
    let directory = checkpoints(&[9]);
    resume(directory.path(), &[2], |rank, Resumed { state, notes, .. }| {
        assert!(state.is_right());
        let is_told = notes.iter().any(|note| note.contains("cannot read"));
        assert_eq!(is_told, rank == 1, "{notes:?}");
    });
}
