//! Tests of what saves leave behind, on a disk whose operations fail one at a time, and on one where two saves take turns.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::interrupted::Interrupted;
use crate::tests::commit;
use crate::*;

const WORLD_SIZE: u32 = 2;

fn root() -> &'static Path {
    Path::new("checkpoints")
}

fn attempt(generation: u64, step: u64, world_size: u32) -> SaveAttempt {
    SaveAttempt {
        job: "9d1f".to_owned(),
        name: None,
        term: 1,
        generation,
        step,
        world_size,
        fields: None,
    }
}

fn write(files: &dyn FileSystem, attempt: &SaveAttempt, rank: u32) -> Result<(), SaveError> {
    let (bytes, tensors) = commit(attempt.step);
    let position = json!({ "consumed": attempt.step });
    let snapshot = Snapshot { bytes: &bytes, tensors: &tensors, position: &position };
    write_part(files, root(), attempt, rank, &snapshot, &mut |_| Ok(())).map(|_| ())
}

fn save(files: &dyn FileSystem, attempt: &SaveAttempt, keep: usize) -> Result<(), SaveError> {
    (0..attempt.world_size).try_for_each(|rank| write(files, attempt, rank))?;
    seal(files, root(), attempt, 0, Retention::newest(keep)).map(|_| ())
}

/// The names in the directory of a step; none if it does not exist.
fn names_of(disk: &MemoryFiles, step: u64) -> Vec<String> {
    let mut names = disk.list(&root().join(step_directory(step))).unwrap_or_default();
    names.sort();
    names
}

/// Checks that each checkpoint with a manifest is whole, and gives their steps.
fn whole(disk: &MemoryFiles) -> Vec<u64> {
    let mut steps = Vec::new();
    for candidate in list(disk, root()).expect("it is listed") {
        let Ok(manifest) = candidate.manifest else { continue };
        if let Err(damage) = verify(disk, &candidate.path, &manifest) {
            panic!("step {} is sealed and damaged: {damage}", candidate.step);
        }
        steps.push(candidate.step);
    }
    steps
}

/// Runs an operation on copies of a disk, each of which fails at another of its operations, until it succeeds.
fn failing_at_each(
    disk: impl Fn() -> MemoryFiles,
    operation: impl Fn(&Interrupted) -> Result<(), SaveError>,
    check: impl Fn(&MemoryFiles),
) {
    let mut failures = 0;
    for at in 0.. {
        let disk = disk();
        let failing = Interrupted::new(&disk, at, |_| Err(io::ErrorKind::StorageFull.into()));
        if operation(&failing).is_err() {
            failures += 1;
            check(&disk);
        } else if !failing.has_come() {
            break;
        }
    }
    assert!(failures > 5, "{failures}");
}

#[test]
fn c_4_a_part_that_fails_at_any_operation_leaves_nothing_and_touches_nothing_else() {
    for others in [0, 1] {
        let disk = || {
            let disk = MemoryFiles::new(1);
            save(&disk, &attempt(1, 4, WORLD_SIZE), 9).expect("the disk is sound");
            (0..others).for_each(|_| write(&disk, &attempt(1, 5, WORLD_SIZE), 1).expect("sound"));
            disk
        };
        let before = disk().files();
        let fails = |files: &Interrupted| write(files, &attempt(1, 5, WORLD_SIZE), 0);
        failing_at_each(disk, fails, |disk| {
            assert_eq!(disk.files(), before);
            assert_eq!(whole(disk), [4]);
            let is_there = disk.list(&root().join(step_directory(5))).is_ok();
            assert_eq!(is_there, others > 0, "the directory goes with its last file");
        });
    }
}

#[test]
fn c_4_a_seal_that_fails_leaves_no_manifest_half_written() {
    let disk = || {
        let disk = MemoryFiles::new(1);
        (0..WORLD_SIZE)
            .for_each(|rank| write(&disk, &attempt(1, 5, WORLD_SIZE), rank).expect("ok"));
        disk
    };
    let seals = |files: &Interrupted| {
        seal(files, root(), &attempt(1, 5, WORLD_SIZE), 0, Retention::newest(1)).map(|_| ())
    };
    failing_at_each(disk, seals, |disk| {
        let names = names_of(disk, 5);
        assert!(!names.iter().any(|name| name == "manifest.json.partial"), "{names:?}");
        whole(disk);
        // The next save goes on from there.
        save(disk, &attempt(1, 6, WORLD_SIZE), 1).expect("the disk is sound");
        assert_eq!(whole(disk), [6]);
        assert_eq!(names_of(disk, 5), [""; 0]);
    });
}

#[test]
fn c_4_a_writer_removes_what_it_has_left_and_nothing_of_others() {
    let disk = MemoryFiles::new(1);
    let world_of_3 = |generation, step| attempt(generation, step, 3);
    save(&disk, &attempt(1, 3, WORLD_SIZE), 9).expect("the disk is sound");
    // A save that was given up, one that nobody was left to give up, and one at the step of the next attempt.
    (0..WORLD_SIZE).for_each(|rank| write(&disk, &attempt(1, 4, WORLD_SIZE), rank).expect("ok"));
    (0..3).for_each(|rank| write(&disk, &world_of_3(2, 9), rank).expect("ok"));
    write(&disk, &world_of_3(2, 6), 0).expect("ok");
    (0..3).for_each(|rank| write(&disk, &world_of_3(2, 7), rank).expect("ok"));
    // Attempts that are under way: of the next generation, and the other rank's part of this one.
    write(&disk, &attempt(4, 5, WORLD_SIZE), 0).expect("ok");
    write(&disk, &attempt(3, 6, WORLD_SIZE), 1).expect("ok");
    let stays: Vec<PathBuf> = disk
        .files()
        .into_iter()
        .filter(|path| {
            let path = path.display().to_string();
            ["step-0000000003/", "-4.", "-1.4-", "-1.3-"].iter().any(|part| path.contains(part))
        })
        .collect();
    for rank in 0..WORLD_SIZE {
        write(&disk, &attempt(3, 6, WORLD_SIZE), rank).expect("ok");
    }
    let of = |step| names_of(&disk, step);
    assert_eq!((of(4), of(7), of(9)), (vec![], vec![], vec![]), "the remains are gone");
    assert!(of(6).iter().all(|name| name.contains("-1.3-")), "{:?}", of(6));
    let left = disk.files();
    assert!(stays.iter().all(|path| left.contains(path)), "{stays:?}\n{left:?}");
    assert_eq!(whole(&disk), [3]);
    seal(&disk, root(), &attempt(3, 6, WORLD_SIZE), 0, Retention::newest(9))
        .expect("the disk is sound");
    assert_eq!(whole(&disk), [3, 6]);
}

#[test]
fn c_4_a_writer_that_comes_late_removes_nothing_of_a_newer_attempt() {
    let disk = MemoryFiles::new(1);
    (0..WORLD_SIZE).for_each(|rank| write(&disk, &attempt(2, 6, WORLD_SIZE), rank).expect("ok"));
    let before = disk.files();
    for step in [5, 6, 7] {
        (0..WORLD_SIZE)
            .for_each(|rank| write(&disk, &attempt(1, step, WORLD_SIZE), rank).expect("ok"));
    }
    assert!(before.iter().all(|path| disk.files().contains(path)));
    seal(&disk, root(), &attempt(2, 6, WORLD_SIZE), 0, Retention::newest(9))
        .expect("the disk is sound");
    assert_eq!(whole(&disk), [6]);
}

#[test]
fn c_4_few_directories_are_looked_at_whatever_their_number_is() {
    let disk = MemoryFiles::new(1);
    write(&disk, &attempt(1, 100, 1), 0).expect("ok");
    for step in 1_000..1_100 {
        disk.make_directory(&root().join(step_directory(step))).expect("ok");
    }
    let count = |step| {
        let at = u64::MAX / 2;
        let counting = Interrupted::new(&disk, at, |_| Ok(()));
        write(&counting, &attempt(2, step, 1), 0).expect("ok");
        at - counting.left()
    };
    assert!(count(101) < 60);
    assert_eq!(names_of(&disk, 100), [""; 0], "the nearest are looked at");
}

/// Runs one operation, with another at each of its operations, and checks that each checkpoint that has a manifest then is whole.
fn taking_turns(
    disk: impl Fn() -> MemoryFiles,
    one: impl Fn(&dyn FileSystem) -> Result<(), SaveError>,
    other: impl Fn(&dyn FileSystem) -> Result<(), SaveError> + Clone + 'static,
) {
    let mut sealed = [0, 0];
    for at in 0.. {
        let (disk, other) = (disk(), other.clone());
        let interrupted = Interrupted::new(&disk, at, move |disk| {
            let _ = other(disk);
            Ok(())
        });
        let _ = one(&interrupted);
        if !interrupted.has_come() {
            break;
        }
        sealed[usize::from(whole(&disk).contains(&5))] += 1;
    }
    assert!(sealed.iter().all(|count| *count > 0), "it goes both ways: {sealed:?}");
}

#[test]
fn c_1_a_seal_of_an_earlier_attempt_and_the_writer_that_removes_its_parts_see_each_other() {
    let disk = || {
        let disk = MemoryFiles::new(1);
        (0..WORLD_SIZE)
            .for_each(|rank| write(&disk, &attempt(1, 5, WORLD_SIZE), rank).expect("ok"));
        disk
    };
    let seals = |files: &dyn FileSystem| {
        seal(files, root(), &attempt(1, 5, WORLD_SIZE), 0, Retention::newest(9)).map(|_| ())
    };
    for (step, rank) in [(8, 0), (8, 1), (5, 0), (5, 1), (2, 1)] {
        let writes =
            move |files: &dyn FileSystem| write(files, &attempt(2, step, WORLD_SIZE), rank);
        taking_turns(disk, seals, writes);
        taking_turns(disk, writes, seals);
    }
}

#[test]
fn c_4_a_save_that_its_owner_gives_up_leaves_nothing() {
    let (bytes, tensors) = commit(5);
    let position = json!({ "consumed": 5 });
    let snapshot = Snapshot { bytes: &bytes, tensors: &tensors, position: &position };
    let mut asked = 0;
    for at in 0.. {
        let disk = MemoryFiles::new(1);
        save(&disk, &attempt(1, 4, WORLD_SIZE), 9).expect("the disk is sound");
        let mut calls = 0;
        let mut pace = |_| {
            calls += 1;
            if calls > at { Err(SaveError::GivenUp) } else { Ok(()) }
        };
        match write_part(&disk, root(), &attempt(1, 5, WORLD_SIZE), 0, &snapshot, &mut pace) {
            Err(SaveError::GivenUp) => {}
            written => {
                written.expect("the disk is sound");
                break;
            }
        }
        asked += 1;
        let names = disk.list(root()).expect("it is listed");
        assert_eq!(names, [step_directory(4)], "given up at call {at}");
        assert_eq!(whole(&disk), [4]);
    }
    assert!(asked >= 6, "before each of three files and after each of their pieces: {asked}");
}

/// A disk on which another writer removes the directory of a step, once, while it is empty.
struct Removing<'a> {
    disk: &'a MemoryFiles,
    directory: std::cell::Cell<Option<&'a Path>>,
}

impl FileSystem for Removing<'_> {
    fn make_directory(&self, path: &Path) -> io::Result<()> {
        self.disk.make_directory(path)
    }
    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        self.disk.list(directory)
    }
    fn create(&self, path: &Path) -> io::Result<Box<dyn SyncedWrite>> {
        if let Some(directory) = self.directory.take() {
            self.disk.remove_directory(directory)?;
        }
        self.disk.list(path.parent().expect("it has one"))?;
        self.disk.create(path)
    }
    fn open(&self, path: &Path) -> io::Result<Box<dyn SeekableRead>> {
        self.disk.open(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.disk.remove_file(path)
    }
    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        self.disk.remove_directory(path)
    }
    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        self.disk.sync_directory(path)
    }
}

#[test]
fn c_4_a_directory_that_another_rank_removes_with_a_save_that_it_gives_up_is_made_again() {
    let disk = MemoryFiles::new(1);
    let attempt = attempt(2, 5, WORLD_SIZE);
    let of_step = root().join(step_directory(5));
    let removing = Removing { disk: &disk, directory: Some(of_step.as_path()).into() };
    write(&removing, &attempt, 0).expect("its directory is made again");
    write(&disk, &attempt, 1).expect("sound");
    seal(&disk, root(), &attempt, 0, Retention::newest(9)).expect("both parts are there");
    disk.lose_power();
    assert_eq!(whole(&disk), [5]);
}
