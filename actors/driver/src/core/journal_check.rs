//! Checks that journal and core agree: a successor goes on from the journal alone (D-4). A part of the core's `check`.

use elastic_protocol::WorkerId;

use super::DriverCore;
use super::phase::RoundPhase;
use super::restart::ProcessStage;
use super::table::{Stance, WorkerRecord};
use crate::journal::{GenerationProgress, HostImage, Image, ProcessImage, SlotImage, WorkerImage};

impl DriverCore {
    /// Checks that the records hold each fact that a successor needs as this core has it. This also holds for a core that has
    /// just taken over.
    pub(crate) fn check_journal(&self) -> Result<(), String> {
        let Some((image, _)) = self.outbox.journaled() else { return Ok(()) };
        let differ = |what: String| Err(format!("D-4: journal and driver differ: {what}"));
        let (round, known) = (&self.round, &image);
        let here = (round.resets(), round.restarts(), round.started_with());
        let there = (known.resets, known.restarts, known.started_with);
        if here != there {
            return differ(format!("resets, restarts and first size: {there:?}, not {here:?}"));
        }
        if (round.told_upto(), round.program_attaches())
            != (known.generation, known.program_attaches)
        {
            return differ("the last number, or whether the program attaches".to_owned());
        }
        let kept = (self.checkpoints.last(), self.checkpoints.directory());
        if kept != (image.checkpoint, image.checkpoint_directory.as_deref())
            || self.checkpoints.is_by_rank_0() != image.is_saved_by_rank_0
            || self.state.loss() != image.loss.as_ref()
        {
            return differ("the last checkpoint, or the last loss of steps".to_owned());
        }
        let is_to_end = self.stopping.is_some() || self.stop_asked.is_some();
        if is_to_end && image.stop_asked.is_none() {
            return differ("whether the job was asked to end".to_owned());
        }
        self.check_journaled_workers(image).or_else(differ)?;
        self.check_journaled_slots(image).or_else(differ)?;
        self.check_journaled_hosts(image).or_else(differ)?;
        self.check_journaled_round(image).or_else(differ)
    }

    fn check_journaled_workers(&self, image: &Image) -> Result<(), String> {
        let is_planned = |record: &WorkerRecord| record.stage == Some(ProcessStage::Planned);
        let started = self.roster.workers().filter(|(_, record)| !is_planned(record)).count();
        if started != image.workers.len() {
            return Err(format!("{} workers, not {started}", image.workers.len()));
        }
        for (worker, record) in self.roster.workers() {
            match image.workers.get(worker) {
                Some(known) if !is_planned(record) => check_worker(worker, record, known)?,
                None if is_planned(record) => {}
                Some(_) => return Err(format!("{worker} is started, and only planned here")),
                None => return Err(format!("{worker} is not there")),
            }
        }
        Ok(())
    }

    fn check_journaled_slots(&self, image: &Image) -> Result<(), String> {
        for (slot, record) in self.roster.slots() {
            let known = image.slots.get(slot).copied().unwrap_or_default();
            let here = SlotImage { failures: record.failures, closed_under: record.closed_under };
            let why = record.rest.map(|rest| rest.why);
            if known != here || image.resting.get(slot).copied() != why {
                return Err(format!(
                    "{}[{}] is {known:?}, not {here:?}; it rests: {why:?}",
                    slot.0, slot.1
                ));
            }
        }
        Ok(())
    }

    fn check_journaled_hosts(&self, image: &Image) -> Result<(), String> {
        let hosts = self.roster.hosts().iter().map(HostImage::of);
        let unlisted = self.roster.unlisted().iter().map(HostImage::of);
        // A successor has no list before its host manager gives it one.
        if self.roster.hosts().is_empty()
            || (hosts.eq(image.hosts.iter().cloned())
                && unlisted.eq(image.unlisted.iter().cloned()))
        {
            Ok(())
        } else {
            Err("the list of hosts".to_owned())
        }
    }

    fn check_journaled_round(&self, image: &Image) -> Result<(), String> {
        let phase = self.round.phase();
        if let RoundPhase::Ending { result, .. } | RoundPhase::Ended { result } = phase {
            return match image.result.as_ref() == Some(result) {
                true => Ok(()),
                false => Err(format!("the job ended with {:?}, not {result:?}", image.result)),
            };
        }
        let (current, known) = match (self.round.current(), &image.current) {
            (Some(current), Some(known)) => (current, known),
            (None, None) => return Ok(()),
            (here, _) => return Err(format!("whether there is a generation: {}", here.is_some())),
        };
        if current.stamp != known.formation.stamp {
            return Err("the generation formed last".to_owned());
        }
        if phase.is_generation_active() && !current.alive.is_subset(&known.alive) {
            return Err(format!("alive are {:?}, not {:?}", known.alive, current.alive));
        }
        let is_told = match phase {
            RoundPhase::Gather(_) => matches!(known.progress, GenerationProgress::Ended { .. }),
            RoundPhase::Form { .. } | RoundPhase::Sync { .. } => {
                known.progress == GenerationProgress::Forming
            }
            RoundPhase::Run | RoundPhase::Pausing { .. } => {
                known.progress == GenerationProgress::Running
            }
            RoundPhase::Stopping { boundary: here, .. } => {
                matches!(&known.progress, GenerationProgress::Stopping { boundary, .. } if boundary == here)
            }
            RoundPhase::Failing { .. } | RoundPhase::Ending { .. } | RoundPhase::Ended { .. } => {
                true
            }
        };
        match is_told {
            true => Ok(()),
            false => {
                Err(format!("the generation is {:?}, in phase {}", known.progress, phase.name()))
            }
        }
    }
}

/// A worker's address is known once it has attached, unless it had been told to leave by then, and its commit once it
/// rests. A process that lives for one generation has neither.
fn check_worker(
    worker: &WorkerId,
    record: &WorkerRecord,
    known: &WorkerImage,
) -> Result<(), String> {
    let process = match record.stage {
        Some(ProcessStage::Running) => Some(ProcessImage::Running),
        Some(ProcessStage::Done) => Some(ProcessImage::Done),
        Some(ProcessStage::Planned) | None => None,
    };
    if known.process != process {
        return Err(format!("the process of {worker} is {:?}, not {process:?}", known.process));
    }
    let goes = matches!(record.stance, Stance::Leaving | Stance::Dying);
    if process.is_none() && !goes && known.data_address != record.data_address {
        return Err(format!(
            "{worker} is at {:?}, not {:?}",
            known.data_address, record.data_address
        ));
    }
    if record.at_rest && record.commit.is_some() && known.commit != record.commit {
        return Err(format!("{worker} holds {:?}, not {:?}", known.commit, record.commit));
    }
    Ok(())
}
