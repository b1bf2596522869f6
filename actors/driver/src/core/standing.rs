//! A worker's role for the next generation, from its stance and its link: one table for every pair. Read by
//! gathering, seating, taking over, and by the simulation's oracle.

use super::DriverCore;
use super::table::{PeerLink, Stance, WorkerRecord};

/// A worker's role for the next generation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WorkerStanding {
    /// A generation can be formed with it now.
    Ready,
    /// The worker cannot take part now and may soon. If it holds a later commit than the ready workers, they wait for
    /// it (G-5).
    Awaited(Until),
    /// The worker is a member of the generation formed last, and has not arrived from there. The gather room waits
    /// for it.
    Engaged,
    /// The process is on its way out. It is not waited for, and its commit goes with it.
    Departing,
}

/// End of the wait for a worker whose commit no other holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Until {
    /// The worker is heard again or lost: within `lost` of its last sign.
    SilenceEnds,
    /// The worker rests, or must have ended: for want of a driver (`orphan`), or because its training thread hangs.
    Rests,
    /// The host's agent is back. The worker itself is in reach, so it does not end for want of a driver.
    HostReturns,
}

impl WorkerStanding {
    /// The standing of a worker with this stance and this link.
    pub(crate) const fn of(stance: Stance, link: PeerLink) -> Self {
        match (stance, link) {
            (Stance::Arrived, PeerLink::Up) => Self::Ready,
            // The worker was at rest a moment ago: within `lost` it is known whether it is lost.
            (Stance::Arrived, PeerLink::Silent) => Self::Awaited(Until::SilenceEnds),
            // The process is ordered, or back with its host and not in session yet; it may hold a commit (H-17).
            (Stance::Starting, PeerLink::Down | PeerLink::Up | PeerLink::Silent) => {
                Self::Awaited(Until::Rests)
            }
            (Stance::Attached, PeerLink::Down | PeerLink::Up | PeerLink::Silent) => {
                Self::Awaited(Until::Rests)
            }
            // A worker that loses its session becomes `Lost` at once; until the driver sees that it counts as lost.
            (Stance::Arrived, PeerLink::Down) => Self::Awaited(Until::Rests),
            // The agent is out of reach, the worker is not.
            (Stance::Lost, PeerLink::Up) => Self::Awaited(Until::HostReturns),
            (Stance::Lost, PeerLink::Down | PeerLink::Silent) => Self::Awaited(Until::Rests),
            (
                Stance::Member | Stance::Finished,
                PeerLink::Down | PeerLink::Up | PeerLink::Silent,
            ) => Self::Engaged,
            (Stance::Leaving | Stance::Dying, PeerLink::Down | PeerLink::Up | PeerLink::Silent) => {
                Self::Departing
            }
        }
    }
}

impl WorkerRecord {
    /// The worker's standing.
    pub(crate) fn standing(&self) -> WorkerStanding {
        match WorkerStanding::of(self.stance, self.link) {
            // The address of the worker's collectives is not known yet.
            WorkerStanding::Ready if self.data_address.is_none() => {
                WorkerStanding::Awaited(Until::Rests)
            }
            standing => standing,
        }
    }
}

impl DriverCore {
    /// Every worker on record with its standing, for observers such as the oracle.
    pub fn standings(&self) -> impl Iterator<Item = (&elastic_protocol::WorkerId, WorkerStanding)> {
        self.roster.workers().map(|(worker, record)| (worker, record.standing()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g_5_an_arrived_holder_that_falls_silent_is_waited_for() {
        assert_eq!(WorkerStanding::of(Stance::Arrived, PeerLink::Up), WorkerStanding::Ready);
        let silent = WorkerStanding::of(Stance::Arrived, PeerLink::Silent);
        assert_eq!(silent, WorkerStanding::Awaited(Until::SilenceEnds));
    }
}
