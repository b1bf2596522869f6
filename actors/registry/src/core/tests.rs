//! The registry's core by scenario: G-2, G-3, X-6, and what ends a generation.

use elastic_protocol::job::WorkerFailure;
use elastic_protocol::{ExitStatus, GenerationId, HostName, Incarnation, Term};

use super::*;

const NOW: Time = Time::ZERO;

fn worker(slot: u32) -> WorkerId {
    WorkerId { host: HostName::new("a").expect("a literal"), slot, incarnation: Incarnation(1) }
}

fn stamp(generation: u64) -> Stamp {
    Stamp { term: Term(1), generation: GenerationId(generation) }
}

fn vote(generation: u64, slot: u32, ballot: Ballot) -> Vote {
    Vote { stamp: stamp(generation), worker: worker(slot), ballot }
}

fn failed(status: Option<ExitStatus>, message: &str) -> Ballot {
    Ballot::Failure { status, message: message.to_owned() }
}

fn failure_of(
    worker: &WorkerId,
    rank: u32,
    status: Option<ExitStatus>,
    message: &str,
) -> WorkerFailure {
    WorkerFailure { worker: worker.clone(), rank: Some(rank), status, message: message.to_owned() }
}

fn opened(world_size: u32) -> RegistryCore {
    let mut core = RegistryCore::new();
    core.open(NOW, stamp(1), (0..world_size).map(worker).collect()).expect("a first generation");
    core
}

fn cast(core: &mut RegistryCore, slot: u32, ballot: Ballot) -> VoteDecision {
    core.handle_vote(NOW, &vote(1, slot, ballot))
}

fn verdicts(core: &mut RegistryCore) -> Vec<Verdict> {
    std::iter::from_fn(|| core.poll_output()).collect()
}

const RECORDED: VoteDecision = VoteDecision::Taken(Decision::Recorded);
const REPEATED: VoteDecision = VoteDecision::Taken(Decision::Repeated);

#[test]
fn a_generation_from_ready_to_success() {
    let mut core = opened(2);
    let stamp = stamp(1);
    assert_eq!(core.missing(), [worker(0), worker(1)]);
    assert_eq!(cast(&mut core, 1, Ballot::Ready), RECORDED);
    assert_eq!(core.missing(), [worker(0)], "G-9: who is waited for");
    assert_eq!(verdicts(&mut core), []);
    cast(&mut core, 0, Ballot::Ready);
    assert_eq!(verdicts(&mut core), [Verdict::AllReady { stamp }]);
    cast(&mut core, 0, Ballot::Synced);
    assert_eq!(core.missing(), [worker(1)]);
    cast(&mut core, 1, Ballot::Synced);
    assert_eq!(verdicts(&mut core), [Verdict::AllSynced { stamp }]);
    assert_eq!(core.missing(), []);
    cast(&mut core, 0, Ballot::Success);
    assert_eq!(verdicts(&mut core), [Verdict::Succeeded { stamp, worker: worker(0) }], "H-21");
    cast(&mut core, 1, Ballot::Success);
    assert_eq!(
        verdicts(&mut core),
        [Verdict::Succeeded { stamp, worker: worker(1) }, Verdict::AllSucceeded { stamp }]
    );
}

#[test]
fn x_6_a_repeated_vote_counts_once() {
    let mut core = opened(2);
    assert_eq!(cast(&mut core, 0, Ballot::Ready), RECORDED);
    for _ in 0..3 {
        assert_eq!(cast(&mut core, 0, Ballot::Ready), REPEATED);
    }
    assert_eq!(verdicts(&mut core), [], "Horovod counts a repeated READY twice");
    cast(&mut core, 1, failed(None, "boom"));
    cast(&mut core, 1, failed(None, "boom"));
    assert_eq!(verdicts(&mut core).len(), 1);
    assert_eq!(core.dropped(), 0);
}

#[test]
fn x_6_a_vote_of_another_generation_is_dropped_and_counted() {
    let mut core = opened(1);
    core.open(NOW, stamp(3), vec![worker(0)]).expect("newer");
    let old = core.handle_vote(NOW, &vote(1, 0, Ballot::Ready));
    let reason = DropReason::OlderGeneration { vote: stamp(1), newest: stamp(3) };
    assert_eq!(old, VoteDecision::Dropped(reason), "G-2");
    let new = core.handle_vote(NOW, &vote(4, 0, Ballot::Ready));
    assert!(matches!(new, VoteDecision::Dropped(DropReason::NewerGeneration { .. })));
    let old_term = Stamp { term: Term(0), generation: GenerationId(9) };
    let lost = core.handle_lost(NOW, old_term, &worker(0), "silent");
    assert!(matches!(lost, VoteDecision::Dropped(DropReason::OlderGeneration { .. })));
    assert_eq!((core.dropped(), core.missing()), (3, vec![worker(0)]));
    assert_eq!(verdicts(&mut core), []);
}

#[test]
fn x_6_a_vote_while_the_verdict_is_carried_out_is_kept() {
    let mut core = opened(2);
    let stamp = stamp(1);
    cast(&mut core, 0, failed(Some(ExitStatus::Signal(9)), "gone"));
    let first = failure_of(&worker(0), 0, Some(ExitStatus::Signal(9)), "gone");
    assert_eq!(verdicts(&mut core), [Verdict::Failed { stamp, failure: first.clone() }]);
    cast(&mut core, 1, failed(None, "lost its peer"));
    let second = failure_of(&worker(1), 1, None, "lost its peer");
    assert_eq!(
        verdicts(&mut core),
        [Verdict::Failed { stamp, failure: second }, Verdict::AllFailed { stamp, first }],
        "H-10: the first failure is the cause"
    );
}

#[test]
fn g_2_a_generation_is_never_opened_again() {
    let mut core = opened(1);
    core.close(stamp(1));
    let again = core.open(NOW, stamp(1), vec![worker(0)]);
    assert_eq!(again, Err(OpenError::NotNewer { stamp: stamp(1), newest: stamp(1) }));
    let late = cast(&mut core, 0, Ballot::Success);
    assert_eq!(late, VoteDecision::Dropped(DropReason::Closed { stamp: stamp(1) }));
    assert_eq!(verdicts(&mut core), []);
}

#[test]
fn g_3_a_worker_has_one_rank_and_a_slot_one_life() {
    let mut core = RegistryCore::new();
    let twice = core.open(NOW, stamp(1), vec![worker(0), worker(0)]);
    assert_eq!(twice, Err(OpenError::TwoRanks { stamp: stamp(1), worker: worker(0) }));
    assert_eq!(core.open(NOW, stamp(1), vec![]), Err(OpenError::NoMembers { stamp: stamp(1) }));
    core.open(NOW, stamp(1), vec![worker(0)]).expect("the refused ones left no trace");

    let earlier_life = WorkerId { incarnation: Incarnation(0), ..worker(0) };
    let dead = Vote { worker: earlier_life, ..vote(1, 0, Ballot::Ready) };
    let reason = DropReason::OtherIncarnation { member: worker(0) };
    assert_eq!(core.handle_vote(NOW, &dead), VoteDecision::Dropped(reason));
    let spare = core.handle_vote(NOW, &vote(1, 7, Ballot::Ready));
    let reason = DropReason::NotAMember { worker: worker(7) };
    assert_eq!(spare, VoteDecision::Dropped(reason));
    assert_eq!(core.dropped(), 2);
}

#[test]
fn closing_another_generation_changes_nothing() {
    let mut core = opened(1);
    core.close(stamp(2));
    core.close(Stamp::default());
    assert_eq!(cast(&mut core, 0, Ballot::Ready), RECORDED);
}

#[test]
fn ready_then_failure_is_a_failure_and_keeps_the_barrier_shut() {
    let mut core = opened(2);
    cast(&mut core, 0, Ballot::Ready);
    cast(&mut core, 0, failed(None, "boom"));
    cast(&mut core, 1, Ballot::Ready);
    let verdicts = verdicts(&mut core);
    assert!(matches!(verdicts[..], [Verdict::Failed { .. }]), "{verdicts:?}");
    assert_eq!(core.missing(), [], "who failed is not waited for");
}

#[test]
fn a_member_that_ends_before_the_barrier_keeps_it_shut() {
    let mut core = opened(2);
    cast(&mut core, 0, Ballot::Ready);
    cast(&mut core, 0, Ballot::Success);
    cast(&mut core, 1, Ballot::Ready);
    let verdicts = verdicts(&mut core);
    assert_eq!(verdicts, [Verdict::Succeeded { stamp: stamp(1), worker: worker(0) }]);
}

#[test]
fn the_first_result_stands() {
    let mut core = opened(2);
    cast(&mut core, 0, Ballot::Success);
    let exit = cast(&mut core, 0, failed(Some(ExitStatus::Code(1)), "atexit"));
    let stands = Decision::Ignored(IgnoreReason::SuccessStands);
    assert_eq!(exit, VoteDecision::Taken(stands));
    cast(&mut core, 1, failed(None, "boom"));
    let success = cast(&mut core, 1, Ballot::Success);
    let stands = Decision::Ignored(IgnoreReason::FailureStands);
    assert_eq!(success, VoteDecision::Taken(stands));
    assert_eq!(verdicts(&mut core).len(), 2, "neither AllSucceeded nor AllFailed");
}

#[test]
fn an_exit_status_joins_the_error_that_came_before_it() {
    let mut core = opened(1);
    cast(&mut core, 0, failed(None, "ValueError"));
    verdicts(&mut core);
    assert_eq!(cast(&mut core, 0, failed(Some(ExitStatus::Code(1)), "tail")), REPEATED);
    let expected =
        MemberResult::Failed { status: Some(ExitStatus::Code(1)), message: "ValueError".into() };
    assert_eq!(core.state_of(&worker(0)).and_then(|state| state.result.clone()), Some(expected));
    assert_eq!(verdicts(&mut core), []);
}

#[test]
fn an_exit_that_overtakes_the_workers_own_votes_loses_nothing() {
    let mut core = opened(2);
    let stamp = stamp(1);
    cast(&mut core, 0, Ballot::Ready);
    cast(&mut core, 1, Ballot::Ready);
    cast(&mut core, 1, Ballot::Synced);
    cast(&mut core, 0, Ballot::Success);
    verdicts(&mut core);
    assert_eq!(cast(&mut core, 0, Ballot::Synced), RECORDED);
    assert_eq!(verdicts(&mut core), [Verdict::AllSynced { stamp }]);
}

#[test]
fn only_the_worker_and_the_driver_vote() {
    let mut core = opened(2);
    let ready = vote(1, 0, Ballot::Ready);
    let other = NodeId::worker(&worker(1));
    let foreign = core.handle_vote_from(NOW, &other, &ready);
    assert_eq!(foreign, VoteDecision::Dropped(DropReason::NotTheSender { from: other }));
    let agent = NodeId { name: NodeName::Agent(worker(0).host), incarnation: Incarnation(1) };
    assert!(matches!(core.handle_vote_from(NOW, &agent, &ready), VoteDecision::Dropped(_)));
    assert_eq!(core.dropped(), 2);
    assert_eq!(core.handle_vote_from(NOW, &NodeId::worker(&worker(0)), &ready), RECORDED);
    let driver = NodeId { name: NodeName::Driver, incarnation: Incarnation(1) };
    let exit = vote(1, 1, failed(Some(ExitStatus::Code(3)), ""));
    assert_eq!(core.handle_vote_from(NOW, &driver, &exit), RECORDED);
}

#[test]
fn opening_forgets_the_verdicts_of_the_generation_before() {
    let mut core = opened(1);
    cast(&mut core, 0, Ballot::Ready);
    core.open(NOW, stamp(2), vec![worker(0), worker(1)]).expect("newer");
    assert_eq!(verdicts(&mut core), [], "G-2");
    assert_eq!(core.missing(), [worker(0), worker(1)]);
}
