//! Compares the records of the training programs, at the end of a soak or of a torture. Every rank of a generation must have the
//! same bits when the generation begins and after each commit. After each epoch the state must be that of a training in which
//! every sample counted once.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

use super::program::{RECORDS, digests_of_epochs};

/// A worker's record of one commit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct SoakRecord {
    pub(super) generation: u64,
    pub(super) steps: u64,
    pub(super) epoch: u64,
    /// 1 if every sample was trained as often as there were epochs, otherwise 0.
    pub(super) is_whole: u64,
    /// Digest of the whole state.
    pub(super) state: u64,
    /// Digest of the state's sums.
    pub(super) sums: u64,
}

impl SoakRecord {
    const BYTES: usize = 48;

    /// Encodes the record in the machine's byte order: it never leaves the machine.
    pub(super) fn to_bytes(self) -> [u8; Self::BYTES] {
        let Self { generation, steps, epoch, is_whole, state, sums } = self;
        let mut bytes = [0; Self::BYTES];
        let numbers = [generation, steps, epoch, is_whole, state, sums];
        for (place, number) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(numbers) {
            *place = number.to_ne_bytes();
        }
        bytes
    }

    fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let numbers = bytes.as_chunks::<8>().0;
        let number = |index: usize| u64::from_ne_bytes(numbers[index]);
        Self {
            generation: number(0),
            steps: number(1),
            epoch: number(2),
            is_whole: number(3),
            state: number(4),
            sums: number(5),
        }
    }
}

/// The result of comparing all records.
#[derive(Debug, Default)]
pub(crate) struct RecordComparison {
    pub(crate) commits: u64,
    pub(crate) epochs: u64,
    /// Commits that more than one rank recorded.
    pub(super) compared: u64,
}

/// The records of a job, by life: a life ends when every process is killed, and the next one counts its generations anew.
#[derive(Debug, Default)]
pub(crate) struct JobRecords {
    lives: Vec<Vec<SoakRecord>>,
}

impl JobRecords {
    /// The folder of the records of a life whose program was given this folder.
    pub(crate) fn folder(life: &Path) -> PathBuf {
        life.join(RECORDS)
    }

    /// Reads the records of a life. Returns the number of its last commit, 0 if there is none.
    pub(crate) fn add_life(&mut self, life: &Path) -> anyhow::Result<u64> {
        let records = read(life)?;
        // The program commits after each step and after each epoch.
        let last = records.iter().map(|record| record.steps + record.epoch).max();
        self.lives.push(records);
        Ok(last.unwrap_or_default())
    }

    /// Checks all lives: the ranks of each agree, and together they saw each epoch whole.
    pub(crate) fn check(&self) -> anyhow::Result<RecordComparison> {
        let mut all = RecordComparison::default();
        for records in &self.lives {
            let (commits, compared) = compare_ranks(records)?;
            (all.commits, all.compared) = (all.commits + commits, all.compared + compared);
        }
        all.epochs = check_epochs(&self.lives.concat())?;
        Ok(all)
    }
}

/// Checks all records below a job's folder.
pub(super) fn check(folder: &Path) -> anyhow::Result<RecordComparison> {
    compare(&read(folder)?)
}

/// Reads the records below a folder.
fn read(folder: &Path) -> anyhow::Result<Vec<SoakRecord>> {
    let mut records = Vec::new();
    for entry in fs::read_dir(folder.join(RECORDS))? {
        let bytes = fs::read(entry?.path())?;
        // A process that was killed may have left half of its last record.
        let (whole, _rest) = bytes.as_chunks::<{ SoakRecord::BYTES }>();
        records.extend(whole.iter().map(SoakRecord::from_bytes));
    }
    Ok(records)
}

fn compare(records: &[SoakRecord]) -> anyhow::Result<RecordComparison> {
    let (commits, compared) = compare_ranks(records)?;
    Ok(RecordComparison { commits, epochs: check_epochs(records)?, compared })
}

/// Checks that all ranks of a commit recorded the same. Returns the number of commits, and of those that several ranks recorded.
fn compare_ranks(records: &[SoakRecord]) -> anyhow::Result<(u64, u64)> {
    let mut commits: BTreeMap<(u64, u64, u64), (SoakRecord, u64)> = BTreeMap::new();
    for record in records {
        let key = (record.generation, record.steps, record.epoch);
        let (first, count) = commits.entry(key).or_insert((*record, 0));
        ensure!(first == record, "two ranks of one commit differ: {first:?} and {record:?}");
        *count += 1;
    }
    let compared = commits.values().filter(|(_, count)| *count > 1).count() as u64;
    Ok((commits.len() as u64, compared))
}

/// Checks that every epoch that has ended trained each sample once. Returns how many have.
fn check_epochs(records: &[SoakRecord]) -> anyhow::Result<u64> {
    let epochs = records.iter().map(|record| record.epoch).max().context("nobody has committed")?;
    let digests: Vec<u64> = digests_of_epochs().take(epochs as usize + 1).collect();
    let mut seen = 0;
    for record in records.iter().filter(|record| record.is_whole == 1) {
        let expected = digests[record.epoch as usize];
        ensure!(record.sums == expected, "after epoch {} another state: {record:?}", record.epoch);
        seen = seen.max(record.epoch);
    }
    ensure!(seen == epochs, "epoch {epochs} ended, and its samples were not trained once each");
    let mut last_of_epoch: BTreeMap<u64, bool> = BTreeMap::new();
    for record in records {
        *last_of_epoch.entry(record.epoch).or_default() |= record.is_whole == 1;
    }
    let broken = last_of_epoch.iter().find(|(epoch, whole)| **epoch > 0 && !**whole);
    ensure!(broken.is_none(), "no rank saw every sample trained once at epoch {broken:?}");
    Ok(epochs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(epoch: u64, steps: u64, is_whole: u64) -> SoakRecord {
        let sums = digests_of_epochs().nth(epoch as usize).expect("there is no end of them");
        SoakRecord { generation: 1, steps, epoch, is_whole, state: steps, sums }
    }

    #[test]
    fn records_survive() {
        let record = record(2, 7, 1);
        assert_eq!(SoakRecord::from_bytes(&record.to_bytes()), record);
    }

    #[test]
    fn equal_ranks_and_whole_epochs_pass() {
        let records = [record(0, 1, 0), record(0, 1, 0), record(1, 1, 1)];
        let checked = compare(&records).expect("nothing is wrong");
        assert_eq!((checked.commits, checked.compared, checked.epochs), (2, 1, 1));
    }

    #[test]
    fn a_bit_that_differs_is_seen() {
        let other = SoakRecord { state: 9, ..record(0, 1, 0) };
        compare(&[record(0, 1, 0), other]).expect_err("two ranks differ");
    }

    #[test]
    fn lives_count_their_generations_anew_and_their_epochs_together() {
        let other = SoakRecord { state: 9, ..record(0, 1, 0) };
        let lives = vec![vec![record(0, 1, 0)], vec![other, record(1, 1, 1)]];
        let checked = JobRecords { lives }.check().expect("nothing is wrong");
        assert_eq!((checked.commits, checked.epochs), (3, 1));
        let lives = vec![vec![record(0, 1, 0)], vec![record(1, 1, 0)]];
        JobRecords { lives }.check().expect_err("no life saw a whole epoch");
    }

    #[test]
    fn a_sample_that_was_lost_is_seen() {
        compare(&[record(0, 1, 0), record(1, 1, 0)]).expect_err("no rank saw a whole epoch");
        let repeated = SoakRecord { sums: 3, ..record(1, 1, 1) };
        compare(&[repeated]).expect_err("the sums are not those of the epoch");
    }
}
