//! Tests of the disk as properties over random histories, and of the journal's store on it.

use std::collections::BTreeMap;

use elastic_journal::{FileJournal, Journal, JournalBatch, JournalError, JournalSnapshot};
use elastic_runtime::random::stream;
use proptest::prelude::*;

use super::{Condition, Disk, DiskJournalPlace, SECTOR_BYTES};

fn disk(seed: u64) -> Disk {
    Disk::new(stream(seed, "disk", 0))
}

fn bytes(disk: &Disk, name: &str) -> Vec<u8> {
    let file = disk.open(name).expect("it is sound");
    let mut out = vec![0; file.len().expect("there is power") as usize];
    file.read(0, &mut out).expect("all of it");
    out
}

/// Makes a safe file of a kilobyte with this name.
fn safe_file(disk: &Disk, name: &str) {
    let file = disk.open(name).expect("it is sound");
    file.write(0, &[1; 1024]).expect("there is room");
    file.sync().expect("it is sound");
    disk.sync_directory().expect("it is sound");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    /// Synced data survives. Each unsynced sector is in a state that it had since the sync.
    #[test]
    fn what_is_synced_survives_and_the_rest_may(
        seed: u64,
        writes in prop::collection::vec((0_u64..3000, 1_usize..1500, any::<u8>(), any::<bool>()), 1..20),
    ) {
        let disk = disk(seed);
        let file = disk.open("f").expect("it is sound");
        disk.sync_directory().expect("it is sound");
        // The states of each sector since the last sync, and the lengths.
        let mut states: BTreeMap<usize, Vec<Vec<u8>>> = BTreeMap::new();
        let (mut now, mut lengths) = (Vec::new(), vec![0]);
        for (offset, length, byte, syncs) in writes {
            let (offset, end) = (offset as usize, offset as usize + length);
            now.resize(now.len().max(end), 0_u8);
            now[offset..end].fill(byte);
            file.write(offset as u64, &vec![byte; length]).expect("there is room");
            lengths.push(now.len());
            if syncs {
                file.sync().expect("it is sound");
                states.clear();
                lengths = vec![now.len()];
            }
            for number in 0..9 {
                let start = (number * SECTOR_BYTES).min(now.len());
                let end = (start + SECTOR_BYTES).min(now.len());
                let mut sector = now[start..end].to_vec();
                sector.resize(SECTOR_BYTES, 0);
                states.entry(number).or_insert_with(|| vec![vec![0; SECTOR_BYTES]; usize::from(!syncs)]).push(sector);
            }
        }
        disk.lose_power();
        let found = bytes(&disk, "f");
        prop_assert!(lengths.contains(&found.len()));
        for (number, part) in found.chunks(SECTOR_BYTES).enumerate() {
            let known = states[&number].iter().any(|state| state.starts_with(part) || is_cut(state, part));
            prop_assert!(known, "sector {number} is in a state that it never had");
        }
    }

    /// The journal's store on the disk: records that `append` has acknowledged are there after any crash, in order.
    /// Additional records were given to it.
    #[test]
    fn d_4_what_the_journal_acknowledged_survives(
        seed: u64,
        steps in prop::collection::vec((0_u8..10, 1_usize..4), 1..12),
    ) {
        let disk = disk(seed);
        let mut journal = open(&disk).expect("an empty disk");
        let (mut acknowledged, mut given) = (0_u64, 0_u64);
        for (kind, count) in steps {
            let condition = match kind {
                0 => Condition::Full,
                1 => Condition::ReadOnly,
                2 => Condition::FailsSyncs,
                _ => Condition::Sound,
            };
            disk.set_condition(condition);
            // Unacknowledged records are given again, with more at their end.
            let records: Vec<Vec<u8>> =
                (acknowledged + 1..=given + count as u64).map(record).collect();
            let batch = JournalBatch { first: acknowledged + 1, snapshot: snapshot(kind, acknowledged), records };
            given = batch.last();
            match journal.append(&batch) {
                Ok(()) => acknowledged = given,
                Err(error) => prop_assert!(condition != Condition::Sound, "{error}"),
            }
            disk.set_condition(Condition::Sound);
            if kind >= 8 {
                drop(journal);
                disk.lose_power();
                journal = open(&disk).expect("what was acknowledged");
            }
            let loaded = journal.load().expect("nothing is damaged");
            prop_assert!((acknowledged..=given).contains(&loaded.last()), "{loaded:?}");
            let from = loaded.snapshot.as_ref().map_or(0, |snapshot| snapshot.upto);
            for (number, found) in (from + 1..).zip(&loaded.records) {
                prop_assert_eq!(found, &record(number));
            }
            // Loaded records count: a driver goes on from them.
            (acknowledged, given) = (loaded.last(), loaded.last());
        }
    }
}

/// Whether the file's end has cut this sector short.
fn is_cut(state: &[u8], part: &[u8]) -> bool {
    part.len() < SECTOR_BYTES && state[..part.len()] == *part
}

fn record(number: u64) -> Vec<u8> {
    vec![number as u8; 40 + number as usize % 700]
}

fn snapshot(kind: u8, upto: u64) -> Option<JournalSnapshot> {
    (kind == 5 && upto > 0).then(|| JournalSnapshot { upto, bytes: record(upto) })
}

fn open(disk: &Disk) -> Result<FileJournal, JournalError> {
    FileJournal::open_at(DiskJournalPlace::new(disk.clone(), "journal"))
}

/// Data of a failed sync is visible in the file, but not safe. No driver builds on it: neither the one that saw the
/// error, nor the next one, which did not.
#[test]
fn d_4_what_follows_a_failed_sync_survives_the_loss_of_power() {
    for seed in 0..300 {
        let is_restarted = seed % 2 == 0;
        let disk = disk(seed);
        let mut journal = open(&disk).expect("an empty disk");
        let batch = |numbers: std::ops::RangeInclusive<u64>| JournalBatch {
            first: *numbers.start(),
            records: numbers.map(record).collect(),
            snapshot: None,
        };
        journal.append(&batch(1..=20)).expect("it is sound");
        disk.set_condition(Condition::FailsSyncs);
        journal.append(&batch(21..=40)).expect_err("it fails");
        disk.set_condition(Condition::Sound);
        if is_restarted {
            drop(journal);
            disk.detach();
            journal = open(&disk).expect("it is sound");
            let last = journal.load().expect("nothing is damaged").last();
            journal.append(&batch(last + 1..=41)).expect("it is sound");
        } else {
            journal.append(&batch(21..=41)).expect("it is sound");
        }
        drop(journal);
        disk.lose_power();
        let loaded = open(&disk).and_then(|mut journal| journal.load());
        assert_eq!(loaded.expect("what was acknowledged").last(), 41, "seed {seed}");
    }
}

#[test]
fn a_name_that_was_not_synced_may_be_lost_and_contents_with_it() {
    let found: Vec<bool> = (0..20)
        .map(|seed| {
            let disk = disk(seed);
            let file = disk.open("f").expect("it is sound");
            file.write(0, b"x").expect("there is room");
            file.sync().expect("it is sound");
            disk.lose_power();
            disk.exists("f")
        })
        .collect();
    assert!(found.contains(&true) && found.contains(&false));
}

#[test]
fn a_rename_is_there_whole_or_not_at_all() {
    for seed in 0..20 {
        let disk = disk(seed);
        safe_file(&disk, "draft");
        disk.rename("draft", "f").expect("it is there");
        disk.lose_power();
        assert_ne!(disk.exists("draft"), disk.exists("f"));
    }
}

#[test]
fn a_sync_that_fails_loses_what_the_next_one_does_not_write() {
    let lost = (0..20).filter(|seed| {
        let disk = disk(*seed);
        safe_file(&disk, "f");
        let file = disk.open("f").expect("it is there");
        file.write(0, &[2; SECTOR_BYTES]).expect("there is room");
        disk.set_condition(Condition::FailsSyncs);
        file.sync().expect_err("it fails");
        disk.set_condition(Condition::Sound);
        file.sync().expect("there is nothing left to write");
        assert_eq!(bytes(&disk, "f")[0], 2, "readers see it as long as there is power");
        disk.lose_power();
        bytes(&disk, "f")[0] == 1
    });
    assert!((1..20).contains(&lost.count()));
}

#[test]
fn a_full_disk_takes_no_more_and_a_read_only_one_nothing() {
    let disk = disk(1);
    safe_file(&disk, "f");
    let file = disk.open("f").expect("it is there");
    disk.set_condition(Condition::Full);
    file.write(0, b"in its place").expect("that needs no room");
    let error = file.write(1020, b"longer").expect_err("that does");
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    disk.set_condition(Condition::ReadOnly);
    let error = file.write(0, b"x").expect_err("not now");
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert!(disk.rename("f", "g").is_err() && disk.remove("f").is_err());
}

#[test]
fn what_rots_is_one_bit() {
    let disk = disk(7);
    safe_file(&disk, "f");
    let before = bytes(&disk, "f");
    assert!(disk.rot("f"));
    let after = bytes(&disk, "f");
    let flipped: u32 = before.iter().zip(&after).map(|(a, b)| (a ^ b).count_ones()).sum();
    assert_eq!(flipped, 1);
}

#[test]
fn a_journal_that_rots_is_not_read_as_if_it_were_whole() {
    let mut noticed = 0;
    for seed in 0..40 {
        let disk = disk(seed);
        let mut journal = open(&disk).expect("an empty disk");
        let records: Vec<Vec<u8>> = (1..=20).map(record).collect();
        journal
            .append(&JournalBatch { first: 1, records: records.clone(), snapshot: None })
            .expect("room");
        drop(journal);
        disk.rot("journal");
        match open(&disk).and_then(|mut journal| journal.load()) {
            Ok(loaded) => assert_eq!(loaded.records, records, "what is told is what was written"),
            Err(error) => {
                assert!(matches!(error, JournalError::Corrupt(_)), "{error}");
                noticed += 1;
            }
        }
    }
    assert!(noticed > 0);
}

#[test]
fn a_seed_is_a_fate() {
    let fate = |seed| {
        let disk = disk(seed);
        let file = disk.open("f").expect("it is sound");
        disk.sync_directory().expect("it is sound");
        for at in 0..50 {
            file.write(at * 100, &[at as u8 + 1; 100]).expect("there is room");
        }
        disk.lose_power();
        bytes(&disk, "f")
    };
    let fates: std::collections::BTreeSet<_> = (0..20).map(fate).collect();
    assert!(fates.len() > 5);
    assert_eq!(fate(3), fate(3));
}

/// Found by the simulation (actors, seed 915064): the driver gave its job up, with a journal that was said to be damaged.
#[test]
fn s_12_a_journal_that_is_removed_after_an_error_is_written_anew() {
    let one = |number: u64| JournalBatch {
        first: number,
        records: vec![vec![number as u8; 3_000]],
        snapshot: None,
    };
    for condition in [Condition::FailsSyncs, Condition::Full, Condition::ReadOnly] {
        let disk = disk(1);
        let place = DiskJournalPlace::new(disk.clone(), "journal");
        let mut journal = FileJournal::open_at(place).expect("the disk is sound");
        (1..=9).for_each(|number| journal.append(&one(number)).expect("it is sound"));
        disk.set_condition(condition);
        // A full disk has the room that the file has.
        let failed = (10..1_000).map(|number| journal.append(&one(number))).find(Result::is_err);
        assert!(matches!(failed, Some(Err(error)) if error.may_pass()), "{condition:?}");
        disk.set_condition(Condition::Sound);
        disk.remove_by_hand("journal");
        let again = (10..1_000).map(|number| journal.append(&one(number))).find(Result::is_ok);
        assert!(matches!(again, Some(Ok(()))), "{condition:?}");
        let loaded = journal.load().expect("it is whole");
        let known: Vec<Vec<u8>> = (1..=9).map(|number| vec![number; 3_000]).collect();
        assert_eq!(loaded.records[..9], known, "{condition:?}");
    }
}
