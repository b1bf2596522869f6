//! The faults of the soak: their random choice, their strikes, and their healing.

use std::time::Duration;

use nix::sys::signal::Signal;
use rand::Rng as _;
use rand_chacha::ChaCha8Rng;

use super::job::SoakJob;

/// A fault.
#[derive(Clone, Copy, Debug)]
pub(super) enum SoakFault {
    KillWorker(u32),
    KillAgent(u8),
    KillDriver,
    StopWorker(u32),
    StopAgent(u8),
    StopDriver,
    /// The host is given notice, as a machine that will be taken away, and is to be left in order.
    Notice(u8),
    Cut(u8),
    FillDisk,
    FreezeDisk,
}

/// An action that ends a fault.
#[derive(Clone, Copy, Debug)]
pub(super) enum Heal {
    Continue(u32),
    Mend(u8),
    MendDisk,
}

impl SoakFault {
    /// Its name in the report.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::KillWorker(_) => "kill_worker",
            Self::KillAgent(_) => "kill_agent",
            Self::KillDriver => "kill_driver",
            Self::StopWorker(_) => "stop_worker",
            Self::StopAgent(_) => "stop_agent",
            Self::StopDriver => "stop_driver",
            Self::Notice(_) => "notice",
            Self::Cut(_) => "cut",
            Self::FillDisk => "fill_disk",
            Self::FreezeDisk => "freeze_disk",
        }
    }

    /// Draws the next fault; `None` if it has no target now, or would take the last holder of the training state: such a job
    /// ends, and has to. The first host's agent and its first worker are
    /// neither killed nor given notice, so that some processes live long enough to grow. The driver is treated
    /// so too if `spare_driver` is set.
    pub(super) fn draw(random: &mut ChaCha8Rng, job: &SoakJob, spare_driver: bool) -> Option<Self> {
        let (drawn, host) = (random.random_range(0..100), random.random_range(0..job.hosts()));
        let other = random.random_range(1..job.hosts());
        let pick = random.random::<u32>() as usize;
        let mortal = job.workers(false);
        let workers = job.workers(true);
        let one_of = |pids: &[u32]| pids.get(pick % pids.len().max(1)).copied();
        let fault = match drawn {
            0..50 => Self::KillWorker(one_of(&mortal)?),
            50..62 => Self::KillAgent(other),
            62..67 if !spare_driver && job.is_driver_mortal() => Self::KillDriver,
            62..75 => Self::StopWorker(one_of(&workers)?),
            75..80 => Self::StopAgent(host),
            80..84 => Self::StopDriver,
            84..90 => Self::Notice(other),
            90..97 if job.has_network() => Self::Cut(host),
            97..99 if job.is_disk_well() => Self::FillDisk,
            99..100 if job.is_disk_well() => Self::FreezeDisk,
            _ => Self::KillWorker(one_of(&mortal)?),
        };
        fault.leaves_a_holder(job).then_some(fault)
    }

    /// Whether a worker that has just committed keeps training under this fault. One that is stopped for long is given up,
    /// and so are all of a host.
    fn leaves_a_holder(self, job: &SoakJob) -> bool {
        let is_left = |(host, pid): (u8, u32)| match self {
            Self::KillWorker(victim) | Self::StopWorker(victim) => pid != victim,
            Self::KillAgent(victim)
            | Self::StopAgent(victim)
            | Self::Notice(victim)
            | Self::Cut(victim) => host != victim,
            Self::KillDriver | Self::StopDriver | Self::FillDisk | Self::FreezeDisk => true,
        };
        job.holders().into_iter().any(is_left)
    }

    /// Applies the fault. Returns the action that ends it, and after how long.
    pub(super) fn strike(
        self,
        job: &mut SoakJob,
        random: &mut ChaCha8Rng,
    ) -> anyhow::Result<Option<(Duration, Heal)>> {
        let mut ms = |range| Duration::from_millis(random.random_range(range));
        Ok(match self {
            Self::KillWorker(pid) => {
                job.signal(pid, Signal::SIGKILL)?;
                None
            }
            Self::KillAgent(host) => {
                job.kill_agent(host, ms(200..3_000))?;
                None
            }
            Self::KillDriver => {
                job.kill_driver(ms(100..4_000))?;
                None
            }
            Self::StopWorker(pid) => {
                job.signal(pid, Signal::SIGSTOP)?;
                Some((ms(200..6_000), Heal::Continue(pid)))
            }
            Self::StopAgent(host) => match job.agent_pid(host) {
                Some(pid) => {
                    job.signal(pid, Signal::SIGSTOP)?;
                    Some((ms(200..4_000), Heal::Continue(pid)))
                }
                None => None,
            },
            Self::StopDriver => match job.driver_pid() {
                Some(pid) => {
                    job.signal(pid, Signal::SIGSTOP)?;
                    Some((ms(200..4_000), Heal::Continue(pid)))
                }
                None => None,
            },
            Self::Notice(host) => {
                if let Some(pid) = job.agent_pid(host) {
                    job.signal(pid, Signal::SIGTERM)?;
                }
                None
            }
            Self::Cut(host) => {
                job.cut(host)?;
                Some((ms(200..5_000), Heal::Mend(host)))
            }
            Self::FillDisk => {
                job.fill_disk()?;
                Some((ms(500..5_000), Heal::MendDisk))
            }
            Self::FreezeDisk => {
                job.freeze_disk()?;
                Some((ms(500..5_000), Heal::MendDisk))
            }
        })
    }
}

impl Heal {
    pub(super) fn heal(self, job: &mut SoakJob) -> anyhow::Result<()> {
        match self {
            Self::Continue(pid) => job.signal(pid, Signal::SIGCONT),
            Self::Mend(host) => job.mend(host),
            Self::MendDisk => job.mend_disk(),
        }
    }
}
