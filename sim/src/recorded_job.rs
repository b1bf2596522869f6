//! Properties of a recorded job from which a run goes on (`--from`): its hosts, and whether it can be simulated. Used by the
//! command line and by the scenario.

use elastic_driver::ElasticMode;
use elastic_driver::recording::moment::RecordedMoment;
use elastic_protocol::HostName;

/// Reason why no run goes on from a moment of a recorded job.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum UnsimulatedMoment {
    /// Processes live for one generation.
    #[error(
        "the recorded job runs by restart at record {record}; only jobs whose workers attach are simulated from a recording"
    )]
    ByRestart {
        /// Number of the record.
        record: u64,
    },
    /// The job is over.
    #[error("the recorded job is over at record {record}: choose one before it with --at")]
    Over {
        /// Number of the record.
        record: u64,
    },
    /// The job does not have enough hosts yet, and others are not simulated.
    #[error(
        "the recorded job has {slots} slots at record {record} and needs {needed}: choose one after it with --at"
    )]
    TooFewSlots {
        /// Number of the record.
        record: u64,
        /// Number of slots of its hosts.
        slots: u32,
        /// Number of workers that it waits for.
        needed: u32,
    },
}

/// Number of hosts of a recorded job, and of slots of the largest.
///
/// # Errors
/// [`UnsimulatedMoment`].
pub fn recorded_shape(moment: &RecordedMoment) -> Result<(u32, u32), UnsimulatedMoment> {
    let (record, image) = (moment.record, &moment.image);
    let mode = moment.config.mode;
    let attaches = mode == ElasticMode::InProcess || image.program_attaches;
    if mode == ElasticMode::Restart || !attaches {
        return Err(UnsimulatedMoment::ByRestart { record });
    }
    if image.result.is_some() {
        return Err(UnsimulatedMoment::Over { record });
    }
    let hosts = recorded_hosts(moment);
    let slots: u32 = hosts.iter().map(|(_, slots)| slots).sum();
    let needed = needed(moment);
    if slots < needed {
        return Err(UnsimulatedMoment::TooFewSlots { record, slots, needed });
    }
    let largest = hosts.iter().map(|(_, slots)| *slots).max().unwrap_or(1);
    Ok((hosts.len() as u32, largest))
}

/// Number of workers without which a recorded job does not train.
pub(crate) fn needed(moment: &RecordedMoment) -> u32 {
    let config = &moment.config;
    let begins = moment.image.current.is_none();
    let least = if begins { config.np } else { config.min_np.or(moment.image.started_with) };
    least.or(config.min_np).unwrap_or(1).max(1)
}

/// The hosts of a recorded job, the oldest first, with their slots: those listed, and others that still have workers.
pub(crate) fn recorded_hosts(moment: &RecordedMoment) -> Vec<(HostName, u32)> {
    let image = &moment.image;
    let mut hosts: Vec<(HostName, u32)> =
        image.hosts.iter().map(|host| (host.name.clone(), host.slots)).collect();
    for worker in image.workers.keys() {
        let slots = worker.slot + 1;
        match hosts.iter_mut().find(|(name, _)| *name == worker.host) {
            Some((_, known)) => *known = slots.max(*known),
            None => hosts.push((worker.host.clone(), slots)),
        }
    }
    hosts
}
