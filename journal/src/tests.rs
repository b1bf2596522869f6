//! Tests of the embedded store on a disk that loses and tears unsynced writes, that is full, or whose bits
//! flip.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::{Arc, Mutex, MutexGuard};

use proptest::prelude::*;
use redb::StorageBackend;

use crate::{
    FileJournal, Journal, JournalBatch, JournalBytes, JournalError, JournalIdentity, JournalPlace,
    JournalSnapshot, LoadedJournal, Occupant, Restored,
};

/// Bytes that a disk writes atomically.
const SECTOR_BYTES: usize = 512;

/// One file.
#[derive(Debug, Default)]
struct Platter {
    /// The bytes that survive a crash.
    synced: Vec<u8>,
    /// The bytes that are read.
    bytes: Vec<u8>,
}

#[derive(Debug, Default)]
struct State {
    files: Vec<Platter>,
    /// The indices of the files with the journal's name and with the draft's.
    journal: Option<usize>,
    draft: Option<usize>,
    bytes_max: Option<u64>,
    /// The number of writes, length changes, syncs and renames until the machine stops; `None`: it does not
    /// stop.
    stops_after: Option<u32>,
}

impl State {
    fn step(&mut self) -> io::Result<()> {
        match &mut self.stops_after {
            Some(0) => Err(io::Error::other("the machine has stopped")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Disk(Arc<Mutex<State>>);

impl Disk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no test panics with it")
    }

    /// The machine stops: each sector that was not synced is kept or lost, as `kept` says.
    fn crash(&self, mut kept: impl FnMut(usize) -> bool) {
        let mut state = self.state();
        for platter in &mut state.files {
            let length = if kept(0) { platter.bytes.len() } else { platter.synced.len() };
            let mut left = platter.synced.clone();
            left.resize(length, 0);
            for (index, sector) in left.chunks_mut(SECTOR_BYTES).enumerate() {
                let from = index * SECTOR_BYTES;
                let written = platter.bytes.get(from..(from + sector.len())).map(<[u8]>::to_vec);
                if let Some(written) = written
                    && kept(index + 1)
                {
                    sector.copy_from_slice(&written);
                }
            }
            platter.bytes.clone_from(&left);
            platter.synced = left;
        }
        state.stops_after = None;
    }

    fn journal(&self) -> Result<FileJournal, JournalError> {
        FileJournal::open_at(self.clone())
    }

    fn journal_bytes(&self) -> usize {
        let state = self.state();
        state.journal.map_or(0, |file| state.files[file].bytes.len())
    }
}

impl JournalPlace for Disk {
    type File = Handle;
    type Hold = ();

    fn read(&self) -> Result<JournalBytes<()>, JournalError> {
        let state = self.state();
        Ok(state.journal.map(|file| (state.files[file].bytes.clone(), ())))
    }

    fn draft(&self) -> Result<Handle, JournalError> {
        let mut state = self.state();
        state.step()?;
        state.files.push(Platter::default());
        let file = state.files.len() - 1;
        state.draft = Some(file);
        Ok(Handle { disk: self.clone(), file })
    }

    fn install(&self) -> Result<(), JournalError> {
        let file = self.state().draft.expect("it was made");
        Handle { disk: self.clone(), file }.sync_data()?;
        let mut state = self.state();
        state.step()?;
        state.journal = state.draft.take();
        Ok(())
    }

    fn occupant(&self) -> Result<Occupant, JournalError> {
        // Nobody else uses this disk.
        Ok(if self.state().journal.is_some() { Occupant::Ours } else { Occupant::Nobody })
    }

    fn name(&self) -> String {
        "journal".to_owned()
    }
}

#[derive(Debug)]
struct Handle {
    disk: Disk,
    file: usize,
}

impl StorageBackend for Handle {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.state().files[self.file].bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.disk.state();
        let from = offset as usize;
        let bytes = state.files[self.file].bytes.get(from..from + out.len());
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        state.step()?;
        if state.bytes_max.is_some_and(|max| length > max) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        state.files[self.file].bytes.resize(length as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.disk.state();
        state.step()?;
        let platter = &mut state.files[self.file];
        platter.synced = platter.bytes.clone();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.disk.state();
        state.step()?;
        let from = offset as usize;
        state.files[self.file].bytes[from..from + data.len()].copy_from_slice(data);
        Ok(())
    }
}

fn record(number: u64) -> Vec<u8> {
    vec![number as u8; 3 + (number as usize * 37) % 900]
}

fn batch(numbers: std::ops::RangeInclusive<u64>) -> JournalBatch {
    let first = *numbers.start();
    JournalBatch { first, records: numbers.map(record).collect(), snapshot: None }
}

/// Checks that each record is the one that was written under its number; returns the last number.
fn check(loaded: &LoadedJournal) -> u64 {
    let from = loaded.snapshot.as_ref().map_or(0, |snapshot| snapshot.upto);
    if let Some(snapshot) = &loaded.snapshot {
        assert_eq!(snapshot.bytes, record(snapshot.upto));
    }
    for (number, bytes) in (from + 1..).zip(&loaded.records) {
        assert_eq!(*bytes, record(number));
    }
    loaded.last()
}

#[test]
fn s_12_a_journal_whose_file_is_removed_is_written_anew_in_its_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("of the job/journal");
    let folder = path.parent().expect("it has one");
    fs::create_dir(folder).expect("made");
    let mut journal = FileJournal::open(&path).expect("made");
    journal.append(&batch(1..=3)).expect("stored");
    assert_eq!(journal.restore_if_removed().expect("there"), None);
    fs::remove_file(&path).expect("removed");
    journal.append(&batch(4..=5)).expect("stored in a new file");
    assert_eq!(journal.restore_if_removed().expect("there"), Some(Restored::Removed));
    fs::remove_dir_all(folder).expect("removed");
    let error = journal.append(&batch(6..=6)).expect_err("there is no folder");
    assert!(error.may_pass(), "{error}");
    fs::create_dir(folder).expect("made");
    assert_eq!(journal.restore_if_removed().expect("written"), Some(Restored::Removed));
    journal.append(&batch(6..=6)).expect("given again");
    let kept = FileJournal::read_beside_driver(&path).expect("read").expect("there");
    assert_eq!(check(&kept), 6);
    fs::remove_file(&path).expect("removed");
    let other = FileJournal::open(&path).expect("another driver's");
    let error = journal.append(&batch(7..=7)).expect_err("it has taken the place");
    assert!(matches!(error, JournalError::InUse), "{error}");
    drop(other);
}

/// The job and the term are the first two bytes of the last record.
fn identity(loaded: &LoadedJournal) -> Result<Option<JournalIdentity>, JournalError> {
    let Some(bytes) = loaded.records.last() else { return Ok(None) };
    let [job, term] = bytes[..] else {
        return Err(JournalError::Corrupt("no such record".to_owned()));
    };
    Ok(Some(JournalIdentity { job: format!("job {job}"), term: u64::from(term) }))
}

/// Stores records of a job and a term, from this number on.
fn append(journal: &mut FileJournal, first: u64, count: usize, (job, term): (u8, u8)) {
    let records = vec![vec![job, term]; count];
    journal.append(&JournalBatch { first, records, snapshot: None }).expect("stored");
}

/// A journal of five records of job 1 in term 2, whose place a journal of these records of a job and a term takes.
fn displaced(count: usize, whose: (u8, u8)) -> (tempfile::TempDir, FileJournal, FileJournal) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal");
    let mut ours = FileJournal::open(&path).expect("made").identified_by(identity);
    append(&mut ours, 1, 5, (1, 2));
    fs::rename(&path, folder.path().join("aside")).expect("put aside");
    let mut theirs = FileJournal::open(&path).expect("made");
    if count > 0 {
        append(&mut theirs, 1, count, whose);
    }
    (folder, ours, theirs)
}

#[test]
fn s_12_a_journal_replaces_an_older_one_of_its_job_that_comes_back() {
    // The same one, an older one, one of an earlier term, one in which no job was begun.
    for (count, whose) in [(5, (1, 2)), (3, (1, 2)), (5, (1, 1)), (0, (1, 1))] {
        for appends in [false, true] {
            let (folder, mut ours, theirs) = displaced(count, whose);
            drop(theirs);
            let last = if appends {
                append(&mut ours, 6, 1, (1, 2));
                6
            } else {
                5
            };
            let told = ours.restore_if_removed().expect("written");
            assert_eq!(told, Some(Restored::CameBack), "{count} records of {whose:?}");
            assert_eq!(ours.restore_if_removed().expect("there"), None, "it is told once");
            let path = folder.path().join("journal");
            let found = FileJournal::read_beside_driver(&path).expect("read").expect("there");
            assert_eq!((found.last(), &found.records[4][..]), (last, &[1, 2][..]));
            let error = FileJournal::open(&path).expect_err("it is held");
            assert!(matches!(error, JournalError::InUse), "{error}");
        }
    }
}

#[test]
fn s_12_a_journal_that_another_driver_has_is_left_to_it() {
    let (folder, mut ours, theirs) = displaced(3, (1, 2));
    let error = ours.restore_if_removed().expect_err("it is held");
    assert!(matches!(error, JournalError::InUse), "{error}");
    drop(theirs);
    // A lock alone is enough.
    let file = fs::File::open(folder.path().join("journal")).expect("there");
    file.try_lock().expect("free");
    let error = ours.restore_if_removed().expect_err("it is locked");
    assert!(matches!(error, JournalError::InUse), "{error}");
    drop(file);
    assert_eq!(ours.restore_if_removed().expect("free"), Some(Restored::CameBack));
}

#[test]
fn s_12_a_journal_of_another_job_or_a_newer_one_is_never_replaced() {
    let told = [
        (3, (7, 1), "it is of another job, job 7"),
        (
            5,
            (1, 3),
            "it is newer, of term 3 with 5 records, where this driver's is of term 2 with 5",
        ),
        (
            6,
            (1, 2),
            "it is newer, of term 2 with 6 records, where this driver's is of term 2 with 5",
        ),
        (
            8,
            (1, 1),
            "it is newer, of term 1 with 8 records, where this driver's is of term 2 with 5",
        ),
    ];
    for (count, whose, told) in told {
        let (folder, mut ours, theirs) = displaced(count, whose);
        drop(theirs);
        let path = folder.path().join("journal");
        let error = ours.restore_if_removed().expect_err(told);
        assert!(matches!(error, JournalError::Displaced { .. }), "{error}");
        assert!(!error.may_pass(), "the driver ends");
        let named = format!("another journal stands in its place, {}: {told}", path.display());
        assert_eq!(error.to_string(), named);
        let batch = JournalBatch { first: 6, records: vec![vec![1, 2]], snapshot: None };
        let error = ours.append(&batch).expect_err("nor by what is appended");
        assert!(matches!(error, JournalError::Displaced { .. }), "{error}");
        let found = FileJournal::read_beside_driver(&path).expect("read").expect("there");
        assert_eq!(found.last(), count as u64, "it is as it was");
    }
}

#[test]
fn s_12_what_is_no_journal_or_tells_no_job_is_never_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal");
    let mut ours = FileJournal::open(&path).expect("made").identified_by(identity);
    append(&mut ours, 1, 5, (1, 2));
    fs::remove_file(&path).expect("removed");
    fs::write(&path, "a person's notes").expect("written");
    let error = ours.restore_if_removed().expect_err("it is no journal");
    assert!(error.to_string().contains("it cannot be read"), "{error}");
    assert_eq!(fs::read_to_string(&path).expect("there"), "a person's notes");
    fs::remove_file(&path).expect("removed");
    fs::create_dir(&path).expect("made");
    let error = ours.restore_if_removed().expect_err("it is a folder");
    assert!(error.to_string().contains("it is no plain file"), "{error}");
    drop((folder, ours));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal");
    let mut ours = FileJournal::open(&path).expect("made");
    fs::remove_file(&path).expect("removed");
    drop(FileJournal::open(&path).expect("made"));
    let error = ours.restore_if_removed().expect_err("it knows no jobs");
    assert!(error.to_string().contains("nothing says whose it is"), "{error}");
}

/// A journal of five records of job 1 in term 2, after a write that failed. The place of its file is in this folder.
fn failed() -> (tempfile::TempDir, std::path::PathBuf, FileJournal) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal");
    let mut ours = FileJournal::open(&path).expect("made").identified_by(identity);
    append(&mut ours, 1, 5, (1, 2));
    let gap = JournalBatch { first: 9, records: vec![vec![1, 2]], snapshot: None };
    ours.append(&gap).expect_err("records are missing before it");
    (folder, path, ours)
}

#[test]
fn s_12_a_journal_that_is_removed_or_is_older_after_a_failed_write_is_written_anew() {
    let (folder, path, mut ours) = failed();
    fs::remove_file(&path).expect("removed");
    append(&mut ours, 6, 1, (1, 2));
    assert_eq!(ours.restore_if_removed().expect("there"), Some(Restored::Removed));
    let found = FileJournal::read_beside_driver(&path).expect("read").expect("there");
    assert_eq!(found.last(), 6);
    drop((folder, ours));
    let (_folder, path, mut ours) = failed();
    fs::remove_file(&path).expect("removed");
    append(&mut FileJournal::open(&path).expect("made"), 1, 3, (1, 1));
    append(&mut ours, 6, 1, (1, 2));
    assert_eq!(ours.restore_if_removed().expect("there"), Some(Restored::CameBack));
    let found = FileJournal::read_beside_driver(&path).expect("read").expect("there");
    assert_eq!(found.last(), 6);
}

#[test]
fn s_12_after_a_failed_write_another_job_s_journal_is_left_as_it_is() {
    let (_folder, path, mut ours) = failed();
    fs::remove_file(&path).expect("removed");
    append(&mut FileJournal::open(&path).expect("made"), 1, 8, (7, 1));
    let before = fs::read(&path).expect("there");
    let batch = JournalBatch { first: 6, records: vec![vec![1, 2]], snapshot: None };
    let error = ours.append(&batch).expect_err("it is of another job");
    assert!(matches!(error, JournalError::Displaced { .. }), "{error}");
    assert_eq!(fs::read(&path).expect("there"), before);
}

#[test]
fn s_12_after_a_failed_write_another_driver_keeps_the_journal_that_it_has_opened() {
    let (_folder, path, mut ours) = failed();
    let theirs = FileJournal::open(&path).expect("nobody has it");
    let batch = JournalBatch { first: 6, records: vec![vec![1, 2]], snapshot: None };
    let error = ours.append(&batch).expect_err("it is held");
    assert!(matches!(error, JournalError::InUse), "{error}");
    drop(theirs);
}

#[test]
fn a_journal_of_a_job_that_is_over_does_not_come_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal");
    let mut journal = FileJournal::open(&path).expect("made");
    journal.append(&batch(1..=3)).expect("stored");
    journal.retire();
    fs::remove_file(&path).expect("removed");
    journal.append(&batch(4..=5)).expect("dropped");
    assert_eq!(journal.restore_if_removed().expect("not looked for"), None);
    assert!(FileJournal::read_beside_driver(&path).expect("read").is_none());
}

#[test]
fn what_was_appended_is_loaded_and_a_snapshot_bounds_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal");
    let mut journal = FileJournal::open(&path).expect("made");
    assert_eq!(journal.load().expect("empty"), LoadedJournal::default());
    journal.append(&batch(1..=3)).expect("stored");
    journal.append(&batch(2..=5)).expect("given again, with more at its end");
    drop(journal);
    let mut journal = FileJournal::open(&path).expect("there");
    let loaded = journal.load().expect("read");
    assert_eq!((check(&loaded), loaded.records.len()), (5, 5));
    let snapshot = Some(JournalSnapshot { upto: 6, bytes: record(6) });
    journal.append(&JournalBatch { snapshot, ..batch(6..=7) }).expect("stored");
    let loaded = journal.load().expect("read");
    assert_eq!((check(&loaded), loaded.records.len()), (7, 1));
    let error = journal.append(&batch(9..=9)).expect_err("a gap");
    assert!(matches!(error, JournalError::Corrupt(_)), "{error}");
    journal.append(&batch(8..=8)).expect("usable after an error");
    assert!(matches!(FileJournal::open(&path), Err(JournalError::InUse)));
    let mode = fs::metadata(&path).expect("there").permissions().mode() & 0o777;
    assert_eq!(mode, 0o600, "secrets are in it");
}

#[test]
fn a_file_that_was_cut_off_anywhere_is_damaged() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal");
    let mut journal = FileJournal::open(&path).expect("made");
    for number in 1..=40 {
        journal.append(&batch(number..=number)).expect("stored");
    }
    // As a crash leaves it: it was not closed.
    let whole = fs::read(&path).expect("there");
    drop(journal);
    for length in (0..whole.len()).step_by(1021) {
        fs::write(&path, &whole[..length]).expect("cut off");
        let error = FileJournal::open(&path).expect_err("its end is missing");
        assert!(matches!(error, JournalError::Corrupt(_)), "{length} bytes: {error:?}");
    }
}

#[test]
fn a_full_disk_is_told_and_room_mends_it() {
    let disk = Disk::default();
    let mut journal = disk.journal().expect("made");
    journal.append(&batch(1..=1)).expect("stored");
    let length = disk.journal_bytes() as u64;
    disk.state().bytes_max = Some(length);
    let big = JournalBatch { first: 2, records: vec![vec![7; 4 << 20]], snapshot: None };
    let error = journal.append(&big).expect_err("no room");
    assert!(matches!(error, JournalError::Full(_)) && error.may_pass(), "{error}");
    disk.state().bytes_max = None;
    journal.append(&big).expect("there is room");
    assert_eq!(journal.load().expect("read").last(), 2);
}

#[test]
fn a_directory_that_cannot_be_written_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let closed = folder.path().join("closed");
    fs::create_dir(&closed).expect("made");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o500)).expect("closed");
    // Root can still write to a closed folder. A path below a file fails for every user.
    let result = FileJournal::open(&closed.join("journal"));
    if let Err(error) = result {
        assert!(matches!(error, JournalError::ReadOnly(_)), "{error}");
    }
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).expect("opened");
    fs::write(folder.path().join("file"), "").expect("written");
    assert!(FileJournal::open(&folder.path().join("file/journal")).is_err());
}

#[test]
fn damage_is_told_and_never_taken_for_less() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal");
    let mut journal = FileJournal::open(&path).expect("made");
    journal.append(&batch(1..=40)).expect("stored");
    drop(journal);
    let whole = fs::read(&path).expect("there");
    let load = || FileJournal::open(&path).and_then(|mut journal| journal.load());
    for length in [0, 1, 100, 4096, whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..length]).expect("cut");
        match load() {
            Err(error) => assert!(!error.to_string().is_empty()),
            Ok(loaded) => assert_eq!(check(&loaded), 40, "cut at {length}"),
        }
    }
    for at in (0..whole.len()).step_by(whole.len() / 300) {
        let mut turned = whole.clone();
        turned[at] ^= 0x10;
        fs::write(&path, &turned).expect("written");
        if let Ok(loaded) = load() {
            assert_eq!(check(&loaded), 40, "a bit at {at}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// D-4: wherever the machine stops, and whichever unsynced sectors it has written by then, every
    /// acknowledged record is there. The records are those that were written, without a gap.
    #[test]
    fn what_was_acknowledged_survives_a_crash_at_any_step(
        stops in prop::collection::vec(1u32..120, 1..5),
        sizes in prop::collection::vec((1u64..6, any::<bool>()), 40),
        seed in any::<u64>(),
    ) {
        let disk = Disk::default();
        drop(disk.journal().expect("made"));
        let mut acknowledged = 0;
        let mut sizes = sizes.into_iter().cycle();
        let mut noise = BTreeMap::new();
        let mut draw = seed;
        for stop in stops {
            disk.state().stops_after = Some(stop);
            let mut last = acknowledged;
            if let Ok(mut journal) = disk.journal() {
                last = check(&journal.load().expect("intact"));
                for (records, snaps) in sizes.by_ref().take(40) {
                    let snapshot = snaps.then(|| JournalSnapshot { upto: last, bytes: record(last) });
                    let snapshot = snapshot.filter(|snapshot| snapshot.upto > 0);
                    let next = JournalBatch { snapshot, ..batch(last + 1..=last + records) };
                    if journal.append(&next).is_err() {
                        break;
                    }
                    last = next.last();
                    acknowledged = last;
                }
            }
            prop_assert!(last >= acknowledged);
            noise.clear();
            disk.crash(|sector| *noise.entry(sector).or_insert_with(|| {
                draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                draw >> 63 == 1
            }));
            let mut journal = disk.journal().expect("a journal after the crash");
            let loaded = check(&journal.load().expect("intact"));
            prop_assert!(loaded >= acknowledged, "{loaded} of {acknowledged}");
            acknowledged = loaded;
        }
    }
}

#[test]
fn a_journal_is_read_beside_the_driver_that_holds_it_and_not_changed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal.redb");
    assert_eq!(FileJournal::read_beside_driver(&path).expect("no fault"), None);
    let mut journal = FileJournal::open(&path).expect("made");
    for first in 1..=20 {
        let records = vec![vec![first as u8; 300]];
        journal.append(&JournalBatch { first, records, snapshot: None }).expect("stored");
        let bytes = fs::read(&path).expect("there");
        let read = FileJournal::read_beside_driver(&path).expect("sound").expect("there");
        assert_eq!(Some(&read), journal.load().ok().as_ref());
        assert_eq!((read.last(), fs::read(&path).expect("there") == bytes), (first, true));
    }
    drop(journal);
    fs::write(&path, "no journal").expect("ours");
    let error = FileJournal::read_beside_driver(&path).expect_err("damaged");
    assert!(matches!(error, JournalError::Corrupt(_)), "{error}");
}

#[test]
fn each_error_names_its_own_way_out() {
    let ways_out = [
        (io::ErrorKind::FileTooLarge, "ulimit -f"),
        (io::ErrorKind::StorageFull, "make room"),
        (io::ErrorKind::ReadOnlyFilesystem, "--state-dir"),
        (io::ErrorKind::PermissionDenied, "--state-dir"),
        (io::ErrorKind::InvalidData, "an intact copy"),
        (io::ErrorKind::TimedOut, "what the system says"),
    ];
    for (kind, way_out) in ways_out {
        let hint = JournalError::from(io::Error::from(kind)).hint();
        assert!(hint.contains(way_out), "{kind}: {hint}");
    }
    assert!(JournalError::InUse.hint().contains("that driver"));
}
