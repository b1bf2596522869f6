//! `bench soak`: a job of real processes under endless faults, and the invariants that must hold meanwhile.
//!
//! A driver and its agents run in network namespaces, if root may make them. They train a program whose state
//! shows whether each sample was trained exactly once (`program`). Processes are killed and stopped, hosts are
//! given notice and cut off, and the driver's disk fills up or freezes (`faults`). Afterwards all workers must come back,
//! and the job must end with the state that a single program computes. Processes that live on are measured
//! (`watch`): their memory, descriptors and threads must not grow.

mod check;
mod faults;
mod job;
pub(crate) mod network;
mod program;
mod watch;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Args;
use elastic_collectives::DEFAULT_STREAMS;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use self::faults::{Heal, SoakFault};
use self::job::SoakJob;
use self::watch::SizeWatch;
use crate::process::{now, pause};

pub(crate) use self::check::JobRecords;
pub(crate) use self::program::{FINISH, SoakProgramOptions, run as run_program};

/// Interval at which processes that ended are restarted.
const TEND_EVERY: Duration = Duration::from_millis(100);

/// Interval at which processes are measured.
const MEASURE_EVERY: Duration = Duration::from_secs(2);

/// Interval of progress lines.
const TELL_EVERY: Duration = Duration::from_secs(30);

/// Time limit after the last fault until all workers train again: the longest back-off of a slot, on a machine
/// that does other work.
const HEALING: Duration = Duration::from_secs(120);

/// Flags.
#[derive(Args, Debug)]
pub(crate) struct SoakOptions {
    /// How long faults go on.
    #[arg(long, default_value_t = 2.0)]
    minutes: f64,
    /// Draws the faults and their moments.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Hosts, each with an agent.
    #[arg(long, default_value_t = 4)]
    hosts: u8,
    /// Workers of each host.
    #[arg(long, default_value_t = 2)]
    slots: u32,
    /// From one fault to the next, in milliseconds, on average.
    #[arg(long, default_value_t = 2_000)]
    every_ms: u64,
    /// Least time of a step in milliseconds.
    #[arg(long, default_value_t = 20)]
    step_ms: u64,
    /// Only the result, as one line of JSON.
    #[arg(long)]
    json: bool,
}

impl SoakOptions {
    /// Most connections of a worker to members on other hosts.
    fn connections_max(&self) -> u64 {
        let members = u64::from(self.hosts - 1) * u64::from(self.slots);
        members * u64::from(DEFAULT_STREAMS)
    }
}

/// The result.
#[derive(Debug, Serialize)]
struct SoakReport {
    minutes: f64,
    seed: u64,
    hosts: u8,
    slots: u32,
    faults: BTreeMap<&'static str, usize>,
    kills: usize,
    others: usize,
    generations: u64,
    resets: usize,
    commits: u64,
    epochs: u64,
    /// Commits that two ranks or more recorded, all with the same bits.
    compared: u64,
    /// Processes that lived on, with their first and last sizes.
    lived_on: Vec<watch::Growth>,
    /// The largest sizes of any process.
    most: watch::ProcessSize,
    seconds_to_heal: f64,
}

/// Runs the job, the faults and the checks.
pub(crate) fn run(options: &SoakOptions) -> anyhow::Result<()> {
    ensure!(options.hosts >= 2 && options.slots >= 1, "there must be two hosts and a slot on each");
    let mut soak = Soak::start(options)?;
    soak.job.wait_for_all(HEALING)?;
    soak.suffer()?;
    let healed_after = soak.heal()?;
    let report = soak.end(healed_after)?;
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&report)?)?;
    Ok(())
}

/// A run in progress.
struct Soak<'a> {
    options: &'a SoakOptions,
    job: SoakJob,
    watch: SizeWatch,
    random: ChaCha8Rng,
    began: Instant,
    /// Actions that end faults, by time; the number tells apart those of the same time.
    heals: BTreeMap<(Instant, usize), Heal>,
    counts: BTreeMap<&'static str, usize>,
}

impl<'a> Soak<'a> {
    fn start(options: &'a SoakOptions) -> anyhow::Result<Self> {
        let job = SoakJob::start(options.hosts, options.slots, options.step_ms)?;
        if let Some(missing) = job.missing() {
            writeln!(std::io::stderr(), "without {missing}")?;
        }
        Ok(Self {
            options,
            job,
            watch: SizeWatch::default(),
            random: ChaCha8Rng::seed_from_u64(options.seed),
            began: now(),
            heals: BTreeMap::new(),
            counts: BTreeMap::new(),
        })
    }

    /// Draws and applies faults until their time is over.
    fn suffer(&mut self) -> anyhow::Result<()> {
        self.began = now();
        let length = Duration::from_secs_f64(self.options.minutes * 60.0);
        let (mut strike, mut measure, mut tell) = (self.began, self.began, self.began + TELL_EVERY);
        while self.began.elapsed() < length {
            self.heal_due(now())?;
            self.job.tend()?;
            if strike <= now() {
                // A driver that is killed now and then has no time to grow, so it is spared in the second half.
                let spare_driver = self.began.elapsed() > length / 2;
                self.strike(spare_driver)?;
                let wait = self.random.random_range(0..=2 * self.options.every_ms);
                strike = now() + Duration::from_millis(wait);
            }
            if measure <= now() {
                self.watch.measure(&self.job.processes());
                measure = now() + MEASURE_EVERY;
            }
            if tell <= now() && !self.options.json {
                tell += TELL_EVERY;
                let Self { counts, began, .. } = self;
                writeln!(std::io::stderr(), "{:.0} s: {counts:?}", began.elapsed().as_secs_f64())?;
            }
            pause(TEND_EVERY.min(strike.saturating_duration_since(now())));
        }
        Ok(())
    }

    fn strike(&mut self, spare_driver: bool) -> anyhow::Result<()> {
        let fault = SoakFault::draw(&mut self.random, &self.job, spare_driver);
        let Some(fault) = fault else { return Ok(()) };
        *self.counts.entry(fault.name()).or_default() += 1;
        if let Some((after, heal)) = fault.strike(&mut self.job, &mut self.random)? {
            self.heals.insert((now() + after, self.counts.values().sum()), heal);
        }
        Ok(())
    }

    fn heal_due(&mut self, until: Instant) -> anyhow::Result<()> {
        while let Some(entry) = self.heals.first_entry()
            && entry.key().0 <= until
        {
            entry.remove().heal(&mut self.job)?;
        }
        Ok(())
    }

    /// Ends all faults, and waits until all workers train. Returns the seconds that it took.
    fn heal(&mut self) -> anyhow::Result<f64> {
        let ended = now();
        self.heal_due(ended + Duration::from_secs(3_600))?;
        self.job.wait_for_all(HEALING)?;
        self.watch.measure(&self.job.processes());
        Ok(ended.elapsed().as_secs_f64())
    }

    /// Lets the job finish, and checks its result.
    fn end(mut self, seconds_to_heal: f64) -> anyhow::Result<SoakReport> {
        self.job.finish()?;
        let checked = check::check(self.job.folder())?;
        let (generations, resets) = self.job.generations_and_resets();
        let is_kill = |(name, _): &(&&str, &usize)| name.starts_with("kill");
        let kills = self.counts.iter().filter(is_kill).map(|(_, count)| count).sum();
        let all: usize = self.counts.values().sum();
        let lived_on = self.watch.growth();
        for growth in &lived_on {
            growth.check(self.options.connections_max())?;
        }
        Ok(SoakReport {
            minutes: self.options.minutes,
            seed: self.options.seed,
            hosts: self.options.hosts,
            slots: self.options.slots,
            kills,
            others: all - kills,
            faults: self.counts,
            generations,
            resets,
            commits: checked.commits,
            epochs: checked.epochs,
            compared: checked.compared,
            lived_on,
            most: self.watch.most(),
            seconds_to_heal,
        })
    }
}
