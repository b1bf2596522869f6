//! Rule: a worker that has attached is answered, even while the driver's disk stores nothing (G-9). Without an answer it would
//! end for want of a driver, and its end would count as a failure. Called by the look of `bounds.rs`.

use elastic_protocol::Time;
use elastic_protocol::messages::{JobPhase, WorkerCondition, WorkerStatus};

use super::bounds::SLACK_NS;
use super::processes::SimulatedProcess;
use super::{MS, World};

impl World {
    /// Checks that the driver has answered all workers that have attached, are in touch, and take part by its own status. A
    /// worker that is to leave is told so once that is stored, and so is the end of a job. A driver of actors is asked after
    /// the run alone.
    pub(super) fn check_welcomed(&mut self) -> Result<(), String> {
        let driver = &self.driver;
        let (life, acts_since) = (driver.life, driver.settled_at.max(driver.continued_at));
        if !driver.runs() || driver.dies_midway.is_some() {
            return Ok(());
        }
        let unanswered = |process: &SimulatedProcess| {
            let link = &self.links[process.link as usize];
            let since = link.unanswered_since(life).filter(|_| link.is_in_touch())?;
            let is_long = since.max(acts_since) + SLACK_NS < self.now;
            (is_long && process.job == driver.job).then_some(since)
        };
        let here = self.hosts.iter().flat_map(|host| &host.processes);
        let here = here.map(|process| &self.processes[*process as usize]);
        let waiting = here.filter_map(|it| Some((it.id.clone(), it.pid(), unanswered(it)?)));
        let waiting: Vec<_> = waiting.collect();
        let now = self.driver_now();
        let Some(cores) = self.driver.cores().filter(|_| !waiting.is_empty()) else {
            return Ok(());
        };
        let status = cores.driver.status(now, &|time: Time| time.to_string());
        let takes_part = |state: WorkerCondition| {
            matches!(
                state,
                WorkerCondition::Attached
                    | WorkerCondition::Forming
                    | WorkerCondition::Syncing
                    | WorkerCondition::Arriving
                    | WorkerCondition::Running
            )
        };
        if matches!(status.phase, JobPhase::Succeeded | JobPhase::Failed) {
            return Ok(());
        }
        for (id, pid, since) in waiting {
            let is_it = |known: &WorkerStatus| {
                (&known.host, known.slot, known.pid) == (&id.host, id.slot, Some(pid))
            };
            if status.workers.iter().any(|known| is_it(known) && takes_part(known.state)) {
                let ms = (self.now - since) / MS;
                return Err(format!("G-9: {id} came {ms} ms ago, and is not answered"));
            }
        }
        Ok(())
    }
}
