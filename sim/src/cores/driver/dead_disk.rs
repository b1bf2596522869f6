//! Rule: a job that the operator ends is over in time, even if the driver's disk stores nothing any more (G-9, X-17). A
//! restarted driver would go on with a job whose end is not recorded, so the driver first gives the disk time to store
//! the end. A disk that never does must not keep the job alive. The disk works again for the next driver. Called by
//! faults and at each look in time.

use super::super::bounds::SLACK_NS;
use super::super::{MS, World};
use super::DriverLife;

/// Time for which a driver tries to store the end of a job before it tells the end all the same.
const STORED_WITHIN_NS: u64 = 60_000 * MS;

/// The same after the operator's second request.
const STORED_AT_ONCE_WITHIN_NS: u64 = 1_000 * MS;

/// An end that a driver was asked for on a disk that stores nothing any more.
#[derive(Clone, Copy, Debug)]
pub(in crate::cores) struct EndOnDeadDisk {
    /// The number of the fault.
    fault: u32,
    /// World time of the operator's last request.
    asked_at: u64,
    /// Longest time from there until the end is told.
    within: u64,
}

impl DriverLife {
    /// Whether a fault of the disk lasts as long as this life.
    pub(in crate::cores) fn has_dead_disk(&self, fault: u32) -> bool {
        self.dead_disk.is_some_and(|end| end.fault == fault)
    }
}

impl World {
    /// The operator ends the job.
    pub(in crate::cores) fn stop_on_dead_disk(&mut self, fault: u32) {
        // A save before the end has the grace period.
        let grace = self.scenario.driver.deadlines.grace.as_nanos() as u64;
        let within = STORED_WITHIN_NS + grace;
        self.driver.dead_disk = Some(EndOnDeadDisk { fault, asked_at: self.now, within });
        self.note_stop_asked();
        self.stop_job();
    }

    /// The operator asks again, unless another driver acts by now.
    pub(in crate::cores) fn stop_again_on_dead_disk(&mut self, fault: u32) {
        if self.driver.dead_disk.is_none_or(|end| end.fault != fault) || !self.driver.runs() {
            return;
        }
        let within = STORED_AT_ONCE_WITHIN_NS;
        self.driver.dead_disk = Some(EndOnDeadDisk { fault, asked_at: self.now, within });
        self.stop_job();
    }

    /// A driver has ended, or another takes its place: the next one has a disk that works.
    pub(super) fn mend_dead_disk(&mut self) {
        let Some(EndOnDeadDisk { fault, .. }) = self.driver.dead_disk.take() else { return };
        self.disk_faults.retain(|(other, _)| *other != fault);
        self.disk_mended_at = self.now;
        self.set_disk();
    }

    /// Checks that the end has been told in time.
    pub(in crate::cores) fn check_end_is_told(&self) -> Result<(), String> {
        let driver = &self.driver;
        let Some(EndOnDeadDisk { asked_at, within, .. }) = driver.dead_disk else { return Ok(()) };
        let since = asked_at.max(driver.continued_at).max(driver.settled_at);
        // The driver's clock may be slow.
        let due = since + within / 100 * 103 + SLACK_NS;
        if !driver.runs() || self.now <= due {
            return Ok(());
        }
        let ms = (self.now - since) / MS;
        Err(format!(
            "G-9: the job was to end {ms} ms ago, on a disk that stores nothing, and has not"
        ))
    }
}
