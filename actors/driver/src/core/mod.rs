//! The driver as a state machine: no actix, no tokio, no clock.
//!
//! Inputs are `handle_*`, outputs `poll_output`, the one deadline `poll_timeout`. What must not wait (a
//! loss) is acted upon at once; what may wait (hosts that come, go, or change) only asks for a *review* a
//! moment later, which compares what is wanted with what is: level-triggered, so nothing is lost however
//! changes interleave (G-7), and a burst costs one pass.

mod agents;
mod config;
mod drivers;
mod ending;
mod environment;
mod first_failure;
mod gather;
mod interrupt;
mod journaling;
mod losses;
mod membership;
mod output;
mod phase;
mod quarrels;
mod restart;
mod restored;
mod review;
mod seating;
mod selection;
mod slot_failures;
mod slots;
mod status;
mod table;
mod takeover;
mod tell;
#[cfg(test)]
mod tests;
mod timers;
mod touched;
mod workers;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use elastic_host_manager::HostsSnapshot;
use elastic_protocol::messages::DriverStatus;
use elastic_protocol::{
    GenerationId, HostName, Incarnation, JobId, Stamp, Term, Time, WorkerFailure, WorkerId,
};
use elastic_runtime::planted::{Bug, is_planted};
use rand_chacha::ChaCha8Rng;

pub use self::config::{DriverConfig, InvalidDriverConfig, Mode, OnFailure};
pub use self::output::{DriverOutput, Event, EventKind};
use self::phase::{Gather, Generation, Phase, ResetRecord};
use self::quarrels::Quarrels;
use self::seating::Seating;
pub use self::status::Glance;
use self::table::{AgentRecord, PendingJoin, SlotId, SlotRecord, WorkerRecord};
use self::takeover::Takeover;
use self::timers::{Timer, Timers};
use self::touched::Touched;
use crate::journal::Ledger;

/// How long a change that may wait is left to gather company before it is acted upon.
const REVIEW_DELAY: Duration = Duration::from_millis(2);

/// The driver's state machine. One a job.
#[derive(Debug)]
pub struct DriverCore {
    config: DriverConfig,
    job: JobId,
    term: Term,
    /// Back-off jitter and the keys of generations.
    rng: ChaCha8Rng,
    /// Last one given out.
    generation: GenerationId,
    /// Last one given out to a worker.
    incarnation: Incarnation,
    /// Copy of the host manager's.
    snapshot: HostsSnapshot,
    agents: Touched<HostName, AgentRecord>,
    pending_joins: BTreeMap<HostName, PendingJoin>,
    slots: Touched<SlotId, SlotRecord>,
    workers: Touched<WorkerId, WorkerRecord>,
    /// What follows from these; see `refresh_seating`.
    seating: Seating,
    phase: Phase,
    /// The generation formed last.
    current: Option<Generation>,
    /// Whether any worker ever attached: then one that exits with code 0 without it is not done.
    program_attaches: bool,
    /// World size of the first generation.
    started_with: Option<u32>,
    resets: u64,
    /// Those of them that a failure has caused, in the restart mode.
    restarts: u64,
    /// When the membership was first seen to need a planned change.
    change_since: Option<Time>,
    /// When the interrupt under way was announced.
    interrupt_since: Time,
    reset: Option<ResetRecord>,
    last_reset: Option<ResetRecord>,
    first_failure: Option<WorkerFailure>,
    /// Why the first host had no agent on which none could be started.
    first_launch_failure: Option<String>,
    /// When its program says that it failed, in seconds of its host's clock.
    first_failed_at: Option<u64>,
    /// What the job failed of, less the first cause.
    failed_because: Option<String>,
    /// The generation in which a member was ended by a signal last.
    accident_in: Option<Stamp>,
    quarrels: Quarrels,
    timers: Timers,
    review_at: Option<Time>,
    dropped_messages: u64,
    /// What is written down for the next incarnation, if anything is.
    ledger: Option<Ledger>,
    /// From its beginning until those who were there before are back or lost.
    takeover: Option<Takeover>,
    /// Those that stand by for this one.
    standbys: Vec<DriverStatus>,
    /// Whether it acts no more: nothing that is decided from here on leaves.
    is_retired: bool,
    /// Each with the record that must be stored before.
    outputs: VecDeque<(u64, DriverOutput)>,
}

impl DriverCore {
    /// A driver at the beginning of its job. `rng` must be seeded from the system's entropy outside of
    /// tests: the keys of the collectives come from it.
    pub fn new(config: DriverConfig, job: JobId, term: Term, rng: ChaCha8Rng, now: Time) -> Self {
        let deadline = now + config.deadlines.elastic;
        let workers_max = Self::workers_max(config.max_np);
        let mut timers = Timers::default();
        timers.set(deadline, Timer::Phase);
        Self {
            config,
            job,
            term,
            rng,
            generation: GenerationId::default(),
            incarnation: Incarnation::default(),
            snapshot: HostsSnapshot::default(),
            agents: Touched::default(),
            pending_joins: BTreeMap::new(),
            slots: Touched::default(),
            workers: Touched::default(),
            seating: Seating::new(workers_max),
            phase: Phase::Gather(Gather {
                since: now,
                deadline,
                waiting_for: Default::default(),
                changed_at: now,
            }),
            current: None,
            program_attaches: false,
            started_with: None,
            resets: 0,
            restarts: 0,
            change_since: None,
            interrupt_since: now,
            reset: None,
            last_reset: None,
            first_failure: None,
            first_launch_failure: None,
            first_failed_at: None,
            failed_because: None,
            accident_in: None,
            quarrels: Quarrels::default(),
            timers,
            review_at: None,
            dropped_messages: 0,
            ledger: None,
            takeover: None,
            standbys: Vec::new(),
            is_retired: false,
            outputs: VecDeque::new(),
        }
    }

    /// The next thing to do; call until none is left after every input. What depends on a record that is not
    /// stored yet waits, and all after it.
    pub fn poll_output(&mut self) -> Option<DriverOutput> {
        let (needs, _) = self.outputs.front()?;
        let is_stored =
            |ledger: &Ledger| ledger.is_stored(*needs) || is_planted(Bug::RecordNotWaitedFor);
        if !self.ledger.as_ref().is_none_or(is_stored) {
            return None;
        }
        self.outputs.pop_front().map(|(_, output)| output)
    }

    /// When `handle_timeout` wants to be called next.
    pub fn poll_timeout(&self) -> Option<Time> {
        if self.is_retired {
            return None;
        }
        let retry = self.ledger.as_ref().and_then(Ledger::retry_at);
        [self.timers.next(), self.review_at, retry].into_iter().flatten().min()
    }

    /// The hosts that the job may use, from the host manager.
    pub fn handle_hosts(&mut self, now: Time, snapshot: HostsSnapshot) {
        let forms = matches!(self.phase, Phase::Form { .. } | Phase::Sync { .. });
        if forms && is_planted(Bug::ChangeWhileFormingIsLost) {
            return;
        }
        let described = |snapshot: &HostsSnapshot| -> Vec<String> {
            snapshot.hosts.iter().map(environment::describe_host).collect()
        };
        let hosts = described(&snapshot);
        let changed = hosts != described(&self.snapshot);
        for warning in &snapshot.warnings {
            if !self.snapshot.warnings.contains(warning) {
                self.event(EventKind::Warning { message: warning.clone() });
            }
        }
        self.seating.set_list(&snapshot.hosts);
        self.snapshot = snapshot;
        if !changed {
            return;
        }
        self.event(EventKind::HostsChanged { hosts });
        self.record_hosts();
        self.expel_blacklisted(now);
        self.gather_changed(now);
        self.ask_review(now);
    }

    fn next_incarnation(&mut self) -> Incarnation {
        self.incarnation = self.incarnation.next();
        self.incarnation
    }

    fn current_stamp(&self) -> Option<Stamp> {
        self.current.as_ref().map(|current| current.stamp)
    }

    fn is_member(&self, worker: &WorkerId) -> bool {
        self.current.as_ref().is_some_and(|current| current.alive.contains(worker))
    }

    fn output(&mut self, output: DriverOutput) {
        if self.is_retired {
            return;
        }
        let needs = self.ledger.as_ref().map_or(0, Ledger::waited_for);
        self.outputs.push_back((needs, output));
    }

    fn event(&mut self, kind: EventKind) {
        let (term, generation) = (self.term.0, self.generation.0);
        self.output(DriverOutput::Event(Event { term, generation, kind }));
    }

    /// Counts a message that is not obeyed (G-2).
    fn drop_message(&mut self) {
        self.dropped_messages += 1;
    }

    fn ask_review(&mut self, now: Time) {
        let at = now + REVIEW_DELAY;
        self.review_at = Some(self.review_at.map_or(at, |earlier| earlier.min(at)));
    }

    fn gather_changed(&mut self, now: Time) {
        if let Phase::Gather(gather) = &mut self.phase {
            gather.changed_at = now;
        }
    }
}
