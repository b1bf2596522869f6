//! The plot of the demo. Pure: a status in, an action out. Used by `demo`.

use elastic_protocol::messages::{JobPhase, StatusReport};

/// The hosts at the beginning, with their slots.
pub(crate) const HOSTS: [(&str, u32); 2] = [("a", 2), ("b", 2)];
/// Workers at the beginning.
pub(crate) const WORKERS: u32 = 4;
/// The host that joins later, with its slots.
const NEWCOMER: (&str, u32) = ("c", 1);

/// The step that all have committed when a worker is killed.
const KILL_AT_STEP: u64 = 50;
/// Number of steps between the recovery from the loss and the newcomer's start.
const JOIN_AFTER_STEPS: u64 = 40;

/// The next action of the demo.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum StoryAction {
    /// Only watch.
    Watch,
    /// Kill this process.
    Kill {
        /// The worker to which the process belongs.
        worker: String,
        /// The process id.
        pid: u32,
    },
    /// Start an agent.
    AddHost {
        /// The host's name.
        host: &'static str,
        /// The host's slots.
        slots: u32,
    },
}

/// The progress of the story.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Story {
    /// All four workers train, or are about to.
    #[default]
    Beginning,
    /// A worker was killed in this generation.
    Lost {
        /// The generation in which it was killed.
        generation: u64,
    },
    /// The job has recovered from the loss at this step.
    Recovered {
        /// The step of the recovery.
        step: u64,
    },
    /// The newcomer was started; the job has only to finish.
    Joined,
}

impl Story {
    /// The action that follows from a status of the cluster.
    pub(crate) fn next(&mut self, status: &StatusReport) -> StoryAction {
        if status.phase != JobPhase::Run {
            return StoryAction::Watch;
        }
        let members = || status.workers.iter().filter(|worker| worker.rank.is_some());
        let step = members().map(|worker| worker.step).min().unwrap_or_default();
        match *self {
            Self::Beginning if status.world_size == WORKERS && step >= KILL_AT_STEP => {
                let victim = members().filter_map(|worker| Some((worker, worker.pid?))).next_back();
                let Some((victim, pid)) = victim else { return StoryAction::Watch };
                *self = Self::Lost { generation: status.generation };
                StoryAction::Kill { worker: format!("{}:{}", victim.host, victim.slot), pid }
            }
            Self::Lost { generation }
                if status.generation > generation && status.world_size == WORKERS =>
            {
                *self = Self::Recovered { step };
                StoryAction::Watch
            }
            Self::Recovered { step: since } if step >= since + JOIN_AFTER_STEPS => {
                *self = Self::Joined;
                let (host, slots) = NEWCOMER;
                StoryAction::AddHost { host, slots }
            }
            _ => StoryAction::Watch,
        }
    }
}

#[cfg(test)]
mod tests {
    use elastic_protocol::messages::{DriverStatus, WorkerCondition, WorkerStatus};
    use elastic_protocol::{HostName, JobId};

    use super::*;

    fn status(generation: u64, world_size: u32, step: u64) -> StatusReport {
        let workers = (0..world_size).map(|rank| {
            let (host, state) = (HostName::new("a").expect("a literal"), WorkerCondition::Running);
            let status = WorkerStatus::without_process(host, rank, Some(rank), state);
            WorkerStatus { pid: Some(100 + rank), step, ..status }
        });
        StatusReport {
            job: JobId(uuid::Uuid::nil()),
            driver: DriverStatus::default(),
            standbys: Vec::new(),
            term: 1,
            generation,
            phase: JobPhase::Run,
            world_size,
            min_np: 1,
            max_np: None,
            shards: None,
            resets: 0,
            steps_lost: 0,
            hosts: Vec::new(),
            workers: workers.collect(),
            last_reset: None,
            resets_recent: Vec::new(),
            moved: None,
            gather: None,
            waiting_for: None,
            awaited: Vec::new(),
            stalled: Vec::new(),
            stragglers: Vec::new(),
            slow_links: Vec::new(),
            divergence: Vec::new(),
            not_compared: Vec::new(),
            warnings: Vec::new(),
            unreachable: Vec::new(),
            lanes: Vec::new(),
            goodput: None,
            dashboard: None,
            checkpoint: None,
            dropped_messages: 0,
            result: None,
            answered_at: None,
        }
    }

    #[test]
    fn one_is_killed_and_one_joins_once_each() {
        let mut story = Story::default();
        assert_eq!(story.next(&status(1, 4, 10)), StoryAction::Watch);
        let kill = StoryAction::Kill { worker: "a:3".to_owned(), pid: 103 };
        assert_eq!(story.next(&status(1, 4, 50)), kill);
        assert_eq!(story.next(&status(1, 4, 51)), StoryAction::Watch, "not killed twice");
        assert_eq!(story.next(&status(2, 3, 60)), StoryAction::Watch, "not all are back");
        assert_eq!(story.next(&status(3, 4, 70)), StoryAction::Watch);
        assert_eq!(story.next(&status(3, 4, 109)), StoryAction::Watch);
        assert_eq!(story.next(&status(3, 4, 110)), StoryAction::AddHost { host: "c", slots: 1 });
        assert_eq!(story.next(&status(4, 5, 200)), StoryAction::Watch);
    }
}
