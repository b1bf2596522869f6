//! The last line about a job: its duration, steps and losses, and their causes. Called by the driver's process at the
//! job's end.

use std::collections::BTreeMap;
use std::time::Duration;

use elastic_protocol::messages::StatusReport;
use elastic_protocol::{ResetCause, counted};

use crate::ledger::{GoodputLedger, TimeBucket};

/// Most buckets, beside training, that are named.
const BUCKETS_NAMED_MAX: usize = 3;

/// All kinds of causes.
pub(crate) const RESET_KINDS: [&str; 11] = [
    "worker_exited",
    "worker_failed",
    "worker_silent",
    "peer_broken",
    "host_lost",
    "host_blacklisted",
    "deadline_passed",
    "hosts_changed",
    "worker_leaves",
    "replicas_differ",
    "shards_rebalanced",
];

/// The kind of a cause, as a label.
pub(crate) const fn kind_of_cause(cause: &ResetCause) -> &'static str {
    match cause {
        // A death is the end of a process whose exit status is still to come.
        ResetCause::WorkerExited { .. } | ResetCause::WorkerDied { .. } => "worker_exited",
        ResetCause::WorkerFailed { .. } => "worker_failed",
        ResetCause::WorkerSilent { .. } => "worker_silent",
        ResetCause::PeerBroken { .. } => "peer_broken",
        ResetCause::HostLost { .. } => "host_lost",
        ResetCause::HostBlacklisted { .. } => "host_blacklisted",
        ResetCause::DeadlinePassed { .. } => "deadline_passed",
        ResetCause::HostsChanged { .. } => "hosts_changed",
        ResetCause::WorkerLeaves { .. } => "worker_leaves",
        ResetCause::ReplicasDiffer { .. } => "replicas_differ",
        ResetCause::ShardsRebalanced { .. } => "shards_rebalanced",
    }
}

/// A job in one line. `took` is from its beginning to its end; `last` is its status at the end, with the workers that
/// it had.
pub fn summarize(took: Duration, last: &StatusReport, ledger: &GoodputLedger) -> String {
    let step = last.workers.iter().map(|worker| worker.step).max().unwrap_or_default();
    let workers = last.workers.iter().filter(|worker| worker.rank.is_some()).count() as u64;
    let hosts = last.hosts.len() as u64;
    let mut parts = vec![
        format!("summary: {}", in_words(took)),
        counted(step, "step"),
        format!("{} on {}", counted(workers, "worker"), counted(hosts, "host")),
    ];
    parts.extend(goodput(last));
    parts.push(resets(last, ledger));
    if last.resets > 0 || last.steps_lost > 0 || ledger.has_lost_unseen() {
        let least = if ledger.has_lost_unseen() { "at least " } else { "" };
        parts.push(format!("{least}{} lost", counted(last.steps_lost, "step")));
    }
    parts.join(", ")
}

/// Goodput, and the uses of the rest of the time.
fn goodput(last: &StatusReport) -> Option<String> {
    let goodput = last.goodput.as_ref()?;
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let mut others: Vec<(&str, f64)> = goodput
        .buckets
        .iter()
        .filter(|(bucket, _)| bucket.as_str() != TimeBucket::Training.name())
        .map(|(bucket, seconds)| (bucket.as_str(), seconds / goodput.slot_seconds))
        .collect();
    others.sort_by(|left, right| right.1.total_cmp(&left.1));
    let named: Vec<String> = others
        .iter()
        .take(BUCKETS_NAMED_MAX)
        .map(|(bucket, share)| format!("{} {}", bucket.replace('_', " "), percent(*share)))
        .collect();
    let rest = if named.is_empty() { String::new() } else { format!(" ({})", named.join(", ")) };
    Some(format!("goodput {}{rest}", percent(goodput.since_start?)))
}

/// The number of resets, and how many of each cause; those that are not on record any more have no cause.
fn resets(last: &StatusReport, ledger: &GoodputLedger) -> String {
    let mut causes: BTreeMap<&str, u64> = BTreeMap::new();
    for reset in ledger.resets() {
        *causes.entry(kind_of_cause(&reset.cause)).or_default() += 1;
    }
    let named: Vec<String> = causes
        .iter()
        .map(|(cause, count)| format!("{count} {}", cause.replace('_', " ")))
        .collect();
    let causes = if named.is_empty() { String::new() } else { format!(" ({})", named.join(", ")) };
    format!("{}{causes}", counted(last.resets, "reset"))
}

/// A duration: to a tenth of a second below a minute, to the second below an hour, else to the minute.
fn in_words(took: Duration) -> String {
    let seconds = took.as_secs();
    match (seconds / 3_600, seconds / 60 % 60, seconds % 60) {
        (0, 0, _) => format!("{:.1} s", took.as_secs_f64()),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

#[cfg(test)]
mod tests {
    use elastic_driver::{DriverEvent, EventKind, ListedHost, ResetWay};
    use elastic_protocol::{GenerationId, HostName, Incarnation, Term, Time, WorkerId};
    use serde_json::json;

    use super::*;

    fn ledger() -> GoodputLedger {
        let host = HostName::new("a").expect("a literal");
        let worker = WorkerId { host: host.clone(), slot: 0, incarnation: Incarnation(1) };
        let mut ledger = GoodputLedger::new(Time::ZERO);
        let hosts =
            vec![ListedHost { name: host, slots: 1, is_blacklisted: false, is_drained: false }];
        let cause = ResetCause::WorkerDied { worker };
        for (generation, kind) in [
            (0, EventKind::HostsChanged { needed: 1, min_np: 1, hosts }),
            (1, EventKind::ResetDecided { cause, way: ResetWay::Abort }),
        ] {
            let generation = GenerationId(generation);
            ledger.handle_event(Time::ZERO, &DriverEvent { term: Term(1), generation, kind });
        }
        ledger
    }

    #[test]
    fn it_says_what_a_job_took_and_lost_and_to_what() {
        let worker = json!({ "rank": 0, "host": "a", "slot": 0, "pid": 1, "state": "succeeded", "step": 120 });
        let status = json!({
            "job": "8c2294e4-bcfa-47d0-ac77-d9dac43fa755", "term": 1, "generation": 2, "phase": "succeeded",
            "world_size": 1, "min_np": 1, "max_np": null, "resets": 1, "steps_lost": 2,
            "hosts": [{ "name": "a", "slots": 1, "state": "active" }], "workers": [worker],
            "last_reset": null, "waiting_for": null, "warnings": [], "dropped_messages": 0,
            "goodput": { "since_start": 0.75, "last_10_min": 0.75, "slot_seconds": 100.0,
                "buckets": { "training": 75.0, "driver_away": 20.0, "lost": 5.0 } },
        });
        let status: StatusReport = serde_json::from_value(status).expect("a status");
        assert_eq!(
            summarize(Duration::from_secs(100), &status, &ledger()),
            "summary: 1 min 40 s, 120 steps, 1 worker on 1 host, goodput 75.0 % (driver away 20.0 %, lost 5.0 %), \
             1 reset (1 worker exited), 2 steps lost"
        );
        // The workers trained without a driver; or they told their progress for the last time before they were killed.
        for (committed, unseen) in [(0, true), (2, false)] {
            let steps_lost = committed;
            let kind = EventKind::StateLost { committed, begins_at: 0, steps_lost, unseen };
            let mut ledger = ledger();
            let generation = GenerationId(2);
            ledger.handle_event(Time::ZERO, &DriverEvent { term: Term(2), generation, kind });
            let said = summarize(Duration::from_secs(100), &status, &ledger);
            assert!(said.ends_with("at least 2 steps lost"), "{said}");
        }
        let times = [900, 59_900, 3_600_000].map(|ms| in_words(Duration::from_millis(ms)));
        assert_eq!(times, ["0.9 s", "59.9 s", "1 h 0 min"]);
    }
}
