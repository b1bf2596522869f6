//! A job's status as text for people. Used by `status`; parts of it by the watched screen and the driver's own lines.

use comfy_table::Table;
use elastic_observe::{TimeBucket, describe_phases};
use elastic_protocol::messages::{DriverStatus, GoodputStatus, StatusReport, WorkerStatus};
use elastic_protocol::{JobOutcome, counted};

use super::find_job::short_id;
use super::tables::{lines_of, plain_table};
use crate::process::{gather_text, moved_text};

/// Most buckets, beside training, that the line of goodput names.
const BUCKETS_NAMED_MAX: usize = 3;

/// The status as text for people.
pub(super) fn describe_status(status: &StatusReport) -> String {
    // After the end there is no world any more.
    let world = match &status.result {
        Some(_) => String::new(),
        None => format!(" · world size {}", status.world_size),
    };
    let mut text = format!(
        "job {} · {} · generation {}{world} · {}\n",
        short_id(&status.job.to_string()),
        phase_of(status),
        status.generation,
        counted(status.resets, "reset")
    );
    text.push_str(&format!("driver {}, term {}", describe_driver(&status.driver), status.term));
    if !status.standbys.is_empty() {
        let standbys: Vec<String> = status.standbys.iter().map(describe_driver).collect();
        text.push_str(&format!(" · standing by: {}", standbys.join(", ")));
    }
    text.push('\n');
    // After the end nobody serves it.
    if let Some(dashboard) = status.dashboard.as_ref().filter(|_| status.result.is_none()) {
        text.push_str(&format!("dashboard: {dashboard}\n"));
    }
    if let Some(reset) = &status.last_reset {
        text.push_str(&format!("last reset: {} ({})\n", reset.cause, describe_phases(&reset.ms)));
    }
    if let Some(goodput) = status.goodput.as_ref().and_then(|it| describe_goodput(it, usize::MAX)) {
        text.push_str(&format!("{goodput}\n"));
    }
    if let Some(moved) = &status.moved {
        text.push_str(&format!("moves: {}\n", moved_text(moved)));
    }
    if let Some(gather) = &status.gather {
        text.push_str(&format!("workers: {}\n", gather_text(gather)));
    }
    if let Some(waiting) = &status.waiting_for {
        text.push_str(&format!("waiting: {waiting}\n"));
    }
    for stalled in &status.stalled {
        text.push_str(&format!("hangs: {stalled}\n"));
        let stack = stalled.stack.iter().flat_map(|stack| stack.lines());
        text.extend(stack.map(|line| format!("    {line}\n")));
        if let Some(stack) = &stalled.native_stack {
            text.push_str("    Native stack of its main thread (innermost call first):\n");
            text.extend(stack.lines().map(|line| format!("      {line}\n")));
        }
    }
    if status.stalled.is_empty() {
        text.extend(status.awaited.iter().map(|awaited| format!("awaited: {awaited}\n")));
    }
    text.extend(status.divergence.iter().map(|differing| format!("differs: {differing}\n")));
    text.extend(status.not_compared.iter().map(|array| format!("not compared: {array}\n")));
    text.extend(status.stragglers.iter().map(|straggler| format!("slow: {straggler}\n")));
    text.extend(status.slow_links.iter().map(|link| format!("slow: {link}\n")));
    if let Some(checkpoint) = &status.checkpoint {
        let last = match (checkpoint.last_step, &checkpoint.at) {
            (Some(step), Some(at)) => format!("step {step}, saved at {at}"),
            (Some(step), None) => format!("step {step}"),
            (None, _) => "none yet".to_owned(),
        };
        text.push_str(&format!("checkpoint: {last}, in {}\n", checkpoint.directory));
    }
    for warning in &status.warnings {
        text.push_str(&format!("warning: {warning}\n"));
    }
    for host in &status.hosts {
        for lane in &host.lanes {
            let s = lane.hanging_ms.unwrap_or_default() / 1_000;
            text.push_str(&format!(
                "warning: host {}: {}: not answered for {s} s\n",
                host.name, lane.name
            ));
        }
    }
    for pair in &status.unreachable {
        text.push_str(&format!("unreachable: {pair}\n"));
    }
    if let Some(result) = &status.result {
        text.push_str(&format!("result: {}\n", result.reason));
    }
    for table in [hosts_table(status), workers_table(status)] {
        text.push_str(&format!("\n{}\n", lines_of(&table)));
    }
    text.trim_end().to_owned()
}

/// The word for the job's phase; a job that the operator has ended is no failure.
fn phase_of(status: &StatusReport) -> &'static str {
    match &status.result {
        Some(result) if result.outcome == JobOutcome::Stopped => "stopped",
        _ => status.phase.name(),
    }
}

/// Goodput, and the largest uses of the rest of the time, as many as fit in `width` characters; `None` before the first
/// second was counted.
pub(crate) fn describe_goodput(goodput: &GoodputStatus, width: usize) -> Option<String> {
    let since_start = goodput.since_start?;
    let GoodputStatus { slot_seconds, buckets, .. } = goodput;
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let mut others: Vec<(&String, &f64)> = buckets
        .iter()
        .filter(|(bucket, _)| bucket.as_str() != TimeBucket::Training.name())
        .collect();
    others.sort_by(|left, right| right.1.total_cmp(left.1));
    let named: Vec<String> = others
        .iter()
        .take(BUCKETS_NAMED_MAX)
        .map(|(bucket, seconds)| format!("{bucket} {}", percent(**seconds / slot_seconds)))
        .collect();
    // A job that is younger than that has one goodput.
    let recent = goodput
        .last_10_min
        .map(percent)
        .filter(|recent| *recent != percent(since_start))
        .map_or_else(String::new, |recent| format!(", {recent} in the last 10 minutes"));
    let head = format!("goodput: {} since the start{recent}", percent(since_start));
    // The largest ones, as many as there is room for.
    let with = |count: usize| format!("{head} ({})", named[..count].join(", "));
    let fits = |text: &String| text.chars().count() <= width;
    Some((1..=named.len()).rev().map(with).find(fits).unwrap_or_else(|| head.clone()))
}

fn describe_driver(driver: &DriverStatus) -> String {
    let DriverStatus { address, version } = driver;
    format!("{address} ({version})")
}

fn hosts_table(status: &StatusReport) -> Table {
    let mut table = plain_table(["HOST", "SLOTS", "STATE", "UNTIL"]);
    for host in &status.hosts {
        let until = host.until.clone().unwrap_or_default();
        let (name, slots) = (host.name.to_string(), host.slots.to_string());
        table.add_row([name, slots, host.state.to_string(), until]);
    }
    table
}

fn workers_table(status: &StatusReport) -> Table {
    let mut table = plain_table(["RANK", "WORKER", "PID", "STATE", "STEP", ""]);
    for worker in &status.workers {
        table.add_row([
            worker.rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string()),
            format!("{}:{}", worker.host, worker.slot),
            worker.pid.map_or_else(String::new, |pid| pid.to_string()),
            worker.state.to_string(),
            worker.step.to_string(),
            program_words(worker),
        ]);
    }
    table
}

/// The words of a worker's program, on one line: its numbers, then its note.
pub(crate) fn program_words(worker: &WorkerStatus) -> String {
    let (numbers, note) = (worker.reported.to_string(), &worker.note);
    let gap = if numbers.is_empty() || note.is_empty() { "" } else { " · " };
    format!("{numbers}{gap}{note}")
}
