//! Partings before the next generation: the driver must leave out one of two hosts that do not reach each other, and a worker
//! whose own system refuses a resource that forming needs (G-9). Called with the driver's events.

use elastic_driver::EventKind;
use elastic_protocol::messages::UnreachableHost;
use elastic_protocol::{HostName, ResetCause, WorkerId};

use super::super::{MS, World};

/// Generations in a row that break between two hosts before something must follow from it.
const BREAKS_MAX: u32 = 3;

/// Time without another fault after which the holders of commits, and the nodes that are heard, are known.
const CLEAR_AFTER_NS: u64 = 3_000 * MS;

/// Error message of a simulated system that refuses a worker a resource for forming.
pub(in crate::cores) const REFUSAL: &str = "too many open files";

/// Partings that must precede the next generation.
#[derive(Debug, Default)]
pub(super) struct PartingDue {
    /// Two hosts that have failed to reach each other too often. One of them is parted, or the driver says that none can be
    /// spared.
    quarrel: Option<UnreachableHost>,
    /// A worker whose system refused a resource that forming needs, while other members keep the commit that it holds.
    refused: Option<WorkerId>,
}

impl World {
    /// Follows the driver's events.
    ///
    /// # Errors
    /// A generation is formed although a parting that was due has not followed.
    pub(super) fn check_parting(&mut self, kind: &EventKind) -> Result<(), String> {
        if let EventKind::HostUnreachable(report) = kind {
            self.check_witness(report)?;
        }
        match kind {
            EventKind::HostUnreachable(report) if report.breaks >= BREAKS_MAX => {
                self.driver.parting.quarrel = Some(report.clone());
            }
            EventKind::HostBlacklisted { .. } | EventKind::HostsChanged { .. } => {
                self.driver.parting.quarrel = None;
            }
            EventKind::Warning { message } if message.contains("do not reach each other") => {
                self.driver.parting.quarrel = None;
            }
            EventKind::ResetDecided {
                cause: ResetCause::WorkerFailed { worker, error }, ..
            } if error.contains(REFUSAL) && self.others_keep_what_it_holds(worker) => {
                self.driver.parting.refused = Some(worker.clone());
            }
            EventKind::GenerationFormed { members, .. } => {
                let told = std::mem::take(&mut self.driver.parting);
                let is_there = |host: &HostName| members.iter().any(|member| member.host == *host);
                let quarrel = told.quarrel.filter(|it| is_there(&it.from) && is_there(&it.to));
                if let Some(UnreachableHost { from, to, breaks, .. }) = quarrel {
                    return Err(format!(
                        "G-9: {from} did not reach {to} in {breaks} generations, and the next one is formed with both"
                    ));
                }
                if let Some(worker) = told.refused.filter(|worker| members.contains(worker)) {
                    return Err(format!(
                        "G-9: {worker} is a member again, and its own system refuses what forming needs"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks that a worker of the host that is said not to reach another one has seen this itself.
    fn check_witness(&self, report: &UnreachableHost) -> Result<(), String> {
        let UnreachableHost { from, to, .. } = report;
        if self.witnessed.contains(&(from.clone(), to.clone())) {
            return Ok(());
        }
        Err(format!("G-9: {from} is said not to reach {to}, and was only told so by others"))
    }

    /// Whether other members of the generation hold as much as this worker, stay, and are heard for long.
    fn others_keep_what_it_holds(&self, worker: &WorkerId) -> bool {
        let Some(process) = self.process_of(self.driver.job, worker) else { return false };
        let held = self.processes[process as usize].saved_progress();
        let keeps = |other: &u32| {
            let other = &self.processes[*other as usize];
            let link = &self.links[other.link as usize];
            other.stays() && other.saved_progress() >= held && link.is_in_touch()
        };
        let mut others = self.driver.members.iter().filter(|other| **other != process);
        self.calm_for(0) > CLEAR_AFTER_NS && others.any(keeps)
    }
}
