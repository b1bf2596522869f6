//! A job's present activity and waits. Used by `explain now`.

use std::collections::BTreeMap;

use elastic_protocol::counted;
use elastic_protocol::messages::{AwaitedWorker, JobPhase, StalledWorker, StatusReport};

use super::Explanation;
use crate::ledger::TimeBucket;
use crate::log::{LoggedJob, wall_clock_at};

/// Most slots that one sentence names.
const SLOTS_NAMED_MAX: usize = 8;

/// Explains the present: by the driver's own status where there is one, else by the last events.
pub(super) fn of_present(record: &LoggedJob, status: Option<&StatusReport>) -> Explanation {
    let generation = status.map_or(record.ledger.generation().0, |status| status.generation);
    let mut by_bucket: BTreeMap<TimeBucket, Vec<String>> = BTreeMap::new();
    for (host, slot, bucket) in record.ledger.slots_now() {
        by_bucket.entry(bucket).or_default().push(format!("{host}:{slot}"));
    }
    let training = by_bucket.get(&TimeBucket::Training).map_or(0, Vec::len);
    // A log whose beginning is missing knows no slot until something happens to it.
    let members = status
        .filter(|status| by_bucket.is_empty() && status.phase == JobPhase::Run)
        .map_or(0, |status| status.world_size);
    let waiting_for = status.and_then(|status| status.waiting_for.as_deref());
    let cause = match (&record.result, waiting_for, training) {
        (Some(result), _, _) => format!("the job is over: {}", result.reason),
        (None, Some(waiting), _) => format!("it waits: {waiting}"),
        (None, None, 0) if by_bucket.contains_key(&TimeBucket::Hung) => {
            format!("generation {generation} stands still, as a member hangs")
        }
        (None, None, 0) if members > 0 => {
            format!("generation {generation} trains with {}", counted(u64::from(members), "worker"))
        }
        (None, None, 0) => "no slot trains".to_owned(),
        (None, None, slots) => format!("generation {generation} trains on {slots} slots"),
    };
    let mut sentences = vec![format!("Job {}: {cause}.", record.job)];
    if record.result.is_none() {
        let idle = by_bucket.iter().filter(|(bucket, _)| **bucket != TimeBucket::Training);
        sentences.extend(idle.map(|(bucket, slots)| describe(*bucket, slots)));
        sentences.extend(record.missing_before.map(|missing| format!("Note: {missing}.")));
    }
    sentences.extend(status.into_iter().flat_map(hangs));
    let slow = status.into_iter().flat_map(|status| &status.stragglers);
    sentences
        .extend(slow.map(|straggler| format!("Slow: {straggler}; they wait for it in each step.")));
    let links = status.into_iter().flat_map(|status| &status.slow_links);
    sentences.extend(links.map(|link| format!("Slow: {link}.")));
    let differing = status.into_iter().flat_map(|status| &status.divergence);
    sentences.extend(differing.map(|it| format!("Replicas differ: {it}.")));
    let warnings = status.into_iter().flat_map(|status| &status.warnings);
    sentences.extend(warnings.map(|warning| format!("Warning: {warning}.")));
    let awaited = by_bucket
        .iter()
        .find(|(bucket, _)| !matches!(bucket, TimeBucket::Training | TimeBucket::Spare))
        .and_then(|(_, slots)| slots.first());
    Explanation {
        job: None,
        generation,
        cause,
        worker: None,
        host: awaited.and_then(|slot| slot.rsplit_once(':')).map(|(host, _)| host.to_owned()),
        way: "now",
        at: humantime::format_rfc3339_millis(wall_clock_at(record.last_at)).to_string(),
        next_generation: None,
        ms: None,
        cost: by_bucket
            .iter()
            .map(|(bucket, slots)| (bucket.name().to_owned(), slots.len() as f64))
            .collect(),
        steps_lost: 0,
        advice: advice(&by_bucket),
        sentences,
    }
}

/// The workers that hang; if none does, the awaited ones.
fn hangs(status: &StatusReport) -> Vec<String> {
    let with_stack = |stalled: &StalledWorker| {
        let told = |name: &str, stack: &Option<String>| {
            stack.as_ref().map_or_else(String::new, |stack| format!(" {name}:\n{stack}"))
        };
        let python = told("Its Python stacks", &stalled.stack);
        let native = told("The native stack of its main thread", &stalled.native_stack);
        format!("Worker of {stalled}.{python}{native}")
    };
    let awaited = |awaited: &AwaitedWorker| format!("Awaited: {awaited}.");
    match status.stalled.is_empty() {
        true => status.awaited.iter().map(awaited).collect(),
        false => status.stalled.iter().map(with_stack).collect(),
    }
}

fn describe(bucket: TimeBucket, slots: &[String]) -> String {
    let named: Vec<&str> = slots.iter().take(SLOTS_NAMED_MAX).map(String::as_str).collect();
    let more = match slots.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let what = match bucket {
        TimeBucket::Absent => "have no agent: their host has not joined, or is lost",
        TimeBucket::Blacklisted => "are of blacklisted hosts",
        TimeBucket::Backoff => "wait after a failure before their next process",
        TimeBucket::Drained => "are of hosts that the operator has drained",
        TimeBucket::Starting => "wait for their process to start",
        TimeBucket::Importing => "have a process that has not called the library yet",
        TimeBucket::Hung => "stand still, as a member hangs",
        TimeBucket::Idle => "wait for hosts: those that are there have too few slots",
        TimeBucket::Waiting => "wait for the next generation",
        TimeBucket::Gathering => "wait for the others, or for enough workers",
        TimeBucket::Forming => "connect to each other",
        TimeBucket::Pausing => "stop at an agreed step",
        TimeBucket::Leaving => "were told to end",
        TimeBucket::Spare => "are spare",
        TimeBucket::Vacant => "have no process",
        TimeBucket::Finished => "have finished",
        TimeBucket::Ending => "leave, as the job is over",
        TimeBucket::DriverAway => "were last seen by a driver that is gone",
        // The last ones are only booked afterwards.
        TimeBucket::Training
        | TimeBucket::Lost
        | TimeBucket::Detecting
        | TimeBucket::Syncing
        | TimeBucket::Data
        | TimeBucket::CheckpointStall
        | TimeBucket::Straggler => "train",
    };
    format!("{}{more} {what}.", named.join(", "))
}

fn advice(by_bucket: &BTreeMap<TimeBucket, Vec<String>>) -> Option<String> {
    if by_bucket.contains_key(&TimeBucket::Training) || by_bucket.contains_key(&TimeBucket::Hung) {
        return None;
    }
    let has = |bucket| by_bucket.contains_key(&bucket);
    if has(TimeBucket::Absent) {
        let advice =
            "start the agents of those hosts; with a smaller --min-np the job goes on without them";
        return Some(advice.to_owned());
    }
    if has(TimeBucket::Blacklisted) {
        let advice = "--blacklist-cooldown-range MIN MAX lets blacklisted hosts come back";
        return Some(advice.to_owned());
    }
    if has(TimeBucket::Drained) {
        let advice = "`elastic-node readmit HOST` lets a drained host have workers again";
        return Some(advice.to_owned());
    }
    has(TimeBucket::Importing).then(|| {
        "the program has to call the library; --start-timeout says how long it may take".to_owned()
    })
}
