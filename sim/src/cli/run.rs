//! `sim run`: runs one seed and reports it in full.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use sim::shrink::shrink;
use sim::states::{self, KeptStates};
use sim::{Recording, Regression, RunOptions, RunReport, RunVerdict};

use super::{ClusterArguments, commit, note, say};

/// Number of events that a failure shows.
const LAST_EVENTS: usize = 60;

#[derive(Args, Debug)]
pub(crate) struct SimRunArguments {
    /// The seed.
    #[arg(long, required_unless_present = "regression")]
    seed: Option<u64>,
    /// A bug that was found, from its file: seed, cluster and faults are those in it.
    #[arg(long, value_name = "FILE", conflicts_with = "seed")]
    regression: Option<PathBuf>,
    #[command(flatten)]
    cluster: ClusterArguments,
    /// Only the faults with these numbers.
    #[arg(long, value_delimiter = ',', num_args = 0..)]
    keep: Option<Vec<usize>>,
    /// One JSON object at the end, on stdout.
    #[arg(long)]
    json: bool,
    /// Writes every event as a JSON line.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// How many of the last events a failure shows.
    #[arg(long, default_value_t = LAST_EVENTS)]
    last: usize,
    /// Writes the decisions of all nodes, one a line.
    #[arg(long, value_name = "FILE")]
    decisions: Option<PathBuf>,
    /// Writes what the nodes' cores hold at each look, one field of one core a line.
    #[arg(long, value_name = "FILE")]
    states: Option<PathBuf>,
    /// Runs twice and compares.
    #[arg(long)]
    twice: bool,
    /// Writes the run, with its faults, as the regression of a bug that was found.
    #[arg(long, value_name = "FILE", requires = "about")]
    store: Option<PathBuf>,
    /// What the bug was.
    #[arg(long)]
    about: Option<String>,
    /// Leaves out faults until the failure needs all that are left.
    #[arg(long)]
    shrink: bool,
}

#[expect(clippy::disallowed_methods, reason = "measures the simulation itself, outside of it")]
fn clock() -> Instant {
    Instant::now()
}

pub(crate) fn run(arguments: &SimRunArguments) -> anyhow::Result<ExitCode> {
    let cluster = arguments.cluster.read()?;
    let options = match &arguments.regression {
        Some(path) => Regression::read(path)?.options(),
        None => cluster.options(arguments.seed.unwrap_or_default()),
    };
    let options = RunOptions { keep: arguments.keep.clone(), ..options };
    if let (Some(path), Some(about)) = (&arguments.store, &arguments.about) {
        Regression::of(about, &options).write(path)?;
    }
    let file: Option<Box<dyn Write>> = match &arguments.trace {
        Some(path) => {
            let file = File::create(path)
                .with_context(|| format!("the trace {} cannot be written", path.display()))?;
            Some(Box::new(BufWriter::new(file)))
        }
        None => None,
    };
    let begun = clock();
    let words = file.is_some();
    let mut report = if arguments.twice {
        sim::run_twice(&options)
    } else {
        sim::run(
            &options,
            Recording {
                words,
                file,
                decisions: arguments.decisions.is_some(),
                states: match arguments.states {
                    Some(_) => KeptStates::Words,
                    None => KeptStates::None,
                },
                ..Recording::default()
            },
        )
    };
    let seconds = begun.elapsed().as_secs_f64();
    if let Some(path) = &arguments.decisions {
        let lines: String = report.decisions.iter().flat_map(|line| [line, "\n"]).collect();
        std::fs::write(path, lines)
            .with_context(|| format!("the decisions {} cannot be written", path.display()))?;
    }
    if let Some(path) = &arguments.states {
        std::fs::write(path, states::lines(&report.states))
            .with_context(|| format!("the states {} cannot be written", path.display()))?;
    }
    if report.verdict() != RunVerdict::Ok {
        report = explain(&report, arguments.last);
        if arguments.shrink && report.verdict() != RunVerdict::Nondeterministic {
            let (smaller, shrunk) = shrink(&options, report.verdict());
            note(format!("shrunk to {} faults:", smaller.keep.as_ref().map_or(0, Vec::len)));
            for (index, fault) in shrunk.plan.iter().enumerate() {
                if smaller.keep.as_ref().is_some_and(|keep| keep.contains(&index)) {
                    note(format!("  {fault}"));
                }
            }
            note(format!("  {}", shrunk.reason().unwrap_or_default()));
            note(format!("  {}", smaller.command()));
        }
    }
    if arguments.json {
        let mut json = report.json();
        json["seconds"] = seconds.into();
        say(json.to_string());
    } else {
        say(format!(
            "seed {}: {} · {} events in {seconds:.3} s ({:.2} M/s) · {:.1} simulated s · {} resets · \
             {} generations · {} commits · hash {:016x}{}",
            options.seed,
            report.verdict().name(),
            report.events,
            report.events as f64 / seconds / 1e6,
            report.nanoseconds as f64 / 1e9,
            report.resets,
            report.generations,
            report.commits,
            report.hash,
            report.result.as_ref().map_or_else(String::new, |result| format!(" · job: {result}")),
        ));
    }
    Ok(ExitCode::from(report.verdict().exit_code()))
}

/// Runs a failing seed again with words, and writes its last events.
pub(crate) fn explain(report: &RunReport, last: usize) -> RunReport {
    let recording = Recording { keep: last, words: true, ..Recording::default() };
    let again = sim::run(&report.options, recording);
    for line in &again.last_events {
        note(line);
    }
    note(format!(
        "seed {} failed ({}) at {:.3} s, commit {}: {}",
        report.options.seed,
        report.verdict().name(),
        report.nanoseconds as f64 / 1e9,
        commit(),
        report.reason().unwrap_or_default()
    ));
    note(format!("repeat: {}", report.options.command()));
    if report.verdict() != RunVerdict::Nondeterministic && again.hash != report.hash {
        note("the second run was another: the seed is not deterministic");
        let mut differs = again;
        differs.failure = Some(sim::RunFailure {
            verdict: RunVerdict::Nondeterministic,
            reason: "two runs of the failing seed differ".to_owned(),
        });
        return differs;
    }
    report.clone()
}
