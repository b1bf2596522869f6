//! Tests of members that begin where somebody has chosen it, or may not begin without a checkpoint.

use std::fs;
use std::io;
use std::path::Path;

use elastic_checkpoint::{FileSystem, LocalFiles, SeekableRead, SyncedWrite, step_directory};
use elastic_protocol::Step;
use elastic_protocol::messages::{CheckpointSource, LastCheckpoint};

use super::super::sync::SyncError;
use super::resuming::{RANKS, Resumption, checkpoints, notes_of, on_ranks, resume_rank};

/// A file system on which no directory can be renamed, as those of the lower layer of an overlay.
struct LowerLayer;

impl FileSystem for LowerLayer {
    fn make_directory(&self, path: &Path) -> io::Result<()> {
        LocalFiles.make_directory(path)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        LocalFiles.list(directory)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn SyncedWrite>> {
        LocalFiles.create(path)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn SeekableRead>> {
        LocalFiles.open(path)
    }

    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        Err(io::ErrorKind::CrossesDevices.into())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        LocalFiles.remove_file(path)
    }

    fn remove_directory(&self, _: &Path) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        LocalFiles.sync_directory(path)
    }
}

/// Lets all ranks begin, from a source that `choose` changes.
fn begin(
    directory: &Path,
    files: &'static (dyn FileSystem + Sync),
    choose: impl Fn(&mut CheckpointSource) + Clone + Send + 'static,
) -> Vec<Resumption> {
    on_ranks(RANKS, directory, &[], move |rank, fabric, peers, source, _| {
        let mut source = source.clone();
        choose(&mut source);
        resume_rank(rank, fabric, peers, &source, (files, false, &|_| panic!("nobody waits")))
    })
}

/// A choice of this step.
fn exactly(step: u64) -> impl Fn(&mut CheckpointSource) + Clone + Send + 'static {
    move |source| {
        let of_step = Path::new(&source.directory).join(step_directory(step));
        source.exactly = Some(of_step.display().to_string());
    }
}

/// Checks that nobody begins, and returns the root's error.
fn refusal(ranks: &[Resumption]) -> String {
    let Err(SyncError::Fatal(error)) = &ranks[0].synced else { panic!("the root begins") };
    assert!(ranks[1..].iter().all(|rank| matches!(rank.synced, Err(SyncError::Collective(_)))));
    error.chain()
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("it is there");
    let name = |entry: io::Result<fs::DirEntry>| {
        entry.expect("an entry").file_name().to_string_lossy().into_owned()
    };
    let mut names: Vec<String> = entries.map(name).collect();
    names.sort();
    names
}

#[test]
fn c_2_nobody_begins_from_a_chosen_step_while_a_later_checkpoint_is_in_the_way() {
    let directory = checkpoints(&[5, 9]);
    let before = names_in(directory.path());
    let never = |source: &mut CheckpointSource| source.begins_anew = true;
    let from_5 = begin(directory.path(), &LowerLayer, exactly(5));
    let anew = begin(directory.path(), &LowerLayer, never);
    for (ranks, step) in [(from_5, Some(9)), (anew, None)] {
        let error = refusal(&ranks);
        let named = step.map_or_else(|| "step-".to_owned(), step_directory);
        assert!(error.contains(&named) && error.contains("cross-device"), "{error}");
        assert!(error.contains("--checkpoint") && error.contains("--resume"), "{error}");
        assert!(ranks.iter().all(|rank| rank.told.is_empty()), "nothing is said to be resumed");
    }
    assert_eq!(names_in(directory.path()), before);
}

#[test]
fn c_2_all_begin_from_a_chosen_step_once_the_later_ones_are_set_aside() {
    let directory = checkpoints(&[5, 9]);
    let notes = notes_of(&begin(directory.path(), &LocalFiles, exactly(5)), 5);
    assert_eq!(notes, ["set aside as set-aside-1-step-0000000009"]);
}

#[test]
fn c_2_what_is_partial_is_in_nobodys_way() {
    let directory = checkpoints(&[5]);
    fs::create_dir(directory.path().join(step_directory(9))).expect("ours");
    let notes = notes_of(&begin(directory.path(), &LowerLayer, exactly(5)), 5);
    let [not_removed, not_renamed] = &notes[..] else { panic!("{notes:?}") };
    assert!(not_removed.contains("cannot be removed"), "{notes:?}");
    assert!(not_renamed.contains("cannot be renamed"), "{notes:?}");
}

#[test]
fn c_2_a_damaged_checkpoint_that_was_passed_over_may_stay() {
    let directory = checkpoints(&[5, 9]);
    fs::write(&super::resuming::files_of(directory.path(), 9)[0], "short").expect("ours");
    let notes = notes_of(&begin(directory.path(), &LowerLayer, |_| {}), 5);
    assert!(notes[1].contains("step-0000000009 cannot be renamed"), "{notes:?}");
}

#[test]
fn l_1_nobody_begins_without_a_checkpoint_where_there_must_be_one() {
    let directory = checkpoints(&[]);
    let ranks = on_ranks(RANKS, directory.path(), &[], |rank, fabric, peers, source, files| {
        let directory = source.directory.clone();
        let last = Some(LastCheckpoint { step: Step(9), directory, must_exist: true });
        let source = CheckpointSource { last, ..source.clone() };
        // They wait for it, and look again.
        resume_rank(rank, fabric, peers, &source, (files, false, &|_| {}))
    });
    let error = refusal(&ranks);
    assert!(
        error.contains("the checkpoint of step 9, which") && error.contains("mounted"),
        "{error}"
    );
    assert_eq!(ranks[0].told, [(None, Vec::new())], "the driver hears it, and decides");
}
