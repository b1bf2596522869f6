//! What becomes of what workers write: decided on the command line, told to agents, carried out by them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Some of a process's two streams.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Streams {
    /// Its stdout.
    pub stdout: bool,
    /// Its stderr.
    pub stderr: bool,
}

impl Streams {
    /// Neither.
    pub const NONE: Self = Self { stdout: false, stderr: false };

    /// torch's number: 0 none, 1 stdout, 2 stderr, 3 both.
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            0..=3 => Some(Self { stdout: number & 1 != 0, stderr: number & 2 != 0 }),
            _ => None,
        }
    }
}

/// Streams for each local rank.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct StreamMap {
    /// Of those that are not named.
    pub others: Streams,
    /// Of those that are.
    pub named: BTreeMap<u32, Streams>,
}

impl StreamMap {
    /// Of a local rank.
    pub fn of(&self, local_rank: u32) -> Streams {
        self.named.get(&local_rank).copied().unwrap_or(self.others)
    }

    /// Whether no stream of anybody is meant.
    pub fn is_empty(&self) -> bool {
        self.others == Streams::NONE && self.named.values().all(|it| *it == Streams::NONE)
    }
}

/// Where and how an agent stores and shows its workers' output.
///
/// With a folder and no word about redirects and tees, everything is stored and shown. Redirects, tees and
/// filters go by local rank: they are for processes that live for one generation.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct OutputSettings {
    /// A folder of the agent's host: one file per worker and incarnation, or `generation_G/RANK/stdout.log`
    /// where a process lives for one generation. Default: nothing is stored.
    pub directory: Option<String>,
    /// Stored and not shown.
    pub redirects: StreamMap,
    /// Stored and shown.
    pub tee: StreamMap,
    /// Local ranks of which anything is shown; default: all.
    pub shown: Option<BTreeSet<u32>>,
    /// What is shown before a line, with `${role_name}`, `${rank}`, `${local_rank}` and `${hostname}`.
    /// Default: `[host:slot] `; where a process lives for one generation `[${role_name}${rank}]: `.
    pub prefix: Option<String>,
}
