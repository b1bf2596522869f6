//! The suites that are run against mutants, each with the mutants that it reaches. Used by `mutants`.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde::Serialize;

use super::build::{Built, BuiltProgram};
use super::process::{self, Run, RunEnd};
use super::properties;
use super::workspace::Copy;
use crate::steps::root;

/// The seeds of the simulation, by kind. More seeds find more mutants: these take about a second. The newest set of
/// draws is the default.
const SEEDS: [(SuiteKind, &[&str], &str); 5] = [
    (SuiteKind::Cores, &["--mode", "cores"], "0..300"),
    (SuiteKind::Restart, &["--mode", "cores", "--job", "restart"], "0..200"),
    (SuiteKind::Actors, &["--mode", "actors"], "0..60"),
    (SuiteKind::Training, &["--mode", "training"], "0..120"),
    (SuiteKind::Store, &["--mode", "store"], "0..400"),
];

/// The kinds of recorded runs. Each kind is a suite: a mutant that few kinds reach is run against those alone.
const RECORDED_KINDS: [&str; 5] = ["training", "store", "actors", "restart", "cores"];

/// Time limit of a run without mutants.
const PLAIN_LIMIT: Duration = Duration::from_secs(180);

/// Longest time of a suite of tests in seconds: a slower one waits for clocks, and is left out.
const SLOW_SECONDS: f64 = 60.0;

/// Tests that are left out, by a part of their names: a simulated day takes half a minute, which each mutant of that
/// package would pay, and beside which the package's other tests could not judge in time.
const LONG_TESTS: [&str; 1] = ["a_day_of_noise"];

/// Time limit of a mutant's run: this multiple of the time without a mutant, and at least this many seconds.
const LIMIT_FACTOR: f64 = 3.0;
const LIMIT_MIN_SECONDS: f64 = 8.0;

/// The kind of a suite.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SuiteKind {
    Cores,
    Restart,
    Actors,
    Training,
    Store,
    Decisions,
    States,
    Properties,
    Units,
}

impl SuiteKind {
    /// All kinds, in the order in which they are run.
    pub(crate) const ALL: [Self; 9] = [
        Self::Cores,
        Self::Restart,
        Self::Actors,
        Self::Training,
        Self::Store,
        Self::Decisions,
        Self::States,
        Self::Properties,
        Self::Units,
    ];

    /// The name in the table.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Cores => "cores",
            Self::Restart => "by restart",
            Self::Actors => "actors",
            Self::Training => "training",
            Self::Store => "store",
            Self::Decisions => "recorded decisions",
            Self::States => "recorded states",
            Self::Properties => "property tests",
            Self::Units => "unit tests",
        }
    }

    /// Whether the rules of the simulation's oracle judge.
    pub(crate) const fn is_oracle(self) -> bool {
        matches!(self, Self::Cores | Self::Restart | Self::Actors | Self::Training | Self::Store)
    }

    /// Whether the suite compares with recorded runs: it sees a change, and not whether it is a mistake.
    pub(crate) const fn is_comparison(self) -> bool {
        matches!(self, Self::Decisions | Self::States)
    }

    /// Whether the suite is a part of the simulation: the oracle's rules, and the comparisons.
    pub(crate) const fn is_simulation(self) -> bool {
        self.is_oracle() || self.is_comparison()
    }
}

/// One run that can find mutants.
#[derive(Debug)]
pub(crate) struct Suite {
    pub(crate) kind: SuiteKind,
    pub(crate) name: String,
    program: PathBuf,
    arguments: Vec<String>,
    folder: PathBuf,
    /// Time of a run without a mutant, in seconds.
    pub(crate) seconds: f64,
    /// The mutants whose code the suite runs through.
    pub(crate) reaches: BTreeSet<u32>,
}

/// All suites; each has passed without a mutant.
pub(crate) fn all(copy: &Copy, built: &Built) -> anyhow::Result<Vec<Suite>> {
    let mut suites = Vec::new();
    for (kind, what, seeds) in SEEDS {
        let mut arguments = vec!["sweep", "--json", "--jobs", "1", "--max-failures", "1"];
        arguments.extend(["--seeds", seeds]);
        arguments.extend(what);
        let arguments = arguments.into_iter().map(ToOwned::to_owned).collect();
        suites.extend(suite(copy, &built.simulation, kind, arguments)?);
    }
    for (kind, command) in [(SuiteKind::Decisions, "decisions"), (SuiteKind::States, "states")] {
        for of in RECORDED_KINDS {
            let arguments = [command, "--folder", "decisions", "--kind", of];
            let arguments = arguments.into_iter().chain(["--json", "--max-differences", "1"]);
            let arguments = arguments.map(ToOwned::to_owned).collect();
            suites.extend(suite(copy, &built.simulation, kind, arguments)?);
        }
    }
    let drawn = properties::names(&root()?)?;
    for program in &built.tests {
        let is_long = |test: &String| LONG_TESTS.iter().any(|part| test.contains(part));
        let (long, tests): (Vec<String>, Vec<String>) =
            tests(program)?.into_iter().partition(is_long);
        let is_drawn = |test: &String| drawn.contains(test.rsplit("::").next().unwrap_or(test));
        let (properties, units): (Vec<String>, Vec<String>) = tests.into_iter().partition(is_drawn);
        if !properties.is_empty() {
            let arguments = properties.iter().cloned().chain(["--exact".to_owned()]).collect();
            suites.extend(suite(copy, program, SuiteKind::Properties, arguments)?);
        }
        if !units.is_empty() {
            let others = properties.into_iter().chain(long);
            let skip = others.flat_map(|name| ["--skip".to_owned(), name]);
            let arguments = skip.chain(["--exact".to_owned()]).collect();
            suites.extend(suite(copy, program, SuiteKind::Units, arguments)?);
        }
    }
    Ok(suites)
}

/// The names of a program's tests.
fn tests(program: &BuiltProgram) -> anyhow::Result<Vec<String>> {
    let arguments = ["--list", "--format", "terse"].map(ToOwned::to_owned);
    let listed = process::run(&program.path, &arguments, &program.folder, &[], PLAIN_LIMIT)?;
    let names = listed.stdout.lines().filter_map(|line| line.strip_suffix(": test"));
    Ok(names.map(ToOwned::to_owned).collect())
}

/// Runs the suite once without a mutant; none if it is too slow or fails anyway, and so cannot judge mutants.
fn suite(
    copy: &Copy,
    program: &BuiltProgram,
    kind: SuiteKind,
    arguments: Vec<String>,
) -> anyhow::Result<Option<Suite>> {
    let trace = copy.builds.join("mutants").join("trace");
    if trace.exists() {
        fs::remove_file(&trace)?;
    }
    let mut suite = Suite {
        kind,
        name: format!("{}: {}", kind.name(), program.name),
        program: program.path.clone(),
        arguments,
        folder: program.folder.clone(),
        seconds: 0.0,
        reaches: BTreeSet::new(),
    };
    let traced = [
        ("ELASTIC_MUTANT", "trace".to_owned()),
        ("ELASTIC_MUTANT_TRACE", trace.display().to_string()),
    ];
    let run = suite.run_with(&traced, PLAIN_LIMIT)?;
    let is_well = matches!(run.ended, RunEnd::Well);
    ensure!(
        is_well || !kind.is_simulation(),
        "{} fails without a mutant\n{}",
        suite.name,
        run.stdout
    );
    if !is_well || run.seconds > SLOW_SECONDS && !kind.is_simulation() {
        let why = if is_well { "is too slow" } else { "fails without a mutant" };
        writeln!(std::io::stderr(), "left out: {} {why}", suite.name)?;
        return Ok(None);
    }
    suite.seconds = run.seconds;
    let reached = fs::read_to_string(&trace).unwrap_or_default();
    let numbers: Result<BTreeSet<u32>, _> = reached.lines().map(str::parse).collect();
    suite.reaches = numbers.context("a trace has a number in each line")?;
    Ok(Some(suite))
}

impl Suite {
    /// Runs the suite against a mutant.
    pub(crate) fn run(&self, mutant: u32) -> anyhow::Result<Run> {
        let seconds = (self.seconds * LIMIT_FACTOR).max(LIMIT_MIN_SECONDS);
        let active = [("ELASTIC_MUTANT", mutant.to_string())];
        self.run_with(&active, Duration::from_secs_f64(seconds))
    }

    fn run_with(&self, switch: &[(&str, String)], limit: Duration) -> anyhow::Result<Run> {
        let own = |name, value: &str| (name, value.to_owned());
        let mut environment = switch.to_vec();
        // One failing case is enough: it is not stored, where the next mutant's run would find it, and not shrunk.
        environment.push(own("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1"));
        environment.push(own("PROPTEST_MAX_SHRINK_ITERS", "0"));
        environment.push(own("PROPTEST_RNG_SEED", "1"));
        process::run(&self.program, &self.arguments, &self.folder, &environment, limit)
    }
}
