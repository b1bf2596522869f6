//! `sim fuzz`: a guided search for failing runs. Failing runs become regression files. The corpus of runs that showed something
//! new may be kept for the next search.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use serde_json::json;
use sim::shrink::shrink;
use sim::{GuidedSearch, Regression, RunReport, RunVerdict};

use super::{ClusterArguments, commit, note, say};

/// Most different failures that a search looks for.
const FAILURES_MAX: usize = 20;

/// Most bytes of a failure's reason in the name of its file.
const NAME_BYTES_MAX: usize = 60;

#[derive(Args, Debug)]
pub(crate) struct FuzzArguments {
    /// How long it searches, in minutes.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Ends after so many runs, whatever time it is. Only then is the result the same each time.
    #[arg(long)]
    runs: Option<u64>,
    /// Seed of the search.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    cluster: ClusterArguments,
    /// A folder of runs that showed something new, as regression files: the search begins with them, and adds its own.
    #[arg(long, value_name = "FOLDER")]
    corpus: Option<PathBuf>,
    /// Writes each failure into a file of this folder as a regression, with the faults that it needs and no others.
    #[arg(long, value_name = "FOLDER")]
    store: Option<PathBuf>,
    /// One JSON object at the end, on stdout.
    #[arg(long)]
    json: bool,
}

#[expect(
    clippy::disallowed_methods,
    reason = "bounds the search itself, outside of the simulation"
)]
fn clock() -> Instant {
    Instant::now()
}

/// The reason without numbers: failures that differ in them alone count as one.
fn kind_of(report: &RunReport) -> String {
    report.reason().unwrap_or_default().chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// A name for the file of a failure.
fn file_name(number: usize, reason: &str) -> String {
    let letters: String = reason
        .chars()
        .take(NAME_BYTES_MAX)
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' })
        .collect();
    format!("{number:02}_{}.json", letters.trim_matches('_'))
}

fn make(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)
        .with_context(|| format!("the folder {} cannot be made", folder.display()))
}

/// The runs of a corpus, in the order of their files' names.
fn read_corpus(folder: &Path) -> anyhow::Result<Vec<Regression>> {
    make(folder)?;
    let entries = std::fs::read_dir(folder)
        .with_context(|| format!("the corpus {} cannot be read", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()
        .with_context(|| format!("the corpus {} cannot be read", folder.display()))?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    paths.iter().map(|path| Ok(Regression::read(path)?)).collect()
}

/// Writes the runs that are not in the corpus yet.
fn add_to_corpus(folder: &Path, search: &GuidedSearch, seed: u64) -> anyhow::Result<()> {
    let known: BTreeSet<String> = read_corpus(folder)?
        .iter()
        .map(|known| serde_json::to_string(&known.options()))
        .collect::<Result<_, _>>()?;
    for (number, options) in search.corpus().iter().enumerate() {
        if !known.contains(&serde_json::to_string(options)?) {
            let path = folder.join(format!("seed_{seed}_{number:05}.json"));
            Regression::of("showed something new", options).write(&path)?;
        }
    }
    Ok(())
}

pub(crate) fn fuzz(arguments: &FuzzArguments) -> anyhow::Result<ExitCode> {
    let cluster = arguments.cluster.read()?;
    if let Some(folder) = &arguments.store {
        make(folder)?;
    }
    let begun = clock();
    let limit = Duration::try_from_secs_f64(arguments.minutes * 60.0)
        .context("--minutes is no number of minutes")?;
    let mut search = GuidedSearch::new(arguments.seed, move |seed| cluster.options(seed));
    let mut first = match &arguments.corpus {
        Some(folder) => read_corpus(folder)?,
        None => Vec::new(),
    }
    .into_iter();
    let mut failed: Vec<RunReport> = Vec::new();
    let is_over = |runs: u64| match arguments.runs {
        Some(limit) => runs >= limit,
        None => begun.elapsed() >= limit,
    };
    while !is_over(search.runs()) && failed.len() < FAILURES_MAX {
        let report = match first.next() {
            Some(known) => search.begin_with(&known.options()),
            None => search.run(),
        };
        let is_known = failed.iter().any(|other| kind_of(other) == kind_of(&report));
        if report.verdict() == RunVerdict::Ok || is_known {
            continue;
        }
        let reason = report.reason().unwrap_or_default();
        note(format!("run {}: {}: {reason}", search.runs(), report.verdict().name()));
        if let Some(folder) = &arguments.store {
            let (smaller, _) = shrink(&report.options, report.verdict());
            let path = folder.join(file_name(failed.len(), reason));
            Regression::of(reason, &smaller).write(&path)?;
            note(format!(
                "  repeat: cargo run --release -p sim -- run --regression {}",
                path.display()
            ));
        }
        failed.push(report);
    }
    if let Some(folder) = &arguments.corpus {
        add_to_corpus(folder, &search, arguments.seed)?;
    }
    let (runs, features, kept) = (search.runs(), search.features(), search.corpus().len());
    let seconds = begun.elapsed().as_secs_f64();
    if arguments.json {
        let failures: Vec<_> = failed
            .iter()
            .map(|it| json!({ "verdict": it.verdict().name(), "reason": it.reason() }))
            .collect();
        say(json!({
            "runs": runs,
            "features": features,
            "corpus": kept,
            "failed": failures,
            "seconds": seconds,
            "commit": commit(),
        })
        .to_string());
    } else {
        let failed = failed.len();
        say(format!(
            "{runs} runs, {features} features, {kept} runs that showed something new, {failed} different failures · {seconds:.1} s"
        ));
    }
    let worst = failed.iter().map(|report| report.verdict().exit_code()).min().unwrap_or(0);
    Ok(ExitCode::from(worst))
}
