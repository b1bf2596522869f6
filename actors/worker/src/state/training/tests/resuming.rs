//! Tests of members that begin from a checkpoint together, over real sockets and files.

use std::cell::{Cell, RefCell};
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use elastic_checkpoint::{
    CheckpointTensor, Dtype, FileSystem, LocalFiles, Retention, SaveAttempt, SeekableRead,
    Snapshot, StateFields, SyncedWrite, seal, step_directory, write_part,
};
use elastic_collectives::{AbortHandle, TcpFabric};
use elastic_protocol::messages::{
    BulkWork, CheckpointSource, LastCheckpoint, MovedBytes, SyncPlan,
};
use elastic_protocol::{GenerationId, Step};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tempfile::TempDir;

use super::super::State;
use super::super::checkpoint::{LoadedCommit, ResumePorts};
use super::super::error::Error;
use super::super::fields::fields_of;
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
    save_of(directory, step, position, None);
}

/// As [`save`], of a state with these fields.
fn save_of(directory: &Path, step: u64, position: &Value, fields: Option<StateFields>) {
    // Arrays of 7 MiB, with a byte between them.
    let array = |number: usize| CheckpointTensor {
        name: format!("numbers.{number}"),
        dtype: Dtype::U8,
        shape: vec![(7 << 20) - 1],
        offset: 100 + number * (7 << 20),
    };
    let tensors: Vec<CheckpointTensor> = (0..8).map(array).collect();
    save_with(directory, step, position, (fields, &tensors));
}

/// As [`save`], of a state with these fields and arrays.
fn save_with(
    directory: &Path,
    step: u64,
    position: &Value,
    (fields, tensors): (Option<StateFields>, &[CheckpointTensor]),
) {
    let mut state = State::new(Weights { numbers: weights() });
    state.save().expect("it encodes");
    let bytes = state.whole_commit().expect("it is in memory").to_vec();
    let snapshot = Snapshot { bytes: &bytes, tensors, position };
    let job = "9d1f".to_owned();
    let attempt =
        SaveAttempt { job, name: None, term: 1, generation: 1, step, world_size: 2, fields };
    for rank in 0..2 {
        write_part(&LocalFiles, directory, &attempt, rank, &snapshot, &mut |_| Ok(()))
            .expect("it is written");
    }
    seal(&LocalFiles, directory, &attempt, 0, Retention::newest(3)).expect("it is sealed");
}

/// Result of a rank.
pub(super) struct Resumption {
    pub(super) synced: Result<bool, SyncError>,
    /// Whether it has the weights.
    is_right: bool,
    step: Step,
    /// Whether it told the driver that the job's last checkpoint is gone.
    is_gone: bool,
    /// The steps from which it told the driver that training goes on, with its notes.
    pub(super) told: Vec<(Option<Step>, Vec<String>)>,
    /// Its warnings before that.
    warnings: Vec<String>,
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
        resume_rank(rank, fabric, peers, source, (files, is_one_host, &|_| panic!("nobody waits")))
    })
}

/// As [`resume`], of a directory that cannot be read at first. A pause runs `pause`, with the rank and the number of its pauses.
fn resume_late(
    directory: &Path,
    pause: impl Fn(u32, u32) + Clone + Send + 'static,
) -> Vec<(Resumption, u32)> {
    on_ranks(RANKS, directory, &[], move |rank, fabric, peers, source, files| {
        let pauses = Cell::new(0);
        let pause = |_| {
            pauses.set(pauses.get() + 1);
            pause(rank, pauses.get());
        };
        let resumption = resume_rank(rank, fabric, peers, source, (files, false, &pause));
        (resumption, pauses.get())
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
                last: None,
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

pub(super) fn resume_rank(
    rank: u32,
    mut fabric: TcpFabric,
    peers: Vec<SocketAddr>,
    source: &CheckpointSource,
    (files, is_one_host, pause): (&dyn FileSystem, bool, &dyn Fn(Duration)),
) -> Resumption {
    let abort = AbortHandle::new().expect("a descriptor");
    let mut group = fabric.form(&group_spec(1, rank, peers), &abort).expect("all are there");
    let (told, read, warnings) = (RefCell::default(), RefCell::new(0), RefCell::default());
    let gone = Cell::new(false);
    let resumed = |step, is_gone, notes| {
        let told: &RefCell<Vec<_>> = &told;
        gone.set(is_gone);
        told.borrow_mut().push((step, notes));
    };
    let show = |moved: MovedBytes| {
        if moved.work == BulkWork::LoadsCheckpoint && moved.done == moved.total {
            *read.borrow_mut() += moved.total;
        }
    };
    let mut state = State::new(Weights::default());
    let warn = |text| {
        let warnings: &RefCell<Vec<String>> = &warnings;
        warnings.borrow_mut().push(text);
    };
    let (resumed, warn, show) = (&resumed, &warn, &show);
    let fields = fields_of::<Weights>();
    let fields = fields.as_ref();
    let ports = ResumePorts { files, resumed, warn, pause, show, is_one_host, fields };
    let plan = SyncPlan::FromRoot { root: 0 };
    let synced = sync(&mut state, &mut group, plan, Some(source), ports, GenerationId(1));
    let (is_right, step) = (state.numbers == weights(), state.step());
    let (told, warnings, read) = (told.into_inner(), warnings.into_inner(), read.into_inner());
    Resumption { synced, is_right, step, is_gone: gone.get(), told, warnings, read }
}

/// Checks that all begin from this step, and returns the root's notes.
pub(super) fn notes_of(ranks: &[Resumption], step: u64) -> Vec<String> {
    notes_by(0, ranks, step)
}

/// As [`notes_of`], where this rank leads the search.
fn notes_by(leader: usize, ranks: &[Resumption], step: u64) -> Vec<String> {
    for rank in ranks {
        assert!(matches!(rank.synced, Ok(true)), "training goes on");
        assert!(rank.is_right);
        assert_eq!(rank.step, Step(step));
    }
    let tells = |number: &usize| !ranks[*number].told.is_empty();
    assert_eq!((0..ranks.len()).filter(tells).collect::<Vec<_>>(), [leader]);
    let [(Some(told), notes)] = &ranks[leader].told[..] else { panic!("{:?}", ranks[leader].told) };
    assert_eq!(*told, Step(step));
    notes.clone()
}

/// The files of arrays of a checkpoint, in order.
pub(super) fn files_of(directory: &Path, step: u64) -> Vec<PathBuf> {
    let names = fs::read_dir(directory.join(step_directory(step))).expect("it is there");
    let paths = names.map(|entry| entry.expect("an entry").path());
    let mut files: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|it| it == "safetensors")).collect();
    files.sort();
    files
}

#[test]
fn c_1_a_checkpoint_of_a_state_with_other_fields_is_refused_and_no_earlier_one_is_taken_for_it() {
    let directory = checkpoints(&[5]);
    save_of(directory.path(), 7, &ledger(), fields_of::<Weights>());
    assert_eq!(notes_of(&resume(directory.path(), &[]), 7), Vec::<String>::new());
    let names = ["rate", "numbers"].map(str::to_owned).to_vec();
    let other = StateFields { names, ..StateFields::default() };
    save_of(directory.path(), 9, &ledger(), Some(other));
    let refused = refused(&resume(directory.path(), &[]));
    assert!(refused.contains("has the fields rate, numbers"), "{refused}");
}

/// The reason for which the root takes no checkpoint, nor another rank.
fn refused(ranks: &[Resumption]) -> String {
    assert!(ranks.iter().all(|rank| rank.synced.is_err() && !rank.is_right));
    let Err(SyncError::Fatal(Error::Checkpoint(refused))) = &ranks[0].synced else {
        panic!("the root says why")
    };
    refused.to_string()
}

#[test]
fn c_1_a_checkpoint_of_a_state_whose_field_has_another_type_is_refused_with_both_types() {
    let directory = checkpoints(&[5]);
    let mut fields = fields_of::<Weights>().expect("it is a struct");
    assert_eq!(fields.types["numbers"], "bulk u64");
    fields.types.insert("numbers".to_owned(), "sequence".to_owned());
    save_of(directory.path(), 7, &ledger(), Some(fields));
    let refused = refused(&resume(directory.path(), &[]));
    let said = "numbers was saved as sequence, and the program reads bulk u64. Give the fields";
    assert!(refused.contains(said), "{refused}");
}

#[test]
fn c_1_a_checkpoint_of_an_earlier_release_whose_array_has_other_elements_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let name = "numbers".to_owned();
    let array = CheckpointTensor { name, dtype: Dtype::U8, shape: vec![8000], offset: 100 };
    save_with(directory.path(), 7, &ledger(), (None, &[array]));
    let refused = refused(&resume(directory.path(), &[]));
    let said = "the array numbers was saved with elements of u8, and the program reads u64";
    assert!(refused.contains(said), "{refused}");
}

#[test]
fn c_1_a_commit_of_which_bytes_are_left_over_is_refused() {
    let mut state = State::new((7_u64, vec![1.5_f32; 8]));
    state.save().expect("it encodes");
    let commit = state.content_id().expect("there is one");
    let bytes = state.whole_commit().expect("it is in memory").to_vec();
    let length = bytes.len();
    let mut narrower = State::new((0_u64, [0_u8; 9]));
    let loaded = LoadedCommit { path: "ck/step-7".into(), bytes, commit, stored: None };
    let refused = narrower.take_loaded(loaded).expect_err("24 bytes are left over").chain();
    let said = format!("24 of the {length} bytes of a commit are left over");
    assert!(refused.contains("ck/step-7") && refused.contains(&said), "{refused}");
    assert!(refused.contains("--resume never"), "the way out: {refused}");
}

/// A state that can be written, and not be read back.
#[derive(Deserialize, Serialize)]
struct Tagged {
    step: u64,
    schedule: Schedule,
}

#[derive(Deserialize, Serialize)]
#[serde(tag = "kind")]
enum Schedule {
    Constant { rate: f32 },
}

#[test]
fn c_1_a_state_that_checkpoints_could_not_give_back_is_refused_as_a_rank_begins_alone() {
    let directory = checkpoints(&[]);
    let begin = |is_saved: bool| {
        on_ranks(1, directory.path(), &[], move |rank, mut fabric, peers, source, files| {
            let abort = AbortHandle::new().expect("a descriptor");
            let mut group =
                fabric.form(&group_spec(1, rank, peers), &abort).expect("nobody is missing");
            let schedule = Schedule::Constant { rate: 0.1 };
            let mut state = State::new(Tagged { step: 0, schedule });
            let (resumed, warn, pause, show) = (&|_, _, _| {}, &|_| {}, &|_| {}, &|_| {});
            let (is_one_host, fields) = (true, None);
            let ports = ResumePorts { files, resumed, warn, pause, show, is_one_host, fields };
            let (plan, source) =
                (SyncPlan::FromRoot { root: 0 }, Some(source).filter(|_| is_saved));
            sync(&mut state, &mut group, plan, source, ports, GenerationId(1))
        })
    };
    let refused = begin(true).remove(0);
    assert!(matches!(refused, Err(SyncError::Fatal(Error::State { action: "decoded", .. }))));
    assert!(matches!(begin(false).remove(0), Ok(false)), "without checkpoints it trains on");
}

#[test]
fn each_rank_reads_a_share_and_all_have_the_whole() {
    let directory = checkpoints(&[5, 9]);
    let ranks = resume(directory.path(), &[]);
    assert_eq!(notes_of(&ranks, 9), Vec::<String>::new());
    let length = |path: &Path| fs::metadata(path).expect("it is there").len();
    let of_step = directory.path().join(step_directory(9));
    let names = fs::read_dir(of_step).expect("it is there");
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
    let mut content = fs::read(path).expect("it is there");
    content[1 << 20] ^= 1;
    fs::write(path, content).expect("it is written");
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
    let directory = checkpoints(&[5, 9]);
    let files = files_of(directory.path(), 9);
    assert_eq!(files.len(), 2, "of arrays");
    for path in files {
        for at_end in [false, true] {
            let whole = fs::read(&path).expect("it is there");
            let mut content = whole.clone();
            let at = if at_end { content.len() - 1 } else { 1 << 20 };
            content[at] ^= 1;
            fs::write(&path, content).expect("it is written");
            let notes = notes_of(&resume(directory.path(), &[]), 5);
            let name = path.file_name().expect("a file").display().to_string();
            let damage = format!("step-0000000009 was passed over: {name} has other content");
            assert!(notes[0].starts_with(&damage), "{notes:?}");
            assert_eq!(notes[1..], ["set aside as set-aside-1-step-0000000009"]);
            let of_step = directory.path().join(step_directory(9));
            let aside = directory.path().join("set-aside-1-step-0000000009");
            fs::rename(aside, of_step).expect("it was set aside");
            fs::write(&path, whole).expect("it is written");
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
    fs::write(path, "short").expect("it is written");
    let ranks = resume(directory.path(), &[]);
    let Err(SyncError::Fatal(error)) = &ranks[0].synced else { panic!("the root begins") };
    assert!(error.chain().contains("none of the checkpoints in"), "{}", error.chain());
    assert!(ranks[1..].iter().all(|rank| matches!(rank.synced, Err(SyncError::Collective(_)))));
}

#[test]
fn another_rank_leads_the_search_where_the_root_lacks_the_directory() {
    let directory = checkpoints(&[5, 9]);
    let ranks = resume(directory.path(), &[0]);
    let path = directory.path();
    let of_step = path.join(step_directory(9));
    assert_eq!(
        notes_by(1, &ranks, 9),
        [
            format!(
                "rank 1 looked for checkpoints, because rank 0 finds no checkpoint in {}",
                path.display()
            ),
            format!("rank 1 read the shares of ranks that cannot read {}: 0", of_step.display()),
        ]
    );
}

#[test]
fn c_4_a_directory_that_nobody_can_read_for_a_while_is_waited_for_and_no_host_fails() {
    let directory = checkpoints(&[9]);
    let (place, aside) = (directory.path().join("mounted"), directory.path().join("aside"));
    fs::write(&place, "no directory").expect("it is written");
    fs::create_dir(&aside).expect("it is made");
    let of_step = step_directory(9);
    fs::rename(directory.path().join(&of_step), aside.join(&of_step)).expect("it is moved");
    let mounted = place.clone();
    let ranks = resume_late(&place, move |rank, pauses| {
        if (rank, pauses) == (0, 3) {
            fs::remove_file(&mounted).expect("it is there");
            fs::rename(&aside, &mounted).expect("it is moved");
        }
    });
    assert!(ranks.iter().all(|(_, pauses)| *pauses == 3), "together");
    let ranks: Vec<Resumption> = ranks.into_iter().map(|(rank, _)| rank).collect();
    assert_eq!(notes_of(&ranks, 9), Vec::<String>::new());
    let [warning] = &ranks[0].warnings[..] else { panic!("{:?}", ranks[0].warnings) };
    let begin = format!("the directory of checkpoints {} cannot be listed: ", place.display());
    assert!(warning.starts_with(&begin) && warning.ends_with("; it is tried again for 60 s"));
    assert!(ranks[1..].iter().all(|rank| rank.warnings.is_empty()), "the root tells");
}

#[test]
fn g_9_a_directory_that_nobody_can_read_is_waited_for_no_longer_than_its_time() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().join("mounted");
    fs::write(&place, "no directory").expect("it is written");
    let ranks = resume_late(&place, |_, _| {});
    assert!(ranks.iter().all(|(_, pauses)| *pauses == 60), "a second each");
    let Err(SyncError::Fatal(error)) = &ranks[0].0.synced else { panic!("the root begins") };
    assert!(error.chain().contains("cannot be listed"), "{}", error.chain());
    let others = ranks[1..].iter();
    assert!(others.clone().all(|(rank, _)| matches!(rank.synced, Err(SyncError::Collective(_)))));
}

#[test]
fn c_4_a_checkpoint_whose_manifest_cannot_be_read_is_tried_again() {
    let directory = checkpoints(&[9]);
    let manifest = directory.path().join(step_directory(9)).join("manifest.json");
    let aside = directory.path().join("aside");
    fs::rename(&manifest, &aside).expect("it is moved");
    // To read a directory is an error of the system.
    fs::create_dir(&manifest).expect("it is made");
    let ranks = resume_late(directory.path(), move |rank, pauses| {
        if (rank, pauses) == (0, 2) {
            fs::remove_dir(&manifest).expect("it is there");
            fs::rename(&aside, &manifest).expect("it is moved");
        }
    });
    let ranks: Vec<Resumption> = ranks.into_iter().map(|(rank, _)| rank).collect();
    assert_eq!(notes_of(&ranks, 9), Vec::<String>::new());
    assert!(
        ranks[0].warnings[0].contains(" cannot be read: manifest.json"),
        "{:?}",
        ranks[0].warnings
    );
}

/// A host that sees an old state of the directory, without step 9.
struct OldView;

impl FileSystem for OldView {
    fn make_directory(&self, path: &Path) -> io::Result<()> {
        LocalFiles.make_directory(path)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let mut names = LocalFiles.list(directory)?;
        names.retain(|name| *name != step_directory(9));
        Ok(names)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn SyncedWrite>> {
        LocalFiles.create(path)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn SeekableRead>> {
        LocalFiles.open(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        LocalFiles.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        LocalFiles.remove_file(path)
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        LocalFiles.remove_directory(path)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        LocalFiles.sync_directory(path)
    }
}

/// As [`resume_late`], of a job whose last checkpoint is of step 9, in this folder, and that may not begin without it if that
/// `must_exist`. The root sees an old state of the directory if it `has_old_view`.
fn resume_from_9(
    (directory, of_last): (&Path, &Path),
    must_exist: bool,
    has_old_view: bool,
    pause: impl Fn(u32, u32) + Clone + Send + 'static,
) -> Vec<(Resumption, u32)> {
    let last =
        LastCheckpoint { step: Step(9), directory: of_last.display().to_string(), must_exist };
    on_ranks(RANKS, directory, &[], move |rank, fabric, peers, source, files| {
        let source = CheckpointSource { last: Some(last.clone()), ..source.clone() };
        let files = if has_old_view && rank == 0 { &OldView } else { files };
        let pauses = Cell::new(0);
        let pause = |_| {
            pauses.set(pauses.get() + 1);
            pause(rank, pauses.get());
        };
        let resumption = resume_rank(rank, fabric, peers, &source, (files, false, &pause));
        (resumption, pauses.get())
    })
}

/// The ranks, none of which has waited.
fn unpaused(ranks: Vec<(Resumption, u32)>) -> Vec<Resumption> {
    assert!(ranks.iter().all(|(_, pauses)| *pauses == 0), "nobody waits");
    ranks.into_iter().map(|(rank, _)| rank).collect()
}

fn names_in(directory: &Path) -> Vec<String> {
    let mut names = LocalFiles.list(directory).expect("it is there");
    names.sort();
    names
}

#[test]
fn l_1_a_rank_that_finds_the_last_checkpoint_leads_where_the_root_sees_an_earlier_one_only() {
    let directory = checkpoints(&[5, 9]);
    let folder = directory.path();
    for must_exist in [true, false] {
        let ranks = unpaused(resume_from_9((folder, folder), must_exist, true, |_, _| {}));
        let notes = notes_by(1, &ranks, 9);
        assert!(notes[0].contains("rank 0 does not find that of step 9 in"), "{notes:?}");
        assert!(ranks.iter().all(|rank| !rank.is_gone));
    }
}

#[test]
fn l_1_a_last_checkpoint_that_nobody_finds_is_looked_for_and_an_earlier_one_is_no_substitute() {
    let directory = checkpoints(&[5]);
    let folder = directory.path();
    let ranks = resume_from_9((folder, folder), true, false, |_, _| {});
    assert!(ranks.iter().all(|(_, pauses)| *pauses == 60), "a second each");
    let Err(SyncError::Fatal(error)) = &ranks[0].0.synced else { panic!("the root begins") };
    assert!(error.chain().contains("the checkpoint of step 9, which"), "{}", error.chain());
    assert_eq!(ranks[0].0.told, [(Some(Step(5)), Vec::new())], "the driver hears what is there");
    assert!(ranks[0].0.is_gone);
    let [warning] = &ranks[0].0.warnings[..] else { panic!("{:?}", ranks[0].0.warnings) };
    assert!(warning.contains("the checkpoint of step 9 is not found in"), "{warning}");
    assert_eq!(names_in(folder), [step_directory(5)], "nothing is set aside");
    // A job that may lose steps does not wait.
    let ranks = unpaused(resume_from_9((folder, folder), false, false, |_, _| {}));
    assert_eq!(notes_of(&ranks, 5), Vec::<String>::new());
    assert!(ranks[0].is_gone);
}

#[test]
fn l_1_a_last_checkpoint_that_comes_into_sight_is_taken() {
    let directory = checkpoints(&[5, 9]);
    let (of_step, aside) = (directory.path().join(step_directory(9)), directory.path().join("9"));
    fs::rename(&of_step, &aside).expect("it is moved");
    let folder = directory.path();
    let ranks = resume_from_9((folder, folder), true, false, move |rank, pauses| {
        if (rank, pauses) == (0, 3) {
            fs::rename(&aside, &of_step).expect("it is moved");
        }
    });
    let ranks: Vec<Resumption> = ranks.into_iter().map(|(rank, _)| rank).collect();
    assert_eq!(notes_of(&ranks, 9), Vec::<String>::new());
    assert!(!ranks[0].is_gone);
}

#[test]
fn c_2_a_last_checkpoint_in_another_folder_is_taken_unless_there_is_a_later_one() {
    let (base, new) = (checkpoints(&[3, 9, 11]), checkpoints(&[5]));
    let ranks = unpaused(resume_from_9((new.path(), base.path()), true, false, |_, _| {}));
    assert_eq!(notes_of(&ranks, 9), Vec::<String>::new());
    save(new.path(), 10, &ledger());
    let ranks = unpaused(resume_from_9((new.path(), base.path()), true, false, |_, _| {}));
    assert_eq!(notes_of(&ranks, 10), Vec::<String>::new());
    assert_eq!(names_in(base.path()), [3, 9, 11].map(step_directory), "nothing is changed there");
}

#[test]
fn c_4_a_checkpoint_whose_data_cannot_be_read_for_a_while_is_tried_again() {
    let directory = checkpoints(&[5, 9]);
    let folder = directory.path();
    let (file, aside) = (files_of(folder, 9)[0].clone(), folder.join("aside"));
    fs::rename(&file, &aside).expect("it is moved");
    // To read a directory is an error of the system.
    fs::create_dir(&file).expect("it is made");
    let unreadable = |must_exist| resume_from_9((folder, folder), must_exist, false, |_, _| {});
    let ranks = unreadable(true);
    assert_eq!(ranks.iter().map(|(_, pauses)| *pauses).collect::<Vec<_>>(), [7, 0, 0]);
    let Err(SyncError::Fatal(error)) = &ranks[0].0.synced else { panic!("the root begins") };
    assert!(error.chain().contains("cannot be taken: tensors-"), "{}", error.chain());
    assert_eq!(ranks[0].0.told, [], "nothing is resumed, nor set aside");
    assert!(folder.join(step_directory(9)).exists());
    // A job that may lose steps takes the one before in the end.
    let ranks: Vec<_> = unreadable(false).into_iter().map(|(rank, _)| rank).collect();
    let notes = notes_of(&ranks, 5);
    assert!(notes[0].contains("cannot be read"), "{notes:?}");
    fs::rename(folder.join("set-aside-1-step-0000000009"), folder.join(step_directory(9)))
        .expect("it was set aside");
    let ranks = resume_from_9((folder, folder), true, false, move |_, pauses| {
        if pauses == 2 {
            fs::remove_dir(&file).expect("it is there");
            fs::rename(&aside, &file).expect("it is moved");
        }
    });
    let ranks: Vec<Resumption> = ranks.into_iter().map(|(rank, _)| rank).collect();
    assert_eq!(notes_of(&ranks, 9), Vec::<String>::new());
    let [warning] = &ranks[0].warnings[..] else { panic!("{:?}", ranks[0].warnings) };
    assert!(warning.contains("cannot be read") && warning.contains("again for 60 s"), "{warning}");
}
