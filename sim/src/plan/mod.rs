//! The plan of a run: its faults and their times. It is drawn before the run from random streams of its own. Leaving one fault
//! out (shrinking) thus shifts no other. Carried out by `cores::faults`.

mod draw;

use serde::{Deserialize, Serialize};

pub(crate) use draw::draw;

use crate::options::RunOptions;

/// The plan of a run, indexed by the faults' numbers: drawn or given.
pub(crate) fn plan(options: &RunOptions) -> Vec<PlannedFault> {
    match &options.plan {
        _ if options.calm => Vec::new(),
        Some(plan) => plan.0.clone(),
        None => draw(options),
    }
}

/// The faults of a run.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(transparent)]
pub struct FaultPlan(pub(crate) Vec<PlannedFault>);

impl FaultPlan {
    /// The faults of a run that happen.
    pub fn of(options: &RunOptions) -> Self {
        let is_kept = |index: &usize| options.keep.as_ref().is_none_or(|keep| keep.contains(index));
        let numbered = plan(options).into_iter().enumerate();
        Self(numbered.filter(|(index, _)| is_kept(index)).map(|(_, planned)| planned).collect())
    }
}

/// When a fault begins.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FaultMoment {
    /// Microseconds after the beginning.
    At(u64),
    /// After the driver has decided its n-th reset.
    AfterReset {
        /// Number of the reset, from 1.
        number: u64,
        /// Delay in microseconds.
        after_us: u64,
    },
    /// After the driver has given its journal the n-th batch, counted over all its lives.
    AfterBatch {
        /// Number of the batch, from 1.
        number: u64,
        /// Delay in microseconds; 0: at once.
        after_us: u64,
    },
}

/// The direction or network that is cut.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CutDirection {
    /// From the host to the driver.
    ToDriver,
    /// From the driver to the host.
    FromDriver,
    /// Between the host and the driver.
    Driver,
    /// Between the host and the other hosts.
    Data,
    /// Between the host and all other nodes.
    All,
}

/// A false answer of discovery.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DiscoveryFault {
    /// The script fails.
    Fail,
    /// The script hangs.
    Hang,
    /// No line names a host.
    Garbage,
    /// Some lines name no host.
    HalfGarbage,
    /// The slots of some hosts cannot be read.
    Unclear,
    /// The list is empty.
    Nothing,
}

/// A fault of the disk of the driver's machine.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DiskFault {
    /// A sync takes a hundred times as long.
    Slow,
    /// The disk is full.
    Full,
    /// The disk is read-only.
    ReadOnly,
    /// Syncs fail, though the data may have been written.
    FailsSyncs,
    /// A sync does not come back.
    Hangs,
}

/// Replacement of a driver's journal that is taken away.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum JournalIntruder {
    /// Nothing: the state directory is away.
    Nothing,
    /// The journal of this job as the driver found it at its start.
    Older,
    /// The journal of another job.
    AnotherJob,
}

/// A fault. Times are microseconds of the world. Hosts and slots are counted modulo the existing ones.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SimulatedFault {
    /// SIGKILL to a worker.
    KillWorker { host: u32, slot: u32 },
    /// A worker ends with exit code 1.
    ExitWorker { host: u32, slot: u32 },
    /// A worker's training function returns an error.
    RaiseWorker { host: u32, slot: u32 },
    /// SIGSTOP to a worker, SIGCONT later.
    StopWorker { host: u32, slot: u32, for_us: u64 },
    /// SIGTERM to a worker, as a notice to leave.
    NoticeWorker { host: u32, slot: u32 },
    /// SIGKILL to an agent; its workers die with it.
    KillAgent { host: u32 },
    /// A worker's training thread hangs, while the rest of its process runs.
    HangThread { host: u32, slot: u32, for_us: u64 },
    /// A bit flips in a worker's weights.
    FlipBit { host: u32, slot: u32, bit: u32 },
    /// A worker's program draws batches of another size than before, and so than the others.
    OtherBatches { host: u32, slot: u32 },
    /// A worker's training function returns an error where it should succeed, and later than the others.
    RaiseLate { host: u32, slot: u32 },
    /// SIGSTOP to an agent, SIGCONT later.
    StopAgent { host: u32, for_us: u64 },
    /// An agent on the driver's machine gets neither a processor nor its pages from the disk.
    StarveAgent { host: u32, for_us: u64 },
    /// SIGTERM to an agent: its host is to leave. The host comes back later.
    DrainHost { host: u32, for_us: u64 },
    /// A host loses power, and comes back later.
    CrashHost { host: u32, for_us: u64 },
    /// The network of a host is cut in one way.
    Cut { host: u32, way: CutDirection, for_us: u64 },
    /// The sessions between a host's nodes and the driver break and are made again.
    BreakLinks { host: u32 },
    /// Somebody tells the driver's machine that the ports of a host's nodes are closed.
    ForgedRefusals { host: u32 },
    /// Results of collectives reach a host's workers late, perhaps after their generation has ended.
    LateData { host: u32, delay_us: u64, for_us: u64 },
    /// A worker's connections to its peers break without any death.
    BreakData { host: u32, slot: u32 },
    /// A rack loses power. All its hosts come back at one moment. Bits of `hosts` select them by number.
    Rack { hosts: u64, for_us: u64 },
    /// Frames to and from a host take longer.
    SlowLink { host: u32, delay_us: u64, for_us: u64 },
    /// A host computes slower by a factor.
    SlowHost { host: u32, times: u64, for_us: u64 },
    /// Data from one host reaches another one so many times as slowly.
    SlowData { host: u32, from: u32, times: u64, for_us: u64 },
    /// The health checks of a host fail.
    SickHost { host: u32, for_us: u64 },
    /// The steps of one slot's workers take so many times as long.
    SlowSlot { host: u32, slot: u32, times: u64, for_us: u64 },
    /// Discovery gives a false answer.
    Discovery { lie: DiscoveryFault, for_us: u64 },
    /// Discovery leaves a host out.
    Unlist { host: u32, for_us: u64 },
    /// Discovery gives a host other slots.
    Slots { host: u32, slots: u32, for_us: u64 },
    /// Processes cannot be started on a host.
    NoSpawn { host: u32, for_us: u64 },
    /// The system refuses resources that a host's workers need to form a group, such as descriptors. With `is_told`,
    /// the workers can tell that the cause lies with them.
    NoForming { host: u32, is_told: bool, for_us: u64 },
    /// The library of a host is of another release: the driver refuses each process that starts there.
    OtherRelease { host: u32, for_us: u64 },
    /// Processes that start on a host never come to the library.
    HangStart { host: u32, for_us: u64 },
    /// A host gets another address, for good. Its workers are not reached at the one before.
    RenumberHost { host: u32 },
    /// A lane of an agent's process does not answer, as where the directory of its workers' output hangs.
    HangLane { host: u32, for_us: u64 },
    /// The loopback interface of a host is down: its workers do not reach each other, and those of others wait for
    /// them.
    LoopbackDown { host: u32, for_us: u64 },
    /// The driver's process stands still, then goes on.
    StopDriver { for_us: u64 },
    /// The driver's process is killed, and started again later: it goes on with its job.
    CrashDriver { for_us: u64 },
    /// The driver's process is killed while it carries out its outputs, after a number of them.
    CrashDriverMidway { outputs: u32, for_us: u64 },
    /// The driver's process and a worker are killed at one moment.
    CrashDriverAndWorker { host: u32, slot: u32, for_us: u64 },
    /// The driver's process is killed when a host loses power; both are back at one moment.
    CrashDriverAndHost { host: u32, for_us: u64 },
    /// The driver's machine is lost with its state directory. A driver started later begins another job.
    LoseDriver { for_us: u64 },
    /// A fault of the disk of the driver's machine.
    Disk { fault: DiskFault, for_us: u64 },
    /// Somebody takes the driver's journal away while it runs, and perhaps puts another in its place. The operator puts the
    /// newest one back, where the driver has not done so, in the end or when another driver is to start.
    DisplaceJournal { by: JournalIntruder, for_us: u64 },
    /// SIGTERM to a driver whose disk stores nothing any more, and perhaps a second one.
    StopOnDeadDisk { hangs: bool, again_us: Option<u64> },
    /// The driver stands still and another is started in its place. Later the first goes on, so that there are two.
    ReplaceDriver { for_us: u64 },
    /// The driver's process is killed, for good.
    KillDriver,
    /// SIGTERM to the driver: the job is to end.
    Interrupt,
    /// A client asks the driver to end the job.
    AskToStop,
    /// Another driver stands by, until it goes again.
    StandBy { number: u32, for_us: u64 },
    /// SIGTERM to the driver while another one stands by: it hands the job over, and that one begins later.
    HandOver { number: u32, for_us: u64 },
    /// The launcher tells the driver that no agent can be started on a host.
    LaunchFails { host: u32 },
    /// The job's program is missing on a host.
    NoProgram { host: u32, for_us: u64 },
}

impl SimulatedFault {
    /// Whether it gives a worker or a host notice, and does nothing else.
    pub(crate) const fn is_notice(&self) -> bool {
        matches!(self, Self::NoticeWorker { .. } | Self::DrainHost { .. })
    }

    /// Whether agents and workers go on as before: the driver alone is affected, by its death, its pause, its disk's
    /// trouble, or a lie; or a lane hangs that nobody waits for.
    pub(crate) const fn spares_the_job(&self) -> bool {
        matches!(
            self,
            Self::CrashDriver { .. }
                | Self::CrashDriverMidway { .. }
                | Self::ReplaceDriver { .. }
                | Self::StopDriver { .. }
                | Self::Disk { .. }
                | Self::DisplaceJournal { .. }
                | Self::ForgedRefusals { .. }
                | Self::HangLane { .. }
                | Self::StandBy { .. }
                | Self::HandOver { .. }
        )
    }

    /// Whether the fault takes the driver's process away for a while.
    pub(crate) const fn takes_the_driver(&self) -> bool {
        matches!(
            self,
            Self::CrashDriver { .. }
                | Self::CrashDriverMidway { .. }
                | Self::CrashDriverAndWorker { .. }
                | Self::CrashDriverAndHost { .. }
                | Self::LoseDriver { .. }
                | Self::ReplaceDriver { .. }
                | Self::HandOver { .. }
        )
    }
}

/// A fault with its moment.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct PlannedFault {
    /// When it begins.
    pub(crate) moment: FaultMoment,
    /// The fault.
    pub(crate) fault: SimulatedFault,
}
