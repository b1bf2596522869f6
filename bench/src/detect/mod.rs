//! `bench detect`: time until the death of a worker is detected, by the memory that the worker had touched.
//!
//! Two workers train. One is blocked in an all-reduce, the other holds the given amount of memory and is killed with
//! SIGKILL. Four times are taken from the kill: until its agent detects the death and until the driver has decided
//! the reset, which both write to the log in microseconds; until the blocked peer's all-reduce has returned, by the
//! peer's own clock; and until a pidfd of this program shows the end of the process. The agent relied on the pidfd
//! before there were robust locks.

mod worker;

use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context as _, ensure};
use clap::Args;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;

use crate::monotonic::now_ns;
use crate::process::{elastic_node, kill_9, open_pidfd};
use crate::recovery::contestant::{RecoveryContestant, Survivors};
use crate::recovery::job::RecoveryJob;
use crate::statistics::{median, percentile};
use worker::ready_and_returned;
pub(crate) use worker::{DetectWorkerOptions, run as run_worker};

/// Flags.
#[derive(Args, Debug)]
pub(crate) struct DetectOptions {
    /// Memory that the victim has touched, in GB.
    #[arg(long, value_delimiter = ',', default_values_t = [0.01, 1.0])]
    resident: Vec<f64>,
    /// Kills for each size.
    #[arg(long, default_value_t = 9)]
    kills: usize,
    /// Only the result, as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// The result.
#[derive(Debug, Serialize)]
struct DetectReport {
    kills: usize,
    sizes: Vec<ResidentReport>,
}

/// Milliseconds from the kill until somebody knows.
#[derive(Debug, Serialize)]
struct ResidentReport {
    resident_gb: f64,
    agent: TimesReport,
    driver: TimesReport,
    peer: TimesReport,
    pidfd: TimesReport,
}

#[derive(Debug, Serialize)]
struct TimesReport {
    median_ms: f64,
    max_ms: f64,
}

impl TimesReport {
    fn of(kills: &[KillTimes], of: fn(&KillTimes) -> f64) -> anyhow::Result<Self> {
        let times: Vec<f64> = kills.iter().map(of).collect();
        let none = "there are measurements";
        let (median_ms, max_ms) =
            (median(&times).context(none)?, percentile(&times, 1.0).context(none)?);
        Ok(Self { median_ms, max_ms })
    }
}

/// Detection times of one kill, in milliseconds.
#[derive(Clone, Copy, Debug)]
struct KillTimes {
    agent: f64,
    driver: f64,
    peer: f64,
    pidfd: f64,
}

/// Measures and prints.
pub(crate) fn run(options: &DetectOptions) -> anyhow::Result<()> {
    let DetectOptions { kills, resident, .. } = options;
    ensure!(*kills > 0 && resident.iter().all(|gb| *gb > 0.0), "a kill, and some memory");
    let mut sizes = Vec::new();
    for gb in resident {
        let bytes = (gb * 1e9) as u64;
        let (mut job, _) = RecoveryJob::start(0, |folder| contestant(folder, bytes))?;
        let mut times = Vec::new();
        for number in 0..*kills {
            let kill = measure(&mut job)?;
            if !options.json {
                writeln!(std::io::stderr(), "{gb} GB, kill {}: {kill:?}", number + 1)?;
            }
            times.push(kill);
        }
        sizes.push(ResidentReport {
            resident_gb: *gb,
            agent: TimesReport::of(&times, |kill| kill.agent)?,
            driver: TimesReport::of(&times, |kill| kill.driver)?,
            peer: TimesReport::of(&times, |kill| kill.peer)?,
            pidfd: TimesReport::of(&times, |kill| kill.pidfd)?,
        });
    }
    let report = DetectReport { kills: *kills, sizes };
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&report)?)?;
    Ok(())
}

fn contestant(folder: &Path, bytes: u64) -> anyhow::Result<RecoveryContestant> {
    let mut command = vec![elastic_node()?.into()];
    command.extend(["run", "--np", "2", "--min-np", "1", "--mode", "in-process"].map(Into::into));
    // The usual filter, in other words: agents that the driver starts are told `warn` in place of the default.
    let log = "info,elastic_agent=info";
    command.extend(["--log", log, "--max-restarts", "1000000", "--state-dir"].map(Into::into));
    command.extend([folder.join("state").into(), "--".into(), std::env::current_exe()?.into()]);
    command.extend(["detect-worker", "--resident-bytes", &bytes.to_string()].map(Into::into));
    let environment = Vec::new();
    Ok(RecoveryContestant { command, environment, survivors: Survivors::Stay, has_events: true })
}

/// Waits until one worker is blocked and the other holds its memory, and kills that one.
fn measure(job: &mut RecoveryJob) -> anyhow::Result<KillTimes> {
    let killed = |job: &RecoveryJob| ready_and_returned(&job.records());
    let (victim, generation) =
        job.wait("a worker with its memory, and a blocked one", |job| killed(job).ready)?;
    let pidfd = open_pidfd(victim)?;
    let read = job.log().len();
    let (killed_at, killed_ns) = (wall_clock(), now_ns()?);
    kill_9(victim)?;
    poll(&mut [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE)?;
    let pidfd_ns = now_ns()?;
    let returned_ns = job.wait("the return of the blocked one", |job| {
        killed(job).returned.into_iter().find(|(of, _)| *of == generation).map(|(_, ns)| ns)
    })?;
    let mut logged = |what: &[&str]| {
        job.wait(&format!("{what:?} in the log"), |job| {
            let log = job.log();
            let is_it = |line: &&str| what.iter().any(|words| line.contains(words));
            let line = log.get(read..)?.lines().find(is_it)?;
            line.split_whitespace().find_map(|word| humantime::parse_rfc3339(word).ok())
        })
    };
    // Of a small process the agent may see the end before its lock has told.
    let agent = logged(&["has died", " ended worker="])?;
    let driver = logged(&["ends (abort)"])?;
    let ms_since = |at_ns: u64| at_ns.saturating_sub(killed_ns) as f64 / 1e6;
    let wall_ms =
        |at: SystemTime| at.duration_since(killed_at).unwrap_or_default().as_secs_f64() * 1e3;
    Ok(KillTimes {
        agent: wall_ms(agent),
        driver: wall_ms(driver),
        peer: ms_since(returned_ns),
        pidfd: ms_since(pidfd_ns),
    })
}

#[expect(clippy::disallowed_methods, reason = "compared with the log's wall clock")]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}
