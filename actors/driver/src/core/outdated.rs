//! Detects a journal that is older than the job: restored from a backup or from a snapshot of the machine, or kept by a disk
//! that lost writes which it had confirmed. Called when a node tells a new driver its workers and its generation.

use elastic_protocol::{GenerationId, WorkerId};

use super::DriverCore;

impl DriverCore {
    /// Retires this driver if a node names a number that its journal has not given out (D-4). Decisions from such a journal
    /// would stop healthy workers and give numbers out twice (D-1); without a driver the nodes train on. The process
    /// must not lead again from that journal: it would retire at the same node. Asked during a takeover only: a host of
    /// another job may come to a driver that begins one. Returns whether the driver retires.
    pub(crate) fn retires_as_outdated(
        &mut self,
        worker: &WorkerId,
        generation: GenerationId,
    ) -> bool {
        if self.takeover.is_none() {
            return false;
        }
        let Some((image, _)) = self.outbox.journaled() else { return false };
        let newer = if worker.incarnation > image.incarnation {
            format!("{worker} runs, and it has given out no number above {}", image.incarnation)
        } else if generation > image.generation {
            format!("{worker} is in generation {generation}, and it ends with {}", image.generation)
        } else {
            return false;
        };
        self.abandon(format!("its journal is older than the job: {newer}"), true);
        true
    }
}
