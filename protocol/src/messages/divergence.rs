//! Replicas that differ, as `status` shows them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::HostName;

/// An array that a rank holds otherwise than most of the others, or than any other.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct DivergentReplica {
    /// The array, as the program names it.
    pub tensor: String,
    /// The rank.
    pub rank: u32,
    /// Its host.
    pub host: HostName,
    /// Its slot.
    pub slot: u32,
    /// The first commit in which it was seen.
    pub step: u64,
    /// Number of ranks that agree with each other on it. Without a majority nobody can say which content is right.
    pub agreeing: u32,
    /// Number of ranks that were compared.
    pub members: u32,
}

impl DivergentReplica {
    /// Whether a majority agrees on other content.
    pub const fn is_outvoted(&self) -> bool {
        self.agreeing * 2 > self.members
    }
}

/// One line: the array, the host and slot, and the first step of the difference.
impl fmt::Display for DivergentReplica {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tensor, rank, host, slot, step, agreeing, members } = self;
        write!(formatter, "rank {rank} ({host}:{slot}) differs in {tensor} since step {step}: ")?;
        match self.is_outvoted() {
            true => write!(formatter, "{agreeing} of {members} ranks agree on other content"),
            false => write!(formatter, "no majority of the {members} ranks agrees"),
        }
    }
}

/// An array that is not compared, and why.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct UncomparedTensor {
    /// The array; empty: the whole state.
    pub tensor: String,
    /// Why, in words that follow its name.
    pub reason: String,
}

/// One line.
impl fmt::Display for UncomparedTensor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tensor.is_empty() {
            true => formatter.write_str(&self.reason),
            false => write!(formatter, "{} {}", self.tensor, self.reason),
        }
    }
}
