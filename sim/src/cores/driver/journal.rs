//! The driver's journal: opened before a life of the driver begins, and written as its core wants it. What it
//! depends on leaves the driver when the store has answered, which takes its time.

use std::convert::Infallible;

use elastic_driver::journal::{Founding, Image, JobSecretsBytes, Tenure, TenureError};
use elastic_host_manager::{HostSlots, KnownHost};
use elastic_journal::{Batch, Journal, JournalError};
use elastic_protocol::ProgramSpec;
use rand::Rng;

use super::super::{Happening, World};
use super::job_id;
use super::succession::FENCED_WITHIN_NS;
use crate::plan::DiskFault;
use crate::state_dir::{Handle, StateDir};
use crate::trace::{Kind, Place};

/// How many times longer a sync takes on a slow disk.
const SLOW_TIMES: u64 = 100;

/// What a life of the driver begins with.
#[derive(Debug)]
pub(in crate::cores) struct Tenancy {
    pub(in crate::cores) tenure: Tenure,
    pub(in crate::cores) handle: Handle,
}

impl Tenancy {
    /// Opens the state directory, as the driver's process does before anything else of it is there.
    pub(in crate::cores) fn begin(
        state_dir: &StateDir,
        program: &ProgramSpec,
        seed: u64,
        life: u32,
    ) -> Result<Self, TenureError<Infallible>> {
        let mut handle = state_dir.open()?;
        let founding =
            || Ok(Founding { job: job_id(seed, life), secrets: JobSecretsBytes::default() });
        let tenure = Tenure::begin(&mut handle, program, founding)?;
        Ok(Self { tenure, handle })
    }
}

/// The hosts that a former driver had.
pub(super) fn known_hosts(image: &Image) -> Vec<KnownHost> {
    let known = image.hosts.iter().map(|host| KnownHost {
        host: HostSlots { name: host.name.clone(), slots: host.slots },
        is_blacklisted: host.is_blacklisted,
    });
    known.collect()
}

/// What the store says: all up to a number is stored, or why not, and whether that may pass.
type Answer = (u64, Result<(), (String, bool)>);

/// Where cores store what the driver's records.
#[derive(Debug)]
pub(super) struct JournalSeat {
    handle: Handle,
    /// What the disk is at.
    in_flight: Option<Batch>,
    answer: Option<Answer>,
}

impl JournalSeat {
    pub(super) const fn new(handle: Handle) -> Self {
        Self { handle, in_flight: None, answer: None }
    }

    /// The driver's process is killed: what the disk is at is there, or it is not.
    pub(super) fn end(&mut self, is_stored: bool) {
        if let Some(batch) = self.in_flight.take().filter(|_| is_stored) {
            let _nobody_hears = self.handle.append(&batch).is_ok();
        }
    }

    fn store(&mut self) -> Option<bool> {
        let batch = self.in_flight.take()?;
        let stored = self.handle.append(&batch);
        let is_stored = stored.is_ok();
        let failed = |error: JournalError| (error.to_string(), error.may_pass());
        self.answer = Some((batch.last(), stored.map_err(failed)));
        Some(is_stored)
    }
}

impl World {
    /// How long the disk takes for a batch.
    fn draw_sync_ns(&mut self) -> u64 {
        if self.driver.life != self.newest {
            // Its store may be as far away as its successor is.
            return self.draw_ns(self.scenario.sync_ns, FENCED_WITHIN_NS);
        }
        let usual = self.draw_ns(self.scenario.sync_ns / 10, self.scenario.sync_ns);
        let is_slow = self.disk_faults.iter().any(|(_, fault)| *fault == DiskFault::Slow);
        if is_slow { usual * SLOW_TIMES } else { usual }
    }

    /// Gives the disk what the core has recorded.
    pub(super) fn store_batch(&mut self) {
        let life = self.driver.life;
        let Some(cores) = self.driver.cores() else { return };
        let Some(batch) = cores.driver.poll_batch() else { return };
        let (first, count) = (batch.first, batch.records.len() as u64);
        cores.journal.in_flight = Some(batch);
        let wait = self.draw_sync_ns();
        self.agenda.push(self.now + wait, Happening::Stored { life });
        self.batch_begins(first, count);
    }

    /// The same where the driver is an actor, which has given its port a batch: how long that takes, and
    /// whether it is stored before that.
    pub(crate) fn journal_begins(&mut self) -> (u64, bool) {
        self.batch_begins(0, 0);
        let is_stored_first = self.machine.random_bool(0.5);
        (self.draw_sync_ns(), is_stored_first)
    }

    /// A batch is on its way to the disk: faults that wait for it come.
    fn batch_begins(&mut self, first: u64, count: u64) {
        self.batches += 1;
        self.record(Kind::Journal, Place::DRIVER, (first, count), || "given".to_owned());
        self.release_faults_after_batch();
    }

    /// The disk is done, whether or not the process runs that hears of it.
    pub(in crate::cores) fn handle_stored(&mut self, life: u32) {
        let Some(cores) = self.driver.cores() else { return };
        let Some(is_stored) = cores.journal.store() else { return };
        let words = || if is_stored { "stored" } else { "not stored" }.to_owned();
        self.record(Kind::Journal, Place::DRIVER, (0, u64::from(is_stored)), words);
        self.handle_answered(life);
    }

    /// The driver hears what became of its batch.
    pub(in crate::cores) fn handle_answered(&mut self, life: u32) {
        if self.driver.stopped > 0 {
            return self.driver.frozen.push(Happening::Answered { life });
        }
        let now = self.driver_now();
        let Some(cores) = self.driver.cores() else { return };
        match cores.journal.answer.take() {
            Some((upto, Ok(()))) => cores.driver.handle_journaled(upto),
            Some((_, Err((reason, may_pass)))) => {
                cores.driver.handle_journal_failed(now, &reason, may_pass);
            }
            None => return,
        }
        self.drain_driver();
    }
}
