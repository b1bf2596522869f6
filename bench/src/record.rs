//! Records of a worker's commits: of fixed size, in a file of its own, one write each. Training programs write them,
//! benchmarks read them.

use std::fs;
use std::path::Path;

/// A commit of a worker.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct CommitRecord {
    /// Nanoseconds on `CLOCK_MONOTONIC`, after the commit.
    pub(crate) at_ns: u64,
    /// The generation in which it was made.
    pub(crate) generation: u64,
    /// The step.
    pub(crate) step: u64,
    /// World size then.
    pub(crate) world_size: u32,
    /// The worker's rank.
    pub(crate) rank: u32,
}

impl CommitRecord {
    /// Its size in a file.
    pub(crate) const BYTES: usize = 32;

    /// As bytes, in the machine's order: it never leaves the machine.
    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.at_ns.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.generation.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.step.to_ne_bytes());
        bytes[24..28].copy_from_slice(&self.world_size.to_ne_bytes());
        bytes[28..].copy_from_slice(&self.rank.to_ne_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let eight = |from: usize| {
            let mut part = [0; 8];
            part.copy_from_slice(&bytes[from..from + 8]);
            u64::from_ne_bytes(part)
        };
        let last = eight(24).to_ne_bytes();
        let [a, b, c, d, e, f, g, h] = last;
        Self {
            at_ns: eight(0),
            generation: eight(8),
            step: eight(16),
            world_size: u32::from_ne_bytes([a, b, c, d]),
            rank: u32::from_ne_bytes([e, f, g, h]),
        }
    }
}

/// The records of the worker with this process id, below `folder`; none before its first commit.
pub(crate) fn read(folder: &Path, pid: u32) -> Vec<CommitRecord> {
    let bytes = fs::read(folder.join(pid.to_string())).unwrap_or_default();
    let (whole, _rest) = bytes.as_chunks::<{ CommitRecord::BYTES }>();
    whole.iter().map(CommitRecord::from_bytes).collect()
}

/// The records of all workers so far, by process id.
pub(crate) fn all(folder: &Path) -> Vec<(u32, Vec<CommitRecord>)> {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let pids = files.filter_map(|file| file.file_name().to_str()?.parse().ok());
    pids.map(|pid| (pid, read(folder, pid))).collect()
}

/// Times at which a process of a script passed certain points, in nanoseconds on `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Marks {
    /// Its first line.
    pub(crate) began_ns: u64,
    /// Its imports are done.
    pub(crate) imported_ns: u64,
    /// It was in a process group.
    pub(crate) joined_ns: u64,
}

/// The marks of a process: three numbers in one file, beside its records.
pub(crate) fn marks(folder: &Path, pid: u32) -> Option<Marks> {
    let bytes = fs::read(folder.join(format!("{pid}.marks"))).ok()?;
    let ([began, imported, joined], []) = bytes.as_chunks::<8>() else { return None };
    let number = |bytes: &[u8; 8]| u64::from_ne_bytes(*bytes);
    Some(Marks {
        began_ns: number(began),
        imported_ns: number(imported),
        joined_ns: number(joined),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives() {
        let record =
            CommitRecord { at_ns: 1 << 40, generation: 2, step: 3, world_size: 4, rank: 5 };
        assert_eq!(CommitRecord::from_bytes(&record.to_bytes()), record);
    }
}
