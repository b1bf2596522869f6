//! `StateCore`: a worker's part in the life of generations, without I/O. Driven by `state/actor.rs` in a
//! process and by the simulation; it holds no training state, only what is known about it.
//!
//! Two sides speak to it: the driver (`handle_link`, `handle_driver`) and the training thread
//! (`handle_training`, `handle_boundary`). What must be carried out comes from `poll_output`.
//! What the driver must know is derived from the present state on every new connection (`announce`), so
//! nothing depends on a message that a broken session took with it.

mod announce;
mod driver;
mod port;
#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod tests;
mod training;

use std::collections::VecDeque;
use std::sync::Arc;

use elastic_protocol::messages::{Ballot, Placement, Vote, WorkerToDriver};
use elastic_protocol::{Assignment, CommitId, Deadlines, Stamp, Term, Time};
use elastic_runtime::planted::{Bug, is_planted};
use elastic_runtime::transport::LinkEvent;

pub(in crate::state) use training::prefix;

pub use port::{Exit, Output, Progress, StateConfig, TrainingCommand, TrainingEvent, Verdict};

/// The link with the driver.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Link {
    /// No session, since then.
    Down { since: Time },
    /// `Attach` is sent; the driver has been unheard since then.
    Attaching { since: Time },
    /// The driver said `Welcome`.
    Attached,
}

/// What the training thread does, as far as is known.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Training {
    /// It has not come to `run` yet.
    Starting,
    /// It waits for a command and takes part in no generation.
    AtRest,
    /// It forms the communicator.
    Forming,
    /// It waits for the driver's `Go`.
    Formed,
    /// It takes over the generation's commit.
    Syncing,
    /// It is in the user's function; `held` is the boundary at which it waits for a verdict.
    Running { held: Option<u64> },
    /// The user's function returned; it waits for a command, the generation may go on elsewhere.
    Returned,
    /// Its generation has ended; it is on its way to rest.
    Ending,
    /// It was told to leave `run`.
    Exited,
}

/// The interrupt that is under way in this generation.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Pause {
    /// Whether the pause flag is set.
    flag: bool,
    /// Whether the driver waits for `Paused`.
    asked: bool,
    /// The boundary that `Paused` told: it is passed, the next is not.
    promised: Option<u64>,
    /// Whether the promise was a former driver's: no other is told of it.
    is_old: bool,
    /// Where the driver said to stop.
    stop_at: Option<u64>,
}

/// A worker's part in the life of generations.
#[derive(Debug)]
pub struct StateCore {
    config: StateConfig,
    deadlines: Deadlines,
    link: Link,
    term: Term,
    /// The newest generation that was heard of (G-2).
    stamp: Stamp,
    training: Training,
    /// The placement of the generation that the training thread is in.
    placement: Option<Placement>,
    /// One that waits until the thread is at rest.
    pending: Option<Placement>,
    /// The table that was told last: what the next one's delta is against.
    table: Arc<Assignment>,
    /// What the training thread holds, as it said last.
    commit: Option<CommitId>,
    steps_lost: u64,
    /// Whether the driver was told in this session that the thread is at rest.
    arrived: bool,
    pause: Pause,
    /// Set once it is to leave; carried out when the thread is at rest.
    exit: Option<Exit>,
    /// Why it wants to leave, if it does.
    leaving: Option<String>,
    /// Since when its training thread has waited, where it does.
    waits_since: Option<Time>,
    sent_progress: Option<(Time, Progress)>,
    sample_at: Option<Time>,
    dropped: u64,
    outputs: VecDeque<Output>,
}

impl StateCore {
    /// A State without a driver yet, whose training thread has not come to `run` yet.
    pub fn new(config: StateConfig, now: Time) -> Self {
        Self {
            deadlines: config.deadlines,
            config,
            link: Link::Down { since: now },
            term: Term::default(),
            stamp: Stamp::default(),
            training: Training::Starting,
            placement: None,
            pending: None,
            table: Arc::default(),
            commit: None,
            steps_lost: 0,
            arrived: false,
            pause: Pause::default(),
            exit: None,
            leaving: None,
            waits_since: Some(now),
            sent_progress: None,
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
                let since = match self.link {
                    Link::Attached => now,
                    Link::Attaching { since } | Link::Down { since } => since,
                };
                self.link = Link::Down { since };
                if self.leaving.is_some() {
                    self.leave_alone();
                }
            }
            LinkEvent::Silent { .. } | LinkEvent::Heard => {}
        }
        self.note_waiting(now);
    }

    /// Whether a driver of this term is to be listened to: none of a later one has been met (G-2).
    pub fn heeds(&mut self, term: Term) -> bool {
        let heeds = term >= self.term || is_planted(Bug::FormerDriverHeeded);
        self.dropped += u64::from(!heeds);
        heeds
    }

    /// SIGTERM, or another notice that this worker will be gone soon: a planned departure. Without
    /// a driver to plan it with, or the second time, it ends at once.
    pub fn handle_sigterm(&mut self, _now: Time) {
        let again = self.leaving.replace("SIGTERM".to_owned()).is_some();
        if again || matches!(self.link, Link::Down { .. }) {
            self.leave_alone();
        } else {
            self.say_leaving();
        }
    }

    /// A deadline that `poll_timeout` gave has passed; calling it early changes nothing.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.orphan_at().is_some_and(|at| at <= now)
            && let Link::Down { since } | Link::Attaching { since } = self.link
        {
            let gone_ms = u64::try_from(now.since(since).as_millis()).unwrap_or(u64::MAX);
            self.leave(Exit::Orphaned { gone_ms }, "the driver is gone for too long");
        }
        if self.sample_at.is_some_and(|at| at <= now) {
            self.sample_at = Some(now + self.deadlines.beat);
            self.outputs.push_back(Output::SampleProgress);
        }
    }

    /// When `handle_timeout` must be called.
    pub fn poll_timeout(&self) -> Option<Time> {
        [self.orphan_at(), self.sample_at].into_iter().flatten().min()
    }

    /// What must be carried out next.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Messages of old terms or generations that were dropped (G-2).
    pub const fn dropped_messages(&self) -> u64 {
        self.dropped
    }

    /// The newest generation that was heard of.
    pub const fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// Whether it takes part in the generation of `stamp`, or is about to.
    pub const fn is_active(&self) -> bool {
        self.pending.is_some()
            || matches!(
                self.training,
                Training::Forming
                    | Training::Formed
                    | Training::Syncing
                    | Training::Running { .. }
                    | Training::Returned
            )
    }

    /// Whether the training thread was told to leave `run`.
    pub const fn is_exited(&self) -> bool {
        matches!(self.training, Training::Exited)
    }

    /// When it must end for want of a driver. A generation that goes on trains on; who waits, waits for a driver.
    fn orphan_at(&self) -> Option<Time> {
        let (Link::Down { since } | Link::Attaching { since }) = self.link else { return None };
        if self.exit.is_some() || self.is_exited() {
            return None;
        }
        let limit = self.deadlines.orphan_training.map(|limit| since + limit);
        let waiting = self.waits_since.map(|waits| waits.max(since) + self.deadlines.orphan);
        limit.into_iter().chain(waiting).min()
    }

    /// Whether its training thread waits for anything but other members of a generation that trains.
    const fn waits(&self) -> bool {
        !matches!(self.training, Training::Running { held: None })
    }

    fn note_waiting(&mut self, now: Time) {
        self.waits_since = self.waits().then(|| self.waits_since.unwrap_or(now));
    }

    /// Ends the generation at the training thread, if it is in one: from here on it delivers nothing (G-4).
    fn end_generation(&mut self, reason: &str) {
        self.placement = None;
        self.sample_at = None;
        let waits = match self.training {
            Training::Forming | Training::Syncing | Training::Running { held: None } => false,
            Training::Formed | Training::Running { held: Some(_) } => true,
            Training::Returned => {
                self.training = Training::AtRest;
                return;
            }
            Training::Starting | Training::AtRest | Training::Ending | Training::Exited => return,
        };
        self.training = Training::Ending;
        let reason = reason.to_owned();
        self.outputs.push_back(Output::Abort { stamp: self.stamp, reason });
        if waits {
            self.command(TrainingCommand::End);
        }
    }

    /// Leaves as soon as the training thread is at rest.
    fn leave(&mut self, exit: Exit, reason: &str) {
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
        self.leave(Exit::Left { reason: reason.clone() }, &reason);
    }

    /// What comes next for a thread at rest: to leave, or the next generation.
    fn go_on(&mut self) {
        if !matches!(self.training, Training::AtRest) {
            return;
        }
        if let Some(exit) = self.exit.clone() {
            self.training = Training::Exited;
            self.command(TrainingCommand::Exit(exit));
        } else if let Some(placement) = self.pending.take() {
            self.training = Training::Forming;
            self.arrived = false;
            self.sent_progress = None;
            self.placement = Some(placement.clone());
            self.outputs.push_back(Output::PauseFlag { on: false });
            self.command(TrainingCommand::Form(Box::new(placement)));
            if self.pause.asked || self.pause.stop_at.is_some() {
                self.set_pause_flag();
            }
        }
    }

    fn command(&mut self, command: TrainingCommand) {
        self.outputs.push_back(Output::Training(command));
    }

    fn tell_driver(&mut self, message: WorkerToDriver) {
        if matches!(self.link, Link::Attached) {
            self.outputs.push_back(Output::ToDriver(message));
        }
    }

    fn vote(&mut self, ballot: Ballot) {
        if matches!(self.link, Link::Attached) {
            let worker = self.config.worker.clone();
            self.outputs.push_back(Output::Vote(Vote { stamp: self.stamp, worker, ballot }));
        }
    }
}
