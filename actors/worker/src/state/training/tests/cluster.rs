//! A test cluster: workers as threads, each with the real run loop and real sockets. The test's own thread runs
//! a `StateCore` for each, and a driver that does what the test says.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::thread::JoinHandle;
use std::time::Duration;

use elastic_collectives::{AbortHandle, TcpFabric};
use elastic_protocol::DataPlane;
use elastic_protocol::messages::{
    Ballot, DriverToWorker, Formation, FormationTable, GroupKey, JobShards, SyncPlan,
    WorkerToDriver,
};
use elastic_protocol::{
    Assignment, CommitId, Deadlines, GenerationId, HostName, Incarnation, JobId, ResetCause, Stamp,
    Step, Term, Time, WorkerId,
};
use elastic_runtime::transport::LinkEvent;

use super::super::{
    ControlShared, CpuGroups, Error, Membership, State, ThreadMessage, TrainingControl, Worker,
    run_loop,
};
use super::program::Training;
use crate::state::core::{BoundaryAnswer, StateConfig, StateCore, StateOutput, TrainingCommand};

/// Timeout of every wait of a test.
const DEADLINE: Duration = Duration::from_secs(20);
const JOB: JobId = JobId(uuid::Uuid::from_u128(1));
const NOW: Time = Time::from_ms(1);

/// A message of a worker to the driver or the registry.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Said {
    Driver(WorkerToDriver),
    Vote(Stamp, Ballot),
}

struct Node {
    core: StateCore,
    shared: Arc<ControlShared>,
    abort: AbortHandle,
    commands: Option<SyncSender<TrainingCommand>>,
    address: std::net::SocketAddr,
    thread: Option<JoinHandle<Result<(), Error>>>,
    said: Vec<Said>,
}

pub(super) struct Cluster {
    nodes: BTreeMap<u32, Node>,
    sender: Sender<(u32, ThreadMessage)>,
    inbox: Receiver<(u32, ThreadMessage)>,
    pub(super) stamp: Stamp,
}

pub(super) fn worker_id(number: u32) -> WorkerId {
    let host = HostName::new("host").expect("a literal");
    WorkerId { host, slot: number, incarnation: Incarnation(1) }
}

impl Cluster {
    pub(super) fn new() -> Self {
        let (sender, inbox) = mpsc::channel();
        let stamp = Stamp { term: Term(1), generation: GenerationId(0) };
        Self { nodes: BTreeMap::new(), sender, inbox, stamp }
    }

    /// Starts a worker, and waits until it has arrived.
    pub(super) fn start(
        &mut self,
        number: u32,
        prepare: impl FnOnce(&mut State<Training>) + Send + 'static,
        function: impl FnMut(&Worker, &mut State<Training>) -> Result<(), Error> + Send + 'static,
    ) {
        let fabric = TcpFabric::bind(([127, 0, 0, 1], 0).into()).expect("a port is free");
        let (address, abort) = (fabric.local_address(), AbortHandle::new().expect("a descriptor"));
        let shared = Arc::new(ControlShared::default());
        let (commands, receiver) = mpsc::sync_channel(TrainingControl::COMMANDS_MAX);
        let (sender, rates) = (self.sender.clone(), shared.links().clone());
        let (thread_abort, thread_shared) = (abort.clone(), Arc::clone(&shared));
        let thread =
            std::thread::Builder::new().name(format!("worker {number}")).spawn(move || {
                let tell = move |message| drop(sender.send((number, message)));
                let control = TrainingControl::new(tell, receiver, thread_shared, || {
                    "the test dropped it".to_owned()
                });
                let groups = CpuGroups::new(fabric, thread_abort.clone(), DEADLINE, rates);
                let mut state = State::new(Training::default());
                prepare(&mut state);
                let mut membership = Membership::new(control, thread_abort, groups);
                run_loop(state, &mut membership, function)
            });
        let config = StateConfig {
            job: JOB,
            worker: worker_id(number),
            pid: number,
            data_address: address,
            deadlines: Deadlines::default(),
        };
        let mut core = StateCore::new(config, NOW);
        core.handle_link(NOW, &LinkEvent::Up);
        let deadlines = Deadlines::default();
        core.handle_driver(NOW, DriverToWorker::Welcome { job: JOB, term: Term(1), deadlines });
        let thread = Some(thread.expect("a thread"));
        let commands = Some(commands);
        let node = Node { core, shared, abort, commands, address, thread, said: Vec::new() };
        self.nodes.insert(number, node);
        self.wait(|cluster| {
            cluster
                .said(number)
                .iter()
                .any(|said| matches!(said, Said::Driver(WorkerToDriver::Arrived { .. })))
        });
    }

    /// Lets messages pass until `done`.
    pub(super) fn wait(&mut self, done: impl Fn(&Self) -> bool) {
        loop {
            for number in self.nodes.keys().copied().collect::<Vec<_>>() {
                self.drain(number);
            }
            if done(self) {
                return;
            }
            let Ok((number, message)) = self.inbox.recv_timeout(DEADLINE) else {
                panic!(
                    "nothing came: {:#?}",
                    self.nodes.values().map(|n| &n.said).collect::<Vec<_>>()
                )
            };
            // Messages of a worker that has died are dropped.
            let Some(node) = self.nodes.get_mut(&number) else { continue };
            match message {
                ThreadMessage::Event(event) => node.core.handle_training(NOW, event),
                ThreadMessage::Boundary { stamp, boundary } => {
                    let command = match node.core.handle_boundary(NOW, stamp, boundary) {
                        BoundaryAnswer::Hold => continue,
                        BoundaryAnswer::Pass => TrainingCommand::Pass,
                        BoundaryAnswer::Stop => TrainingCommand::Stop,
                        BoundaryAnswer::End => TrainingCommand::End,
                    };
                    node.command(command);
                }
                ThreadMessage::FirstCommit => {}
                ThreadMessage::Checkpoint(outcome) => node.core.handle_checkpoint(NOW, outcome),
            }
        }
    }

    fn drain(&mut self, number: u32) {
        let node = self.nodes.get_mut(&number).expect("it was started");
        while let Some(output) = node.core.poll_output() {
            match output {
                StateOutput::ToDriver(message) => node.said.push(Said::Driver(message)),
                StateOutput::Vote(vote) => node.said.push(Said::Vote(vote.stamp, vote.ballot)),
                StateOutput::Training(command) => {
                    if let TrainingCommand::Form(_) = command {
                        node.shared.begin_generation();
                    }
                    node.command(command);
                }
                StateOutput::Abort { stamp, reason } => {
                    node.abort.abort(stamp.term.0, stamp.generation.0, reason);
                }
                StateOutput::PauseFlag { on: true } => {
                    let boundary = node.shared.pause();
                    node.core.handle_pause_read(NOW, boundary);
                }
                StateOutput::PauseFlag { on: false } => node.shared.unpause(),
                StateOutput::Checkpoint(command) => {
                    if let Some(outcome) = node.shared.checkpoints().command(command) {
                        node.core.handle_checkpoint(NOW, outcome);
                    }
                }
                StateOutput::SampleProgress => {}
            }
        }
    }

    pub(super) fn tell(&mut self, number: u32, message: DriverToWorker) {
        self.nodes.get_mut(&number).expect("it was started").core.handle_driver(NOW, message);
    }

    /// Begins the next generation: from its assignment until all members train.
    pub(super) fn begin(&mut self, members: &[u32], sync: SyncPlan, step: u64) {
        self.assign(members, sync, step);
        let stamp = self.stamp;
        self.wait(|cluster| cluster.all_voted(members, &Ballot::Ready));
        for number in members {
            self.tell(*number, DriverToWorker::Go { stamp, source: None });
        }
        self.wait(|cluster| cluster.all_voted(members, &Ballot::Synced));
    }

    pub(super) fn assign(&mut self, members: &[u32], sync: SyncPlan, step: u64) {
        self.stamp.generation = self.stamp.generation.next();
        let table = members.iter().map(|number| (worker_id(*number), self.nodes[number].address));
        let assignment = Arc::new(Assignment::new(table));
        let formation = Formation {
            stamp: self.stamp,
            table: FormationTable::Full(assignment),
            sync,
            step: Step(step),
            key: GroupKey([self.stamp.generation.0 as u8; 32]),
            encrypts: false,
            data_plane: DataPlane::Auto,
            shards: JobShards::Unsaid,
        };
        for number in members {
            self.tell(*number, DriverToWorker::Assign(formation.clone()));
        }
    }

    /// Interrupts the generation, and returns the commits with which all members arrived.
    pub(super) fn interrupt(&mut self, members: &[u32]) -> Vec<CommitId> {
        let stamp = self.stamp;
        for number in members {
            self.tell(*number, DriverToWorker::Pause { stamp });
        }
        self.wait(|cluster| members.iter().all(|number| cluster.paused(*number).is_some()));
        let passed = members.iter().filter_map(|number| self.paused(*number)).max();
        let boundary = passed.expect("there are members") + 1;
        for number in members {
            self.tell(*number, DriverToWorker::StopAt { stamp, boundary });
        }
        self.arrivals(members).into_iter().map(|(commit, _)| commit).collect()
    }

    pub(super) fn abort(&mut self, members: &[u32]) {
        let (stamp, error) = (self.stamp, "the test says so".to_owned());
        for number in members {
            let cause =
                ResetCause::WorkerFailed { worker: worker_id(*number), error: error.clone() };
            self.tell(*number, DriverToWorker::Abort { stamp, cause });
        }
    }

    /// Waits until all have arrived out of the current generation, and returns their commits and lost steps.
    pub(super) fn arrivals(&mut self, members: &[u32]) -> Vec<(CommitId, u64)> {
        self.wait(|cluster| members.iter().all(|number| cluster.arrived(*number).is_some()));
        let arrivals = members.iter().filter_map(|number| self.arrived(*number));
        arrivals.map(|(commit, lost)| (commit.expect("it has trained"), lost)).collect()
    }

    fn arrived(&self, number: u32) -> Option<(Option<CommitId>, u64)> {
        self.nodes[&number].said.iter().rev().find_map(|said| match said {
            Said::Driver(WorkerToDriver::Arrived { stamp, commit, undone })
                if *stamp == self.stamp =>
            {
                Some((*commit, undone.steps))
            }
            _ => None,
        })
    }

    fn paused(&self, number: u32) -> Option<u64> {
        self.nodes[&number].said.iter().find_map(|said| match said {
            Said::Driver(WorkerToDriver::Paused { stamp, boundary }) if *stamp == self.stamp => {
                Some(*boundary)
            }
            _ => None,
        })
    }

    pub(super) fn voted(&self, number: u32, ballot: &Ballot) -> bool {
        let wanted = Said::Vote(self.stamp, ballot.clone());
        self.nodes[&number].said.contains(&wanted)
    }

    pub(super) fn all_voted(&self, members: &[u32], ballot: &Ballot) -> bool {
        members.iter().all(|number| self.voted(*number, ballot))
    }

    pub(super) fn said(&self, number: u32) -> &[Said] {
        &self.nodes[&number].said
    }

    /// Simulates the loss of the actor thread, with the effects of its `Drop`.
    pub(super) fn lose_actor(&mut self, number: u32) {
        let node = self.nodes.get_mut(&number).expect("it was started");
        node.commands = None;
        node.abort.abort(u64::MAX, u64::MAX, "the actor is gone");
        node.shared.pause();
    }

    /// Tells a worker to leave, and returns the result of its `run`.
    pub(super) fn leave(&mut self, number: u32) -> Result<(), Error> {
        self.tell(number, DriverToWorker::Leave { reason: "the test is over".to_owned() });
        self.wait(|cluster| cluster.nodes[&number].core.is_exited());
        self.join(number)
    }

    /// Waits for the end of a worker's `run`, and returns its result.
    pub(super) fn join(&mut self, number: u32) -> Result<(), Error> {
        self.drain(number);
        let thread = self.nodes.get_mut(&number).and_then(|node| node.thread.take());
        thread.expect("it is joined once").join().expect("the thread did not panic")
    }

    /// Waits until a worker has reported its panic and its thread has died of it.
    pub(super) fn bury(&mut self, number: u32, message: &str) {
        let ballot = Ballot::Failure { status: None, message: format!("panicked: {message}") };
        self.wait(|cluster| cluster.voted(number, &ballot));
        self.drain(number);
        let thread = self.nodes.get_mut(&number).and_then(|node| node.thread.take());
        assert!(thread.expect("it is joined once").join().is_err(), "it should have panicked");
        self.nodes.remove(&number);
    }
}

impl Node {
    fn command(&self, command: TrainingCommand) {
        if let Some(commands) = &self.commands {
            commands.try_send(command).expect("the thread reads its commands");
        }
    }
}
