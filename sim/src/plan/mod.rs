//! Which faults a run meets, and when: drawn before the run from streams of its own, so that leaving one out
//! (shrinking) shifts no other.

mod draw;

use serde::{Deserialize, Serialize};

pub(crate) use draw::draw;

use crate::options::Options;

/// The plan of a run, by the numbers of its faults: drawn, or given.
pub(crate) fn plan(options: &Options) -> Vec<Planned> {
    match &options.plan {
        _ if options.calm => Vec::new(),
        Some(plan) => plan.0.clone(),
        None => draw(options.seed, options.hosts.max(1), options.slots, options.seconds),
    }
}

/// The faults of a run.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Plan(pub(crate) Vec<Planned>);

impl Plan {
    /// Those of a run that happen.
    pub fn of(options: &Options) -> Self {
        let is_kept = |index: &usize| options.keep.as_ref().is_none_or(|keep| keep.contains(index));
        let numbered = plan(options).into_iter().enumerate();
        Self(numbered.filter(|(index, _)| is_kept(index)).map(|(_, planned)| planned).collect())
    }
}

/// When a fault begins.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Moment {
    /// So many microseconds after the beginning.
    At(u64),
    /// So many microseconds after the driver has decided its n-th reset.
    AfterReset {
        /// Which reset, from 1.
        number: u64,
        /// How long after it.
        after_us: u64,
    },
    /// So many microseconds after the driver has given its journal the n-th batch, over all its lives.
    AfterBatch {
        /// Which batch, from 1.
        number: u64,
        /// How long after it; 0: at once.
        after_us: u64,
    },
}

/// Which way nothing gets through.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Way {
    /// From the host to the driver.
    ToDriver,
    /// From the driver to the host.
    FromDriver,
    /// Between the host and the driver.
    Driver,
    /// Between the host and the other hosts.
    Data,
    /// Between the host and everybody.
    All,
}

/// What discovery says instead of the truth.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Lie {
    /// The script fails.
    Fail,
    /// The script hangs.
    Hang,
    /// Not one line is a host.
    Garbage,
    /// Some lines are no hosts.
    HalfGarbage,
    /// Nothing.
    Nothing,
}

/// What is wrong with the disk of the driver's machine.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DiskFault {
    /// A sync takes a hundred times as long.
    Slow,
    /// There is no room.
    Full,
    /// Nothing can be written.
    ReadOnly,
    /// Syncs fail, and may have written all the same.
    FailsSyncs,
}

/// One fault. Times are microseconds of the world; hosts and slots are counted modulo what there is.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fault {
    /// SIGKILL to a worker.
    KillWorker { host: u32, slot: u32 },
    /// A worker ends with exit code 1.
    ExitWorker { host: u32, slot: u32 },
    /// A worker's training function returns an error.
    RaiseWorker { host: u32, slot: u32 },
    /// SIGSTOP to a worker, SIGCONT later.
    StopWorker { host: u32, slot: u32, for_us: u64 },
    /// SIGTERM to a worker: it is to leave.
    NoticeWorker { host: u32, slot: u32 },
    /// SIGKILL to an agent; its workers die with it.
    KillAgent { host: u32 },
    /// SIGSTOP to an agent, SIGCONT later.
    StopAgent { host: u32, for_us: u64 },
    /// SIGTERM to an agent: its host is to leave; it comes back later.
    DrainHost { host: u32, for_us: u64 },
    /// A host loses power, and comes back later.
    CrashHost { host: u32, for_us: u64 },
    /// Nothing gets through.
    Cut { host: u32, way: Way, for_us: u64 },
    /// The sessions of a host's nodes with the driver break, and are made again.
    BreakLinks { host: u32 },
    /// What collectives give to a host's workers comes later, perhaps after their generation has ended.
    LateData { host: u32, delay_us: u64, for_us: u64 },
    /// A worker's connections to its peers break, and nobody has died.
    BreakData { host: u32, slot: u32 },
    /// A rack loses power; all its hosts are back at one moment. Which hosts: bit by number.
    Rack { hosts: u64, for_us: u64 },
    /// Frames take longer.
    SlowLink { host: u32, delay_us: u64, for_us: u64 },
    /// Everything computes so many times slower.
    SlowHost { host: u32, times: u64, for_us: u64 },
    /// Discovery lies.
    Discovery { lie: Lie, for_us: u64 },
    /// Discovery leaves a host out.
    Unlist { host: u32, for_us: u64 },
    /// Discovery gives a host other slots.
    Slots { host: u32, slots: u32, for_us: u64 },
    /// Processes cannot be started on a host.
    NoSpawn { host: u32, for_us: u64 },
    /// Processes that start on a host never come to the library.
    HangStart { host: u32, for_us: u64 },
    /// The driver's process stands still.
    StopDriver { for_us: u64 },
    /// The driver's process is killed, and started again later: it goes on with its job.
    CrashDriver { for_us: u64 },
    /// The driver's process is killed amid what it says next: after so many things that it wants done.
    CrashDriverMidway { outputs: u32, for_us: u64 },
    /// The driver's process and a worker are killed at one moment.
    CrashDriverAndWorker { host: u32, slot: u32, for_us: u64 },
    /// The driver's process is killed when a host loses power; both are back at one moment.
    CrashDriverAndHost { host: u32, for_us: u64 },
    /// The driver's machine is lost with its state directory: whoever is started later begins another job.
    LoseDriver { for_us: u64 },
    /// The disk of the driver's machine.
    Disk { fault: DiskFault, for_us: u64 },
    /// The driver stands still and another is started in its place; later it goes on: there are two.
    ReplaceDriver { for_us: u64 },
    /// The driver's process is killed, for good.
    KillDriver,
    /// SIGTERM to the driver: the job is to end.
    Interrupt,
}

impl Fault {
    /// Whether it is the driver's death, or its disk's trouble, and nothing else.
    pub(crate) const fn is_the_drivers_alone(&self) -> bool {
        matches!(
            self,
            Self::CrashDriver { .. }
                | Self::CrashDriverMidway { .. }
                | Self::ReplaceDriver { .. }
                | Self::Disk { .. }
        )
    }

    /// Whether it takes the driver's process away for a while.
    pub(crate) const fn takes_the_driver(&self) -> bool {
        matches!(
            self,
            Self::CrashDriver { .. }
                | Self::CrashDriverMidway { .. }
                | Self::CrashDriverAndWorker { .. }
                | Self::CrashDriverAndHost { .. }
                | Self::LoseDriver { .. }
                | Self::ReplaceDriver { .. }
        )
    }
}

/// A fault with its moment.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Planned {
    /// When it begins.
    pub(crate) moment: Moment,
    /// What.
    pub(crate) fault: Fault,
}
