//! The contents of one file: the version that readers see, the safe version, and unsynced changes. Part of the
//! simulated disk.

use std::collections::BTreeMap;

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::SECTOR_BYTES;

/// A sector's bytes.
type Sector = [u8; SECTOR_BYTES];

/// Extent to which unsynced data survives a loss of power.
#[derive(Clone, Copy, Debug)]
enum Survival {
    Nothing,
    Everything,
    /// Each sector survives independently, in any state since the last sync.
    Any,
}

/// One file.
#[derive(Debug, Default)]
pub(super) struct Contents {
    seen: Vec<u8>,
    safe: Vec<u8>,
    /// Versions of each sector since the last sync, in order.
    unsynced: BTreeMap<usize, Vec<Sector>>,
    /// Lengths since the last sync.
    lengths: Vec<usize>,
}

impl Contents {
    pub(super) fn len(&self) -> usize {
        self.seen.len()
    }

    /// Reads; false beyond the end.
    pub(super) fn read(&self, offset: usize, out: &mut [u8]) -> bool {
        let part = offset.checked_add(out.len()).and_then(|end| self.seen.get(offset..end));
        part.is_some_and(|part| {
            out.copy_from_slice(part);
            true
        })
    }

    pub(super) fn set_len(&mut self, length: usize) {
        if length < self.seen.len() {
            // Bytes that are cut off are zero if the file grows again.
            let first = length / SECTOR_BYTES;
            self.seen[length..].fill(0);
            let last = self.seen.len().div_ceil(SECTOR_BYTES);
            self.note(first, last.max(first + 1));
        }
        self.seen.resize(length, 0);
        self.lengths.push(length);
    }

    pub(super) fn write(&mut self, offset: usize, data: &[u8]) {
        let end = offset + data.len();
        if end > self.seen.len() {
            self.seen.resize(end, 0);
            self.lengths.push(end);
        }
        self.seen[offset..end].copy_from_slice(data);
        self.note(offset / SECTOR_BYTES, end.div_ceil(SECTOR_BYTES));
    }

    fn sector(bytes: &[u8], number: usize) -> Sector {
        let mut sector = [0; SECTOR_BYTES];
        let start = (number * SECTOR_BYTES).min(bytes.len());
        let end = (start + SECTOR_BYTES).min(bytes.len());
        sector[..end - start].copy_from_slice(&bytes[start..end]);
        sector
    }

    /// Notes new contents of these sectors.
    fn note(&mut self, first: usize, end: usize) {
        for number in first..end {
            let sector = Self::sector(&self.seen, number);
            self.unsynced.entry(number).or_default().push(sector);
        }
    }

    /// Makes all written data safe.
    pub(super) fn sync(&mut self) {
        self.safe.resize(self.seen.len(), 0);
        for number in std::mem::take(&mut self.unsynced).into_keys() {
            let start = (number * SECTOR_BYTES).min(self.seen.len());
            let end = (start + SECTOR_BYTES).min(self.seen.len());
            self.safe[start..end].copy_from_slice(&self.seen[start..end]);
        }
        self.lengths.clear();
    }

    /// A failed sync. Some of the written data is safe. The rest is never written any more, though readers still see
    /// it.
    pub(super) fn sync_badly(&mut self, random: &mut ChaCha8Rng) {
        self.safe = self.survivors(Survival::Any, random);
        self.unsynced.clear();
        self.lengths.clear();
    }

    pub(super) fn lose_power(&mut self, random: &mut ChaCha8Rng) {
        let survival = match random.random_range(0..4) {
            0 => Survival::Nothing,
            1 => Survival::Everything,
            _ => Survival::Any,
        };
        self.safe = self.survivors(survival, random);
        self.seen.clone_from(&self.safe);
        self.unsynced.clear();
        self.lengths.clear();
    }

    fn survivors(&self, survival: Survival, random: &mut ChaCha8Rng) -> Vec<u8> {
        // Version 0 is the previous safe one; 1 to `count` are later ones.
        let mut pick = |count: usize| match survival {
            Survival::Nothing => 0,
            Survival::Everything => count,
            Survival::Any => random.random_range(0..=count),
        };
        let length = match pick(self.lengths.len()) {
            0 => self.safe.len(),
            number => self.lengths[number - 1],
        };
        let mut bytes = self.safe.clone();
        bytes.resize(length, 0);
        for (number, versions) in &self.unsynced {
            let version = pick(versions.len());
            let start = number * SECTOR_BYTES;
            if version == 0 || start >= length {
                continue;
            }
            let end = (start + SECTOR_BYTES).min(length);
            bytes[start..end].copy_from_slice(&versions[version - 1][..end - start]);
        }
        bytes
    }

    /// Flips one bit of safe data; false if there is none.
    pub(super) fn rot(&mut self, random: &mut ChaCha8Rng) -> bool {
        let written: Vec<usize> =
            (0..self.safe.len()).filter(|index| self.safe[*index] != 0).collect();
        if written.is_empty() {
            return false;
        }
        let index = written[random.random_range(0..written.len())];
        let bit = 1_u8 << random.random_range(0..8);
        self.safe[index] ^= bit;
        if let Some(byte) = self.seen.get_mut(index) {
            *byte ^= bit;
        }
        true
    }
}
