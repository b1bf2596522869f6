//! What a seed's job is like, beside its faults: sizes, deadlines, data set, network, clocks. Drawn once.

use std::time::Duration;

use elastic_driver::{DriverConfig, Mode, OnFailure};
use elastic_host_manager::{CooldownRange, HostManagerConfig, HostSlots, HostSource};
use elastic_protocol::{Deadlines, HostName, ProgramSpec};
use elastic_runtime::random::stream;
use rand::Rng;

use crate::options::{Job, Options};

/// A seed's job.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) driver: DriverConfig,
    pub(crate) host_manager: HostManagerConfig,
    /// Slots of each host.
    pub(crate) slots: Vec<u32>,
    /// When each host is switched on, in nanoseconds.
    pub(crate) arrives: Vec<u64>,
    /// Hosts that are whole after the faults.
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
    /// How long a collective waits, in nanoseconds.
    pub(crate) collective_ns: u64,
    /// Time that a process takes from its start to `run`.
    pub(crate) boot_ns: u64,
    /// Longest usual delay of a frame.
    pub(crate) delay_ns: u64,
    /// One frame in so many is lost and comes later by a retransmission; 0: none.
    pub(crate) loss: u64,
    /// Longest hop between the threads of a worker.
    pub(crate) hop_ns: u64,
    /// Time from one actor of the driver to another; 0: at once.
    pub(crate) local_ns: u64,
    /// Whether the death of a process makes its links end at once.
    pub(crate) death_is_told: bool,
    /// Whether programs ignore SIGTERM.
    pub(crate) stubborn: bool,
    /// Largest deviation of a clock, in millionths.
    pub(crate) clock_ppm: i64,
    /// Longest usual time that the journal takes to store a batch.
    pub(crate) sync_ns: u64,
    /// Whether the transport turns a driver away that was succeeded, as the product's does; where it does not, those
    /// who meet one must see to it themselves.
    pub(crate) turns_away: bool,
}

/// The name of a host.
pub(crate) fn host_name(host: u32) -> HostName {
    match HostName::new(&format!("h{host}")) {
        Ok(name) => name,
        Err(error) => unreachable!("h{host}: {error}"),
    }
}

impl Scenario {
    /// Draws a seed's job.
    pub(crate) fn draw(options: &Options) -> Self {
        let mut random = stream(options.seed, "scenario", 0);
        let hosts = options.hosts.max(1);
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
            Job::InProcess => Mode::InProcess,
            Job::Restart => Mode::Restart,
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
                    .map(|(host, slots)| HostSlots { name: host_name(host), slots: *slots })
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
        // What a driver waits for a holder that is out of reach is then all that it must (G-5).
        driver.deadlines.orphan_training = Some(orphan * [1, 1, 6][durable.random_range(0..3)]);
        Self {
            driver,
            host_manager,
            slots,
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
            stubborn: random.random_bool(0.1),
            sync_ns: (20_000.0 * 1_000_f64.powf(durable.random_range(0.0..1.0))) as u64,
            turns_away: durable.random_bool(0.5),
            clock_ppm: if random.random_bool(0.5) { 0 } else { random.random_range(1..10_000) },
        }
    }
}
