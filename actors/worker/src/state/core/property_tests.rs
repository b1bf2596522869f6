//! Property tests of `StateCore`: messages in any order, with a training thread that keeps its contract.

use std::collections::VecDeque;

use elastic_protocol::messages::{
    Ballot, DriverToWorker, ReportedValues, SyncPlan, UndoneTraining, WorkerToDriver,
};
use elastic_protocol::{CommitId, ResetCause, Stamp, Time};
use elastic_runtime::transport::{LinkEvent, LossReason};
use proptest::prelude::*;

use super::tests::{commit, core, formation, stamp, welcome, worker};
use super::*;

/// The state of the model's training thread, after the contract in `port.rs`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Thread {
    Resting,
    Forming(Stamp),
    Formed(Stamp),
    Running(Stamp),
    Held(Stamp),
    Returned,
    Gone,
}

#[derive(Clone, Debug)]
enum Action {
    Up,
    Welcome,
    Lost,
    Assign(u64),
    Go(u64),
    Pause(u64),
    StopAt(u64, u64),
    Resume(u64),
    Abort(u64),
    Leave,
    Sigterm,
    Timeout(u64),
    /// The thread takes its next step; `true`: with success.
    Thread(bool),
    /// The thread returns from the user's function; `true`: with `Ok`.
    Return(bool),
}

fn actions() -> impl Strategy<Value = Action> {
    let generation = 1..6_u64;
    prop_oneof![
        2 => Just(Action::Up),
        4 => Just(Action::Welcome),
        1 => Just(Action::Lost),
        6 => generation.clone().prop_map(Action::Assign),
        6 => generation.clone().prop_map(Action::Go),
        3 => generation.clone().prop_map(Action::Pause),
        3 => (generation.clone(), 1..8_u64).prop_map(|(stamp, at)| Action::StopAt(stamp, at)),
        2 => generation.clone().prop_map(Action::Resume),
        3 => generation.prop_map(Action::Abort),
        1 => Just(Action::Leave),
        1 => Just(Action::Sigterm),
        2 => (0..2_000_u64).prop_map(Action::Timeout),
        24 => prop::bool::weighted(0.9).prop_map(Action::Thread),
        1 => any::<bool>().prop_map(Action::Return),
    ]
}

struct World {
    core: StateCore,
    now: Time,
    thread: Thread,
    commands: VecDeque<TrainingCommand>,
    aborted: Stamp,
    pause_flag: bool,
    boundary: u64,
    /// Boundaries from which the thread has returned.
    passed: u64,
    promise: Option<(Stamp, u64)>,
    stop_at: Option<u64>,
    newest: Stamp,
    held: Option<CommitId>,
    lost: bool,
}

impl World {
    fn new() -> Self {
        let mut core = core();
        core.handle_training(
            Time::ZERO,
            TrainingEvent::AtRest { commit: None, undone: UndoneTraining::default() },
        );
        let mut world = Self {
            core,
            now: Time::from_ms(1_000),
            thread: Thread::Resting,
            commands: VecDeque::new(),
            aborted: Stamp::default(),
            pause_flag: false,
            boundary: 0,
            passed: 0,
            promise: None,
            stop_at: None,
            newest: Stamp::default(),
            held: None,
            lost: true,
        };
        world.drain();
        world
    }

    fn act(&mut self, action: Action) {
        let cause = || ResetCause::WorkerFailed { worker: worker(), error: String::new() };
        let now = self.now;
        match action {
            Action::Up => {
                self.lost = false;
                self.core.handle_link(now, &LinkEvent::Up);
            }
            Action::Lost => {
                self.lost = true;
                let reason = LossReason::Forgotten;
                self.core.handle_link(now, &LinkEvent::Lost { reason, silent_ms: 0 });
            }
            _ if self.lost
                && !matches!(
                    action,
                    Action::Sigterm | Action::Timeout(_) | Action::Thread(_) | Action::Return(_)
                ) => {}
            Action::Welcome => self.core.handle_driver(now, welcome()),
            Action::Assign(generation) => {
                let formation = formation(generation, SyncPlan::FromRoot { root: 0 }, 0);
                if stamp(generation) > self.newest && !self.core.is_exited() {
                    self.stop_at = None;
                }
                self.core.handle_driver(now, DriverToWorker::Assign(formation));
            }
            Action::Go(generation) => {
                self.core.handle_driver(
                    now,
                    DriverToWorker::Go { stamp: stamp(generation), source: None },
                );
            }
            Action::Pause(generation) => {
                self.core.handle_driver(now, DriverToWorker::Pause { stamp: stamp(generation) });
            }
            Action::StopAt(generation, boundary) => {
                let stamp = stamp(generation);
                if stamp == self.core.stamp() && self.core.is_active() {
                    self.stop_at = Some(boundary);
                    self.promise = None;
                }
                self.core.handle_driver(now, DriverToWorker::StopAt { stamp, boundary });
            }
            Action::Resume(generation) => {
                if stamp(generation) == self.core.stamp() && self.core.is_active() {
                    self.promise = None;
                    self.stop_at = None;
                }
                self.core.handle_driver(now, DriverToWorker::Resume { stamp: stamp(generation) });
            }
            Action::Abort(generation) => {
                let stamp = stamp(generation);
                self.core.handle_driver(now, DriverToWorker::Abort { stamp, cause: cause() });
            }
            Action::Leave => {
                self.core.handle_driver(now, DriverToWorker::Leave { reason: String::new() });
            }
            Action::Sigterm => self.core.handle_sigterm(now),
            Action::Timeout(ms) => {
                self.now = self.now + std::time::Duration::from_millis(ms);
                self.core.handle_timeout(self.now);
            }
            Action::Thread(well) => self.thread_step(well),
            Action::Return(well) => self.thread_returns(well),
        }
        self.drain();
        assert!(self.core.stamp() >= self.newest, "G-2: the newest stamp only grows");
        self.newest = self.core.stamp();
    }

    fn rest(&mut self) {
        self.thread = Thread::Resting;
        let event = TrainingEvent::AtRest { commit: self.held, undone: UndoneTraining::default() };
        self.core.handle_training(self.now, event);
    }

    fn thread_step(&mut self, well: bool) {
        match self.thread {
            Thread::Gone => {}
            Thread::Resting | Thread::Returned => match self.commands.pop_front() {
                Some(TrainingCommand::Form(placement)) => {
                    self.thread = Thread::Forming(placement.stamp);
                }
                Some(TrainingCommand::Exit(_)) => self.thread = Thread::Gone,
                Some(other) => panic!("a thread at rest was told {other:?}"),
                None => {}
            },
            Thread::Forming(stamp) if well && stamp > self.aborted => {
                self.thread = Thread::Formed(stamp);
                self.core.handle_training(self.now, TrainingEvent::Formed { stamp });
            }
            Thread::Formed(stamp) => match self.commands.pop_front() {
                Some(TrainingCommand::Sync { stamp: to, .. }) => {
                    assert_eq!(to, stamp);
                    if stamp <= self.aborted {
                        return self.rest();
                    }
                    if !well {
                        return self.breaks(stamp);
                    }
                    self.thread = Thread::Running(stamp);
                    let commit = commit(stamp.generation.0, 0);
                    self.held = Some(commit);
                    self.core.handle_training(self.now, TrainingEvent::Synced { stamp, commit });
                }
                Some(TrainingCommand::End) => self.rest(),
                Some(other) => panic!("a formed thread was told {other:?}"),
                None => {}
            },
            Thread::Forming(stamp) | Thread::Running(stamp) if stamp <= self.aborted => self.rest(),
            Thread::Forming(stamp) => self.breaks(stamp),
            Thread::Running(stamp) if !well => self.breaks(stamp),
            Thread::Running(stamp) => {
                self.boundary += 1;
                if !self.pause_flag {
                    return self.pass();
                }
                match self.core.handle_boundary(self.now, stamp, self.boundary) {
                    BoundaryAnswer::Pass => self.pass(),
                    BoundaryAnswer::Hold => self.thread = Thread::Held(stamp),
                    BoundaryAnswer::Stop => self.stop(),
                    BoundaryAnswer::End => self.rest(),
                }
            }
            Thread::Held(stamp) => match self.commands.pop_front() {
                Some(TrainingCommand::Pass) => {
                    self.thread = Thread::Running(stamp);
                    self.pass();
                }
                Some(TrainingCommand::Stop) => self.stop(),
                Some(TrainingCommand::End) => self.rest(),
                Some(other) => panic!("a held thread was told {other:?}"),
                None => {}
            },
        }
    }

    fn thread_returns(&mut self, well: bool) {
        let Thread::Running(stamp) = self.thread else { return };
        if stamp <= self.aborted {
            return self.rest();
        }
        let commit = commit(stamp.generation.0, 100);
        self.held = Some(commit);
        self.thread = Thread::Returned;
        let event = if well {
            let (note, reported) = (String::new(), ReportedValues::default());
            TrainingEvent::Returned { stamp, commit, note, reported }
        } else {
            TrainingEvent::Failed { stamp, message: String::new() }
        };
        self.core.handle_training(self.now, event);
    }

    fn breaks(&mut self, stamp: Stamp) {
        let error = "broken".to_owned();
        let event = TrainingEvent::CollectiveFailed { stamp, peer: None, told_by: None, error };
        self.core.handle_training(self.now, event);
        self.rest();
    }

    fn pass(&mut self) {
        self.passed = self.boundary;
        if let Some(stop_at) = self.stop_at
            && self.pause_flag
        {
            assert!(self.passed < stop_at, "passed the boundary where it was to stop");
        }
        if let Some((_, promised)) = self.promise {
            assert!(self.passed <= promised, "the promise of Paused was broken");
        }
    }

    fn stop(&mut self) {
        assert_eq!(Some(self.boundary), self.stop_at, "stopped elsewhere than agreed");
        self.rest();
    }

    fn drain(&mut self) {
        while let Some(output) = self.core.poll_output() {
            match output {
                StateOutput::Training(command) => {
                    if let TrainingCommand::Form(_) = command {
                        assert!(
                            matches!(self.thread, Thread::Resting | Thread::Returned),
                            "a generation begins at a thread at rest only"
                        );
                        (self.boundary, self.passed, self.promise) = (0, 0, None);
                    }
                    self.commands.push_back(command);
                    assert!(self.commands.len() <= 2, "commands pile up: {:?}", self.commands);
                }
                StateOutput::Abort { stamp, .. } => self.aborted = self.aborted.max(stamp),
                StateOutput::PauseFlag { on } => {
                    self.pause_flag = on;
                    if on {
                        self.core.handle_pause_read(self.now, self.boundary);
                    }
                }
                StateOutput::Checkpoint(_) => {}
                StateOutput::SampleProgress => {
                    self.core.handle_progress(self.now, TrainingProgress::default());
                }
                StateOutput::Vote(vote) => {
                    assert_eq!(vote.stamp, self.core.stamp(), "a vote for an old generation");
                    if vote.ballot == Ballot::Ready {
                        assert_eq!(self.thread, Thread::Formed(vote.stamp), "READY, not formed");
                    }
                    assert!(!self.lost, "said to nobody");
                }
                StateOutput::ToDriver(message) => {
                    assert!(!self.lost, "said to nobody: {message:?}");
                    match message {
                        WorkerToDriver::Paused { stamp, boundary } => {
                            assert!(boundary >= self.passed, "passed more than it says");
                            self.promise = Some((stamp, boundary));
                        }
                        WorkerToDriver::Arrived { .. } => assert!(
                            matches!(self.thread, Thread::Resting | Thread::Returned),
                            "arrived while {:?}",
                            self.thread
                        ),
                        _ => {}
                    }
                }
            }
        }
    }

    /// The driver tells the worker to leave, and the thread carries on: it must come to its end (G-9, G-11).
    fn finish(&mut self) {
        self.act(Action::Up);
        self.act(Action::Welcome);
        self.act(Action::Leave);
        for _ in 0..6 {
            self.act(Action::Thread(true));
        }
        assert_eq!(self.thread, Thread::Gone, "told to leave, and still there");
        assert!(self.core.is_exited());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn any_order_of_messages_keeps_the_contract(
        actions in prop::collection::vec(actions(), 0..80),
    ) {
        let mut world = World::new();
        for action in actions {
            world.act(action);
        }
        world.finish();
    }
}
