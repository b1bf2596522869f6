//! What happens when in the demo. Pure: a status in, an action out.

use elastic_protocol::messages::StatusReport;

/// The hosts at the beginning, with their slots.
pub(crate) const HOSTS: [(&str, u32); 2] = [("a", 2), ("b", 2)];
/// Workers at the beginning.
pub(crate) const WORKERS: u32 = 4;
/// The host that joins later, with its slots.
const NEWCOMER: (&str, u32) = ("c", 1);

/// A worker is killed when all have committed this step.
const KILL_AT_STEP: u64 = 50;
/// The newcomer joins so many steps after the loss was overcome.
const JOIN_AFTER_STEPS: u64 = 40;

/// What is to be done now.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Action {
    /// Nothing.
    Watch,
    /// Kill this process.
    Kill {
        /// Whose.
        worker: String,
        /// Its id.
        pid: u32,
    },
    /// Start an agent.
    AddHost {
        /// Its name.
        host: &'static str,
        /// Its slots.
        slots: u32,
    },
}

/// How far the story is.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Story {
    /// All four train, or are about to.
    #[default]
    Beginning,
    /// One was killed, in this generation.
    Lost {
        /// Which.
        generation: u64,
    },
    /// The loss was overcome at this step.
    Recovered {
        /// Which.
        step: u64,
    },
    /// The newcomer was started: what is left is to finish.
    Joined,
}

impl Story {
    /// Takes a look at the cluster.
    pub(crate) fn next(&mut self, status: &StatusReport) -> Action {
        if status.phase != "run" {
            return Action::Watch;
        }
        let members = || status.workers.iter().filter(|worker| worker.rank.is_some());
        let step = members().map(|worker| worker.step).min().unwrap_or_default();
        match *self {
            Self::Beginning if status.world_size == WORKERS && step >= KILL_AT_STEP => {
                let victim = members().filter_map(|worker| Some((worker, worker.pid?))).next_back();
                let Some((victim, pid)) = victim else { return Action::Watch };
                *self = Self::Lost { generation: status.generation };
                Action::Kill { worker: format!("{}:{}", victim.host, victim.slot), pid }
            }
            Self::Lost { generation }
                if status.generation > generation && status.world_size == WORKERS =>
            {
                *self = Self::Recovered { step };
                Action::Watch
            }
            Self::Recovered { step: since } if step >= since + JOIN_AFTER_STEPS => {
                *self = Self::Joined;
                let (host, slots) = NEWCOMER;
                Action::AddHost { host, slots }
            }
            _ => Action::Watch,
        }
    }
}

#[cfg(test)]
mod tests {
    use elastic_protocol::messages::{DriverStatus, WorkerStatus};

    use super::*;

    fn status(generation: u64, world_size: u32, step: u64) -> StatusReport {
        let workers = (0..world_size).map(|rank| WorkerStatus {
            rank: Some(rank),
            host: "a".to_owned(),
            slot: rank,
            pid: Some(100 + rank),
            state: "running".to_owned(),
            step,
            note: String::new(),
        });
        StatusReport {
            job: String::new(),
            driver: DriverStatus::default(),
            standbys: Vec::new(),
            term: 1,
            generation,
            phase: "run".to_owned(),
            world_size,
            min_np: 1,
            max_np: None,
            resets: 0,
            hosts: Vec::new(),
            workers: workers.collect(),
            last_reset: None,
            waiting_for: None,
            warnings: Vec::new(),
            dropped_messages: 0,
            result: None,
        }
    }

    #[test]
    fn one_is_killed_and_one_joins_once_each() {
        let mut story = Story::default();
        assert_eq!(story.next(&status(1, 4, 10)), Action::Watch);
        let kill = Action::Kill { worker: "a:3".to_owned(), pid: 103 };
        assert_eq!(story.next(&status(1, 4, 50)), kill);
        assert_eq!(story.next(&status(1, 4, 51)), Action::Watch, "not killed twice");
        assert_eq!(story.next(&status(2, 3, 60)), Action::Watch, "not all are back");
        assert_eq!(story.next(&status(3, 4, 70)), Action::Watch);
        assert_eq!(story.next(&status(3, 4, 109)), Action::Watch);
        assert_eq!(story.next(&status(3, 4, 110)), Action::AddHost { host: "c", slots: 1 });
        assert_eq!(story.next(&status(4, 5, 200)), Action::Watch);
    }
}
