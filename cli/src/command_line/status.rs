//! `status`: a table for people, or one JSON object. Called by `main`.

use std::pin::pin;
use std::time::Duration;

use clap::Args;
use elastic_observe::with_short_names;
use elastic_protocol::messages::StatusReport;
use futures_util::future::{Either, select};
use tokio::signal::unix::{SignalKind, signal};

use super::driver_silence::{ASKED_AGAIN_FOR, DriverSilence, Silence};
use super::failure::{CommandFailure, ResultExt};
use super::find_job::short_id;
use super::job_source::{DriverAccess, EndedJob, JobSource};
use super::logging::say;
use super::operate::runs_no_more;
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
    let silence = DriverSilence::default();
    let mut watched = WatchedJob { flags, client: None, job: None, silence };
    let seen = watched.print_or_show().await;
    watched.leave().await;
    let ended = match seen {
        // A driver that has ended its job answers nobody for a moment before its machine knows of the end.
        Err(failure) if watched.job.is_none() => {
            Some(flags.access.end_soon(flags.job.as_deref()).await.ok_or(failure)?)
        }
        seen => seen?,
    };
    ended.map_or(Ok(()), |ended| print_end(&ended, flags))
}

/// A job that is asked again and again.
struct WatchedJob<'a> {
    flags: &'a StatusFlags,
    client: Option<StatusClient>,
    /// Its id, once it has answered.
    job: Option<String>,
    silence: DriverSilence,
}

/// The outcome of a question.
enum WatchedAnswer {
    /// The status. The driver may have been silent for some time before.
    Status(Box<StatusReport>, Option<Duration>),
    /// The driver has answered before, and does not; it is to be asked again. The first time is to be told.
    Silent { is_first: bool },
    /// The job is over, as its machine knows: a driver goes a moment after the end of its job. A watcher that missed its
    /// last status has not failed.
    Over(Box<EndedJob>),
}

impl WatchedJob<'_> {
    /// Finds the job, and prints or shows its statuses. Returns it if it is over without a last status.
    async fn print_or_show(&mut self) -> Result<Option<Box<EndedJob>>, CommandFailure> {
        let flags = self.flags;
        match flags.access.source(flags.job.as_deref())? {
            JobSource::Over(ended) => return Ok(Some(ended)),
            JobSource::Lost(entry) => return Err(without_driver(&entry)),
            JobSource::Driver(driver, token) => {
                self.client = Some(StatusClient::connect(&driver, &token).await?);
            }
        }
        match flags.watch && !flags.json && shows_escapes(true) {
            true => show(self).await,
            false => print(self).await,
        }
    }

    /// Asks for the status.
    ///
    /// # Errors
    /// There is no answer: to the first question, for too long, or from another job.
    async fn ask(&mut self) -> Result<WatchedAnswer, CommandFailure> {
        let failure = match (self.try_ask().await, &self.job) {
            (Ok(status), known) => {
                let job = status.job.to_string();
                if let Some(known) = known.as_ref().filter(|known| **known != job) {
                    let ended = EndedJob::listed(known).map(WatchedAnswer::Over);
                    return ended.ok_or_else(|| gone(known, &job));
                }
                self.job = Some(job);
                let silent = self.silence.handle_answer(boot_time());
                return Ok(WatchedAnswer::Status(Box::new(status), silent));
            }
            (Err(failure), None) => return Err(failure),
            (Err(failure), Some(_)) if !self.flags.watch => return Err(failure),
            (Err(failure), Some(job)) => match self.end_of(job) {
                Some(ended) => return Ok(WatchedAnswer::Over(ended)),
                None => failure,
            },
        };
        self.leave().await;
        match self.silence.handle_no_answer(boot_time()) {
            Silence::Begins => Ok(WatchedAnswer::Silent { is_first: true }),
            Silence::GoesOn => Ok(WatchedAnswer::Silent { is_first: false }),
            Silence::TooLong => Err(silent_for_too_long(failure)),
        }
    }

    /// Asks the driver; after one that did not answer, the one that is there now.
    async fn try_ask(&mut self) -> Result<StatusReport, CommandFailure> {
        let client = match self.client.take() {
            Some(client) => client,
            None => self.connect_again().await?,
        };
        self.client.insert(client).ask().await
    }

    /// The end of the watched job, if it is over.
    fn end_of(&self, job: &str) -> Option<Box<EndedJob>> {
        EndedJob::listed(job).or_else(|| {
            match self.flags.access.source_again(self.flags.job.as_deref(), Some(job)) {
                Ok(JobSource::Over(ended)) if ended.job == job => Some(ended),
                _ => None,
            }
        })
    }

    async fn connect_again(&self) -> Result<StatusClient, CommandFailure> {
        let (given, known) = (self.flags.job.as_deref(), self.job.as_deref());
        match self.flags.access.source_again(given, known)? {
            JobSource::Driver(driver, token) => StatusClient::connect(&driver, &token).await,
            JobSource::Over(ended) => Err(runs_no_more(&ended.job, ended.end.condition())),
            JobSource::Lost(entry) => Err(without_driver(&entry)),
        }
    }

    /// Closes the connection.
    async fn leave(&mut self) {
        if let Some(client) = self.client.take() {
            client.close().await;
        }
    }
}

/// Prints the statuses. Returns the job if it is over without a last status.
async fn print(watched: &mut WatchedJob<'_>) -> Result<Option<Box<EndedJob>>, CommandFailure> {
    let flags = watched.flags;
    loop {
        match watched.ask().await? {
            WatchedAnswer::Status(status, silent) => {
                if let Some(silent) = silent {
                    let silent = silent.as_secs_f64();
                    say(&format!("the driver answers again, after {silent:.1} s\n"));
                }
                print_text(&render(&status, flags)?)?;
                if !flags.watch || status.result.is_some() {
                    return Ok(None);
                }
            }
            WatchedAnswer::Silent { is_first: true } => {
                let limit = ASKED_AGAIN_FOR.as_secs();
                say(&format!(
                    "warning: the driver does not answer; it is asked again for {limit} s\n"
                ));
            }
            WatchedAnswer::Silent { is_first: false } => {}
            WatchedAnswer::Over(ended) => return Ok(Some(ended)),
        }
        tokio::time::sleep(WATCH_EVERY).await;
    }
}

/// Shows the job on the terminal's other screen until it is over, and then prints its last status. Returns the job if it is
/// over without one.
async fn show(watched: &mut WatchedJob<'_>) -> Result<Option<Box<EndedJob>>, CommandFailure> {
    let mut interrupt = signal(SignalKind::interrupt()).failed("signals cannot be received")?;
    let mut terminate = signal(SignalKind::terminate()).failed("signals cannot be received")?;
    let stopped = |number: i32| {
        CommandFailure::new("stopped by a signal").with_code(128 + number).told_elsewhere()
    };
    let shown = pin!(show_until_over(watched));
    let (interrupted, terminated) = (pin!(interrupt.recv()), pin!(terminate.recv()));
    let signals = select(interrupted, terminated);
    let last = match select(shown, signals).await {
        Either::Left((last, _)) => last?,
        Either::Right((Either::Left(_), _)) => return Err(stopped(libc::SIGINT)),
        Either::Right((Either::Right(_), _)) => return Err(stopped(libc::SIGTERM)),
    };
    match last {
        LastSeen::Status(last) => {
            print_text(&with_short_names(&printable(&describe_status(&last))))?;
            Ok(None)
        }
        LastSeen::Job(ended) => Ok(Some(ended)),
    }
}

/// The end of a job that was shown on a screen.
enum LastSeen {
    Status(Box<StatusReport>),
    /// The job is over, and its last status was missed.
    Job(Box<EndedJob>),
}

/// Shows the job on the terminal's other screen until it is over.
async fn show_until_over(watched: &mut WatchedJob<'_>) -> Result<LastSeen, CommandFailure> {
    const UNWRITTEN: &str = "the terminal cannot be written";
    let mut screen = WatchScreen::open().failed(UNWRITTEN)?;
    loop {
        match watched.ask().await? {
            WatchedAnswer::Status(status, _) => {
                screen.show(boot_time(), &status).failed(UNWRITTEN)?;
                if status.result.is_some() {
                    return Ok(LastSeen::Status(status));
                }
            }
            WatchedAnswer::Silent { .. } => screen.show_silence().failed(UNWRITTEN)?,
            WatchedAnswer::Over(ended) => return Ok(LastSeen::Job(ended)),
        }
        tokio::time::sleep(WATCH_EVERY).await;
    }
}

/// Why the last question has no answer.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct LastAttempt(String);

fn silent_for_too_long(last: CommandFailure) -> CommandFailure {
    let (reason, way_out) = last.finding();
    let limit = ASKED_AGAIN_FOR.as_secs();
    let message = format!("the driver has not answered for {limit} s");
    let failure = CommandFailure::new(message).source(LastAttempt(reason));
    if way_out.is_empty() { failure } else { failure.hint(way_out) }
}

/// The failure if another job runs at the address of the one that was watched.
fn gone(watched: &str, found: &str) -> CommandFailure {
    let (watched, found) = (short_id(watched), short_id(found));
    CommandFailure::new(format!("job {watched} is gone: job {found} runs in its place"))
        .hint(format!("`elastic-node explain {watched}` tells what happened"))
}

/// The failure if a job has no driver any more, and has told no end.
fn without_driver(entry: &JobEntry) -> CommandFailure {
    CommandFailure::new(format!(
        "the driver of job {} does not run any more (process {}), and has told no end",
        short_id(&entry.job),
        entry.pid
    ))
    .hint(format!(
        "`elastic-node explain last {}` tells what happened; started again with the same command and \
         --state-dir, a driver goes on with its job",
        entry.state_dir.display()
    ))
}

/// Prints the last status of a job that is over, and says how it ended.
fn print_end(ended: &EndedJob, flags: &StatusFlags) -> Result<(), CommandFailure> {
    let EndedJob { job, end } = ended;
    match (&end.status, flags.json) {
        (Some(status), true) => print_line(&to_json(status)?),
        (None, true) => {
            print_line(&serde_json::json!({"job": job, "result": end.result}).to_string())
        }
        (status, false) => {
            let text = match status {
                Some(status) => describe_status(status),
                None => format!("job {job} · result: {}", end.result.reason),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_patience_names_the_last_attempt_and_the_way_out() {
        let last =
            CommandFailure::new("the driver cannot be asked").hint("does the job still run?");
        let failure = silent_for_too_long(last);
        let (reason, way_out) = failure.finding();
        assert_eq!(reason, "the driver has not answered for 30 s: the driver cannot be asked");
        assert_eq!(way_out, "does the job still run?");
    }
}
