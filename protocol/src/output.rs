//! Settings of workers' output: destination and permissions. Set on the command line, sent to agents, applied by them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// A selection of a process's two streams.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Streams {
    /// Whether stdout is selected.
    pub stdout: bool,
    /// Whether stderr is selected.
    pub stderr: bool,
}

impl Streams {
    /// Neither stream.
    pub const NONE: Self = Self { stdout: false, stderr: false };

    /// A selection by torch's number: 0 none, 1 stdout, 2 stderr, 3 both.
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            0..=3 => Some(Self { stdout: number & 1 != 0, stderr: number & 2 != 0 }),
            _ => None,
        }
    }
}

/// A selection of streams for each local rank.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct StreamMap {
    /// Selection for the local ranks that are not named.
    pub others: Streams,
    /// Selections by local rank.
    pub named: BTreeMap<u32, Streams>,
}

impl StreamMap {
    /// The selection for a local rank.
    pub fn of(&self, local_rank: u32) -> Streams {
        self.named.get(&local_rank).copied().unwrap_or(self.others)
    }

    /// Whether no stream is selected for any local rank.
    pub fn is_empty(&self) -> bool {
        self.others == Streams::NONE && self.named.values().all(|it| *it == Streams::NONE)
    }
}

/// Permissions that the event log and output files do not get, as bits of a file's mode. Their owner keeps all of his,
/// and nobody else may ever write to them.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct FileUmask(u32);

impl FileUmask {
    /// Nobody but the owner reads the files.
    pub const PRIVATE: Self = Self(0o077);

    /// A mask of the bits that group and others lose; `None` if it has any other bit.
    pub const fn new(bits: u32) -> Option<Self> {
        if bits & !0o077 == 0 { Some(Self(bits)) } else { None }
    }

    /// The mode of a file: 0644 without the mask.
    pub const fn of_files(self) -> u32 {
        0o644 & !self.0
    }

    /// The mode of a folder: 0755 without the mask.
    pub const fn of_folders(self) -> u32 {
        0o755 & !self.0
    }
}

impl Default for FileUmask {
    fn default() -> Self {
        Self::PRIVATE
    }
}

impl From<FileUmask> for u32 {
    fn from(umask: FileUmask) -> Self {
        umask.0
    }
}

impl TryFrom<u32> for FileUmask {
    type Error = &'static str;

    fn try_from(bits: u32) -> Result<Self, Self::Error> {
        Self::new(bits).ok_or("a mask takes nothing from the owner")
    }
}

/// Settings by which an agent stores and shows its workers' output.
///
/// With a folder and without redirects or tees, everything is stored and shown. Redirects, tees and filters go
/// by local rank: they are meant for processes that live for one generation.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct OutputSettings {
    /// A folder on the agent's host. It gets one file per worker and incarnation, or `generation_G/RANK/stdout.log` if
    /// a process lives for one generation. Default: `None`, nothing is stored.
    pub directory: Option<String>,
    /// Streams that are stored and not shown.
    pub redirects: StreamMap,
    /// Streams that are stored and shown.
    pub tee: StreamMap,
    /// Local ranks whose output is shown. Default: `None`, all.
    pub shown: Option<BTreeSet<u32>>,
    /// Prefix of a shown line, with `${role_name}`, `${rank}`, `${local_rank}`, `${hostname}`, `${slot}` and `${time}`. Default:
    /// `[${hostname}:${slot}] `.
    pub prefix: Option<String>,
    /// Permissions that the stored files do not get. Default: only the agent's user may read them.
    pub umask: FileUmask,
}
