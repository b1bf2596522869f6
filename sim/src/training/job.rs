//! [`TrainingJob`]: the job of a seed in mode `training`: data, model, program. Drawn once, before the run, by `world`.

use elastic_runtime::random::stream;
use rand::Rng;

/// Access of the program to its data.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum DataAccess {
    /// Batches of each rank.
    Sampler {
        /// Samples of a rank and step.
        batch: usize,
    },
    /// Logical shards.
    Shards {
        /// Samples of a step.
        global_batch: u64,
        /// Their shards.
        shards: u32,
        /// Whether the driver says how many there are.
        by_driver: bool,
    },
}

/// The job of a seed.
#[derive(Clone, Debug)]
pub(super) struct TrainingJob {
    pub(super) seed: u64,
    /// Seed of the order of samples; none: the data set's own order.
    pub(super) order: Option<u64>,
    pub(super) samples: usize,
    pub(super) epochs: u64,
    pub(super) access: DataAccess,
    /// Steps from one commit to the next.
    pub(super) commit_every: u64,
    /// Steps from one check for host updates to the next; 0: there are none.
    pub(super) check_every: u64,
    /// Most ranks.
    pub(super) world_max: u32,
    /// Ranks at the begin.
    pub(super) world_first: u32,
    /// Workers of a host.
    pub(super) slots: u32,
    /// Bytes of an array that is never compared; some states are large enough to be moved in stripes.
    pub(super) bulk_bytes: usize,
    /// Lengths of memory beside the state.
    pub(super) device: Vec<usize>,
    /// Whether each rank has values of its own in its state.
    pub(super) has_own_values: bool,
    /// Whether the training function turns errors into success.
    pub(super) swallows: bool,
    /// Whether the training function changes its state on its way out.
    pub(super) scribbles: bool,
    /// Whether functions are called when training goes on.
    pub(super) has_callbacks: bool,
    /// Whether one step in some makes every kind of collective.
    pub(super) tries_all: bool,
    /// Whether checkpoints are saved, and how many are kept.
    pub(super) keep: Option<u32>,
    /// Whether the last commit is saved as the job ends.
    pub(super) saves_last: bool,
    /// Whether the training function calls `unwrap` on an error that tells of the end of its generation.
    pub(super) unwraps: bool,
}

/// Most bytes of a state that is sent by one broadcast are a mebibyte: a large one has more.
const LARGE_BYTES: usize = 1_300_000;

impl TrainingJob {
    pub(super) fn draw(seed: u64) -> Self {
        let mut random = stream(seed, "training job", 0);
        let world_max = random.random_range(1..=6_u32);
        let samples = random.random_range(10..90);
        let access = if random.random_bool(0.5) {
            DataAccess::Sampler { batch: random.random_range(1..5) }
        } else {
            DataAccess::Shards {
                global_batch: u64::from(world_max) + 7 + random.random_range(0..8),
                shards: world_max.max(2) + random.random_range(0..5),
                by_driver: random.random_bool(0.6),
            }
        };
        let is_large = random.random_bool(0.06);
        let memories = if random.random_bool(0.3) { random.random_range(1..3) } else { 0 };
        Self {
            seed,
            order: random.random_bool(0.8).then(|| random.random()),
            samples: if is_large { samples / 3 + 6 } else { samples },
            epochs: if is_large { 1 } else { random.random_range(1..4) },
            access,
            commit_every: random.random_range(1..5),
            check_every: random.random_range(0..3),
            world_max,
            world_first: random.random_range(1..=world_max),
            slots: random.random_range(1..4),
            bulk_bytes: if is_large { LARGE_BYTES } else { random.random_range(0..40) },
            device: (0..memories).map(|_| random.random_range(1..60)).collect(),
            has_own_values: random.random_bool(0.2),
            swallows: random.random_bool(0.2),
            scribbles: random.random_bool(0.3),
            has_callbacks: random.random_bool(0.6),
            tries_all: random.random_bool(0.5),
            keep: random.random_bool(0.8).then(|| random.random_range(1..4)),
            saves_last: random.random_bool(0.5),
            unwraps: random.random_bool(0.2),
        }
    }

    /// The number of logical shards; none: the program has a sampler.
    pub(super) const fn shards(&self) -> Option<u32> {
        match self.access {
            DataAccess::Sampler { .. } => None,
            DataAccess::Shards { shards, .. } => Some(shards),
        }
    }

    /// The name of the pass through the data.
    pub(super) const fn pass(&self) -> &'static str {
        if self.seed.is_multiple_of(3) { "samples" } else { "" }
    }
}
