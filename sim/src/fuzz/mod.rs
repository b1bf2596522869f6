//! Guided search for failing runs, as a coverage-guided fuzzer makes it. A run's job and faults are mutated (`mutate`). A run that
//! shows a feature (`features`) that no run before it had is kept in the corpus, and later runs are made from it. Called by
//! `sim fuzz` and by `sim bugs --guided`.
//!
//! Features that a run reports about itself guide the search, not the compiler's coverage. The cores are small state machines:
//! after some hundred seeds every block of them has run, and the rare corners are sequences of decisions. Nor does it need
//! another build of all crates, which instrumentation does.

mod features;
mod mutate;

use std::collections::BTreeMap;

use elastic_runtime::random::stream;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use self::features::features;
use self::mutate::mutate;
use crate::options::RunOptions;
use crate::plan::FaultPlan;
use crate::report::RunReport;
use crate::trace::Recording;

/// Number of first runs that are plain seeds.
const SEEDS_FIRST: u64 = 16;

/// Share of the later runs that are plain seeds.
const SEEDS_SHARE: f64 = 0.2;

/// Most runs in the corpus. The search goes on with these when it is full.
const CORPUS_MAX: usize = 4096;

/// Number of features among which the rarest leads to the run that is mutated next.
const FEATURES_COMPARED: usize = 8;

/// Occurrences of a feature.
#[derive(Clone, Copy, Debug)]
struct SeenFeature {
    /// Number of runs that showed it.
    runs: u64,
    /// The run of the corpus that showed it last.
    entry: usize,
}

/// A search, which is determined by its seed.
pub struct GuidedSearch {
    random: ChaCha8Rng,
    /// The options of a plain seed.
    plain: Box<dyn Fn(u64) -> RunOptions>,
    next_seed: u64,
    runs: u64,
    corpus: Vec<RunOptions>,
    seen: BTreeMap<u64, SeenFeature>,
}

impl std::fmt::Debug for GuidedSearch {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("GuidedSearch")
            .field("runs", &self.runs)
            .field("corpus", &self.corpus.len())
            .field("features", &self.seen.len())
            .finish_non_exhaustive()
    }
}

impl GuidedSearch {
    /// A search. `plain` gives the options of a seed; `seed` decides all else. Plain seeds begin with `seed` times 2^32.
    pub fn new(seed: u64, plain: impl Fn(u64) -> RunOptions + 'static) -> Self {
        Self {
            random: stream(seed, "guided search", 0),
            plain: Box::new(plain),
            next_seed: seed << 32,
            runs: 0,
            corpus: Vec::new(),
            seen: BTreeMap::new(),
        }
    }

    /// Adds a run to begin with, such as one of an earlier search. Returns its report.
    pub fn begin_with(&mut self, options: &RunOptions) -> RunReport {
        self.run_of(options.clone())
    }

    /// Makes one more run, and learns from it.
    pub fn run(&mut self) -> RunReport {
        let is_plain = self.runs < SEEDS_FIRST
            || self.corpus.is_empty()
            || self.random.random_bool(SEEDS_SHARE);
        let options = if is_plain { self.next_plain() } else { self.mutated() };
        self.run_of(options)
    }

    /// The runs that showed something new, in the order in which they were made. Each has its faults with it.
    pub fn corpus(&self) -> &[RunOptions] {
        &self.corpus
    }

    /// Number of runs.
    pub const fn runs(&self) -> u64 {
        self.runs
    }

    /// Number of features seen.
    pub fn features(&self) -> usize {
        self.seen.len()
    }

    fn next_plain(&mut self) -> RunOptions {
        let options = (self.plain)(self.next_seed);
        self.next_seed += 1;
        let plan = Some(FaultPlan::of(&options));
        RunOptions { plan, ..options }
    }

    /// A run made from one of the corpus, with faults of another.
    fn mutated(&mut self) -> RunOptions {
        let parent = self.parent();
        let parent = self.corpus[parent].clone();
        let other = if self.random.random_bool(0.5) {
            self.next_plain()
        } else {
            self.corpus[self.random.random_range(0..self.corpus.len())].clone()
        };
        mutate(parent, &other, &mut self.random)
    }

    /// The run of the corpus with the rarest of some features, drawn.
    fn parent(&mut self) -> usize {
        let mut rarest: Option<SeenFeature> = None;
        for _ in 0..FEATURES_COMPARED {
            let from: u64 = self.random.random();
            let found = self.seen.range(from..).next().or_else(|| self.seen.iter().next());
            let Some((_, seen)) = found else { continue };
            if rarest.is_none_or(|rarest| seen.runs < rarest.runs) {
                rarest = Some(*seen);
            }
        }
        rarest.map_or(0, |rarest| rarest.entry)
    }

    fn run_of(&mut self, options: RunOptions) -> RunReport {
        let recording = Recording { decisions: true, ..Recording::default() };
        let mut report = crate::run(&options, recording);
        self.runs += 1;
        let shown = features(&std::mem::take(&mut report.decisions));
        let is_new = shown.iter().any(|feature| !self.seen.contains_key(feature));
        let is_kept = is_new && self.corpus.len() < CORPUS_MAX;
        if is_kept {
            self.corpus.push(options);
        }
        let entry = self.corpus.len().saturating_sub(1);
        for feature in shown {
            let seen = self.seen.entry(feature).or_insert(SeenFeature { runs: 0, entry });
            seen.runs += 1;
            if is_kept {
                seen.entry = entry;
            }
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_is_determined_by_its_seed_and_learns() {
        let plain = |seed| RunOptions { seconds: 5, hosts: 2, draws: 10, ..RunOptions::new(seed) };
        let search = |seed| {
            let mut search = GuidedSearch::new(seed, plain);
            let hashes: Vec<u64> = (0..40).map(|_| search.run().hash).collect();
            (hashes, search)
        };
        let (first, (again, learnt)) = (search(1).0, search(1));
        assert_eq!(first, again);
        assert_ne!(first, search(2).0);
        assert!(learnt.features() > 100, "{learnt:?}");
        assert!((2..40).contains(&learnt.corpus().len()), "{learnt:?}");
    }
}
