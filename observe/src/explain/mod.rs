//! Explanations: the reason for the end of a generation or for a wait, its cost, and advice. Made of a job's record
//! (`log`) by `elastic-node explain`.

mod advice;
mod present;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use elastic_driver::ResetWay;
use elastic_protocol::messages::{PhaseMs, StatusReport};
use elastic_protocol::{GenerationId, JobOutcome, JobResult, ResetCause, WorkerId};
use serde::Serialize;

use self::advice::{advice_for_end, advice_for_reset};
use crate::ledger::{BucketTotals, GoodputLedger, ResetAccount, TimeBucket};
use crate::log::{LoggedJob, MissingBefore, after, wall_clock_at};

/// The subject of an explanation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ExplainRequest {
    /// The last incident: the end of a job that did not succeed, else the last reset.
    Last,
    /// The reason for the end of this generation.
    Generation(u64),
    /// The job's present activity and waits.
    Now,
}

/// An explanation: an object for programs, sentences for people.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// The job's id; absent on the job's page, which is of one job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// The generation that ended, or the current one.
    pub generation: u64,
    /// The event or the present activity, in one sentence.
    pub cause: String,
    /// The worker at fault, or that asked for the change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// The host at fault, or of that worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The kind of end: `interrupt`, `abort` or `restart`; `end` for the job's end, `now` for the present.
    pub way: &'static str,
    /// When, as RFC 3339.
    pub at: String,
    /// The generation that went on; absent while there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_generation: Option<u64>,
    /// Phases of the reset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ms: Option<PhaseMs>,
    /// Cost in slot-seconds by bucket; for the present, the number of slots in each bucket.
    pub cost: BTreeMap<String, f64>,
    /// Lost steps.
    pub steps_lost: u64,
    /// A measure that would have avoided it or made it cheaper, with its flag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// More sentences, for people.
    #[serde(skip)]
    sentences: Vec<String>,
}

/// The reason why there is no explanation.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NothingToExplain {
    /// No generation has ended, and the job has not failed.
    #[error("no generation of job {job} has ended yet: there is nothing to explain")]
    NoReset {
        /// The job.
        job: String,
    },
    /// No generation has ended since the log begins, and the job has not failed.
    #[error("{missing}, and no generation of job {job} has ended since")]
    NoResetSince {
        /// The job.
        job: String,
        /// The part of the log that is missing.
        missing: MissingBefore,
    },
    /// That generation has not ended, or its end is not known any more.
    #[error(
        "the end of generation {generation} is not on record; the generations that ended: {known}{}",
        after(*missing)
    )]
    UnknownGeneration {
        /// The generation.
        generation: u64,
        /// Generations that can be explained.
        known: String,
        /// The part that is missing, if the log does not have the job's beginning.
        missing: Option<MissingBefore>,
    },
}

/// Explains an incident of a job, or its present. `status` is the driver's own, if it answers.
///
/// # Errors
/// [`NothingToExplain`] says why not.
pub fn explain(
    record: &LoggedJob,
    status: Option<&StatusReport>,
    question: ExplainRequest,
) -> Result<Explanation, NothingToExplain> {
    let last = || record.ledger.resets().next_back().map(of_reset);
    let explained = match question {
        ExplainRequest::Now => Ok(present::of_present(record, status)),
        ExplainRequest::Last => {
            let failed =
                record.result.as_ref().filter(|result| result.outcome != JobOutcome::Succeeded);
            failed
                .map(|result| of_end(record, result))
                .or_else(last)
                .ok_or_else(|| no_reset(record))
        }
        ExplainRequest::Generation(generation) => {
            let account =
                record.ledger.resets().find(|account| account.from == GenerationId(generation));
            let ended = record.result.as_ref().filter(|it| it.generation.0 == generation);
            account.map(of_reset).or_else(|| ended.map(|result| of_end(record, result))).ok_or_else(
                || NothingToExplain::UnknownGeneration {
                    generation,
                    known: known_generations(record),
                    missing: record.missing_before,
                },
            )
        }
    };
    explained.map(|explained| Explanation { job: Some(record.job.clone()), ..explained })
}

/// Explains the last resets of a job, at most `most`, the oldest first.
pub fn explain_resets(ledger: &GoodputLedger, most: usize) -> Vec<Explanation> {
    let mut last: Vec<Explanation> = ledger.resets().rev().take(most).map(of_reset).collect();
    last.reverse();
    last
}

fn no_reset(record: &LoggedJob) -> NothingToExplain {
    let job = record.job.clone();
    match record.missing_before {
        Some(missing) => NothingToExplain::NoResetSince { job, missing },
        None => NothingToExplain::NoReset { job },
    }
}

fn known_generations(record: &LoggedJob) -> String {
    let known: Vec<String> =
        record.ledger.resets().map(|account| account.from.to_string()).collect();
    if known.is_empty() { "none".to_owned() } else { known.join(", ") }
}

fn of_reset(account: &ResetAccount) -> Explanation {
    let (worker, host) = who(&account.cause);
    Explanation {
        job: None,
        generation: account.from.0,
        cause: account.cause.to_string(),
        worker: worker.map(ToString::to_string),
        host,
        way: account.way.name(),
        at: rfc_3339(account),
        next_generation: account.to.map(|to| to.0),
        ms: account.ms,
        cost: cost(&account.cost),
        steps_lost: account.steps_lost,
        advice: advice_for_reset(account),
        sentences: sentences_of_reset(account),
    }
}

fn rfc_3339(account: &ResetAccount) -> String {
    humantime::format_rfc3339_millis(wall_clock_at(account.decided_at)).to_string()
}

fn cost(totals: &BucketTotals) -> BTreeMap<String, f64> {
    totals.non_empty().map(|(bucket, seconds)| (bucket.name().to_owned(), seconds)).collect()
}

/// The worker and the host that a cause names.
pub(crate) fn who(cause: &ResetCause) -> (Option<&WorkerId>, Option<String>) {
    let worker = match cause {
        ResetCause::WorkerExited { worker, .. }
        | ResetCause::WorkerFailed { worker, .. }
        | ResetCause::WorkerSilent { worker, .. }
        | ResetCause::WorkerLeaves { worker, .. }
        | ResetCause::WorkerDied { worker } => Some(worker),
        ResetCause::PeerBroken { peer, reporter, .. } => Some(peer.as_ref().unwrap_or(reporter)),
        ResetCause::DeadlinePassed { waiting_for, .. } => waiting_for.first(),
        ResetCause::ReplicasDiffer { workers, .. }
        | ResetCause::ShardsRebalanced { workers, .. } => workers.first(),
        ResetCause::HostsChanged { added, removed } => removed.first().or(added.first()),
        ResetCause::HostLost { host, .. } | ResetCause::HostBlacklisted { host } => {
            return (None, Some(host.to_string()));
        }
    };
    (worker, worker.map(|worker| worker.host.to_string()))
}

fn sentences_of_reset(account: &ResetAccount) -> Vec<String> {
    let from = account.from;
    let how = match account.way {
        ResetWay::Interrupt => {
            "It was a planned end: every rank stopped at the same step and kept its state."
        }
        ResetWay::Abort => {
            "It was an unplanned end: the others stopped at once and went back to their last commit."
        }
        ResetWay::Restart => {
            "The generation's processes were stopped, and others were started for the next one."
        }
    };
    let mut sentences =
        vec![format!("Generation {from} ended because {}.", account.cause), how.to_owned()];
    if let Some(detail) = &account.out_of_memory {
        sentences.push(format!("The worker was {detail}."));
    }
    sentences.extend(account.further_failures.iter().map(|(worker, error)| {
        format!("The training function of {worker} failed as the generation ended: {error}.")
    }));
    sentences.push(match (account.to, &account.ms) {
        (Some(to), Some(ms)) => format!("Generation {to} trained {}.", describe_ms(ms)),
        _ => "No generation has trained since.".to_owned(),
    });
    let least = if account.lost_unseen { "At least " } else { "" };
    match account.steps_lost {
        0 => {}
        1 => sentences.push(format!("{least}1 step was lost.")),
        steps => sentences.push(format!("{least}{steps} steps were lost.")),
    }
    sentences.push(describe_cost(&account.cost));
    sentences
}

fn describe_ms(ms: &PhaseMs) -> String {
    let phases = [("detect", Some(ms.detect)), ("form", ms.form), ("sync", ms.sync)];
    let known: Vec<String> =
        phases.into_iter().filter_map(|(name, ms)| Some(format!("{name} {:.1} ms", ms?))).collect();
    let total = ms.total.map_or_else(String::new, |total| format!("{total:.1} ms later "));
    format!("{total}({})", known.join(", "))
}

/// The cost, the largest bucket first.
fn describe_cost(totals: &BucketTotals) -> String {
    let mut buckets: Vec<(TimeBucket, f64)> = totals.non_empty().collect();
    buckets.sort_by(|left, right| right.1.total_cmp(&left.1));
    if buckets.is_empty() {
        return "It cost no slot-seconds.".to_owned();
    }
    let sum: f64 = buckets.iter().map(|(_, seconds)| seconds).sum();
    // The largest one, and those that two digits show.
    let mut named: Vec<String> =
        buckets.iter().map(|(bucket, seconds)| format!("{bucket} {seconds:.2}")).collect();
    let shown = buckets.iter().filter(|(_, seconds)| *seconds >= 0.005).count();
    named.truncate(shown.max(1));
    format!("It cost {sum:.2} slot-seconds: {}.", named.join(", "))
}

fn of_end(record: &LoggedJob, result: &JobResult) -> Explanation {
    let first = result.first_failure.as_ref();
    let worker = first.map(|failure| failure.worker.to_string());
    let host = first.map(|failure| failure.worker.host.to_string());
    let mut sentences = vec![format!("The job ended: {}.", result.reason)];
    if let Some(failure) = first {
        let rank = failure.rank.map_or_else(String::new, |rank| format!(" (rank {rank})"));
        let how = match (failure.status, failure.message.as_str()) {
            (Some(status), "") => status.to_string(),
            (Some(status), message) => format!("{status}: {message}"),
            (None, message) => message.to_owned(),
        };
        sentences.push(format!("The first failure was that of {}{rank}: {how}.", failure.worker));
    }
    let totals = record.ledger.totals(record.last_at);
    let was_short_of_memory = record.ledger.resets().any(|account| account.out_of_memory.is_some());
    Explanation {
        job: None,
        generation: result.generation.0,
        cause: result.reason.clone(),
        worker,
        host,
        way: "end",
        at: humantime::format_rfc3339_millis(wall_clock_at(record.last_at)).to_string(),
        next_generation: None,
        ms: None,
        cost: cost(&totals),
        steps_lost: 0,
        advice: result.hint.clone().or_else(|| advice_for_end(result, was_short_of_memory)),
        sentences,
    }
}

/// Sentences for people.
impl fmt::Display for Explanation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.sentences.join("\n"))?;
        match &self.advice {
            Some(advice) => write!(formatter, "\nadvice: {advice}"),
            None => Ok(()),
        }
    }
}
