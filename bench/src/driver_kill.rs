//! `bench driver-kill`: what a job notices of its driver's deaths.
//!
//! Digits is trained twice, with the same number of workers and epochs: once undisturbed, and once while its driver is
//! killed (`kill -9`) at random moments and started again after a random time. Compared are the parameters that
//! came out, and counted is what must not happen: a worker that was started again, a reset, a step that was lost.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use serde_json::Value;
use tempfile::TempDir;

use crate::process::{elastic_node, example, kill_9, now, pause};
use crate::statistics::{median, percentile};

/// How long anything may take that is waited for, less the training itself.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often files are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Steps of an epoch of digits, of all workers together, with its batches of 32 images.
const BATCHES: u64 = 45;

/// How long the training is to last for each kill, in milliseconds: rather too long than too short.
const TRAINING_MS_PER_KILL: u64 = 8_000;

/// Flags.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// How often the driver is killed.
    #[arg(long, default_value_t = 100)]
    kills: usize,
    /// Workers, each with an agent of its own.
    #[arg(long, default_value_t = 2)]
    workers: u32,
    /// Least time of a step in milliseconds while drivers are killed.
    #[arg(long, default_value_t = 20)]
    step_ms: u64,
    /// At most so many milliseconds pass until the driver is started again.
    #[arg(long, default_value_t = 5_000)]
    away_ms: u64,
    /// At most so many milliseconds a driver lives.
    #[arg(long, default_value_t = 3_000)]
    alive_ms: u64,
    /// Draws the moments.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only the result, as one line of JSON.
    #[arg(long)]
    json: bool,
}

/// The result.
#[derive(Debug, Serialize)]
struct Report {
    kills: usize,
    workers: u32,
    epochs: u64,
    workers_restarted: usize,
    resets: usize,
    steps_lost: u64,
    /// Drivers that lived long enough to have everybody back.
    takeovers: usize,
    /// Milliseconds from a new driver's beginning until everybody was back.
    reattach_median_ms: f64,
    reattach_p99_ms: f64,
    reattach_max_ms: f64,
    /// Whether the same parameters came out, bit for bit, as without kills.
    same_result: bool,
    accuracy: String,
}

/// Measures and prints.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    ensure!(options.kills > 0 && options.workers > 0, "there must be kills and workers");
    let (program, digits) = (elastic_node()?, example("digits")?);
    let steps = options.kills as u64 * TRAINING_MS_PER_KILL / options.step_ms.max(1);
    let epochs = steps.div_ceil(BATCHES.div_ceil(u64::from(options.workers)));
    let job = |step_ms| Job::start(&program, &digits, options.workers, epochs, step_ms);
    let say = |text: String| -> anyhow::Result<()> {
        if !options.json {
            writeln!(std::io::stderr(), "{text}")?;
        }
        Ok(())
    };
    let mut undisturbed = job(0)?;
    let expected = undisturbed.end()?;
    say(format!("undisturbed: {}, {epochs} epochs", expected.accuracy))?;

    let mut random = ChaCha8Rng::seed_from_u64(options.seed);
    let mut job = job(options.step_ms)?;
    job.wait("the training", |job| (job.count("generation_running") > 0).then_some(()))?;
    for number in 1..=options.kills {
        pause(Duration::from_millis(random.random_range(0..=options.alive_ms)));
        job.kill_driver().with_context(|| format!("kill {number} of {}", options.kills))?;
        pause(Duration::from_millis(random.random_range(0..=options.away_ms)));
        job.start_driver()?;
        if number % 10 == 0 {
            say(format!("kill {number}: {} resets", job.count("reset_decided")))?;
        }
    }
    let outcome = job.end()?;
    let events = job.events();
    let of = |kind: &str| events.iter().filter(|event| event["kind"] == kind).collect::<Vec<_>>();
    let reattached: Vec<f64> =
        of("takeover_done").iter().filter_map(|event| event["ms"].as_f64()).collect();
    let lost = of("reset_done").iter().filter_map(|event| event["steps_lost"].as_u64()).sum();
    let report = Report {
        kills: options.kills,
        workers: options.workers,
        epochs,
        workers_restarted: of("worker_started").len() - options.workers as usize,
        resets: of("reset_decided").len(),
        steps_lost: lost,
        takeovers: reattached.len(),
        reattach_median_ms: median(&reattached).context("no driver had everybody back")?,
        reattach_p99_ms: percentile(&reattached, 0.99).context("there were some")?,
        reattach_max_ms: percentile(&reattached, 1.0).context("there were some")?,
        same_result: outcome.parameters == expected.parameters,
        accuracy: outcome.accuracy,
    };
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&report)?)?;
    Ok(())
}

/// What a training came to.
struct Outcome {
    parameters: Vec<u8>,
    accuracy: String,
}

/// A job on this machine, whose driver can be killed; dropped, it is stopped.
struct Job {
    folder: TempDir,
    command: Vec<String>,
    program: PathBuf,
    driver: Child,
}

impl Job {
    fn start(
        program: &Path,
        digits: &Path,
        workers: u32,
        epochs: u64,
        step_ms: u64,
    ) -> anyhow::Result<Self> {
        let folder = TempDir::with_prefix("elastic-node-bench-")?;
        let at = |name: &str| folder.path().join(name).display().to_string();
        let hosts: Vec<String> = (0..workers).map(|number| format!("host-{number}:1")).collect();
        let (hosts, epochs, step_ms) = (hosts.join(","), epochs.to_string(), step_ms.to_string());
        let command: Vec<String> = ["run", "--mode", "in-process", "--hosts", &hosts]
            .into_iter()
            .chain(["--np", &workers.to_string(), "--state-dir", &at("state"), "--"])
            .chain([digits.to_str().context("a path that is UTF-8")?, "--epochs", &epochs])
            .chain(["--step-ms", &step_ms, "--save", &at("parameters")])
            .map(ToOwned::to_owned)
            .collect();
        let driver = start_driver(folder.path(), program, &command)?;
        Ok(Self { folder, command, program: program.to_owned(), driver })
    }

    fn start_driver(&mut self) -> anyhow::Result<()> {
        self.driver = start_driver(self.folder.path(), &self.program, &self.command)?;
        Ok(())
    }

    fn kill_driver(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.driver.try_wait()? {
            bail!("the job has ended ({status}) before the last kill\n{}", self.log());
        }
        kill_9(self.driver.id())?;
        self.driver.wait()?;
        Ok(())
    }

    /// Waits for the job's end.
    fn end(&mut self) -> anyhow::Result<Outcome> {
        let status = self.driver.wait()?;
        ensure!(status.success(), "the job failed ({status})\n{}", self.log());
        let parameters = fs::read(self.folder.path().join("parameters"))?;
        let stdout = fs::read_to_string(self.folder.path().join("stdout"))?;
        let mut last_first = stdout.lines().rev();
        let accuracy = last_first.find_map(|line| Some(line.split_once("accuracy ")?.1));
        let accuracy = accuracy.context("rank 0 has told its accuracy")?.to_owned();
        Ok(Outcome { parameters, accuracy })
    }

    fn wait<T>(
        &mut self,
        what: &str,
        mut condition: impl FnMut(&Self) -> Option<T>,
    ) -> anyhow::Result<T> {
        let deadline = now() + PATIENCE;
        loop {
            if let Some(value) = condition(self) {
                return Ok(value);
            }
            ensure!(now() < deadline, "waited in vain for {what}\n{}", self.log());
            pause(LOOK_EVERY);
        }
    }

    fn events(&self) -> Vec<Value> {
        let path = self.folder.path().join("state").join("events.jsonl");
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    fn count(&self, kind: &str) -> usize {
        self.events().iter().filter(|event| event["kind"] == kind).count()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("stderr")).unwrap_or_default()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // It may have ended already; then there is nobody to stop or to wait for.
        if let Ok(None) = self.driver.try_wait() {
            let _ = Command::new("kill").args(["-INT", &self.driver.id().to_string()]).status();
            let _ = self.driver.wait();
        }
    }
}

fn start_driver(folder: &Path, program: &Path, command: &[String]) -> anyhow::Result<Child> {
    let file = |name: &str| -> std::io::Result<File> {
        OpenOptions::new().create(true).append(true).open(folder.join(name))
    };
    Command::new(program)
        .args(command)
        .stdin(Stdio::null())
        .stdout(file("stdout")?)
        .stderr(file("stderr")?)
        .spawn()
        .context("elastic-node cannot be started")
}
