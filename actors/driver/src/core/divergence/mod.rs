//! Replicas that differ: the driver compares the digests of the members' commits, and finds members whose arrays differ
//! from those of the others. Part of `DriverCore`. `handlers` takes the digests and answers differences, `judging` compares
//! the digests of one array, `shown` makes the lines of the status.
//!
//! Workers send the digests of arrays of their commits with their progress, a rotating part of the state each commit. The
//! driver compares the digests of a step once all members have sent theirs. An array counts as replicated once a step has
//! changed it alike on all ranks. An array that differs before that may be each rank's own, and the driver accuses no member
//! for it.
//!
//! Members that a majority disagrees with are in the journal, so that a successor does not begin a generation from them.

mod handlers;
mod judging;
mod shown;

use std::collections::{BTreeMap, BTreeSet};

use elastic_protocol::messages::{StateDigests, StatusReport};
use elastic_protocol::{Stamp, WorkerId};
use serde::{Deserialize, Serialize};

use self::judging::RankDigest;
use crate::journal::{DistrustedImage, GenerationImage, GenerationProgress, Image};

/// Most digests that wait for those of other members; the oldest steps are given up.
const PENDING_MAX: usize = 1 << 18;

/// Most arrays on record.
const TENSORS_MAX: usize = 1 << 16;

/// Most arrays of members that are remembered as different, and most events about them in a generation.
const DIFFERING_MAX: usize = Image::DISTRUSTED_MAX;
const TOLD_MAX: usize = 16;

/// Most repairs of one process under one driver. If they do not help, the host's memory or the program is at fault.
const REPAIRS_MAX: u32 = 3;

/// Commits after which the driver reports that nothing could be compared.
const ROTATION: u64 = 64;

/// Commits that a member reports without digests, while another sends digests of them, before the driver reports that it
/// sends none. Between two reports with digests, a member leaves out the commits that come faster than it digests.
const SILENT_COMMITS_MAX: u64 = 2 * ROTATION;

/// Result of the comparisons of an array so far.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
enum ArrayStanding {
    /// A step has changed the array alike on all ranks.
    Replicated,
    /// The array differed before any step had changed it alike on all ranks.
    Unlike,
}

/// Range of steps whose digests a member has sent: those after `since`, up to `through`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
struct CoveredSteps {
    since: u64,
    through: u64,
}

/// An array of which a member holds other content than other members.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
struct DifferingArray {
    tensor: u64,
    worker: WorkerId,
    rank: u32,
    /// First step in which the difference was seen.
    step: u64,
    agreeing: u32,
    members: u32,
}

/// A repair that the driver has to make: a planned end of the generation.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct PendingRepair {
    pub(crate) workers: Vec<WorkerId>,
    pub(crate) tensor: String,
    pub(crate) step: u64,
}

/// The digests of the generation that trains, and the differences found in them.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct Divergence {
    /// The generation of all fields but `tensors`, `standing`, `unclear` and `repairs`, which outlive generations.
    stamp: Option<Stamp>,
    /// Steps whose digests each rank has sent.
    #[serde(with = "crate::recording::readable::pairs")]
    covered: BTreeMap<u32, CoveredSteps>,
    /// The step of each rank's first report of progress without digests since its last one with them.
    #[serde(default, with = "crate::recording::readable::pairs")]
    silent_since: BTreeMap<u32, u64>,
    /// Ranks that send no digests while others do, and those of them that were told in this generation.
    #[serde(default)]
    silent: BTreeSet<u32>,
    #[serde(default)]
    silent_told: BTreeSet<u32>,
    /// Digests that are not compared yet, by step.
    #[serde(with = "crate::recording::readable::pairs")]
    pending: BTreeMap<u64, Vec<RankDigest>>,
    /// Number of digests in `pending`.
    pending_count: usize,
    /// The first step that was judged or given up in this generation, and the last one.
    judged_from: Option<u64>,
    judged: u64,
    /// The names of arrays.
    #[serde(with = "crate::recording::readable::pairs")]
    tensors: BTreeMap<u64, String>,
    #[serde(with = "crate::recording::readable::pairs")]
    standing: BTreeMap<u64, ArrayStanding>,
    /// Arrays that are not compared, with the reason in words; at most [`StatusReport::AWAITED_MAX`].
    #[serde(with = "crate::recording::readable::pairs")]
    unclear: BTreeMap<u64, String>,
    differing: Vec<DifferingArray>,
    /// Number of events about differences in this generation.
    told: usize,
    /// Members that a majority disagrees with. They are roots only if no other member holds a commit of the generation.
    distrusted: BTreeSet<WorkerId>,
    repair: Option<PendingRepair>,
    /// Number of repairs of each process under this driver.
    #[serde(with = "crate::recording::readable::pairs")]
    repairs: BTreeMap<WorkerId, u32>,
}

impl Divergence {
    /// Forgets the generation before, since the members of this one begin with the same content.
    fn begin(&mut self, stamp: Option<Stamp>) {
        self.stamp = stamp;
        self.covered.clear();
        self.silent_since.clear();
        self.silent.clear();
        self.silent_told.clear();
        self.pending.clear();
        self.pending_count = 0;
        (self.judged_from, self.judged, self.told) = (None, 0, 0);
        self.differing.clear();
        self.distrusted.clear();
        self.repair = None;
    }

    /// The differences that former drivers of the job have recorded, of the generation that is in the journal.
    pub(crate) fn restored(image: &Image) -> Self {
        let trains = |it: &&GenerationImage| matches!(it.progress, GenerationProgress::Running);
        let stamp = image.current.as_ref().filter(trains).map(|it| it.formation.stamp);
        let mut divergence = Self { stamp, ..Self::default() };
        for recorded in image.distrusted.iter().take(DIFFERING_MAX) {
            let DistrustedImage { id, tensor, members, step, agreeing, world_size } = recorded;
            divergence.tensors.insert(*id, tensor.clone());
            divergence.standing.insert(*id, ArrayStanding::Replicated);
            for (worker, rank) in members {
                if divergence.differing.len() >= DIFFERING_MAX {
                    break;
                }
                divergence.distrusted.insert(worker.clone());
                divergence.differing.push(DifferingArray {
                    tensor: *id,
                    worker: worker.clone(),
                    rank: *rank,
                    step: *step,
                    agreeing: *agreeing,
                    members: *world_size,
                });
            }
        }
        divergence
    }

    /// Whether a majority disagrees with this member's content.
    pub(crate) fn is_distrusted(&self, worker: &WorkerId) -> bool {
        self.distrusted.contains(worker)
    }

    /// The repair that the driver has to make.
    pub(crate) const fn repair(&self) -> Option<&PendingRepair> {
        self.repair.as_ref()
    }

    /// Takes digests that a member has sent.
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

    /// Name of an array; its number if rank 0 does not have the array.
    fn name(&self, tensor: u64) -> String {
        self.tensors.get(&tensor).cloned().unwrap_or_else(|| format!("array {tensor:016x}"))
    }

    /// Checks the invariants of this part.
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
