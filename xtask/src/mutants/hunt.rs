//! Runs the suites against the mutants, several at a time. Used by `mutants`.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;

use super::MutantsOptions;
use super::build::Built;
use super::mutant::Mutant;
use super::process::{RunEnd, now};
use super::suites::{Suite, SuiteKind};

/// One mutant, with the suites that found it.
#[derive(Debug)]
pub(crate) struct MutantOutcome {
    pub(crate) mutant: Mutant,
    /// The kinds of suites that run through the mutant.
    pub(crate) reached: Vec<SuiteKind>,
    pub(crate) found: BTreeMap<SuiteKind, MutantFinding>,
}

impl MutantOutcome {
    /// Whether a rule of the simulation's oracle found the mutant.
    pub(crate) fn is_found_by_oracle(&self) -> bool {
        self.found.keys().any(|kind| kind.is_oracle())
    }

    /// Whether a rule or a test found the mutant, and not only a comparison with recorded runs.
    pub(crate) fn is_found_without_comparisons(&self) -> bool {
        self.found.keys().any(|kind| !kind.is_comparison())
    }

    /// Whether a suite of the simulation found the mutant.
    pub(crate) fn is_found_by_simulation(&self) -> bool {
        self.found.keys().any(|kind| kind.is_simulation())
    }

    /// Whether a suite of the simulation runs through the mutant.
    pub(crate) fn is_reached_by_simulation(&self) -> bool {
        self.reached.iter().any(|kind| kind.is_simulation())
    }
}

/// The way in which a mutant was found.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct MutantFinding {
    pub(crate) seconds: f64,
    /// The first failing seed of the simulation; none where the run panicked or did not end.
    pub(crate) seed: Option<u64>,
    /// The reason that the suite printed.
    pub(crate) reason: Option<String>,
    /// Whether the mutant was found because the run did not end in time.
    pub(crate) is_late: bool,
}

/// All outcomes, in the order of the mutants.
#[derive(Debug)]
pub(crate) struct HuntOutcomes {
    pub(crate) outcomes: Vec<MutantOutcome>,
    pub(crate) taken_back: usize,
    /// The number of mutants that were left out for lack of time.
    pub(crate) left_out: usize,
    pub(crate) seconds: f64,
}

/// Runs every mutant against every suite that reaches it.
pub(crate) fn hunt(
    built: Built,
    suites: &[Suite],
    options: &MutantsOptions,
) -> anyhow::Result<HuntOutcomes> {
    let started = now();
    let deadline = options.minutes.map(|minutes| Duration::from_secs_f64(minutes * 60.0));
    let jobs = match options.jobs {
        Some(jobs) => jobs.get(),
        None => std::thread::available_parallelism()?.get(),
    };
    let mutants: Vec<(u32, Mutant)> = built.mutants.into_iter().collect();
    let next = AtomicUsize::new(0);
    let done: Mutex<BTreeMap<usize, anyhow::Result<MutantOutcome>>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let is_late = deadline.is_some_and(|deadline| started.elapsed() > deadline);
                    let Some((number, mutant)) = mutants.get(index).filter(|_| !is_late) else {
                        return;
                    };
                    let outcome = try_one(*number, mutant, suites, options.first);
                    if outcome.as_ref().is_ok_and(|outcome| outcome.found.is_empty()) {
                        let _ = writeln!(std::io::stderr(), "not found: {mutant}");
                    }
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    done.insert(index, outcome);
                    tell(&done, mutants.len());
                }
            });
        }
    });
    let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    let outcomes = done.into_values().collect::<anyhow::Result<Vec<MutantOutcome>>>()?;
    Ok(HuntOutcomes {
        left_out: mutants.len() - outcomes.len(),
        outcomes,
        taken_back: built.taken_back,
        seconds: started.elapsed().as_secs_f64(),
    })
}

/// Runs the suites that reach a mutant: one of each kind that finds it, or with `first` only one of all.
fn try_one(
    number: u32,
    mutant: &Mutant,
    suites: &[Suite],
    first: bool,
) -> anyhow::Result<MutantOutcome> {
    let mut outcome =
        MutantOutcome { mutant: mutant.clone(), reached: Vec::new(), found: BTreeMap::new() };
    for suite in suites.iter().filter(|suite| suite.reaches.contains(&number)) {
        if !outcome.reached.contains(&suite.kind) {
            outcome.reached.push(suite.kind);
        }
        if outcome.found.contains_key(&suite.kind) || first && !outcome.found.is_empty() {
            continue;
        }
        let run = suite.run(number)?;
        let is_late = matches!(run.ended, RunEnd::Late);
        if is_late || matches!(run.ended, RunEnd::Badly) {
            let (seed, reason) = match suite.kind.is_simulation() {
                true => first_failure(&run.stdout),
                false => (None, failed_test(&run.stdout)),
            };
            let finding = MutantFinding { seconds: run.seconds, seed, reason, is_late };
            outcome.found.insert(suite.kind, finding);
        }
    }
    Ok(outcome)
}

/// Seed and reason of the first failure that `sim sweep --json` or `sim decisions --json` reports.
fn first_failure(stdout: &str) -> (Option<u64>, Option<String>) {
    let last = stdout.lines().last().unwrap_or_default();
    let said: serde_json::Value = serde_json::from_str(last).unwrap_or_default();
    let failure = &said["failed"][0];
    (failure["seed"].as_u64(), failure["reason"].as_str().map(ToOwned::to_owned))
}

/// The first test that a test program names as failed.
fn failed_test(stdout: &str) -> Option<String> {
    let failed = stdout.lines().find_map(|line| line.strip_suffix(" ... FAILED"));
    failed.map(|line| line.trim_start_matches("test ").to_owned())
}

/// Prints the progress now and then.
fn tell(done: &BTreeMap<usize, anyhow::Result<MutantOutcome>>, all: usize) {
    const EVERY: usize = 20;
    if done.len().is_multiple_of(EVERY) || done.len() == all {
        let ended = done.values().filter_map(|outcome| outcome.as_ref().ok());
        let (simulated, any) = ended.fold((0, 0), |(simulated, any), outcome| {
            let is_found = !outcome.found.is_empty();
            (simulated + usize::from(outcome.is_found_by_simulation()), any + usize::from(is_found))
        });
        // A closed stderr stops the messages, not the run.
        let _ = writeln!(
            std::io::stderr(),
            "{} of {all} mutants: {simulated} found by simulation, {any} by all",
            done.len()
        );
    }
}
