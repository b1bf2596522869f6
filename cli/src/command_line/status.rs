//! `status`: a table for people, or one JSON object. Called by `main`.

use std::pin::pin;
use std::time::Duration;

use clap::Args;
use comfy_table::Table;
use elastic_observe::{TimeBucket, describe_phases, with_short_names};
use elastic_protocol::messages::{DriverStatus, GoodputStatus, StatusReport, WorkerStatus};
use elastic_protocol::{JobOutcome, counted};
use futures_util::future::{Either, select};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

use super::failure::{CommandFailure, ResultExt};
use super::find_job::{find_job, short_id};
use super::job_source::{DriverAccess, JobSource};
use super::printable::printable;
use super::stdout::{print_line, print_text, shows_escapes};
use super::tables::{lines_of, plain_table};
use super::watch::WatchScreen;
use crate::process::{JobEntry, StatusClient, boot_time, gather_text, moved_text};

/// Interval between two requests of `--watch`.
const WATCH_EVERY: Duration = Duration::from_millis(500);

/// Most buckets, beside training, that the line of goodput names.
const BUCKETS_NAMED_MAX: usize = 3;

/// Flags of `status`.
#[derive(Args, Clone, Debug)]
pub(crate) struct StatusFlags {
    /// The job, by the first letters of its id as `list` shows it [default: the one that runs on this machine, else
    /// the last]
    #[arg(value_name = "JOB", conflicts_with = "driver")]
    job: Option<String>,
    /// Its driver.
    #[command(flatten)]
    access: DriverAccess,
    /// Print one JSON object instead of a table; with --watch one a line
    #[arg(long)]
    json: bool,
    /// Ask repeatedly, until the job is over; on a terminal, shows the job on one screen
    #[arg(long)]
    watch: bool,
}

/// Asks the driver for its status and prints it; of a job that is over, prints its last status.
pub(crate) async fn print_status(flags: &StatusFlags) -> Result<(), CommandFailure> {
    let (driver, token) = match flags.access.source(flags.job.as_deref())? {
        JobSource::Driver(driver, token) => (driver, token),
        JobSource::Past(entry) => return print_past(&entry, flags),
    };
    let client = StatusClient::connect(&driver, &token).await?;
    if flags.watch && !flags.json && shows_escapes(true) {
        let seen = watch(&client).await;
        client.close().await;
        return match seen? {
            WatchedEnd::Over(last) => {
                print_text(&with_short_names(&printable(&describe_status(&last))))
            }
            WatchedEnd::Gone { job, failure } => print_end(&job, failure, flags),
        };
    }
    let mut job: Option<String> = None;
    loop {
        let status = match (client.ask().await, job.take()) {
            (Ok(status), _) => status,
            (Err(failure), Some(job)) => return print_end(&job, failure, flags),
            (Err(failure), None) => return Err(failure),
        };
        let is_over = status.result.is_some();
        print_text(&render(&status, flags)?)?;
        if !flags.watch || is_over {
            break;
        }
        job = Some(status.job.to_string());
        tokio::time::sleep(WATCH_EVERY).await;
    }
    client.close().await;
    Ok(())
}

/// How watching a job ended.
enum WatchedEnd {
    /// The job is over, and this was its last status.
    Over(Box<StatusReport>),
    /// The driver of this job does not answer any more.
    Gone { job: String, failure: CommandFailure },
}

/// Shows the job on the terminal's other screen until it is over.
async fn watch(client: &StatusClient) -> Result<WatchedEnd, CommandFailure> {
    const UNWRITTEN: &str = "the terminal cannot be written";
    let mut interrupt = signal(SignalKind::interrupt()).failed("signals cannot be received")?;
    let mut terminate = signal(SignalKind::terminate()).failed("signals cannot be received")?;
    let mut screen = WatchScreen::open().failed(UNWRITTEN)?;
    let stopped = |number: i32| {
        CommandFailure::new("stopped by a signal").with_code(128 + number).told_elsewhere()
    };
    let mut job: Option<String> = None;
    loop {
        let status = match (client.ask().await, job.take()) {
            (Ok(status), _) => status,
            (Err(failure), Some(job)) => return Ok(WatchedEnd::Gone { job, failure }),
            (Err(failure), None) => return Err(failure),
        };
        screen.show(boot_time(), &status).failed(UNWRITTEN)?;
        if status.result.is_some() {
            return Ok(WatchedEnd::Over(Box::new(status)));
        }
        job = Some(status.job.to_string());
        let (interrupted, terminated) = (pin!(interrupt.recv()), pin!(terminate.recv()));
        match timeout(WATCH_EVERY, select(interrupted, terminated)).await {
            Ok(Either::Left(_)) => return Err(stopped(libc::SIGINT)),
            Ok(Either::Right(_)) => return Err(stopped(libc::SIGTERM)),
            Err(_elapsed) => {}
        }
    }
}

/// Prints how a job of this machine ended that was watched until its driver was gone. A driver goes a moment after the end
/// of its job: that nobody saw its last status is no failure.
fn print_end(
    job: &str,
    failure: CommandFailure,
    flags: &StatusFlags,
) -> Result<(), CommandFailure> {
    match find_job(Some(job)) {
        Ok(entry) if entry.ended.is_some() => print_past(&entry, flags),
        _ => Err(failure),
    }
}

/// Prints the last status of a job that is over, and says how it ended.
fn print_past(entry: &JobEntry, flags: &StatusFlags) -> Result<(), CommandFailure> {
    let Some(end) = &entry.ended else {
        return Err(CommandFailure::new(format!(
            "the driver of job {} does not run any more (process {}), and has told no end",
            short_id(&entry.job),
            entry.pid
        ))
        .hint(format!(
            "`elastic-node explain last {}` tells what happened; started again with the same command and \
             --state-dir, a driver goes on with its job",
            entry.state_dir.display()
        )));
    };
    match (&end.status, flags.json) {
        (Some(status), true) => print_line(&to_json(status)?),
        (None, true) => {
            print_line(&serde_json::json!({"job": entry.job, "result": end.result}).to_string())
        }
        (status, false) => {
            let text = match status {
                Some(status) => describe_status(status),
                None => format!("job {} · result: {}", entry.job, end.result.reason),
            };
            print_text(&with_short_names(&printable(&format!("ended at {}\n{text}", end.at))))
        }
    }
}

fn to_json(status: &StatusReport) -> Result<String, CommandFailure> {
    serde_json::to_string(status).failed("the status cannot be written as JSON")
}

fn render(status: &StatusReport, flags: &StatusFlags) -> Result<String, CommandFailure> {
    if flags.json {
        return to_json(status);
    }
    // With `--watch`, clears the screen before each table.
    let clear = if flags.watch { "\x1b[2J\x1b[H" } else { "" };
    Ok(format!("{clear}{}", with_short_names(&printable(&describe_status(status)))))
}

/// The status as text for people.
fn describe_status(status: &StatusReport) -> String {
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
    if let Some(goodput) = &status.goodput {
        text.push_str(&describe_goodput(goodput));
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
    }
    if status.stalled.is_empty() {
        text.extend(status.awaited.iter().map(|awaited| format!("awaited: {awaited}\n")));
    }
    text.extend(status.divergence.iter().map(|differing| format!("differs: {differing}\n")));
    text.extend(status.not_compared.iter().map(|array| format!("not compared: {array}\n")));
    text.extend(status.stragglers.iter().map(|straggler| format!("slow: {straggler}\n")));
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

/// The word for where the job is; a job that the operator has ended is no failure.
fn phase_of(status: &StatusReport) -> &'static str {
    match &status.result {
        Some(result) if result.outcome == JobOutcome::Stopped => "stopped",
        _ => status.phase.name(),
    }
}

/// Goodput, and the largest of what the rest of the time went into.
pub(crate) fn describe_goodput(goodput: &GoodputStatus) -> String {
    let (Some(since_start), GoodputStatus { slot_seconds, buckets, .. }) =
        (goodput.since_start, goodput)
    else {
        return String::new();
    };
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
    let rest = if named.is_empty() { String::new() } else { format!(" ({})", named.join(", ")) };
    format!("goodput: {} since the start{recent}{rest}\n", percent(since_start))
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

/// What a worker's program wants shown, on one line: its numbers, then its note.
pub(crate) fn program_words(worker: &WorkerStatus) -> String {
    let (numbers, note) = (worker.reported.to_string(), &worker.note);
    let gap = if numbers.is_empty() || note.is_empty() { "" } else { " · " };
    format!("{numbers}{gap}{note}")
}
