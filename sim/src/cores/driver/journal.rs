//! The driver's journal. It is opened before a life of the driver begins, and written at the request of the driver's core.
//! Outputs that depend on a record leave the driver once the store has answered, which takes time. Part of the simulated world.

use std::convert::Infallible;
use std::time::{Duration, SystemTime};

use elastic_driver::DriverInput;
use elastic_driver::journal::{Founding, JobSecretsBytes, Tenure, TenureError};
use elastic_journal::{Journal, JournalBatch, JournalError};
use elastic_protocol::ProgramSpec;
use rand::Rng;

use super::super::bounds::SLACK_NS;
use super::super::{Happening, MS, World};
use super::job_id;
use super::succession::FENCED_WITHIN_NS;
use crate::plan::DiskFault;
use crate::state_dir::{SimulatedJournal, SimulatedStateDir};
use crate::trace::{TraceKind, TracePlace};

/// Factor by which a sync takes longer on a slow disk.
const SLOW_TIMES: u64 = 100;

/// Time after which a disk answers that does not answer any more: longer than any run.
const NEVER_NS: u64 = 86_400_000 * MS;

/// The journal's content and handle with which a life of the driver begins.
#[derive(Debug)]
pub(in crate::cores) struct Tenancy {
    pub(in crate::cores) tenure: Tenure,
    pub(in crate::cores) handle: SimulatedJournal,
}

impl Tenancy {
    /// Opens the state directory, as the driver's process does before anything else.
    pub(in crate::cores) fn begin(
        state_dir: &SimulatedStateDir,
        program: &ProgramSpec,
        seed: u64,
        (life, at): (u32, u64),
    ) -> Result<Self, TenureError<Infallible>> {
        let mut handle = state_dir.open()?;
        let founding =
            || Ok(Founding { job: job_id(seed, life), secrets: JobSecretsBytes::default() });
        let tenure = Tenure::begin(&mut handle, program, founding)?;
        let tenure = tenure.beginning_at(SystemTime::UNIX_EPOCH + Duration::from_nanos(at));
        Ok(Self { tenure, handle })
    }
}

/// The store's answer: the last record number, and either success or the error with whether it may pass.
type JournalAnswer = (u64, Result<(), (String, bool)>);

/// The journal's place in a driver made of cores.
#[derive(Debug)]
pub(super) struct JournalSeat {
    handle: SimulatedJournal,
    /// The batch that the disk is writing.
    in_flight: Option<JournalBatch>,
    answer: Option<JournalAnswer>,
    /// Number of the last record that a stored snapshot of this driver replaces, or that it began with.
    snapshot_at: u64,
}

impl JournalSeat {
    pub(super) const fn new(handle: SimulatedJournal, last: u64) -> Self {
        Self { handle, in_flight: None, answer: None, snapshot_at: last }
    }

    /// Whether a batch is being written or its answer is pending.
    pub(super) const fn is_busy(&self) -> bool {
        self.in_flight.is_some() || self.answer.is_some()
    }

    /// The driver's process is killed. With `is_stored`, the batch in flight reaches the disk all the same.
    pub(super) fn end(&mut self, is_stored: bool) {
        if let Some(batch) = self.in_flight.take().filter(|_| is_stored) {
            let _nobody_hears = self.handle.append(&batch).is_ok();
        }
    }

    fn store(&mut self) -> Option<bool> {
        let batch = self.in_flight.take()?;
        let stored = self.handle.append(&batch);
        let is_stored = stored.is_ok();
        if let Some(snapshot) = batch.snapshot.as_ref().filter(|_| is_stored) {
            self.snapshot_at = snapshot.upto;
        }
        let failed = |error: JournalError| (error.to_string(), error.may_pass());
        self.answer = Some((batch.last(), stored.map_err(failed)));
        Some(is_stored)
    }
}

impl World {
    /// Draws how long the disk takes for a batch.
    fn draw_sync_ns(&mut self) -> u64 {
        if self.driver.life != self.newest {
            // The store of a former driver may be as far away as its successor is.
            return self.draw_ns(self.scenario.sync_ns, FENCED_WITHIN_NS);
        }
        let usual = self.draw_ns(self.scenario.sync_ns / 10, self.scenario.sync_ns);
        let is_slow = self.disk_faults.iter().any(|(_, fault)| *fault == DiskFault::Slow);
        let hangs = self.disk_faults.iter().any(|(_, fault)| *fault == DiskFault::Hangs);
        match (hangs, is_slow) {
            (true, _) => NEVER_NS,
            (false, true) => usual * SLOW_TIMES,
            (false, false) => usual,
        }
    }

    /// Gives the disk the records of the core.
    pub(super) fn store_batch(&mut self) {
        let life = self.driver.life;
        let Some(cores) = self.driver.cores() else { return };
        let Some(batch) = cores.driver.poll_batch() else { return };
        if cores.journal.in_flight.is_some() {
            let first = batch.first;
            return self.fail_safety(format!(
                "D-4: the batch from record {first} is given while another is being stored"
            ));
        }
        let behind = batch.last().saturating_sub(cores.journal.snapshot_at);
        if batch.snapshot.is_none() && behind >= self.scenario.driver.records_between_snapshots {
            return self.fail_safety(format!(
                "D-4: {behind} records stand behind a snapshot, and no other is written"
            ));
        }
        let (first, count) = (batch.first, batch.records.len() as u64);
        let with = if batch.snapshot.is_some() { " and a snapshot" } else { "" };
        cores.journal.in_flight = Some(batch);
        self.driver_decides(|| format!("store {count} records{with}"));
        let wait = self.draw_sync_ns();
        self.agenda.push(self.now + wait, Happening::Stored { life });
        self.batch_begins(first, count);
    }

    /// The same for a driver of actors, whose port was given a batch. Returns how long the disk takes, and whether
    /// the batch is stored before that.
    pub(crate) fn journal_begins(&mut self) -> (u64, bool) {
        // Answers are not seen here. A driver gives one batch at a time; the one before the last was stored by a sound disk, at the
        // second attempt where the first met a fault.
        if self.disk_faults.is_empty() {
            self.note_save_stored(self.batches.saturating_sub(1));
        }
        self.batch_begins(0, 0);
        let is_stored_first = self.machine.random_bool(0.5);
        (self.draw_sync_ns(), is_stored_first)
    }

    /// A batch is on its way to the disk: triggers the faults that wait for it.
    fn batch_begins(&mut self, first: u64, count: u64) {
        self.batches += 1;
        self.record(TraceKind::Journal, TracePlace::DRIVER, (first, count), || "given".to_owned());
        self.release_faults_after_batch();
    }

    /// The disk has finished a batch, whether or not the driver's process runs to hear of it.
    pub(in crate::cores) fn handle_stored(&mut self, life: u32) {
        let Some(cores) = self.driver.cores() else { return };
        let Some(is_stored) = cores.journal.store() else { return };
        let words = || if is_stored { "stored" } else { "not stored" }.to_owned();
        self.record(TraceKind::Journal, TracePlace::DRIVER, (0, u64::from(is_stored)), words);
        self.handle_answered(life);
    }

    /// Puts the newest journal in its place again, where the driver has not done so.
    pub(in crate::cores) fn put_journal_back(&mut self) {
        let checked = self.state_dir.put_back();
        self.demand(checked);
    }

    /// Checks D-2: a driver that was told that another journal stands in its place has ended.
    pub(in crate::cores) fn check_displaced(&mut self) -> Result<(), String> {
        let driver = &mut self.driver;
        if !self.state_dir.was_told_of_another() || !driver.runs() || driver.dead_disk.is_some() {
            driver.displaced_since = None;
            return Ok(());
        }
        let since = *driver.displaced_since.get_or_insert(self.now);
        let ms = (self.now - since) / MS;
        // The answer may still be on its way.
        match self.now > since + SLACK_NS + self.scenario.sync_ns * SLOW_TIMES {
            true => Err(format!(
                "D-2: another journal stands in the place of the driver's, which was told so {ms} ms ago and goes on"
            )),
            false => Ok(()),
        }
    }

    /// Tells the driver the store's answer to its batch.
    pub(in crate::cores) fn handle_answered(&mut self, life: u32) {
        if self.driver.stopped > 0 {
            return self.driver.frozen.push(Happening::Answered { life });
        }
        let now = self.driver_now();
        let Some(cores) = self.driver.cores() else { return };
        let input = match cores.journal.answer.take() {
            Some((upto, Ok(()))) => DriverInput::Journaled { upto },
            Some((_, Err((reason, may_pass)))) => DriverInput::JournalFailed { reason, may_pass },
            None => return,
        };
        let is_refused = matches!(input, DriverInput::JournalFailed { .. });
        cores.driver.handle(now, input);
        if is_refused {
            self.driver.refused_batch_at = Some(self.now);
            self.driver.refused_since.get_or_insert(self.now);
        } else {
            self.note_save_stored(self.batches);
        }
        self.drain_driver();
        if !is_refused {
            self.driver.refused_since = None;
        }
    }
}
