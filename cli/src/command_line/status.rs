//! `status`: a table for people, or one JSON object. Called by `main`.

use std::pin::pin;
use std::time::Duration;

use clap::Args;
use elastic_observe::with_short_names;
use elastic_protocol::messages::StatusReport;
use futures_util::future::{Either, select};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

use super::failure::{CommandFailure, ResultExt};
use super::find_job::{find_job, short_id};
use super::job_source::{DriverAccess, JobSource};
use super::printable::printable;
use super::status_text::describe_status;
use super::stdout::{print_line, print_text, shows_escapes};
use super::watch::WatchScreen;
use crate::process::{JobEntry, StatusClient, boot_time};

/// Interval between two requests of `--watch`.
const WATCH_EVERY: Duration = Duration::from_millis(500);

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
            WatchedAnswer::Status(last) => {
                print_text(&with_short_names(&printable(&describe_status(&last))))
            }
            WatchedAnswer::Gone { job, failure } => print_end(&job, failure, flags),
        };
    }
    let mut watched = WatchedJob { client: &client, job: None };
    loop {
        let status = match watched.ask().await? {
            WatchedAnswer::Status(status) => status,
            WatchedAnswer::Gone { job, failure } => return print_end(&job, failure, flags),
        };
        print_text(&render(&status, flags)?)?;
        if !flags.watch || status.result.is_some() {
            break;
        }
        tokio::time::sleep(WATCH_EVERY).await;
    }
    client.close().await;
    Ok(())
}

/// A job that is asked again and again.
struct WatchedJob<'a> {
    client: &'a StatusClient,
    /// Its id, once it has answered.
    job: Option<String>,
}

/// The outcome of a question.
enum WatchedAnswer {
    Status(Box<StatusReport>),
    /// The driver of this job has answered before, and does not any more.
    Gone {
        job: String,
        failure: CommandFailure,
    },
}

impl WatchedJob<'_> {
    async fn ask(&mut self) -> Result<WatchedAnswer, CommandFailure> {
        match (self.client.ask().await, self.job.take()) {
            (Ok(status), _) => {
                self.job = Some(status.job.to_string());
                Ok(WatchedAnswer::Status(Box::new(status)))
            }
            (Err(failure), Some(job)) => Ok(WatchedAnswer::Gone { job, failure }),
            (Err(failure), None) => Err(failure),
        }
    }
}

/// Shows the job on the terminal's other screen until it is over. Returns its last status, or that its driver is gone.
async fn watch(client: &StatusClient) -> Result<WatchedAnswer, CommandFailure> {
    const UNWRITTEN: &str = "the terminal cannot be written";
    let mut interrupt = signal(SignalKind::interrupt()).failed("signals cannot be received")?;
    let mut terminate = signal(SignalKind::terminate()).failed("signals cannot be received")?;
    let mut screen = WatchScreen::open().failed(UNWRITTEN)?;
    let stopped = |number: i32| {
        CommandFailure::new("stopped by a signal").with_code(128 + number).told_elsewhere()
    };
    let mut watched = WatchedJob { client, job: None };
    loop {
        let status = match watched.ask().await? {
            WatchedAnswer::Status(status) => status,
            gone @ WatchedAnswer::Gone { .. } => return Ok(gone),
        };
        screen.show(boot_time(), &status).failed(UNWRITTEN)?;
        if status.result.is_some() {
            return Ok(WatchedAnswer::Status(status));
        }
        let (interrupted, terminated) = (pin!(interrupt.recv()), pin!(terminate.recv()));
        match timeout(WATCH_EVERY, select(interrupted, terminated)).await {
            Ok(Either::Left(_)) => return Err(stopped(libc::SIGINT)),
            Ok(Either::Right(_)) => return Err(stopped(libc::SIGTERM)),
            Err(_elapsed) => {}
        }
    }
}

/// Prints the end of a job of this machine that was watched until its driver was gone. A driver goes a moment after the
/// end of its job: a watcher that missed its last status has not failed.
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
