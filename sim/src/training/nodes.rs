//! [`TrainingNode`]: one process: the product's State core, and a thread with the product's run loop. Started and driven by `world`.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use elastic_protocol::messages::{DriverToWorker, StepTimes, Vote, WorkerToDriver};
#[cfg(feature = "planted-bugs")]
use elastic_protocol::planted::{plant, planted};
use elastic_protocol::{Deadlines, HostName, Incarnation, JobId, Term, Time, WorkerId};
use elastic_worker::state::core::{
    BoundaryAnswer, StateConfig, StateCore, StateOutput, TrainingCommand, TrainingEvent,
    TrainingProgress,
};
use elastic_worker::state::training::{
    ControlShared, Membership, State, ThreadMessage, TrainingControl, run_loop,
};

use super::exchange::{GroupExchange, NodeNumber};
use super::fabric::SimulatedFabric;
use super::job::TrainingJob;
use super::memory::{MemoryHandle, SimulatedMemory};
use super::model::TrainedState;
use super::program::TrainingFunction;
use super::seat::{ThreadSeat, lock};
use super::store::{self, RunStore};
use super::turnstile::{Killed, SimulatedThreadEnd, ThreadHalt, Turnstile};
use super::witness::Witness;

/// The driver's term.
pub(super) const TERM: Term = Term(1);
/// The job's id.
pub(super) const JOB: JobId = JobId(uuid::Uuid::from_u128(7));

/// Message of a process to the driver's node.
#[derive(Clone, Debug)]
pub(super) enum NodeWord {
    Driver(WorkerToDriver),
    Vote(Vote),
}

/// Objects that all processes of a run share.
#[derive(Clone)]
pub(super) struct NodeSurroundings {
    pub(super) job: TrainingJob,
    pub(super) store: RunStore,
    pub(super) exchange: Arc<Mutex<GroupExchange>>,
    pub(super) witness: Arc<Mutex<Witness>>,
}

/// One process.
pub(super) struct TrainingNode {
    pub(super) seat: Arc<ThreadSeat>,
    pub(super) core: StateCore,
    pub(super) shared: Arc<ControlShared>,
    commands: Option<mpsc::SyncSender<TrainingCommand>>,
    /// Whether a command has come since the thread waits for one.
    has_command: bool,
    pub(super) exit: Option<TrainingCommand>,
    /// Commands since the last event of the run.
    pub(super) commanded: Vec<TrainingCommand>,
    pub(super) from_driver: VecDeque<DriverToWorker>,
    pub(super) to_driver: VecDeque<NodeWord>,
}

/// The identity of a process.
pub(super) fn worker_id(number: NodeNumber, slots: u32) -> WorkerId {
    let host = HostName::new(&format!("h{}", number / slots)).expect("a letter and a number");
    WorkerId { host, slot: number % slots, incarnation: Incarnation(u64::from(number)) }
}

/// The state with which a process begins, with the memory beside it.
pub(super) fn initial_state(
    job: &TrainingJob,
    seat: &Arc<ThreadSeat>,
) -> (State<TrainedState>, Vec<MemoryHandle>) {
    let mut state = State::new(TrainedState::initial(job));
    let memories: Vec<MemoryHandle> =
        job.device.iter().map(|length| MemoryHandle::new(*length)).collect();
    for memory in &memories {
        state.add_device_memory(SimulatedMemory::new(memory, seat));
    }
    for _ in 0..if job.has_callbacks { 2 } else { 0 } {
        let seat = Arc::clone(seat);
        state.on_reset(move |_worker, trained| {
            seat.witness().calls_back(seat.number);
            trained.resets += 1;
        });
    }
    (state, memories)
}

impl TrainingNode {
    pub(super) fn start(number: NodeNumber, around: &NodeSurroundings, now: Time) -> Self {
        let turnstile = Some(Turnstile::new());
        let seat = Arc::new(ThreadSeat::new(number, turnstile, &around.exchange, &around.witness));
        let shared = Arc::new(ControlShared::with_store(store::PORT));
        let for_outcomes = Arc::clone(&seat);
        shared.checkpoints().write_by_caller();
        shared
            .checkpoints()
            .tell_through(move |outcome| for_outcomes.tell(ThreadMessage::Checkpoint(outcome)));
        let (commands, receiver) = mpsc::sync_channel(TrainingControl::COMMANDS_MAX);
        let (of_thread, shared_of_thread) = (Arc::clone(&seat), Arc::clone(&shared));
        let (job, store) = (around.job.clone(), around.store.clone());
        #[cfg(feature = "planted-bugs")]
        let bug = planted();
        let run = move || {
            #[cfg(feature = "planted-bugs")]
            plant(bug);
            store::join(&store, Some(&of_thread));
            let turnstile = of_thread.turnstile.as_ref();
            let ran = catch_unwind(AssertUnwindSafe(|| {
                turnstile.into_iter().for_each(Turnstile::begin);
                train(&job, &of_thread, shared_of_thread, receiver)
            }));
            let end = match ran {
                Ok(Ok(())) => SimulatedThreadEnd::Returned,
                Ok(Err(error)) => SimulatedThreadEnd::Failed(error.to_string()),
                Err(panic) if panic.is::<Killed>() => SimulatedThreadEnd::Killed,
                Err(panic) => {
                    let text = panic.downcast_ref::<String>().cloned();
                    let text =
                        text.or_else(|| panic.downcast_ref::<&str>().map(|it| (*it).to_owned()));
                    SimulatedThreadEnd::Panicked(text.unwrap_or_default())
                }
            };
            turnstile.into_iter().for_each(|turnstile| turnstile.end(end.clone()));
        };
        let thread = std::thread::Builder::new().name(format!("training {number}")).spawn(run);
        // It ends with its process, at the latest with the run, by the turnstile.
        drop(thread.expect("the system has a thread for each simulated worker"));
        let address = SocketAddr::from(([10, 0, 0, 1], 1000 + number as u16));
        let config = StateConfig {
            job: JOB,
            worker: worker_id(number, around.job.slots),
            pid: number,
            data_address: address,
            deadlines: Deadlines::default(),
        };
        let core = StateCore::new(config, now);
        Self {
            seat,
            core,
            shared,
            commands: Some(commands),
            has_command: false,
            exit: None,
            commanded: Vec::new(),
            from_driver: VecDeque::new(),
            to_driver: VecDeque::new(),
        }
    }

    /// Whether the thread would go on if it had the turn.
    pub(super) fn can_run(&self) -> bool {
        use super::exchange::WaitOutcome;
        let halt = self.seat.turnstile.as_ref().map(Turnstile::halt);
        match halt {
            Some(ThreadHalt::Between) => true,
            Some(ThreadHalt::Command) => self.has_command || self.commands.is_none(),
            Some(ThreadHalt::Group) => {
                let stamp = self.core.stamp();
                let is_aborted =
                    self.seat.abort.aborted(stamp.term.0, stamp.generation.0).is_some();
                is_aborted || self.seat.exchange().outcome(self.seat.number) != WaitOutcome::Waits
            }
            Some(ThreadHalt::Ended(_)) | None => false,
        }
    }

    /// Gives the thread the turn. None: it does not come back.
    pub(super) fn run(&mut self) -> Option<ThreadHalt> {
        self.has_command = false;
        self.seat.turnstile.as_ref().and_then(Turnstile::give)
    }

    /// Hears the next thing that the thread has told its State. Returns whether there was one.
    pub(super) fn hear_thread(&mut self, now: Time) -> Option<ThreadMessage> {
        let mut message = lock(&self.seat.told).pop_front()?;
        if let ThreadMessage::Event(TrainingEvent::AtRest { undone, .. }) = &mut message {
            // Its steps take the machine's time, which is another in each run: each counts as 1 ms.
            undone.ms = undone.steps;
        }
        match message.clone() {
            ThreadMessage::Event(event) => self.core.handle_training(now, event),
            ThreadMessage::Boundary { stamp, boundary } => {
                match self.core.handle_boundary(now, stamp, boundary) {
                    BoundaryAnswer::Hold => {}
                    BoundaryAnswer::Pass => self.command(TrainingCommand::Pass),
                    BoundaryAnswer::Stop => self.command(TrainingCommand::Stop),
                    BoundaryAnswer::End => self.command(TrainingCommand::End),
                }
            }
            ThreadMessage::Checkpoint(outcome) => self.core.handle_checkpoint(now, outcome),
            ThreadMessage::FirstCommit => {
                self.core.handle_progress(now, self.take_progress());
            }
        }
        Some(message)
    }

    /// The thread's progress. Its steps take the machine's time, which is another in each run: each part of a step counts as 1 ms.
    fn take_progress(&self) -> TrainingProgress {
        let mut progress = self.shared.take_progress();
        if let Some(StepTimes { step_us, compute_us, waiting_us, data_us, commit_us, shards: _ }) =
            &mut progress.steps
        {
            for time in [step_us, compute_us, waiting_us, data_us, commit_us] {
                *time = 1_000;
            }
        }
        progress
    }

    /// Carries out the outputs of the core, as the State's actor does.
    pub(super) fn carry_out(&mut self, now: Time) {
        while let Some(output) = self.core.poll_output() {
            match output {
                StateOutput::ToDriver(message) => {
                    self.to_driver.push_back(NodeWord::Driver(message))
                }
                StateOutput::Vote(vote) => self.to_driver.push_back(NodeWord::Vote(vote)),
                StateOutput::Training(command) => {
                    if let TrainingCommand::Form(_) = command {
                        self.shared.begin_generation();
                    }
                    self.command(command);
                }
                StateOutput::Abort { stamp, reason } => {
                    self.shared.note_end();
                    self.seat.abort.abort(stamp.term.0, stamp.generation.0, reason);
                }
                StateOutput::PauseFlag { on: true } => {
                    let boundary = self.shared.pause();
                    self.core.handle_pause_read(now, boundary);
                }
                StateOutput::PauseFlag { on: false } => self.shared.unpause(),
                StateOutput::Checkpoint(command) => {
                    if let Some(outcome) = self.shared.checkpoints().command(command) {
                        self.core.handle_checkpoint(now, outcome);
                    }
                }
                StateOutput::SampleProgress => {
                    self.core.handle_progress(now, self.take_progress());
                }
            }
        }
    }

    fn command(&mut self, command: TrainingCommand) {
        if let TrainingCommand::Exit(_) = command {
            self.exit = Some(command.clone());
        }
        if let TrainingCommand::Sync { stamp, .. } = &command {
            self.seat.witness().goes(self.seat.number, *stamp);
        }
        self.commanded.push(command.clone());
        if let Some(commands) = &self.commands
            && let Err(error) = commands.try_send(command)
        {
            let said = format!("process {} takes no command: {error}", self.seat.number);
            self.seat.witness().violated(said);
        }
        self.has_command = true;
    }

    /// The State's actor is gone, with the effects of its `Drop`.
    pub(super) fn lose_actor(&mut self) {
        self.commands = None;
        self.seat.abort.abort(u64::MAX, u64::MAX, "the actor is gone");
        self.shared.pause();
    }

    /// The process is killed.
    pub(super) fn kill(&mut self) {
        if let Some(turnstile) = &self.seat.turnstile
            && !matches!(turnstile.halt(), ThreadHalt::Ended(_))
        {
            turnstile.kill();
            let _ended = turnstile.give();
        }
        self.seat.exchange().die(self.seat.number);
    }
}

/// The life of a training thread.
fn train(
    job: &TrainingJob,
    seat: &Arc<ThreadSeat>,
    shared: Arc<ControlShared>,
    commands: mpsc::Receiver<TrainingCommand>,
) -> elastic_worker::state::training::Result<()> {
    let (teller, waiter) = (Arc::clone(seat), Arc::clone(seat));
    let tell = move |message| teller.tell(message);
    // A wait of no time: where there is no command, the thread gives the turn away.
    let control = TrainingControl::new(tell, commands, shared, || "the actor is gone".to_owned())
        .checking(Duration::ZERO, move || {
            waiter.halt_at(ThreadHalt::Command);
            Ok(())
        });
    let fabric = SimulatedFabric::new(Arc::clone(seat));
    let mut membership = Membership::new(control, seat.abort.clone(), fabric);
    let (state, memories) = initial_state(job, seat);
    let function = TrainingFunction { job: job.clone(), seat: Arc::clone(seat), memories };
    run_loop(state, &mut membership, |worker, state| function.call(worker, state))
}

/// Trains in a world of one without a driver, on the calling thread. Mistakes are reported to the witness.
pub(super) fn train_alone(around: &NodeSurroundings) {
    let seat = Arc::new(ThreadSeat::new(0, None, &around.exchange, &around.witness));
    let (state, memories) = initial_state(&around.job, &seat);
    let function = TrainingFunction { job: around.job.clone(), seat: Arc::clone(&seat), memories };
    let mut membership = Membership::alone();
    let ran = run_loop(state, &mut membership, |worker, state| function.call(worker, state));
    if let Err(error) = ran {
        seat.witness().violated(format!("alone: {error}"));
    }
}
