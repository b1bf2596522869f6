//! Tests of a training thread that trains ahead of its generation's begin ([`super::super::beginning`]): the test is the training
//! thread, and forms groups and gives commands when it likes.

use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use elastic_collectives::{AbortHandle, Communicator, FormError, MissingPeer, SoloCommunicator};
use elastic_protocol::messages::{GroupKey, JobShards, Placement, SyncPlan};
use elastic_protocol::{Assignment, DataPlane, GenerationId, Stamp, Step, Term};

use super::super::{
    ControlShared, Error, Fabric, GroupDeadlines, Membership, State, ThreadMessage, TrainingControl,
};
use super::cluster::worker_id;
use super::program::Training;
use crate::state::core::{TrainingCommand, TrainingEvent};

const DEADLINE: Duration = Duration::from_secs(20);
const STAMP: Stamp = Stamp { term: Term(1), generation: GenerationId(5) };

/// Forms a world of one when it is let, or misses rank 1.
struct GatedFabric {
    may_form: Receiver<()>,
    misses: bool,
    abort: AbortHandle,
}

impl Fabric for GatedFabric {
    fn form(
        &mut self,
        placement: &Placement,
        _deadlines: GroupDeadlines,
    ) -> Result<Box<dyn Communicator>, FormError> {
        self.may_form.recv_timeout(DEADLINE).expect("the test lets it form");
        if self.misses {
            let missing = vec![MissingPeer { rank: 1, last_seen: "nowhere".to_owned() }];
            return Err(FormError::DeadlinePassed { missing });
        }
        let (term, generation) = (placement.stamp.term.0, placement.stamp.generation.0);
        Ok(Box::new(SoloCommunicator::of_generation(term, generation, &self.abort)))
    }
}

struct Rig {
    membership: Membership,
    state: State<Training>,
    commands: SyncSender<TrainingCommand>,
    may_form: Sender<()>,
    told: Arc<Mutex<Vec<TrainingEvent>>>,
}

impl Rig {
    /// A process that holds a commit, and is to form a generation whose members all hold it.
    fn new(misses: bool) -> Self {
        let (commands, receiver) = mpsc::sync_channel(TrainingControl::COMMANDS_MAX);
        let (may_form, gate) = mpsc::channel();
        let told = Arc::new(Mutex::new(Vec::new()));
        let events = Arc::clone(&told);
        let tell = move |message| {
            if let ThreadMessage::Event(event) = message {
                events.lock().expect("no test panics with it").push(event);
            }
        };
        let shared = Arc::new(ControlShared::default());
        let control = TrainingControl::new(tell, receiver, shared, || "dropped".to_owned());
        let abort = AbortHandle::new().expect("a descriptor");
        let fabric = GatedFabric { may_form: gate, misses, abort: abort.clone() };
        let membership = Membership::new(control, abort, fabric);
        let mut state = State::new(Training::default());
        state.save_initial().expect("it can be encoded");
        let table = [(worker_id(0), ([127, 0, 0, 1], 1).into())];
        let placement = Placement {
            stamp: STAMP,
            assignment: Arc::new(Assignment::new(table)),
            rank: 0,
            sync: SyncPlan::Skip,
            step: Step(0),
            key: GroupKey([0; 32]),
            encrypts: false,
            data_plane: DataPlane::Auto,
            shards: JobShards::Unsaid,
        };
        commands.send(TrainingCommand::Form(Box::new(placement))).expect("there is room");
        Self { membership, state, commands, may_form, told }
    }

    fn has_told(&self, is_meant: impl Fn(&TrainingEvent) -> bool) -> usize {
        let told = self.told.lock().expect("no test panics with it");
        told.iter().filter(|event| is_meant(event)).count()
    }

    fn formed(&self) -> usize {
        self.has_told(|event| *event == TrainingEvent::Formed { stamp: STAMP })
    }

    fn generation_held(&mut self) -> Option<GenerationId> {
        self.state.commit_id().map(|commit| commit.generation)
    }

    fn command(&self, command: TrainingCommand) {
        self.commands.send(command).expect("there is room");
    }

    fn lets_form(&self) {
        self.may_form.send(()).expect("the fabric is there");
    }
}

#[test]
fn the_training_function_begins_before_its_group_stands_and_commits_after_the_driver_says_go() {
    let mut rig = Rig::new(false);
    let worker = rig.membership.enter(&mut rig.state).expect("no fault").expect("a generation");
    assert_eq!((rig.formed(), worker.generation(), worker.size()), (0, 5, 1));
    assert_eq!(rig.generation_held(), Some(GenerationId(0)), "G-5: it has not begun");
    rig.lets_form();
    rig.command(TrainingCommand::Sync { stamp: STAMP, plan: SyncPlan::Skip, source: None });
    rig.state.commit(&worker).expect("it has begun");
    assert_eq!((rig.formed(), rig.generation_held()), (1, Some(GenerationId(5))));
    assert_eq!(rig.state.step(), Step(1));
}

#[test]
fn a_group_that_does_not_form_is_told_at_once_with_the_missing_rank_and_ends_the_first_call() {
    let mut rig = Rig::new(true);
    let worker = rig.membership.enter(&mut rig.state).expect("no fault").expect("a generation");
    rig.lets_form();
    let Err(error @ Error::Aborted { .. }) = worker.barrier() else { panic!("no group stands") };
    assert!(error.chain().contains("missing"), "{}", error.chain());
    let blames = |event: &TrainingEvent| {
        matches!(event, TrainingEvent::CollectiveFailed { peer: Some(1), .. })
    };
    assert!(rig.has_told(blames) >= 1);
    rig.membership.conclude(&mut rig.state, &worker, Err(error)).expect("no fault");
    assert_eq!((rig.formed(), rig.generation_held()), (0, Some(GenerationId(0))));
}

#[test]
fn a_generation_that_ends_before_it_has_begun_leaves_no_command_behind() {
    let mut rig = Rig::new(false);
    let worker = rig.membership.enter(&mut rig.state).expect("no fault").expect("a generation");
    rig.lets_form();
    rig.command(TrainingCommand::End);
    // The training function has called nothing.
    rig.membership.conclude(&mut rig.state, &worker, Ok(())).expect("no fault");
    assert_eq!(rig.generation_held(), Some(GenerationId(0)), "G-4: nothing of it counts");
    rig.command(TrainingCommand::Exit(crate::state::core::RunExit::Failed));
    assert!(matches!(rig.membership.enter(&mut rig.state), Ok(None)));
    assert_eq!(rig.has_told(|event| matches!(event, TrainingEvent::AtRest { .. })), 2);
}
