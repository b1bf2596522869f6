//! `cargo xtask mutants`: measures how many small mistakes the simulation and the tests find. Called by `main` and
//! `ci`.
//!
//! All mutants are in one build (schemata). The workspace is copied to `target/mutants/workspace`. In the copy every
//! mutant is behind a switch, which a process reads from its environment once. The simulation and every test program
//! are then compiled once; each mutant is a run of them with its number. A trace of one run without mutants tells
//! which mutants a suite reaches: a suite cannot find the others, and is not run for them.

mod build;
mod constness;
mod find;
mod hunt;
mod mutant;
mod process;
mod properties;
mod report;
mod sample;
pub(crate) mod scope;
mod splice;
mod suites;
mod table;
mod values;
mod workspace;

use std::io::Write as _;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use clap::Args;

use self::workspace::Copy;
use crate::steps::{root, step};

/// Flags of `cargo xtask mutants`.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct MutantsOptions {
    /// Number of mutants to draw; all, if not given.
    #[arg(long)]
    pub(crate) sample: Option<usize>,
    /// Seed of the draw.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Runs all mutants on lines that have changed since this commit, and the drawn ones if --sample is given.
    #[arg(long, value_name = "REVISION")]
    pub(crate) changed_since: Option<String>,
    /// Only mutants of files whose path contains this.
    #[arg(long)]
    pub(crate) only: Option<String>,
    /// Starts no further mutant after this many minutes; those that are left out are counted.
    #[arg(long)]
    pub(crate) minutes: Option<f64>,
    /// Number of mutants to run at a time; by default one for each processor.
    #[arg(long)]
    pub(crate) jobs: Option<NonZeroUsize>,
    /// Runs no further suite against a mutant that one has found. The simulation comes first, so that both shares stay
    /// what they are; what each kind of suite finds alone is then not known.
    #[arg(long)]
    pub(crate) first: bool,
    /// Prints the mutants and runs none.
    #[arg(long)]
    pub(crate) list: bool,
    /// Writes the table as Markdown to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) table: Option<PathBuf>,
    /// Fails if the simulation finds a smaller share of the mutants, in per cent.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) simulation_floor: f64,
    /// Fails if all suites together find a smaller share, in per cent.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) floor: f64,
}

/// Makes the mutants, runs the suites against them, and prints the suites that found them.
///
/// # Errors
/// The copy cannot be compiled, a suite fails without a mutant, or a share is below its floor.
pub(crate) fn run(options: &MutantsOptions) -> anyhow::Result<()> {
    let root = root()?;
    let mut files = scope::files(&root)?;
    if let Some(part) = &options.only {
        files.retain(|file| file.path.contains(part));
    }
    let unconst = constness::removable(&root)?;
    let mut mutants = find::all(&files, &unconst);
    if options.sample.is_some() || options.changed_since.is_some() {
        let changed = options.changed_since.as_deref();
        let changed = changed.map(|since| sample::changed_lines(&root, since)).transpose()?;
        mutants = sample::draw(mutants, options.sample, options.seed, &changed.unwrap_or_default());
    }
    ensure!(!mutants.is_empty(), "there is no mutant in what was asked for");
    if options.list {
        let mut stdout = std::io::stdout().lock();
        for mutant in &mutants {
            writeln!(stdout, "{mutant}")?;
        }
        return Ok(());
    }
    let copy = Copy::make(&root)?;
    let built = step("mutants: build", || build::build(&copy, &files, mutants, &unconst))?;
    let suites = step("mutants: suites without mutants", || suites::all(&copy, &built))?;
    let outcome = step("mutants: suites", || hunt::hunt(built, &suites, options))?;
    let report = report::MutantsReport::of(&root, options, &suites, outcome);
    report.print()?;
    report.store(&root.join("target").join("mutants").join("report.json"))?;
    if let Some(file) = &options.table {
        std::fs::write(file, report.markdown())
            .with_context(|| format!("{} cannot be written", file.display()))?;
    }
    report.hold_floors(options.simulation_floor, options.floor)
}
