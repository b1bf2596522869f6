//! Invariants of the agent's core. They are checked after every input in debug builds and in the simulation.

use super::reports::Reports;
use super::{AgentCore, AgentPhase};

impl AgentCore {
    /// Checks the invariants of session, reports and slots.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check(&self) -> Result<(), String> {
        self.check_session()?;
        self.slots.iter().try_for_each(|(number, slot)| {
            let what = format!("slot {number} of {}", self.settings.host);
            if *number >= self.settings.slots {
                return Err(format!("{what} does not exist"));
            }
            slot.check(*number).map_err(|reason| format!("{what} {reason}"))?;
            let is_leaving = matches!(self.phase, AgentPhase::Leaving { .. });
            if is_leaving && slot.next.is_some() {
                return Err(format!("{what} waits to start a process, and the agent leaves"));
            }
            let stops = |process: &super::SlotProcess| process.stop.is_some();
            if is_leaving && !slot.current.as_ref().is_none_or(stops) {
                return Err(format!(
                    "{what} has a process that is not told to end, and the agent leaves"
                ));
            }
            Ok(())
        })
    }

    fn check_session(&self) -> Result<(), String> {
        if self.accepted && !(self.link_up && self.welcome.is_some()) {
            return Err("a driver is obeyed without a session or a welcome".to_owned());
        }
        if self.alone_since.is_none() && !self.accepted {
            return Err("G-9: no driver is there, and the wait for one has no begin".to_owned());
        }
        let kept = self.reports.len();
        if kept > Reports::MAX {
            return Err(format!("{kept} reports are kept"));
        }
        if kept > 0 && self.accepted && self.retry_at.is_none() {
            return Err(format!("G-9: {kept} reports are kept, and a driver is there"));
        }
        Ok(())
    }
}
