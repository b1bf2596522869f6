//! `StateCore`: a worker's part in the life of generations, without I/O. Driven by `state/actor.rs` in a
//! process and by the simulation. It holds no training state, only facts about it.
//!
//! Inputs come from two sides: the driver (`handle_link`, `handle_driver`) and the training thread
//! (`handle_training`, `handle_boundary`). Outputs come from `poll_output`. Announcements to the driver are
//! derived from the present state on every new connection (`announce`), so no fact is lost with a broken
//! session.

mod announce;
mod check;
mod checkpoints;
mod driver;
mod port;
#[cfg(test)]
mod property_tests;
mod standstill;
#[cfg(test)]
mod tests;
mod training;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use elastic_protocol::messages::{
    Ballot, MovedBytes, Placement, StateDigests, UndoneTraining, Vote, WorkerToDriver,
};
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{Assignment, CommitId, Deadlines, Stamp, Term, Time};
use elastic_runtime::transport::LinkEvent;

pub(in crate::state) use training::prefix;

pub use port::{
    BoundaryAnswer, CheckpointCommand, CheckpointOutcome, CheckpointPart, RunExit, StateConfig,
    StateOutput, TrainingCommand, TrainingEvent, TrainingProgress,
};

/// The link with the driver.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum DriverAttachment {
    /// There is no session, since the time `since`.
    Down { since: Time },
    /// `Attach` is sent. No driver has answered since the time `since`.
    Attaching { since: Time },
    /// The driver has sent `Welcome`.
    Attached,
}

/// The state of the training thread, as far as the core knows it.
#[derive(Clone, Debug, Eq, PartialEq)]
enum ThreadState {
    /// The thread has not reached `run` yet.
    Starting,
    /// The thread waits for a command and takes part in no generation.
    AtRest,
    /// The thread forms the communicator.
    Forming,
    /// The communicator stands. The thread waits for the driver's `Go`.
    Formed,
    /// The thread takes over the generation's commit.
    Syncing,
    /// The thread is in the user's function. `held` is the boundary at which it waits for a verdict.
    Running { held: Option<u64> },
    /// The user's function has returned. The thread waits for a command. Other ranks may still train in the
    /// generation.
    Returned,
    /// The generation has ended. The thread is on its way to rest.
    Ending,
    /// The thread was told to leave `run`.
    Exited,
}

/// The interrupt that is under way in this generation.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Pause {
    /// Whether the pause flag is set.
    flag: bool,
    /// Whether the driver waits for `Paused`.
    asked: bool,
    /// The boundary that `Paused` reported: the thread passes it, but not the next one.
    promised: Option<u64>,
    /// Whether the promise was made to an earlier driver. It is not repeated to this one.
    is_old: bool,
    /// The boundary at which the driver has ordered the stop.
    stop_at: Option<u64>,
}

/// A worker's part in the life of generations.
#[derive(Debug)]
pub struct StateCore {
    config: StateConfig,
    deadlines: Deadlines,
    link: DriverAttachment,
    /// The time since which the driver counts as gone although its session exists.
    silent_since: Option<Time>,
    term: Term,
    /// The newest known generation (G-2).
    stamp: Stamp,
    training: ThreadState,
    /// The placement of the generation that the training thread is in.
    placement: Option<Placement>,
    /// The placement of the next generation, which waits until the thread is at rest.
    pending: Option<Placement>,
    /// The latest assignment, against which the next delta is applied.
    table: Arc<Assignment>,
    /// The commit that the training thread holds, as it reported last.
    commit: Option<CommitId>,
    undone: UndoneTraining,
    /// Whether the driver has been told in this session that the thread is at rest.
    arrived: bool,
    pause: Pause,
    /// The way in which the worker leaves, once that is decided. Carried out when the thread is at rest.
    exit: Option<RunExit>,
    /// The reason why the worker wants to leave, if it does.
    leaving: Option<String>,
    /// The time since which the training thread has been waiting, if it waits.
    waits_since: Option<Time>,
    sent_progress: Option<(Time, TrainingProgress)>,
    /// The time at which the driver was told last how long steps take, in this generation.
    sent_steps_at: Option<Time>,
    /// Digests of this generation's commits that the driver was not told of.
    digests: StateDigests,
    /// The bytes that the driver was told last.
    sent_moved: Option<MovedBytes>,
    /// The place at which the training thread was seen last, while it runs.
    seen: Option<standstill::SeenPosition>,
    /// The step that this worker was told last to save, with its last report.
    checkpoint: Option<checkpoints::OrderedCheckpoint>,
    /// The generation that ended here after the user's function had returned.
    left_after_end: Option<Stamp>,
    /// Warnings that a driver was told.
    warnings: BTreeSet<String>,
    sample_at: Option<Time>,
    dropped: u64,
    outputs: VecDeque<StateOutput>,
}

impl StateCore {
    /// A State without a driver, whose training thread has not reached `run` yet.
    pub fn new(config: StateConfig, now: Time) -> Self {
        Self {
            deadlines: config.deadlines,
            config,
            link: DriverAttachment::Down { since: now },
            silent_since: None,
            term: Term::default(),
            stamp: Stamp::default(),
            training: ThreadState::Starting,
            placement: None,
            pending: None,
            table: Arc::default(),
            commit: None,
            undone: UndoneTraining::default(),
            arrived: false,
            pause: Pause::default(),
            exit: None,
            leaving: None,
            waits_since: Some(now),
            sent_progress: None,
            sent_steps_at: None,
            digests: StateDigests::default(),
            sent_moved: None,
            seen: None,
            checkpoint: None,
            left_after_end: None,
            warnings: BTreeSet::new(),
            sample_at: None,
            dropped: 0,
            outputs: VecDeque::new(),
        }
    }

    /// The link with the driver changed.
    pub fn handle_link(&mut self, now: Time, event: &LinkEvent) {
        match event {
            LinkEvent::Up => self.attach(now),
            LinkEvent::Lost { .. } => {
                self.link = DriverAttachment::Down { since: self.alone_since().unwrap_or(now) };
                self.silent_since = None;
                if self.leaving.is_some() {
                    self.leave_alone();
                }
            }
            LinkEvent::Silent { silent_ms } => {
                // The session may recover. Until then this worker counts as alone, as without a session.
                if u128::from(*silent_ms) >= self.deadlines.lost.as_millis() {
                    self.silent_since.get_or_insert(now);
                    if self.leaving.is_some() {
                        self.leave_alone();
                    }
                }
            }
            LinkEvent::Heard => self.silent_since = None,
        }
        self.note_waiting(now);
    }

    /// Whether a driver of this term is heeded: no driver of a later term has been met (G-2).
    pub fn heeds(&mut self, term: Term) -> bool {
        let heeds = term >= self.term || is_planted(Bug::FormerDriverHeeded);
        self.dropped += u64::from(!heeds);
        heeds
    }

    /// SIGTERM, or another notice that this worker will be gone soon, begins a planned departure.
    /// Without a driver to plan it with, or at the second notice, the worker ends at once.
    pub fn handle_sigterm(&mut self, _now: Time) {
        let again = self.leaving.replace("SIGTERM".to_owned()).is_some();
        if again
            || matches!(self.link, DriverAttachment::Down { .. })
            || self.silent_since.is_some()
        {
            self.leave_alone();
        } else {
            self.say_leaving();
        }
    }

    /// A deadline that `poll_timeout` gave has passed. A call before that time changes nothing.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.orphan_at().is_some_and(|at| at <= now)
            && let Some(since) = self.alone_since()
        {
            let gone_ms = u64::try_from(now.since(since).as_millis()).unwrap_or(u64::MAX);
            self.leave(RunExit::Orphaned { gone_ms }, "the driver is gone for too long");
        }
        if self.sample_at.is_some_and(|at| at <= now) {
            self.sample_at = Some(now + self.deadlines.beat);
            self.outputs.push_back(StateOutput::SampleProgress);
        }
    }

    /// The time at which `handle_timeout` must be called.
    pub fn poll_timeout(&self) -> Option<Time> {
        [self.orphan_at(), self.sample_at].into_iter().flatten().min()
    }

    /// The next output to carry out.
    pub fn poll_output(&mut self) -> Option<StateOutput> {
        let output = self.outputs.pop_front();
        if output.is_none() {
            debug_assert_eq!(self.check(), Ok(()));
        }
        output
    }

    /// The number of dropped messages of old terms or generations (G-2).
    pub const fn dropped_messages(&self) -> u64 {
        self.dropped
    }

    /// The newest known generation.
    pub const fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// Whether this worker takes part in the generation of `stamp`, or is about to.
    pub const fn is_active(&self) -> bool {
        self.pending.is_some()
            || matches!(
                self.training,
                ThreadState::Forming
                    | ThreadState::Formed
                    | ThreadState::Syncing
                    | ThreadState::Running { .. }
                    | ThreadState::Returned
            )
    }

    /// Whether the training thread was told to leave `run`.
    pub const fn is_exited(&self) -> bool {
        matches!(self.training, ThreadState::Exited)
    }

    /// The time since which no driver answers.
    const fn alone_since(&self) -> Option<Time> {
        match self.link {
            DriverAttachment::Attached => self.silent_since,
            DriverAttachment::Down { since } | DriverAttachment::Attaching { since } => Some(since),
        }
    }

    /// The time at which this worker must end because no driver answers. A worker that trains has the limit
    /// `orphan_training`; a worker that waits has the limit `orphan`.
    fn orphan_at(&self) -> Option<Time> {
        let since = self.alone_since()?;
        if self.exit.is_some() || self.is_exited() {
            return None;
        }
        let limit = self.deadlines.orphan_training.map(|limit| since + limit);
        let waiting = self.waits_since.map(|waits| waits.max(since) + self.deadlines.orphan);
        limit.into_iter().chain(waiting).min()
    }

    /// Whether the training thread waits for something other than the members of a generation that trains.
    const fn waits(&self) -> bool {
        !matches!(self.training, ThreadState::Running { held: None })
    }

    fn note_waiting(&mut self, now: Time) {
        self.waits_since = self.waits().then(|| self.waits_since.unwrap_or(now));
    }

    /// Ends the generation at the training thread, if it is in one. The generation delivers no data afterwards
    /// (G-4).
    fn end_generation(&mut self, reason: &str) {
        self.placement = None;
        let waits = match self.training {
            ThreadState::Forming | ThreadState::Syncing | ThreadState::Running { held: None } => {
                false
            }
            ThreadState::Formed | ThreadState::Running { held: Some(_) } => true,
            ThreadState::Returned => {
                self.training = ThreadState::AtRest;
                self.left_after_end = Some(self.stamp);
                return;
            }
            ThreadState::Starting
            | ThreadState::AtRest
            | ThreadState::Ending
            | ThreadState::Exited => return,
        };
        self.training = ThreadState::Ending;
        let reason = reason.to_owned();
        self.outputs.push_back(StateOutput::Abort { stamp: self.stamp, reason });
        if waits {
            self.command(TrainingCommand::End);
        }
    }

    /// Notes that the worker leaves, as soon as the training thread is at rest.
    fn leave(&mut self, exit: RunExit, reason: &str) {
        if self.exit.is_some() || self.is_exited() {
            return;
        }
        self.exit = Some(exit);
        self.pending = None;
        self.end_generation(reason);
        self.go_on();
    }

    fn leave_alone(&mut self) {
        let reason = self.leaving.clone().unwrap_or_default();
        self.leave(RunExit::Left { reason: reason.clone() }, &reason);
    }

    /// Gives a thread at rest its next command: to leave, or to form the next generation.
    fn go_on(&mut self) {
        if !matches!(self.training, ThreadState::AtRest) {
            return;
        }
        if let Some(exit) = self.exit.clone() {
            self.training = ThreadState::Exited;
            self.command(TrainingCommand::Exit(exit));
        } else if let Some(placement) = self.pending.take() {
            self.training = ThreadState::Forming;
            self.arrived = false;
            self.sent_progress = None;
            self.sent_steps_at = None;
            self.digests = StateDigests::default();
            self.seen = None;
            self.placement = Some(placement.clone());
            self.outputs.push_back(StateOutput::PauseFlag { on: false });
            self.command(TrainingCommand::Form(Box::new(placement)));
            if self.pause.asked || self.pause.stop_at.is_some() {
                self.set_pause_flag();
            }
        }
    }

    fn command(&mut self, command: TrainingCommand) {
        self.outputs.push_back(StateOutput::Training(command));
    }

    fn tell_driver(&mut self, message: WorkerToDriver) {
        if matches!(self.link, DriverAttachment::Attached) {
            self.outputs.push_back(StateOutput::ToDriver(message));
        }
    }

    fn vote(&mut self, ballot: Ballot) {
        if matches!(self.link, DriverAttachment::Attached) {
            let worker = self.config.worker.clone();
            self.outputs.push_back(StateOutput::Vote(Vote { stamp: self.stamp, worker, ballot }));
        }
    }
}
