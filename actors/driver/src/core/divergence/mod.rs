//! Replicas that differ: ranks hold the same state, and one whose arrays are others computes something else from then on. Part of
//! `DriverCore`; its handlers are in `handlers`, what counts as a difference is in `judging`, and what the status says in `shown`.
//!
//! Workers say with their progress the digests of arrays of their commits, a rotating part of the state each commit. Those of one
//! step are compared once all members have told theirs. An array counts as replicated once a step has changed it alike on all
//! ranks: what differs before that may be each rank's own, and nobody is accused of it.

mod handlers;
mod judging;
mod shown;

use std::collections::{BTreeMap, BTreeSet};

use elastic_protocol::messages::{StateDigests, StatusReport};
use elastic_protocol::{Stamp, WorkerId};
use serde::{Deserialize, Serialize};

use self::judging::RankDigest;

/// Most digests that wait for those of other members; the oldest steps are given up.
const PENDING_MAX: usize = 1 << 18;

/// Most arrays on record.
const TENSORS_MAX: usize = 1 << 16;

/// Most arrays of members that are remembered as different, and most events about them in a generation.
const DIFFERING_MAX: usize = 256;
const TOLD_MAX: usize = 16;

/// Most repairs of one process: where they do not help, its host's memory is at fault, or the program.
const REPAIRS_MAX: u32 = 3;

/// Commits after which it is said that nothing could be compared.
const ROTATION: u64 = 64;

/// What is known of an array.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
enum ArrayStanding {
    /// A step has changed it alike on all ranks.
    Replicated,
    /// It differed before that.
    Unlike,
}

/// Steps of which a member has told the digests.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
struct CoveredSteps {
    since: u64,
    through: u64,
}

/// An array that a member holds otherwise than others.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
struct DifferingArray {
    tensor: u64,
    worker: WorkerId,
    rank: u32,
    /// The first step in which it was seen.
    step: u64,
    agreeing: u32,
    members: u32,
}

/// A repair that is to be made.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct PendingRepair {
    pub(crate) workers: Vec<WorkerId>,
    pub(crate) tensor: String,
    pub(crate) step: u64,
}

/// The digests of the generation that trains, and what they have shown.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct Divergence {
    /// The generation that all of this is about, but for what is known of arrays.
    stamp: Option<Stamp>,
    /// Steps whose digests each rank has told.
    #[serde(with = "crate::recording::readable::pairs")]
    covered: BTreeMap<u32, CoveredSteps>,
    /// Digests that are not compared yet, by step.
    #[serde(with = "crate::recording::readable::pairs")]
    pending: BTreeMap<u64, Vec<RankDigest>>,
    /// How many these are.
    pending_count: usize,
    /// The first step that was judged or given up in this generation, and the last one.
    judged_from: Option<u64>,
    judged: u64,
    /// The names of arrays.
    #[serde(with = "crate::recording::readable::pairs")]
    tensors: BTreeMap<u64, String>,
    #[serde(with = "crate::recording::readable::pairs")]
    standing: BTreeMap<u64, ArrayStanding>,
    /// Why arrays are not compared, in words; at most [`StatusReport::AWAITED_MAX`].
    #[serde(with = "crate::recording::readable::pairs")]
    unclear: BTreeMap<u64, String>,
    differing: Vec<DifferingArray>,
    /// Events about differences in this generation.
    told: usize,
    /// Members that a majority disagrees with: the others do not take their commit over where there is another choice.
    distrusted: BTreeSet<WorkerId>,
    repair: Option<PendingRepair>,
    /// Repairs of processes.
    #[serde(with = "crate::recording::readable::pairs")]
    repairs: BTreeMap<WorkerId, u32>,
}

impl Divergence {
    /// A generation begins to train: its members hold the same content.
    fn begin(&mut self, stamp: Option<Stamp>) {
        self.stamp = stamp;
        self.covered.clear();
        self.pending.clear();
        self.pending_count = 0;
        (self.judged_from, self.judged, self.told) = (None, 0, 0);
        self.differing.clear();
        self.distrusted.clear();
        self.repair = None;
    }

    /// Whether a majority disagrees with this member's content.
    pub(crate) fn is_distrusted(&self, worker: &WorkerId) -> bool {
        self.distrusted.contains(worker)
    }

    /// The repair that is to be made.
    pub(crate) const fn repair(&self) -> Option<&PendingRepair> {
        self.repair.as_ref()
    }

    /// Takes the digests that a member has told.
    fn take(&mut self, rank: u32, told: StateDigests) {
        let StateDigests { since, through, digests, names } = told;
        let covered = self.covered.entry(rank).or_insert(CoveredSteps { since, through: since });
        if covered.through != since {
            covered.since = since;
        }
        covered.through = through.max(covered.through);
        for digest in digests.into_iter().filter(|digest| digest.step > self.judged) {
            self.pending.entry(digest.step).or_default().push(RankDigest::new(rank, digest));
            self.pending_count += 1;
        }
        while self.pending_count > PENDING_MAX
            && let Some((step, given_up)) = self.pending.pop_first()
        {
            self.pending_count -= given_up.len();
            self.judged = step;
        }
        for name in names {
            if self.tensors.len() < TENSORS_MAX {
                self.tensors.insert(name.id, name.tensor);
            }
        }
    }

    /// The name of an array; of one that rank 0 does not have, its number.
    fn name(&self, tensor: u64) -> String {
        self.tensors.get(&tensor).cloned().unwrap_or_else(|| format!("array {tensor:016x}"))
    }

    /// What always holds of it.
    pub(crate) fn check(&self) -> Result<(), String> {
        let pending: usize = self.pending.values().map(Vec::len).sum();
        if pending != self.pending_count || pending > PENDING_MAX {
            let counted = self.pending_count;
            return Err(format!("{pending} digests wait for others, counted as {counted}"));
        }
        if self.pending.keys().next().is_some_and(|step| *step <= self.judged) {
            return Err(format!("digests wait that were judged by step {}", self.judged));
        }
        if self.differing.len() > DIFFERING_MAX || self.unclear.len() > StatusReport::AWAITED_MAX {
            return Err("too many arrays are remembered as different".to_owned());
        }
        let is_outvoted = |worker: &WorkerId| {
            self.differing.iter().any(|it| it.worker == *worker && it.agreeing * 2 > it.members)
        };
        match self.distrusted.iter().find(|worker| !is_outvoted(worker)) {
            Some(worker) if self.differing.len() < DIFFERING_MAX => {
                Err(format!("{worker} is distrusted, and no majority disagrees with it"))
            }
            _ => Ok(()),
        }
    }
}
