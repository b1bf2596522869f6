//! The embedded store on a disk that loses and tears what was not synced, that is full, or whose bits turn.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::{Arc, Mutex, MutexGuard};

use proptest::prelude::*;
use redb::StorageBackend;

use crate::{Batch, FileJournal, Journal, JournalError, Loaded, Snapshot};

/// Bytes that a disk writes as one, or not at all.
const SECTOR_BYTES: usize = 512;

#[derive(Debug, Default)]
struct Platter {
    /// What a crash leaves.
    synced: Vec<u8>,
    /// What is read.
    bytes: Vec<u8>,
    bytes_max: Option<u64>,
    /// Writes, length changes and syncs until the machine stops; none: it does not.
    stops_after: Option<u32>,
}

impl Platter {
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
struct Disk(Arc<Mutex<Platter>>);

impl Disk {
    fn platter(&self) -> MutexGuard<'_, Platter> {
        self.0.lock().expect("no test panics with it")
    }

    /// The machine stops: each sector that was not synced is kept or lost, as `kept` says.
    fn crash(&self, mut kept: impl FnMut(usize) -> bool) {
        let mut platter = self.platter();
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
        platter.stops_after = None;
    }

    fn journal(&self) -> Result<FileJournal, JournalError> {
        let disk = self.clone();
        FileJournal::open_on(move || disk.clone())
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.platter().bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let platter = self.platter();
        let from = offset as usize;
        let bytes = platter.bytes.get(from..from + out.len());
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut platter = self.platter();
        platter.step()?;
        if platter.bytes_max.is_some_and(|max| length > max) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        platter.bytes.resize(length as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut platter = self.platter();
        platter.step()?;
        platter.synced = platter.bytes.clone();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut platter = self.platter();
        platter.step()?;
        let from = offset as usize;
        platter.bytes[from..from + data.len()].copy_from_slice(data);
        Ok(())
    }
}

fn record(number: u64) -> Vec<u8> {
    vec![number as u8; 3 + (number as usize * 37) % 900]
}

fn batch(numbers: std::ops::RangeInclusive<u64>) -> Batch {
    let first = *numbers.start();
    Batch { first, records: numbers.map(record).collect(), snapshot: None }
}

/// The numbers of a journal's records; each is what was written under its number.
fn check(loaded: &Loaded) -> u64 {
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
fn what_was_appended_is_loaded_and_a_snapshot_bounds_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal");
    let mut journal = FileJournal::open(&path).expect("made");
    assert_eq!(journal.load().expect("empty"), Loaded::default());
    journal.append(&batch(1..=3)).expect("stored");
    journal.append(&batch(2..=5)).expect("given again, with more at its end");
    drop(journal);
    let mut journal = FileJournal::open(&path).expect("there");
    let loaded = journal.load().expect("read");
    assert_eq!((check(&loaded), loaded.records.len()), (5, 5));
    let snapshot = Some(Snapshot { upto: 6, bytes: record(6) });
    journal.append(&Batch { snapshot, ..batch(6..=7) }).expect("stored");
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
fn a_full_disk_is_told_and_room_mends_it() {
    let disk = Disk::default();
    let mut journal = disk.journal().expect("made");
    journal.append(&batch(1..=1)).expect("stored");
    let length = disk.platter().bytes.len() as u64;
    disk.platter().bytes_max = Some(length);
    let big = Batch { first: 2, records: vec![vec![7; 4 << 20]], snapshot: None };
    let error = journal.append(&big).expect_err("no room");
    assert!(matches!(error, JournalError::Full(_)) && error.may_pass(), "{error}");
    disk.platter().bytes_max = None;
    journal.append(&big).expect("there is room");
    assert_eq!(journal.load().expect("read").last(), 2);
}

#[test]
fn a_directory_that_cannot_be_written_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let closed = folder.path().join("closed");
    fs::create_dir(&closed).expect("made");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o500)).expect("closed");
    // Root writes there all the same; a file in the folder's place nobody can.
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

    /// D-4: wherever the machine stops, and whichever unsynced sectors it has written by then, every record
    /// that was acknowledged is there, and what is there is what was written, without a gap.
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
            disk.platter().stops_after = Some(stop);
            let mut last = acknowledged;
            if let Ok(mut journal) = disk.journal() {
                last = check(&journal.load().expect("intact"));
                for (records, snaps) in sizes.by_ref().take(40) {
                    let snapshot = snaps.then(|| Snapshot { upto: last, bytes: record(last) });
                    let snapshot = snapshot.filter(|snapshot| snapshot.upto > 0);
                    let next = Batch { snapshot, ..batch(last + 1..=last + records) };
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
