//! Tests of the rules of checkpoints, on a disk that loses power and flips bits.

use std::io::Read as _;
use std::path::Path;

use serde_json::json;

use crate::retain::{Retention, retain};
use crate::*;

const DIRECTORY: &str = "checkpoints";
const KEEP: Retention = Retention::newest(2);
const WORLD_SIZE: u32 = 3;

fn directory() -> &'static Path {
    Path::new(DIRECTORY)
}

fn attempt(step: u64) -> SaveAttempt {
    SaveAttempt {
        job: "9d1f".to_owned(),
        name: None,
        term: 1,
        generation: 1,
        step,
        world_size: WORLD_SIZE,
        fields: None,
    }
}

/// A commit of this step: 5 bytes, two arrays with a byte between them, 2 bytes.
pub(crate) fn commit(step: u64) -> (Vec<u8>, Vec<CheckpointTensor>) {
    let bytes: Vec<u8> = (0..40_u64).map(|n| (n * 7 + step) as u8).collect();
    let tensor = |name: &str, offset, elements| CheckpointTensor {
        name: name.to_owned(),
        dtype: Dtype::F32,
        shape: vec![elements],
        offset,
    };
    (bytes, vec![tensor("model.weight", 5, 5), tensor("model.bias", 26, 3)])
}

fn write(disk: &MemoryFiles, step: u64, rank: u32) -> Result<(), SaveError> {
    let (bytes, tensors) = commit(step);
    let position = json!({ "consumed": step });
    let snapshot = Snapshot { bytes: &bytes, tensors: &tensors, position: &position };
    write_part(disk, directory(), &attempt(step), rank, &snapshot, &mut |_| Ok(())).map(|_| ())
}

fn save(disk: &MemoryFiles, step: u64) -> Result<(), SaveError> {
    (0..WORLD_SIZE).try_for_each(|rank| write(disk, step, rank))?;
    seal(disk, directory(), &attempt(step), 0, KEEP).map(|_| ())
}

fn taken(disk: &MemoryFiles) -> Option<u64> {
    let (loaded, _) = newest(disk, directory(), None).expect("some are whole, or none is sealed");
    let loaded = loaded?;
    assert_eq!(loaded.bytes, commit(loaded.manifest.step).0, "what is taken is what was written");
    Some(loaded.manifest.step)
}

/// Saves steps 1 to 3, cuts the power at each change on the way to step 4, and gives the first rule that does not hold.
fn broken_rule() -> Option<String> {
    let changes = {
        let disk = MemoryFiles::new(0);
        (1..=3).for_each(|step| save(&disk, step).expect("the disk is sound"));
        let before = disk.operations();
        save(&disk, 4).expect("the disk is sound");
        disk.operations() - before
    };
    for seed in 0..16 {
        for cut in 0..=changes {
            let disk = MemoryFiles::new(seed * 1_000 + cut);
            (1..=3).for_each(|step| save(&disk, step).expect("the disk is sound"));
            disk.cut_after(cut);
            let returned = save(&disk, 4).is_ok();
            disk.lose_power();
            for candidate in list(&disk, directory()).ok()? {
                let Ok(manifest) = candidate.manifest else { continue };
                if let Err(damage) = verify(&disk, &candidate.path, &manifest) {
                    return Some(format!(
                        "step {} is sealed and damaged: {damage}",
                        candidate.step
                    ));
                }
            }
            let found = newest(&disk, directory(), None).ok().and_then(|(found, _)| found);
            match found.map(|found| found.manifest.step) {
                Some(4) => {}
                Some(3) if !returned => {}
                found => return Some(format!("{found:?} is found, returned: {returned}")),
            }
        }
    }
    None
}

#[test]
fn c_1_power_cut_at_any_change_leaves_the_old_one_or_the_new_one() {
    assert_eq!(broken_rule(), None);
}

#[test]
fn c_3_each_kind_of_damage_is_named_and_the_one_before_is_taken() {
    type Harm = fn(&mut Vec<u8>);
    let harms: [(&str, Harm); 5] = [
        ("truncated", |bytes| bytes.truncate(bytes.len() / 2)),
        ("one byte shorter", |bytes| bytes.truncate(bytes.len() - 1)),
        ("one byte longer", |bytes| bytes.push(0)),
        ("empty", Vec::clear),
        ("a flipped bit", |bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 4;
        }),
    ];
    let disk = MemoryFiles::new(1);
    save(&disk, 4).and_then(|()| save(&disk, 5)).expect("the disk is sound");
    let of_5 = directory().join(step_directory(5));
    let files: Vec<_> = disk.files().into_iter().filter(|file| file.starts_with(&of_5)).collect();
    assert_eq!(files.len(), 4, "the manifest, the rest, two files of arrays: {files:?}");
    for file in &files {
        for (what, harm) in harms {
            let disk = MemoryFiles::new(1);
            save(&disk, 4).and_then(|()| save(&disk, 5)).expect("the disk is sound");
            disk.change(file, harm).expect("it is there");
            named_and_passed_over(&disk, file, what);
        }
        let disk = MemoryFiles::new(1);
        save(&disk, 4).and_then(|()| save(&disk, 5)).expect("the disk is sound");
        disk.remove_file(file).expect("it is there");
        named_and_passed_over(&disk, file, "removed");
    }
}

fn named_and_passed_over(disk: &MemoryFiles, file: &Path, what: &str) {
    let (found, passed_over) = newest(disk, directory(), None).expect("step 4 is whole");
    assert_eq!(found.map(|found| found.manifest.step), Some(4), "{} {what}", file.display());
    let [(name, damage)] = &passed_over[..] else { panic!("{passed_over:?}") };
    assert_eq!(name, "step-0000000005");
    let file = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let text = damage.to_string();
    let is_named = text.contains(&file) || *damage == Damage::Partial && file == "manifest.json";
    assert!(is_named, "{file} {what}: {text}");
}

#[test]
fn every_bit_of_a_manifest_counts() {
    let disk = MemoryFiles::new(1);
    save(&disk, 4).and_then(|()| save(&disk, 5)).expect("the disk is sound");
    let manifest = directory().join("step-0000000005/manifest.json");
    let mut length = 0;
    disk.change(&manifest, |bytes| length = bytes.len()).expect("it is there");
    for bit in 0..length * 8 {
        disk.change(&manifest, |bytes| bytes[bit / 8] ^= 1 << (bit % 8)).expect("it is there");
        assert_eq!(taken(&disk), Some(4), "bit {bit}");
        disk.change(&manifest, |bytes| bytes[bit / 8] ^= 1 << (bit % 8)).expect("it is there");
    }
    assert_eq!(taken(&disk), Some(5));
}

#[test]
fn one_that_was_renamed_or_is_of_another_job_is_not_taken() {
    let disk = MemoryFiles::new(1);
    save(&disk, 4).expect("the disk is sound");
    let named = SaveAttempt { name: Some("ours".to_owned()), ..attempt(5) };
    let (bytes, tensors) = commit(5);
    let position = json!({ "consumed": 5 });
    let snapshot = Snapshot { bytes: &bytes, tensors: &tensors, position: &position };
    for rank in 0..WORLD_SIZE {
        write_part(&disk, directory(), &named, rank, &snapshot, &mut |_| Ok(())).expect("sound");
    }
    seal(&disk, directory(), &named, 0, KEEP).expect("the disk is sound");
    let (found, _) = newest(&disk, directory(), Some("ours")).expect("it is whole");
    assert_eq!(found.map(|found| found.manifest.step), Some(5));
    let (found, passed_over) = newest(&disk, directory(), Some("theirs")).expect("4 is whole");
    assert_eq!(found.map(|found| found.manifest.step), Some(4), "it has no name");
    assert!(passed_over[0].1.to_string().contains("\"ours\""), "{passed_over:?}");
    let (from, to) = ("step-0000000005", "step-0000000009");
    disk.rename(&directory().join(from), &directory().join(to)).expect("it is there");
    let (found, passed_over) = newest(&disk, directory(), None).expect("4 is whole");
    assert_eq!(found.map(|found| found.manifest.step), Some(4));
    assert!(passed_over[0].1.to_string().contains("is of step 5"), "{passed_over:?}");
}

#[test]
fn damaged_ones_alone_are_an_error_and_partial_ones_alone_are_none() {
    let disk = MemoryFiles::new(1);
    assert_eq!(taken(&disk), None, "without a directory");
    write(&disk, 5, 0).expect("the disk is sound");
    assert_eq!(taken(&disk), None, "one that did not end");
    save(&disk, 6).expect("the disk is sound");
    disk.change(&directory().join("step-0000000006/rest-1.1-00000-of-00003.bin"), Vec::clear)
        .expect("it is there");
    let error = newest(&disk, directory(), None).expect_err("nothing is begun anew unasked");
    assert!(error.to_string().contains("step-0000000006: rest-1.1-00000"), "{error}");
}

/// Saves as this driver's job, and gives what the seal warns of.
fn save_as((job, term): (&str, u64), disk: &MemoryFiles, step: u64, at_ms: u64) -> Vec<String> {
    let attempt = || SaveAttempt { job: job.to_owned(), term, ..attempt(step) };
    for rank in 0..WORLD_SIZE {
        let (bytes, tensors) = commit(step);
        let position = json!({});
        let snapshot = Snapshot { bytes: &bytes, tensors: &tensors, position: &position };
        write_part(disk, directory(), &attempt(), rank, &snapshot, &mut |_| Ok(())).expect("sound");
    }
    seal(disk, directory(), &attempt(), at_ms, KEEP).expect("sound").troubles
}

#[test]
fn c_4_another_job_that_saves_to_the_same_directory_is_named() {
    let disk = MemoryFiles::new(1);
    // The clock of each host is another one: of the first job's it is ahead.
    let save = |job, step, at_ms| save_as((job, 1), &disk, step, at_ms);
    assert_eq!(save("former", 1, 7_200_000), [""; 0]);
    assert_eq!(save("ours", 2, 20), [""; 0], "the former one has ended");
    assert_eq!(save("ours", 3, 30), [""; 0]);
    assert_eq!(save("theirs", 4, 40), [""; 0], "it may go on from ours");
    let told = save("ours", 5, 5).concat();
    assert!(told.contains("the job theirs") && told.contains("(step 4)"), "{told}");
    let told = save("theirs", 6, 60).concat();
    assert!(told.contains("the job ours") && told.contains("(step 5)"), "{told}");
}

#[test]
fn c_4_another_copy_of_a_job_that_saves_to_the_same_directory_is_named_by_both() {
    let disk = MemoryFiles::new(1);
    let save = |term, step| save_as(("ours", term), &disk, step, 1);
    assert_eq!([save(1, 1), save(1, 2), save(2, 3), save(2, 4)].concat(), [""; 0], "a takeover");
    let told = save(1, 5).concat();
    assert!(
        told.contains("another copy of this job") && told.contains("(step 4, term 2"),
        "{told}"
    );
    let told = save(2, 6).concat();
    assert!(
        told.contains("another copy of this job") && told.contains("(step 5, term 1"),
        "{told}"
    );
}

/// A disk on which a job goes on saving once one of its checkpoints is read: its retention removes that one.
struct SavedMeanwhile {
    disk: MemoryFiles,
    is_saved: std::cell::Cell<bool>,
}

impl FileSystem for SavedMeanwhile {
    fn open(&self, path: &Path) -> std::io::Result<Box<dyn SeekableRead>> {
        if !path.ends_with("manifest.json") && !self.is_saved.replace(true) {
            for step in 5..7 {
                save(&self.disk, step).expect("the disk is sound");
            }
        }
        self.disk.open(path)
    }

    fn list(&self, directory: &Path) -> std::io::Result<Vec<String>> {
        self.disk.list(directory)
    }

    fn make_directory(&self, path: &Path) -> std::io::Result<()> {
        self.disk.make_directory(path)
    }

    fn create(&self, path: &Path) -> std::io::Result<Box<dyn SyncedWrite>> {
        self.disk.create(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> std::io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> std::io::Result<()> {
        self.disk.remove_file(path)
    }

    fn remove_directory(&self, path: &Path) -> std::io::Result<()> {
        self.disk.remove_directory(path)
    }

    fn sync_directory(&self, path: &Path) -> std::io::Result<()> {
        self.disk.sync_directory(path)
    }
}

#[test]
fn c_2_one_that_its_job_removes_while_it_is_read_is_not_damaged_and_a_newer_one_is_found() {
    let disk = MemoryFiles::new(1);
    save(&disk, 4).expect("the disk is sound");
    let first = list(&disk, directory()).expect("it is there").remove(0);
    let manifest = first.manifest.expect("it is whole");
    let files = SavedMeanwhile { disk, is_saved: false.into() };
    let (found, _) = newest(&files, directory(), None).expect("there is a whole one");
    assert_eq!(found.map(|found| found.manifest.step), Some(6));
    verify(&files, &first.path, &manifest).expect_err("it is gone");
    assert!(is_removed(&files, &first.path));
    let error = load(&files, &first.path).expect_err("it is gone").to_string();
    assert!(error.contains("step-0000000004"), "{error}");
}

#[test]
fn a_part_that_is_missing_or_of_another_commit_is_not_sealed() {
    let disk = MemoryFiles::new(1);
    write(&disk, 5, 0).and_then(|()| write(&disk, 5, 1)).expect("the disk is sound");
    let error = seal(&disk, directory(), &attempt(5), 0, KEEP).expect_err("part 2 is missing");
    assert!(matches!(error, SaveError::PartMissing { rank: 2, .. }), "{error}");
    let (mut bytes, tensors) = commit(5);
    bytes[7] ^= 1;
    for (position, what) in [(5, "contents"), (6, "places in the data")] {
        let position = json!({ "consumed": position });
        let snapshot = Snapshot { bytes: &bytes, tensors: &tensors, position: &position };
        write_part(&disk, directory(), &attempt(5), 2, &snapshot, &mut |_| Ok(())).expect("sound");
        let error = seal(&disk, directory(), &attempt(5), 0, KEEP).expect_err("it differs");
        assert!(error.to_string().contains(what), "{error}");
    }
}

#[test]
fn old_ones_go_only_when_the_new_one_is_whole() {
    let disk = MemoryFiles::new(1);
    (1..=5).for_each(|step| save(&disk, step).expect("the disk is sound"));
    let steps = |disk: &MemoryFiles| -> Vec<u64> {
        list(disk, directory()).expect("listed").iter().map(|found| found.step).collect()
    };
    assert_eq!(steps(&disk), [4, 5]);
    disk.fill(true);
    assert!(save(&disk, 6).is_err(), "C-4: a full disk");
    disk.fill(false);
    assert_eq!(taken(&disk), Some(5), "the old ones are kept");
    save(&disk, 7).expect("there is room again");
    assert_eq!(steps(&disk), [5, 7], "what step 6 left behind is gone");
}

#[test]
fn later_ones_are_set_aside_and_not_lost_when_training_begins_before_them() {
    let disk = MemoryFiles::new(1);
    (1..=2).for_each(|step| save(&disk, step).expect("the disk is sound"));
    let (set_aside, troubles) = set_aside_after(&disk, directory(), Some(1));
    assert_eq!((set_aside, troubles), (vec!["set-aside-1-step-0000000002".to_owned()], vec![]));
    assert_eq!(taken(&disk), Some(1));
    save(&disk, 2).expect("the name is free");
    set_aside_after(&disk, directory(), None);
    let mut names = disk.list(directory()).expect("listed");
    names.sort();
    let all = [
        "set-aside-1-step-0000000001",
        "set-aside-1-step-0000000002",
        "set-aside-2-step-0000000002",
    ];
    assert_eq!(names, all);
}

#[test]
fn another_reader_of_safetensors_reads_the_arrays() {
    let root = tempfile::tempdir().expect("a directory");
    let (bytes, tensors) = commit(5);
    let position = json!({ "consumed": 5 });
    let snapshot = Snapshot { bytes: &bytes, tensors: &tensors, position: &position };
    for rank in 0..WORLD_SIZE {
        write_part(&LocalFiles, root.path(), &attempt(5), rank, &snapshot, &mut |_| Ok(()))
            .expect("written");
    }
    seal(&LocalFiles, root.path(), &attempt(5), 0, KEEP).expect("sealed");
    let (loaded, _) = newest(&LocalFiles, root.path(), None).expect("whole");
    let loaded = loaded.expect("there is one");
    assert_eq!(loaded.bytes, bytes);
    let path = root.path().join("model.safetensors");
    assert_eq!(export(&LocalFiles, &loaded, &path).expect("written"), 2);
    let content = std::fs::read(&path).expect("read");
    let read = safetensors::SafeTensors::deserialize(&content).expect("its own crate reads it");
    assert_eq!(read.tensor("model.weight").expect("named").data(), &bytes[5..25]);
    assert_eq!(read.tensor("model.bias").expect("named").shape(), [3]);
    assert!(!root.path().join("model.safetensors.partial").exists());
}

#[test]
fn s_12_an_export_that_fails_leaves_the_former_file_as_it_was() {
    let disk = MemoryFiles::new(1);
    save(&disk, 4).expect("the disk is sound");
    let (loaded, _) = newest(&disk, directory(), None).expect("whole");
    let mut loaded = loaded.expect("there is one");
    let into = Path::new("model.safetensors");
    let read = || {
        let mut content = Vec::new();
        disk.open(into).expect("there").read_to_end(&mut content).expect("memory");
        content
    };
    export(&disk, &loaded, into).expect("written");
    let former = read();
    loaded.bytes[6] ^= 1;
    disk.fill(true);
    export(&disk, &loaded, into).expect_err("there is no room");
    assert_eq!(read(), former);
    let names = disk.list(Path::new("")).expect("the root");
    assert!(names.iter().all(|name| !name.ends_with(".partial")), "{names:?}");
    disk.fill(false);
    export(&disk, &loaded, into).expect("written");
    assert_ne!(read(), former);
}

#[test]
fn c_4_a_checkpoint_that_is_spared_stays_beside_the_newest_ones() {
    let left = |spared: Option<u64>, steps: &[u64]| -> Vec<u64> {
        let folder = tempfile::tempdir().expect("a folder");
        for step in steps {
            let of_step = folder.path().join(step_directory(*step));
            std::fs::create_dir(&of_step).expect("ours");
            // That of step 2 is partial.
            let name = if *step == 2 { "part" } else { "manifest.json" };
            std::fs::write(of_step.join(name), "x").expect("ours");
        }
        let retention = Retention { keep: 2, spared };
        assert_eq!(retain(&LocalFiles, folder.path(), retention, 9), Vec::<String>::new());
        retain::steps(&LocalFiles, folder.path()).expect("there")
    };
    let steps = [1, 2, 3, 4, 7, 9];
    assert_eq!(left(None, &steps), [7, 9]);
    assert_eq!(left(Some(3), &steps), [3, 7, 9]);
    assert_eq!(left(Some(7), &steps), [7, 9], "it is one of the newest");
    assert_eq!(left(Some(2), &steps), [7, 9], "it is no checkpoint");
    assert_eq!(left(Some(5), &steps), [7, 9], "it lies in another folder");
}

#[test]
fn c_2_a_step_without_a_directory_is_not_there_and_one_without_a_manifest_is_partial() {
    let folder = tempfile::tempdir().expect("a folder");
    let of = |step| folder.path().join(step_directory(step));
    for step in [4, 5, 9] {
        std::fs::create_dir(of(step)).expect("ours");
    }
    match load(&LocalFiles, &of(7)) {
        Err(CheckpointLoadError::NoSuchStep { path, others }) => {
            assert_eq!((path, others), (of(7), vec![4, 5, 9]));
        }
        other => panic!("{other:?}"),
    }
    let partial = load(&LocalFiles, &of(5));
    let is_partial =
        matches!(partial, Err(CheckpointLoadError::Damaged { damage: Damage::Partial, .. }));
    assert!(is_partial, "{partial:?}");
    let elsewhere = folder.path().join("not mounted").join(step_directory(5));
    match load(&LocalFiles, &elsewhere) {
        Err(CheckpointLoadError::NoSuchStep { others, .. }) => assert_eq!(others, [0; 0]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn c_4_nothing_is_removed_where_a_link_among_the_checkpoints_leads() {
    let folder = tempfile::tempdir().expect("a folder");
    let (root, elsewhere) = (folder.path().join("root"), folder.path().join("elsewhere"));
    std::fs::create_dir_all(&elsewhere).expect("ours");
    for step in [2, 5] {
        std::fs::create_dir_all(root.join(step_directory(step))).expect("ours");
        std::fs::write(root.join(step_directory(step)).join("part"), "x").expect("ours");
    }
    for name in ["manifest.json", "notes"] {
        std::fs::write(elsewhere.join(name), "x").expect("ours");
    }
    for step in [1, 4] {
        std::os::unix::fs::symlink(&elsewhere, root.join(step_directory(step))).expect("ours");
    }
    assert_eq!(retain(&LocalFiles, &root, Retention::newest(1), 5), Vec::<String>::new());
    let left = |step| root.join(step_directory(step)).exists();
    assert_eq!([1, 2, 4, 5].map(left), [true, false, true, true]);
    std::fs::remove_file(elsewhere.join("manifest.json")).expect("ours");
    assert_eq!(clear_partial(&LocalFiles, &root), Vec::<String>::new());
    assert_eq!([1, 4, 5].map(left), [true, true, false]);
    assert!(elsewhere.join("notes").exists());
}

#[test]
fn c_4_what_cannot_be_listed_is_named_and_stays_and_counts_for_no_checkpoint() {
    let folder = tempfile::tempdir().expect("a folder");
    for step in [1, 2, 4] {
        std::fs::create_dir(folder.path().join(step_directory(step))).expect("ours");
        let manifest = folder.path().join(step_directory(step)).join("manifest.json");
        std::fs::write(manifest, "x").expect("ours");
    }
    let unlisted = folder.path().join(step_directory(3));
    std::fs::write(&unlisted, "a file gives an error to whoever lists it").expect("ours");
    let named = |troubles: &[String]| {
        let begin = format!("{} cannot be listed: ", unlisted.display());
        assert!(matches!(troubles, [one] if one.starts_with(&begin)), "{troubles:?}");
    };
    named(&retain(&LocalFiles, folder.path(), Retention::newest(2), 4));
    let left = |step| folder.path().join(step_directory(step)).exists();
    assert_eq!([1, 2, 3, 4].map(left), [false, true, true, true]);
    named(&clear_partial(&LocalFiles, folder.path()));
    let (set_aside, troubles) = set_aside_after(&LocalFiles, &unlisted, Some(0));
    assert_eq!(set_aside, Vec::<String>::new());
    named(&troubles);
    let missing = folder.path().join("missing");
    assert_eq!(set_aside_after(&LocalFiles, &missing, None), (Vec::new(), Vec::new()));
    let tensors = [];
    let snapshot = Snapshot { bytes: &[1], tensors: &tensors, position: &json!(null) };
    let refused = write_part(&LocalFiles, &unlisted, &attempt(1), 0, &snapshot, &mut |_| Ok(()));
    let refused = refused.expect_err("nobody can write there").to_string();
    assert!(refused.contains("listing the directory"), "{refused}");
}

#[test]
fn g_9_only_plain_files_are_opened() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("manifest.json");
    std::fs::create_dir(&path).expect("ours");
    let refused = LocalFiles.open(&path).err().expect("a pipe's reader would wait").to_string();
    assert!(refused.contains("no plain file"), "{refused}");
    std::fs::remove_dir(&path).expect("ours");
    std::fs::write(&path, "x").expect("ours");
    assert!(LocalFiles.open(&path).is_ok());
}

#[test]
fn a_folder_that_is_a_link_to_nowhere_is_named_as_such() {
    let root = tempfile::tempdir().expect("a folder");
    let link = root.path().join("ck");
    std::os::unix::fs::symlink(root.path().join("unmounted"), &link).expect("made");
    let (bytes, tensors) = ([1; 8], []);
    let snapshot = Snapshot { bytes: &bytes, tensors: &tensors, position: &json!(null) };
    for folder in [link.clone(), link.join("below")] {
        let refused = write_part(&LocalFiles, &folder, &attempt(5), 0, &snapshot, &mut |_| Ok(()));
        let told = refused.expect_err("nothing is there").to_string();
        let begin = format!("{} is a link to a place that does not exist", link.display());
        assert!(told.starts_with(&begin), "{told}");
    }
}

#[test]
fn a_file_with_the_name_of_a_step_is_no_checkpoint_and_is_not_looked_at_again() {
    let root = tempfile::tempdir().expect("a folder");
    std::fs::write(root.path().join(step_directory(30)), "notes").expect("written");
    let mut search = CheckpointSearch::newest(&LocalFiles, root.path(), None).expect("listed");
    assert_eq!(search.unreadable(), None, "only what cannot be read is tried again");
    assert_eq!(search.trace_of(30), CheckpointTrace::None);
    let told = search.offer().expect_err("it may be meant as one").to_string();
    assert!(told.contains("step-0000000030") && told.contains("no folder"), "{told}");
}
