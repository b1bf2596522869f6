//! The job of a seed, beside its faults: sizes, deadlines, data set, network, clocks. Drawn once, before the run.

use std::time::Duration;

use elastic_driver::recording::moment::RecordedMoment;
use elastic_driver::{
    CheckpointEvery, CheckpointSettings, DriverConfig, ElasticMode, HealthCheck, OnDivergence,
    OnFailure, OnHang, OnStraggler, OnTotalLoss, ResumeFrom,
};
use elastic_host_manager::{CooldownRange, HostManagerConfig, HostSlots, HostSource};
use elastic_protocol::{Deadlines, HostName, ProgramSpec};
use elastic_runtime::random::stream;
use elastic_worker::state::sampler::LedgerPlan;
use rand::Rng;

use crate::options::{JobKind, RunOptions, SimulationMode};
use crate::recorded_job::{needed, recorded_hosts};

/// A seed's job.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) driver: DriverConfig,
    pub(crate) host_manager: HostManagerConfig,
    /// Slots of each host.
    pub(crate) slots: Vec<u32>,
    /// Names of hosts.
    pub(crate) names: Vec<HostName>,
    /// Time at which each host is switched on, in nanoseconds.
    pub(crate) arrives: Vec<u64>,
    /// Whether each host is whole after the faults.
    pub(crate) core: Vec<bool>,
    /// Samples of the data set.
    pub(crate) length: u64,
    /// Samples of a rank and step.
    pub(crate) batch: u64,
    /// Epochs until the program is done.
    pub(crate) epochs: u64,
    /// Steps from one commit to the next.
    pub(crate) commit_every: u64,
    /// Whether steps without a commit check for host updates, too.
    pub(crate) checks_every_step: bool,
    /// Time of one step's computation, in nanoseconds.
    pub(crate) step_ns: u64,
    /// Deadline of a collective, in nanoseconds.
    pub(crate) collective_ns: u64,
    /// Time between a process's start and `run`, in nanoseconds.
    pub(crate) boot_ns: u64,
    /// Longest usual delay of a frame, in nanoseconds.
    pub(crate) delay_ns: u64,
    /// One frame in this many is lost and comes later by retransmission; 0: no loss.
    pub(crate) loss: u64,
    /// Longest hop between the threads of a worker, in nanoseconds.
    pub(crate) hop_ns: u64,
    /// Time between two actors of the driver, in nanoseconds; 0: at once.
    pub(crate) local_ns: u64,
    /// Whether the death of a process makes its links end at once.
    pub(crate) death_is_told: bool,
    /// Whether the ports of ended processes are said to be closed by their hosts.
    pub(crate) deaths_are_refused: bool,
    /// Whether the framework of scripts by restart counts the collectives that they enter.
    pub(crate) scripts_are_recorded: bool,
    /// Whether the program trains. Otherwise each of its processes joins the job, looks at its rank and ends with code 0.
    pub(crate) trains: bool,
    /// Whether programs warn, note, report values and tell the bytes that they move, and leave reasons behind when they fail.
    pub(crate) programs_talk: bool,
    /// Longest time that the system takes to clear the memory of a dead process, in nanoseconds: until then it has no exit
    /// status, and its connections stand. 0: no worker holds a robust lock, and all shows at once.
    pub(crate) clearing_ns: u64,
    /// Whether programs ignore SIGTERM.
    pub(crate) stubborn: bool,
    /// Largest deviation of a clock, in millionths.
    pub(crate) clock_ppm: i64,
    /// Longest usual time that the journal takes to store a batch, in nanoseconds.
    pub(crate) sync_ns: u64,
    /// Whether the transport turns away a driver that was succeeded, as the product's does. Otherwise the nodes that
    /// meet such a driver must turn it away themselves.
    pub(crate) turns_away: bool,
}

/// The name of a host: a letter and its number.
fn host_name(letter: char, host: u32) -> HostName {
    match HostName::new(&format!("{letter}{host}")) {
        Ok(name) => name,
        Err(error) => unreachable!("{letter}{host}: {error}"),
    }
}

impl Scenario {
    /// The batch plan, if the job has shards.
    pub(crate) fn plan(&self) -> Option<LedgerPlan> {
        let shards = self.driver.shards?;
        Some(LedgerPlan { shards, global_batch: self.batch * u64::from(shards) })
    }

    /// A run's job: that of its seed, or the recorded one.
    pub(crate) fn of(options: &RunOptions) -> Self {
        let mut scenario = Self::draw(options);
        if let Some(moment) = &options.from {
            scenario.take_recorded(moment);
        }
        scenario
    }

    /// Draws a seed's job.
    fn draw(options: &RunOptions) -> Self {
        let mut random = stream(options.seed, "scenario", 0);
        let hosts = options.hosts.max(1);
        let names = Self::draw_names(options, hosts);
        let uniform = random.random_bool(0.5);
        let slots: Vec<u32> = (0..hosts)
            .map(|_| if uniform { options.slots } else { random.random_range(1..=options.slots) })
            .collect();
        let mut core: Vec<bool> = (0..hosts).map(|_| random.random_bool(0.7)).collect();
        core[random.random_range(0..hosts as usize)] = true;
        let total: u32 = slots.iter().sum();
        let core_slots: u32 =
            slots.iter().zip(&core).filter(|(_, core)| **core).map(|(slots, _)| slots).sum();
        let np = random.random_range(1..=core_slots);
        let min_np = random.random_range(1..=np);
        let max_np = random.random_bool(0.3).then(|| random.random_range(np..=total));
        let is_calm = options.calm;
        let ms = Duration::from_millis;
        let [form, last_call, start, grace, orphan] =
            [4_000..12_000, 50..2_000, 8_000..30_000, 300..5_000, 5_000..20_000]
                .map(|range| ms(random.random_range(range)));
        let deadlines = Deadlines {
            form,
            last_call,
            start,
            elastic: Duration::from_secs(3_600),
            grace,
            orphan,
            ..Deadlines::default()
        };
        let program = ProgramSpec { argv: vec!["train".to_owned()], environment: Vec::new() };
        let mut driver = DriverConfig::new(program);
        driver.mode = match options.job {
            JobKind::InProcess => ElasticMode::InProcess,
            JobKind::Restart => ElasticMode::Restart,
        };
        driver.np = Some(np);
        driver.min_np = Some(min_np);
        driver.max_np = max_np;
        driver.deadlines = deadlines;
        driver.driver_address = "driver:7070".to_owned();
        let cooldown_min = ms(random.random_range(200..3_000));
        let cooldown = CooldownRange { min: cooldown_min, max: cooldown_min * 4 };
        if random.random_bool(0.3) {
            driver.on_failure = OnFailure::Blacklist;
        }
        driver.max_restarts = random.random_range(1..20);
        let source = match random.random_range(0..3) {
            0 => HostSource::Script,
            1 => HostSource::Joined,
            _ => HostSource::Fixed(
                (0..hosts)
                    .zip(&slots)
                    .map(|(host, slots)| HostSlots {
                        name: names[host as usize].clone(),
                        slots: *slots,
                    })
                    .collect(),
            ),
        };
        driver.hosts_join = source == HostSource::Joined;
        let mut host_manager = HostManagerConfig::new(source);
        host_manager.cooldown = Some(cooldown);
        host_manager.poll_interval = ms(random.random_range(100..2_000));
        host_manager.script_timeout = ms(random.random_range(500..10_000));
        let late = random.random_bool(0.4);
        let arrives = (0..hosts)
            .map(|_| {
                let latest_ms = if late && random.random_bool(0.3) { 10_000 } else { 300 };
                random.random_range(0..latest_ms) * 1_000_000
            })
            .collect();
        let batch = random.random_range(1..6);
        let steps = random.random_range(3..40);
        let length =
            u64::from(total) * batch * steps + random.random_range(0..u64::from(total) * batch);
        let step_ns = random.random_range(5..120) * 1_000_000;
        let epochs = if random.random_bool(0.2) { random.random_range(1..20) } else { u64::MAX };
        let mut later = stream(options.seed, "collectives", 0);
        let mut durable = stream(options.seed, "durable", 0);
        let mut forgiving = stream(options.seed, "forgiving", 0);
        driver.forgiven_after = ms(forgiving.random_range(500..20_000));
        // A driver then waits for a holder out of reach only as long as it must (G-5).
        driver.deadlines.orphan_training = Some(orphan * [1, 1, 6][durable.random_range(0..3)]);
        if options.draws >= 1 {
            draw_bounds(&mut driver, options);
        }
        if options.draws >= 2 {
            let answers = [None, Some(OnTotalLoss::Fail), Some(OnTotalLoss::Restart)];
            driver.on_total_loss =
                answers[stream(options.seed, "total loss", 0).random_range(0..3)];
        }
        if options.draws >= 6 {
            let mut hangs = stream(options.seed, "hangs", 0);
            driver.on_hang =
                [OnHang::Tell, OnHang::Dump, OnHang::Restart][hangs.random_range(0..3)];
            driver.hang_timeout =
                hangs.random_bool(0.5).then(|| ms(hangs.random_range(1_000..4_000)));
        }
        if options.draws >= 8 && options.job == JobKind::InProcess {
            draw_replacements(&mut driver, options.seed);
        }
        if options.draws >= 8 {
            let mut answers = stream(options.seed, "divergence", 0);
            driver.on_divergence =
                [OnDivergence::Tell, OnDivergence::Repair][answers.random_range(0..2)];
        }
        if options.draws >= 4 && options.job == JobKind::InProcess {
            driver.checkpoint = draw_checkpoints(options.seed);
        }
        if options.draws >= 8 && options.job == JobKind::InProcess {
            driver.shards = draw_shards(options.seed, driver.max_np.unwrap_or(np), total);
            driver.max_np = driver.max_np.or(driver.shards);
        }
        if options.draws >= 9 {
            draw_rebalancing(&mut driver, options.seed);
        }
        if options.draws >= 11 {
            draw_health_check(&mut driver, options.seed);
        }
        if options.draws >= 18 {
            let mut random = stream(options.seed, "mode", 0);
            if random.random_bool(0.5) {
                driver.mode = ElasticMode::Auto;
            }
            if random.random_bool(0.2) {
                driver.on_divergence = OnDivergence::Fail;
            }
        }
        Self {
            driver,
            host_manager,
            slots,
            names,
            arrives,
            core,
            length,
            batch,
            epochs,
            commit_every: [1, 1, 2, 7][random.random_range(0..4)],
            checks_every_step: random.random_bool(0.5),
            step_ns,
            collective_ns: later.random_range(8_000..60_000) * 1_000_000,
            boot_ns: random.random_range(20..2_000) * 1_000_000,
            delay_ns: random.random_range(100..5_000) * 1_000,
            loss: if is_calm || random.random_bool(0.5) { 0 } else { random.random_range(20..500) },
            hop_ns: random.random_range(1..100) * 1_000,
            local_ns: [0, 20_000, 90_000][random.random_range(0..3)],
            death_is_told: random.random_bool(0.5),
            deaths_are_refused: options.draws >= 3
                && stream(options.seed, "refusals", 0).random_bool(0.7),
            scripts_are_recorded: options.draws >= 12
                && stream(options.seed, "recorder", 0).random_bool(0.5),
            trains: options.draws < 19
                || options.job == JobKind::Restart
                || options.mode != SimulationMode::Cores
                || !stream(options.seed, "trains", 0).random_bool(1.0 / 32.0),
            programs_talk: options.draws >= 17 && stream(options.seed, "talk", 0).random_bool(0.5),
            clearing_ns: draw_clearing(options),
            stubborn: random.random_bool(0.1),
            sync_ns: (20_000.0 * 1_000_f64.powf(durable.random_range(0.0..1.0))) as u64,
            turns_away: durable.random_bool(0.5),
            clock_ppm: if random.random_bool(0.5) { 0 } else { random.random_range(1..10_000) },
        }
    }

    /// Puts a recorded job in the place of the drawn one: its settings and hosts. The properties of the program, the machines
    /// and the network are drawn.
    fn take_recorded(&mut self, moment: &RecordedMoment) {
        let hosts = recorded_hosts(moment);
        self.driver = moment.config.clone();
        self.epochs = u64::MAX;
        self.names = hosts.iter().map(|(name, _)| name.clone()).collect();
        self.slots = hosts.iter().map(|(_, slots)| *slots).collect();
        self.arrives = vec![0; hosts.len()];
        let needed = needed(moment);
        let mut whole = 0;
        for (core, slots) in self.core.iter_mut().zip(&self.slots) {
            *core |= whole < needed;
            whole += if *core { *slots } else { 0 };
        }
        self.host_manager.source = if self.driver.hosts_join {
            HostSource::Joined
        } else {
            let listed = hosts.into_iter().map(|(name, slots)| HostSlots { name, slots });
            HostSource::Fixed(listed.collect())
        };
    }

    /// Host names; in half of the seeds their order is not that of the hosts' numbers.
    fn draw_names(options: &RunOptions, hosts: u32) -> Vec<HostName> {
        let mut random = stream(options.seed, "names", 0);
        let is_mixed = options.draws >= 1 && random.random_bool(0.5);
        let mut letter = || if is_mixed { random.random_range('a'..='z') } else { 'h' };
        (0..hosts).map(|host| host_name(letter(), host)).collect()
    }
}

/// Draws the longest time to clear a dead process's memory: logarithmic between 1 ms and 2 s.
fn draw_clearing(options: &RunOptions) -> u64 {
    let mut random = stream(options.seed, "clearing", 0);
    let has_locks = options.draws >= 4 && random.random_bool(0.5);
    let ns = 1e6 * 2_000_f64.powf(random.random_range(0.0..1.0));
    if has_locks { ns as u64 } else { 0 }
}

/// Whether the job has durable checkpoints, and how often one is saved.
fn draw_checkpoints(seed: u64) -> Option<CheckpointSettings> {
    let mut random = stream(seed, "checkpoints", 0);
    let every = match random.random_range(0..3) {
        0 => return None,
        1 => CheckpointEvery::Period(Duration::from_millis(random.random_range(200..8_000))),
        _ => CheckpointEvery::Steps(random.random_range(1..60)),
    };
    Some(CheckpointSettings {
        directory: "checkpoints".to_owned(),
        every,
        keep: 2,
        bytes_per_s: None,
        resume: ResumeFrom::Auto,
    })
}

/// The job's logical shards: none in half of the seeds, else between the largest world that is asked for, which they cap
/// where it has no other cap, and somewhat more than there are slots.
fn draw_shards(seed: u64, least: u32, slots: u32) -> Option<u32> {
    let mut random = stream(seed, "shards", 0);
    random
        .random_bool(0.5)
        .then(|| random.random_range(least.max(2)..=(slots + 3).max(least.max(2))))
}

/// Draws whether members that hang or are slow are replaced, and for how long their slots rest.
fn draw_replacements(driver: &mut DriverConfig, seed: u64) {
    let mut random = stream(seed, "replacements", 0);
    if random.random_bool(0.7) {
        driver.on_straggler = OnStraggler::Replace;
    }
    if random.random_bool(0.4) {
        driver.on_hang = OnHang::Replace;
    }
    driver.replacements_max = random.random_range(1..=4);
    driver.cool_down = Duration::from_millis(random.random_range(2_000..30_000));
    if random.random_bool(0.4) {
        // No fewer may train than begin, and all further slots are spare.
        driver.max_np = driver.np;
        driver.min_np = driver.np;
    }
}

/// Draws whether the hosts of replaced members are checked.
fn draw_health_check(driver: &mut DriverConfig, seed: u64) {
    let mut random = stream(seed, "health check", 0);
    let is_replacing =
        driver.on_straggler == OnStraggler::Replace || driver.on_hang == OnHang::Replace;
    if is_replacing && random.random_bool(0.6) {
        let timeout = Duration::from_millis(random.random_range(1_000..8_000));
        driver.health_check = Some(HealthCheck { command: "simulated".to_owned(), timeout });
    }
}

/// Draws whether shards are dealt anew for slow members, in jobs that have shards. Then there are enough of them for that.
fn draw_rebalancing(driver: &mut DriverConfig, seed: u64) {
    let mut random = stream(seed, "rebalancing", 0);
    if driver.shards.is_none() || random.random_bool(0.3) {
        return;
    }
    driver.on_straggler = OnStraggler::Rebalance;
    driver.shards = driver.shards.map(|shards| shards * random.random_range(1..=4));
    driver.rebalances_max = random.random_range(1..=6);
    driver.rebalance_cool_down = Duration::from_millis(random.random_range(2_000..20_000));
}

/// Draws deadlines that the faults can reach, limits that a job can reach, and the interval of the journal's
/// snapshots.
fn draw_bounds(driver: &mut DriverConfig, options: &RunOptions) {
    let mut random = stream(options.seed, "bounds", 0);
    let ms = Duration::from_millis;
    if random.random_bool(0.5) {
        // Logarithmic between 5 s and 60 s.
        let elastic_ms = 5_000.0 * 12_f64.powf(random.random_range(0.0..1.0));
        driver.deadlines.elastic = ms(elastic_ms as u64);
    }
    if random.random_bool(0.3) {
        let suspect_ms = random.random_range(400..1_500);
        driver.deadlines.suspect = ms(suspect_ms);
        driver.deadlines.lost = ms(suspect_ms + random.random_range(0..1_500));
        driver.deadlines.form = driver.deadlines.form.max(driver.deadlines.lost * 2);
    }
    if random.random_bool(0.1) {
        driver.reset_limit = Some(random.random_range(3..30));
    }
    if random.random_bool(0.2) && options.job == JobKind::Restart {
        driver.max_job_restarts = Some(random.random_range(2..20));
    }
    if random.random_bool(0.5) {
        driver.records_between_snapshots = random.random_range(4..40);
    }
}
