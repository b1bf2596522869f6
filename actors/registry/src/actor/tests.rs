//! The registry actor on a paused clock: wiring, senders, supervision. What votes come to is the core's
//! tests' affair.

use std::time::Duration;

use actix::Addr;
use elastic_protocol::messages::Ballot;
use elastic_protocol::{GenerationId, HostName, Incarnation, NodeId, NodeName, Term, WorkerId};
use elastic_runtime::{ActorName, spawn_child, system};
use tokio::sync::mpsc;

use super::*;

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
        let open = OpenGeneration { stamp: stamp(generation), members: vec![worker(0), worker(1)] };
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
fn all_succeed_and_the_generation_stops() {
    system::run_paused(async {
        let mut room = Room::new();
        room.open(1).await.expect("a first generation");
        for ballot in [Ballot::Ready, Ballot::Synced, Ballot::Success] {
            room.vote(0, ballot.clone());
            room.vote(1, ballot);
        }
        let mut verdicts = Vec::new();
        let exit = loop {
            match room.next().await {
                RegistryReport::Verdict(verdict) => verdicts.push(verdict),
                RegistryReport::GenerationEnded { exit, .. } => break exit,
                other => panic!("unexpected: {other:?}"),
            }
        };
        assert_eq!(verdicts.len(), 5);
        assert_eq!(verdicts[0], Verdict::AllReady { stamp: stamp(1) });
        assert_eq!(verdicts[4], Verdict::AllSucceeded { stamp: stamp(1) });
        assert_eq!(exit, Exit::Stopped);
    });
}

#[test]
fn x_6_one_loss_ends_the_generation_and_later_votes_are_kept() {
    system::run_paused(async {
        let mut room = Room::new();
        room.open(1).await.expect("a first generation");
        room.vote(0, failure());
        assert!(matches!(room.next().await, RegistryReport::Verdict(Verdict::Failed { .. })));
        let RegistryReport::GenerationEnded { stamp: ended, exit } = room.next().await else {
            panic!("the child's end is not told")
        };
        assert_eq!(ended, stamp(1));
        assert!(matches!(exit, Exit::Failed(reason) if reason.contains("a[0]#1: boom")));
        let lost = MemberLost { stamp: stamp(1), worker: worker(1), reason: "silent".into() };
        room.registry.do_send(lost);
        assert!(matches!(room.next().await, RegistryReport::Verdict(Verdict::Failed { .. })));
        assert!(matches!(room.next().await, RegistryReport::Verdict(Verdict::AllFailed { .. })));
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
        assert!(matches!(room.next().await, RegistryReport::Verdict(Verdict::Failed { .. })));
    });
}

#[test]
fn g_2_closed_and_replaced_generations_are_deaf() {
    system::run_paused(async {
        let mut room = Room::new();
        room.open(1).await.expect("a first generation");
        room.vote(0, Ballot::Ready);
        room.registry.do_send(AskMissing { stamp: stamp(1) });
        let missing = vec![worker(1)];
        assert_eq!(room.next().await, RegistryReport::Missing { stamp: stamp(1), missing });
        room.registry.do_send(CloseGeneration { stamp: stamp(1) });
        let ended = RegistryReport::GenerationEnded { stamp: stamp(1), exit: Exit::Stopped };
        assert_eq!(room.next().await, ended);
        room.vote(1, Ballot::Ready);
        assert_eq!(room.next().await, RegistryReport::VoteDropped { total: 1 });
        room.open(2).await.expect("newer");
        let again = room.open(2).await;
        assert_eq!(again, Err(OpenError::NotNewer { stamp: stamp(2), newest: stamp(2) }));
        room.open(3).await.expect("newer");
        let ended = RegistryReport::GenerationEnded { stamp: stamp(2), exit: Exit::Stopped };
        assert_eq!(room.next().await, ended);
    });
}
