//! `sim bugs`: plants each known bug and proves that the simulation finds it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::Context;
use clap::Args;
use serde_json::json;
use sim::shrink::shrink;
use sim::{
    Bug, GuidedSearch, JobKind, Recording, Regression, RunOptions, RunReport, RunVerdict,
    SimulationMode, plant,
};

use super::{ClusterArguments, commit, note, say};

/// Size of the cluster for rare bugs.
const CROWD_HOSTS: u32 = 12;
const CROWD_SECONDS: u64 = 60;

/// Size of the cluster for bugs that show in long waits.
const QUIET_HOSTS: u32 = 3;
const QUIET_SLOTS: u32 = 1;
const QUIET_SECONDS: u64 = 300;

#[derive(Args, Debug)]
pub(crate) struct BugsArguments {
    #[command(flatten)]
    cluster: ClusterArguments,
    /// Seeds within which each must be found.
    #[arg(long, default_value_t = 10_000)]
    max_seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    first_seed: u64,
    /// Searches as `sim fuzz` does, with this seed, in place of one seed after the other.
    #[arg(long, value_name = "SEED", conflicts_with = "first_seed")]
    guided: Option<u64>,
    /// Threads.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// One JSON object at the end, on stdout.
    #[arg(long)]
    json: bool,
    /// Writes the table to this file.
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
    /// Tries the seed that found each bug by this table first, and all seeds only if it does not find it any more.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["guided", "first_seed", "table"])]
    known: Option<PathBuf>,
    /// Writes each into a file of this folder as a regression: with the faults that it needs, and no others.
    #[arg(long, value_name = "FOLDER")]
    store: Option<PathBuf>,
    /// Only bugs whose name has this in it.
    #[arg(long)]
    only: Option<String>,
}

/// Whether a bug needs a coincidence and thus a cluster with more events.
const fn is_rare(bug: Bug) -> bool {
    matches!(bug, Bug::ResumeNotSent | Bug::ProcessesNotTakenOver | Bug::LookBehindOthersForgotten)
}

/// Whether a bug shows only in a wait that no fault disturbs for long, and thus in a small cluster.
const fn shows_in_long_waits(bug: Bug) -> bool {
    matches!(
        bug,
        Bug::SectionsIgnored
            | Bug::OtherCollectiveIgnored
            | Bug::StragglerByWaiting
            | Bug::StragglerAtOnce
            | Bug::LinkSlowAtOnce
            | Bug::FailedCheckIgnored
            | Bug::LinkTurnedAround
            | Bug::LinksOfSlowHostNamed
            | Bug::ReplacedBelowMin
            | Bug::ReplacementsUnbounded
            | Bug::NeighbourReplaced
            | Bug::RestNeverEnds
            | Bug::NeighbourCarriesLess
            | Bug::InactivityAssumed
            | Bug::InactivityForgotten
            | Bug::RecorderIgnored
            | Bug::RebalancedWithoutCoolDown
            | Bug::RankDealsByItself
    )
}

/// Set of draws for a bug: the first in which it shows.
const fn draws(bug: Bug) -> u32 {
    match bug {
        Bug::ElasticTimeoutIgnored
        | Bug::LateForHeldOrders
        | Bug::LateForOwnPause
        | Bug::WelcomeHeld
        | Bug::EarlyTimerObeyed
        | Bug::NothingAcknowledged
        | Bug::PauseNotToldToAll
        | Bug::ResetLimitOneMore
        | Bug::BlamedTooEarly
        | Bug::UnclearHostLeaves
        | Bug::CooldownNotDoubled
        | Bug::StopNotToldToAll
        | Bug::LostHostNotTold
        | Bug::ProcessNotNamed => 1,
        Bug::RecorderIgnored => 12,
        Bug::OtherReleaseBlamed => 13,
        Bug::UnstoredEndNotTold
        | Bug::UnstoredStopWaits
        | Bug::UnstoredNumbersLeave
        | Bug::DisplacedGoesOn => 14,
        Bug::GoneCheckpointNotTold => 15,
        Bug::RegainedStepsStayLost => 18,
        Bug::HangForgottenAtEnd => 6,
        Bug::UnlistedAtOnceFatal => 16,
        Bug::TotalLossTolerated => 2,
        Bug::SealedTooEarly
        | Bug::LedgerOfAnotherStep
        | Bug::OneSaveAGeneration
        | Bug::OldCommitPreferred
        | Bug::EndNotSaved
        | Bug::StopNotSaved
        | Bug::LeaversNotSaved => 4,
        Bug::RefusalBelieved => 3,
        Bug::DeathCountsTwice
        | Bug::DeathStaysUnexplained
        | Bug::ExitBeforeVerdictForgotten
        | Bug::ExitOmittedAfterDeath => 4,
        Bug::FirstAddressKept | Bug::LaneNeverAnswers => 5,
        Bug::HangNeverNamed
        | Bug::WaiterNamed
        | Bug::OtherCollectiveIgnored
        | Bug::EveryWaitIsAHang
        | Bug::SectionsIgnored
        | Bug::GoingOnNotTold
        | Bug::InspectedOnce
        | Bug::InactivityAssumed
        | Bug::InactivityForgotten
        | Bug::HangStaysBooked => 6,
        Bug::StragglerByWaiting | Bug::StragglerAtOnce => 7,
        Bug::ShardsFoldedByArrival | Bug::ShardsOfFormerWorld | Bug::StreamOfAnotherStep => 8,
        Bug::ReplacedBelowMin
        | Bug::ReplacementsUnbounded
        | Bug::NeighbourReplaced
        | Bug::RestNeverEnds => 8,
        Bug::MajorityIsWrong
        | Bug::PerRankStateAccused
        | Bug::DistrustForgotten
        | Bug::DistrustNotRecorded => 8,
        Bug::LookBehindOthersForgotten => 19,
        Bug::PassesNotCompared | Bug::FurtherWayIsApart => 20,
        Bug::NeighbourCarriesLess | Bug::RebalancedWithoutCoolDown | Bug::RankDealsByItself => 9,
        Bug::PartOfAnotherRank | Bug::PartsNotCompared => 9,
        Bug::StarvedGivenUp => 11,
        Bug::ManifestBeforeData
        | Bug::CheckpointNotSynced
        | Bug::OldCheckpointRemovedFirst
        | Bug::DataRemovedBeforeManifest => 10,
        Bug::LinkSlowAtOnce
        | Bug::LinkTurnedAround
        | Bug::LinksOfSlowHostNamed
        | Bug::FailedCheckIgnored => 11,
        Bug::KeptNotAwaited
        | Bug::LeftCountsAsDone
        | Bug::RepeatedSaveUnanswered
        | Bug::ProgramForgotten
        | Bug::StandbyNotUsed
        | Bug::StandbysUntold => 18,
        Bug::UntrainedJobGoesOn => 19,
        _ => 0,
    }
}

/// The options of a seed's run that is to find a bug.
fn options(bug: Bug, cluster: &ClusterArguments, seed: u64) -> RunOptions {
    let mut options = cluster.fixed(seed);
    options.draws = draws(bug);
    if bug.is_by_restart() {
        options.job = JobKind::Restart;
    }
    if bug.is_of_training() {
        options.mode = SimulationMode::Training;
    }
    if bug.is_of_store() {
        options.mode = SimulationMode::Store;
    }
    if is_rare(bug) {
        options.hosts = options.hosts.max(CROWD_HOSTS);
        options.seconds = options.seconds.max(CROWD_SECONDS);
    }
    if shows_in_long_waits(bug) {
        options.hosts = QUIET_HOSTS;
        options.slots = QUIET_SLOTS;
        options.seconds = options.seconds.max(QUIET_SECONDS);
    }
    if matches!(bug, Bug::LeftCountsAsDone | Bug::ProgramForgotten) {
        // These show where all workers that a job needs have left at once, or all its hosts lack the program.
        (options.hosts, options.slots) = (1, 2);
    }
    if bug == Bug::RecorderIgnored {
        // Of three that wait, the one that waits in something else is named without a recorder, too.
        options.hosts = 2;
    }
    options
}

/// The number of runs before the one that found each bug, by the name of the bug, as a table has them.
fn known_seeds(path: &Path) -> anyhow::Result<BTreeMap<String, u64>> {
    let table = std::fs::read_to_string(path)
        .with_context(|| format!("the table {} cannot be read", path.display()))?;
    let of_row = |row: &str| {
        let mut cells = row.split('|').skip(1).map(str::trim);
        let name = cells.next()?.to_owned();
        let seeds: u64 = cells.nth(1)?.parse().ok()?;
        Some((name, seeds.checked_sub(1)?))
    };
    Ok(table.lines().filter_map(of_row).collect())
}

/// The number of runs before the one that finds a bug, with its report.
fn find(
    bug: Bug,
    arguments: &BugsArguments,
    known: &BTreeMap<String, u64>,
) -> Option<(u64, RunReport)> {
    let cluster = arguments.cluster.clone();
    let mut guided = arguments
        .guided
        .map(|seed| GuidedSearch::new(seed, move |seed| options(bug, &cluster, seed)));
    for number in known.get(bug.name()).copied().into_iter().chain(0..arguments.max_seeds) {
        plant(Some(bug));
        let seed = arguments.first_seed + number;
        let report = match (bug, &mut guided) {
            (Bug::RandomOrder, _) => sim::run_twice(&options(bug, &arguments.cluster, seed)),
            (_, Some(search)) => search.run(),
            (_, None) => sim::run(&options(bug, &arguments.cluster, seed), Recording::default()),
        };
        if report.verdict() != RunVerdict::Ok {
            if let Some(folder) = &arguments.store {
                store(bug, &report.options, &report, folder);
            }
            plant(None);
            return Some((number, report));
        }
        plant(None);
    }
    None
}

/// Stores the planted bug as a regression file.
fn store(bug: Bug, options: &RunOptions, report: &RunReport, folder: &Path) {
    let (smaller, _) = shrink(options, report.verdict());
    let name: String =
        bug.name().chars().map(|c| if c.is_alphanumeric() { c } else { '_' }).collect();
    let path = folder.join(format!("{name}.json"));
    if let Err(error) = Regression::of(bug.name(), &smaller).write(&path) {
        note(format!("{error}"));
    }
}

pub(crate) fn bugs(arguments: &BugsArguments) -> anyhow::Result<ExitCode> {
    let wanted: Vec<Bug> = Bug::ALL
        .iter()
        .copied()
        .filter(|bug| arguments.only.as_ref().is_none_or(|only| bug.name().contains(only.as_str())))
        .collect();
    let known = arguments.known.as_deref().map(known_seeds).transpose()?.unwrap_or_default();
    let found = Mutex::new(vec![None; wanted.len()]);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..arguments.jobs.max(1) {
            scope.spawn(|| {
                while let Some(bug) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = find(*bug, arguments, &known);
                    let place = wanted.iter().position(|other| other == bug);
                    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Some(place) = place {
                        found[place] = result;
                    }
                }
            });
        }
    });
    let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut table = String::from(
        "# Planted bugs\n\n`cargo run --release -p sim -- bugs` plants each of these bugs alone, and runs seeds from 0 \
         until one fails\n(those that need a coincidence on 12 hosts for 60 s). `seeds` is how many that took. Written by `sim bugs --table docs/planted-bugs.md`.\n\
         `cargo xtask ci` runs the seed that found each, and the seeds from 0 where it does not find it any more.\n\n\
         | bug | room | seeds | found as |\n| --- | --- | ---: | --- |\n",
    );
    let mut rows = Vec::new();
    for (bug, result) in wanted.iter().zip(&found) {
        let (seeds, verdict, reason) = match result {
            Some((before, report)) => {
                let reason = report.reason().unwrap_or_default();
                let reason: String = reason.chars().take(90).collect();
                ((before + 1).to_string(), report.verdict().name(), reason)
            }
            None => ("-".to_owned(), "not found", String::new()),
        };
        table += &format!(
            "| {} | {} | {seeds} | {verdict}: {} |\n",
            bug.name(),
            bug.room(),
            reason.replace('|', "/")
        );
        let room = bug.room();
        note(format!("{:>6} seeds  {room:<12} {:<55} {verdict}: {reason}", seeds, bug.name()));
        rows.push(json!({
            "name": bug.name(),
            "room": room,
            "found": result.is_some(),
            "seeds": result.as_ref().map(|(before, _)| before + 1),
            "verdict": verdict,
            "reason": reason,
        }));
    }
    if let Some(path) = &arguments.table {
        std::fs::write(path, &table)
            .with_context(|| format!("the table {} cannot be written", path.display()))?;
    }
    let missed = found.iter().filter(|result| result.is_none()).count();
    if arguments.json {
        say(json!({ "bugs": rows, "missed": missed, "commit": commit() }).to_string());
    } else {
        say(format!("{} bugs planted, {} found", wanted.len(), wanted.len() - missed));
    }
    Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
