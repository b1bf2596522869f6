//! Tests of the registry actor on a paused clock: wiring, senders, supervision. The verdicts are tested with the
//! core.

use std::time::Duration;

use actix::Addr;
use elastic_protocol::messages::Ballot;
use elastic_protocol::{
    ActorName, ExitStatus, GenerationId, HostName, Incarnation, NodeId, NodeName, ResetCause,
    Stamp, Term, WorkerId,
};
use elastic_runtime::{spawn_child, system};
use tokio::sync::mpsc;

use super::*;
use crate::core::{GenerationVerdict, RestartBudget};

const DEADLINE: Duration = Duration::from_secs(10);

struct Driver(mpsc::UnboundedSender<RegistryReport>);

impl Actor for Driver {
    type Context = Context<Self>;
}

impl Handler<RegistryReport> for Driver {
    type Result = ();

    fn handle(&mut self, report: RegistryReport, _: &mut Context<Self>) {
        // The test may have ended.
        let _ = self.0.send(report);
    }
}

struct Room {
    node: NodeHandle,
    registry: Addr<Registry>,
    reports: mpsc::UnboundedReceiver<RegistryReport>,
}

impl Room {
    fn new() -> Self {
        let node =
            NodeHandle::new(NodeId { name: NodeName::Driver, incarnation: Incarnation(1) }, 1);
        let (sender, reports) = mpsc::unbounded_channel();
        let driver = spawn_child(|_| Driver(sender), |_| {});
        let registry = Registry::new(&node, driver.recipient());
        let registry = spawn_child(|_| registry, |_| {});
        node.register(ActorName::REGISTRY, Registry::routes(&registry));
        Self { node, registry, reports }
    }

    async fn open(&self, generation: u64) -> Result<(), OpenError> {
        let (members, budget) = (vec![worker(0), worker(1)], RestartBudget::default());
        let open = OpenGeneration { stamp: stamp(generation), members, budget };
        self.registry.send(open).await.expect("the registry lives")
    }

    fn vote_as(&self, from: NodeId, slot: u32, ballot: Ballot) {
        let message = Vote { stamp: stamp(1), worker: worker(slot), ballot };
        self.registry.do_send(Delivery { from, message });
    }

    fn vote(&self, slot: u32, ballot: Ballot) {
        self.vote_as(NodeId::worker(&worker(slot)), slot, ballot);
    }

    async fn next(&mut self) -> RegistryReport {
        let report = tokio::time::timeout(DEADLINE, self.reports.recv()).await;
        report.expect("a report in time").expect("the driver lives")
    }
}

fn worker(slot: u32) -> WorkerId {
    WorkerId { host: HostName::new("a").expect("a literal"), slot, incarnation: Incarnation(1) }
}

fn stamp(generation: u64) -> Stamp {
    Stamp { term: Term(1), generation: GenerationId(generation) }
}

fn failure() -> Ballot {
    Ballot::Failure { status: None, message: "boom".to_owned() }
}

#[test]
fn all_succeed() {
    system::run_paused(async {
        let mut room = Room::new();
        room.open(1).await.expect("a first generation");
        for ballot in [Ballot::Ready, Ballot::Synced, Ballot::Success] {
            room.vote(0, ballot.clone());
            room.vote(1, ballot);
        }
        let mut verdicts = Vec::new();
        while verdicts.len() < 5 {
            match room.next().await {
                RegistryReport::Verdict(verdict) => verdicts.push(verdict),
                other => panic!("unexpected: {other:?}"),
            }
        }
        assert_eq!(verdicts[0], GenerationVerdict::AllReady { stamp: stamp(1) });
        assert_eq!(verdicts[4], GenerationVerdict::AllSucceeded { stamp: stamp(1) });
    });
}

#[test]
fn x_6_one_loss_ends_the_generation_and_later_votes_are_kept() {
    system::run_paused(async {
        let mut room = Room::new();
        room.open(1).await.expect("a first generation");
        room.vote(0, failure());
        assert!(matches!(
            room.next().await,
            RegistryReport::Verdict(GenerationVerdict::Failed { .. })
        ));
        assert!(matches!(
            room.next().await,
            RegistryReport::Verdict(GenerationVerdict::Broken { .. })
        ));
        let status = ExitStatus::Code(1);
        let cause = ResetCause::WorkerExited { worker: worker(1), status };
        let (lost, failure) = (Some(worker(1)), Some(status));
        let exit = Incident { stamp: stamp(1), lost, failure, cause, evidence: Time::ZERO };
        room.registry.do_send(exit);
        assert!(matches!(
            room.next().await,
            RegistryReport::Verdict(GenerationVerdict::Failed { .. })
        ));
        assert!(matches!(
            room.next().await,
            RegistryReport::Verdict(GenerationVerdict::AllFailed { .. })
        ));
    });
}

#[test]
fn only_the_authenticated_worker_and_the_driver_are_heard() {
    system::run_paused(async {
        let mut room = Room::new();
        room.open(1).await.expect("a first generation");
        room.vote_as(NodeId::worker(&worker(1)), 0, failure());
        assert_eq!(room.next().await, RegistryReport::VoteDropped { total: 1 });
        let driver_says = Vote { stamp: stamp(1), worker: worker(0), ballot: failure() };
        let registry = room.node.reference::<Vote>(room.node.id(ActorName::REGISTRY));
        registry.tell(driver_says).expect("the registry is published");
        assert!(matches!(
            room.next().await,
            RegistryReport::Verdict(GenerationVerdict::Failed { .. })
        ));
    });
}

#[test]
fn g_2_a_generation_that_was_replaced_is_deaf() {
    system::run_paused(async {
        let mut room = Room::new();
        room.open(1).await.expect("a first generation");
        room.vote(0, Ballot::Ready);
        room.registry.do_send(AskMissing { stamp: stamp(1) });
        let missing = vec![worker(1)];
        assert_eq!(room.next().await, RegistryReport::Missing { stamp: stamp(1), missing });
        room.open(2).await.expect("newer");
        let again = room.open(2).await;
        assert_eq!(again, Err(OpenError::NotNewer { stamp: stamp(2), newest: stamp(2) }));
        room.vote(1, Ballot::Ready);
        assert_eq!(room.next().await, RegistryReport::VoteDropped { total: 1 });
    });
}
