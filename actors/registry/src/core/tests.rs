//! Tests of the registry's core by scenario: G-2, G-3, X-6, and the causes that end a generation.

use elastic_protocol::job::WorkerFailure;
use elastic_protocol::messages::Ballot;
use elastic_protocol::{ExitStatus, GenerationId, HostName, Incarnation, ResetCause, Term};

use super::*;

const NOW: Time = Time::ZERO;

/// Both votes at `NOW`.
const AT_ONCE: MemberVotes = MemberVotes { ready_at: NOW, synced_at: NOW };

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
    core.open(NOW, stamp(1), (0..world_size).map(worker).collect(), RestartBudget::default())
        .expect("a first generation");
    core
}

fn cast(core: &mut RegistryCore, slot: u32, ballot: Ballot) -> VoteDecision {
    core.handle_vote(NOW, &vote(1, slot, ballot))
}

fn verdicts(core: &mut RegistryCore) -> Vec<GenerationVerdict> {
    std::iter::from_fn(|| core.poll_output()).collect()
}

fn incident(lost: Option<u32>, failure: Option<ExitStatus>, cause: ResetCause) -> Incident {
    let lost = lost.map(worker);
    Incident { stamp: stamp(1), lost, failure, cause, evidence: NOW }
}

/// Incident: a process ended although it was not told to.
fn exit(slot: u32, status: ExitStatus) -> Incident {
    let cause = ResetCause::WorkerExited { worker: worker(slot), status };
    incident(Some(slot), Some(status), cause)
}

/// Incident: a member is not heard.
fn silence(slot: u32) -> Incident {
    let cause = ResetCause::WorkerSilent { worker: worker(slot), silent_ms: 2_000, doing: None };
    incident(Some(slot), None, cause)
}

/// Incident: a member says that a link of its own broke.
fn accusation(reporter: u32, peer: Option<u32>) -> Incident {
    let (reporter, error) = (worker(reporter), "reset by peer".to_owned());
    incident(None, None, ResetCause::PeerBroken { reporter, peer: peer.map(worker), error })
}

fn broken(cause: &ResetCause) -> GenerationVerdict {
    GenerationVerdict::Broken { stamp: stamp(1), cause: cause.clone(), evidence: NOW, spent: None }
}

fn raised(slot: u32, error: &str) -> ResetCause {
    ResetCause::WorkerFailed { worker: worker(slot), error: error.to_owned() }
}

const RECORDED: VoteDecision = VoteDecision::Taken(VoteEffect::Recorded);
const REPEATED: VoteDecision = VoteDecision::Taken(VoteEffect::Repeated);

#[test]
fn a_generation_from_ready_to_success() {
    let mut core = opened(2);
    let stamp = stamp(1);
    assert_eq!(core.missing(), [worker(0), worker(1)]);
    assert_eq!(cast(&mut core, 1, Ballot::Ready), RECORDED);
    assert_eq!(core.missing(), [worker(0)], "G-9: who is waited for");
    assert_eq!(verdicts(&mut core), []);
    cast(&mut core, 0, Ballot::Ready);
    assert_eq!(verdicts(&mut core), [GenerationVerdict::AllReady { stamp }]);
    cast(&mut core, 0, Ballot::Synced);
    assert_eq!(core.missing(), [worker(1)]);
    cast(&mut core, 1, Ballot::Synced);
    assert_eq!(
        verdicts(&mut core),
        [GenerationVerdict::AllSynced { stamp, votes: vec![AT_ONCE; 2] }]
    );
    assert_eq!(core.missing(), []);
    cast(&mut core, 0, Ballot::Success);
    assert_eq!(
        verdicts(&mut core),
        [GenerationVerdict::Succeeded { stamp, worker: worker(0) }],
        "H-21"
    );
    cast(&mut core, 1, Ballot::Success);
    assert_eq!(
        verdicts(&mut core),
        [
            GenerationVerdict::Succeeded { stamp, worker: worker(1) },
            GenerationVerdict::AllSucceeded { stamp }
        ]
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
    assert_eq!(verdicts(&mut core).len(), 2, "it has failed, and the generation is broken");
    assert_eq!(core.dropped(), 0);
}

#[test]
fn x_6_a_vote_of_another_generation_is_dropped_and_counted() {
    let mut core = opened(1);
    core.open(NOW, stamp(3), vec![worker(0)], RestartBudget::default()).expect("newer");
    let old = core.handle_vote(NOW, &vote(1, 0, Ballot::Ready));
    let reason = DropReason::OlderGeneration { vote: stamp(1), newest: stamp(3) };
    assert_eq!(old, VoteDecision::Dropped(reason), "G-2");
    let new = core.handle_vote(NOW, &vote(4, 0, Ballot::Ready));
    assert!(matches!(new, VoteDecision::Dropped(DropReason::NewerGeneration { .. })));
    let old_term = Stamp { term: Term(0), generation: GenerationId(9) };
    core.handle_incident(NOW, Incident { stamp: old_term, ..silence(0) });
    assert_eq!((core.dropped(), core.missing()), (2, vec![worker(0)]));
    assert_eq!(verdicts(&mut core), []);
}

#[test]
fn x_6_a_vote_while_the_verdict_is_carried_out_is_kept() {
    let mut core = opened(2);
    let stamp = stamp(1);
    cast(&mut core, 0, failed(None, "first"));
    let first = failure_of(&worker(0), 0, None, "first");
    let verdict = GenerationVerdict::Failed { stamp, failure: first.clone() };
    assert_eq!(verdicts(&mut core), [verdict, broken(&raised(0, "first"))]);
    cast(&mut core, 1, failed(None, "lost its peer"));
    let second = failure_of(&worker(1), 1, None, "lost its peer");
    assert_eq!(
        verdicts(&mut core),
        [
            GenerationVerdict::Failed { stamp, failure: second },
            GenerationVerdict::AllFailed { stamp, first }
        ],
        "H-10: the first failure is the cause, and a generation breaks once"
    );
}

#[test]
fn x_6_the_first_loss_ends_the_generation_for_all() {
    let mut core = opened(3);
    core.handle_incident(NOW, silence(1));
    assert_eq!(verdicts(&mut core), [broken(&silence(1).cause)]);
    core.handle_incident(NOW, silence(1));
    core.handle_incident(NOW, silence(2));
    core.handle_incident(NOW, accusation(0, None));
    assert_eq!(verdicts(&mut core), []);
    assert_eq!(core.missing(), [worker(0)], "who is lost is not waited for");
    cast(&mut core, 0, Ballot::Ready);
    assert_eq!(verdicts(&mut core), [], "the barrier of a broken generation stays shut");
}

#[test]
fn a_link_that_broke_is_replaced_by_what_became_of_the_peer() {
    for (peer, lost, is_known) in [(None, 1, true), (Some(1), 1, true), (Some(2), 1, false)] {
        let mut core = opened(3);
        core.handle_incident(NOW, accusation(0, peer));
        assert_eq!(verdicts(&mut core), [broken(&accusation(0, peer).cause)]);
        core.handle_incident(NOW, silence(lost));
        let known = GenerationVerdict::CauseKnown { stamp: stamp(1), cause: silence(lost).cause };
        assert_eq!(verdicts(&mut core), if is_known { vec![known] } else { vec![] });
        core.handle_incident(NOW, silence(2));
        let other = !is_known;
        assert_eq!(!verdicts(&mut core).is_empty(), other, "once it is known it stands");
    }
}

#[test]
fn h_21_those_who_have_finished_keep_their_result_when_nobody_else_is_left() {
    for (is_by_restart, ends_well) in [(false, true), (true, false)] {
        let mut core = RegistryCore::new();
        let budget = RestartBudget { is_by_restart, ..RestartBudget::default() };
        core.open(NOW, stamp(1), vec![worker(0), worker(1)], budget).expect("a first one");
        cast(&mut core, 0, Ballot::Success);
        verdicts(&mut core);
        core.handle_incident(NOW, silence(1));
        let end = GenerationVerdict::AllSucceeded { stamp: stamp(1) };
        let end = if ends_well { end } else { broken(&silence(1).cause) };
        assert_eq!(verdicts(&mut core), [end]);
    }
}

#[test]
fn h_10_deaths_by_signal_are_accidents_and_not_the_programs_failure() {
    for (status, is_told) in [(ExitStatus::Code(1), true), (ExitStatus::Signal(9), false)] {
        let mut core = opened(2);
        core.handle_incident(NOW, exit(0, status));
        core.handle_incident(NOW, exit(1, ExitStatus::Code(1)));
        let all =
            verdicts(&mut core).iter().any(|it| matches!(it, GenerationVerdict::AllFailed { .. }));
        assert_eq!(all, is_told, "{status}");
    }
}

#[test]
fn t_3_a_generation_applies_the_restart_budget_that_it_was_given() {
    let open = |budget| {
        let mut core = RegistryCore::new();
        core.open(NOW, stamp(1), vec![worker(0), worker(1)], budget).expect("a first one");
        core
    };
    let spent = |mut core: RegistryCore, incident| {
        core.handle_incident(NOW, incident);
        verdicts(&mut core).into_iter().find_map(|verdict| match verdict {
            GenerationVerdict::Broken { spent, .. } => Some(spent),
            _ => None,
        })
    };
    let failure = || exit(0, ExitStatus::Code(1));
    let resets = RestartBudget { resets: 2, resets_max: Some(2), ..RestartBudget::default() };
    assert_eq!(spent(open(resets), silence(0)), Some(Some(BudgetSpent::Resets { max: 2 })));
    let left = RestartBudget { resets: 1, ..resets };
    assert_eq!(spent(open(left), silence(0)), Some(None));
    let restarts = RestartBudget { restarts_max: Some(1), is_by_restart: true, ..left };
    assert_eq!(spent(open(restarts), failure()), Some(None));
    let restarts = RestartBudget { restarts: 1, ..restarts };
    assert_eq!(spent(open(restarts), failure()), Some(Some(BudgetSpent::Restarts { max: 1 })));
    assert_eq!(spent(open(restarts), silence(0)), Some(None), "T-4: only failures count");
}

#[test]
fn g_2_a_generation_is_never_opened_again() {
    let mut core = opened(1);
    let again = core.open(NOW, stamp(1), vec![worker(0)], RestartBudget::default());
    assert_eq!(again, Err(OpenError::NotNewer { stamp: stamp(1), newest: stamp(1) }));
    assert_eq!(verdicts(&mut core), []);
}

#[test]
fn g_3_a_worker_has_one_rank_and_a_slot_one_life() {
    let mut core = RegistryCore::new();
    let twice = core.open(NOW, stamp(1), vec![worker(0), worker(0)], RestartBudget::default());
    assert_eq!(twice, Err(OpenError::TwoRanks { stamp: stamp(1), worker: worker(0) }));
    assert_eq!(
        core.open(NOW, stamp(1), vec![], RestartBudget::default()),
        Err(OpenError::NoMembers { stamp: stamp(1) })
    );
    core.open(NOW, stamp(1), vec![worker(0)], RestartBudget::default())
        .expect("the refused ones left no trace");

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
fn ready_then_failure_is_a_failure_and_keeps_the_barrier_shut() {
    let mut core = opened(2);
    cast(&mut core, 0, Ballot::Ready);
    cast(&mut core, 0, failed(None, "boom"));
    cast(&mut core, 1, Ballot::Ready);
    let verdicts = verdicts(&mut core);
    let [GenerationVerdict::Failed { .. }, GenerationVerdict::Broken { .. }] = verdicts[..] else {
        panic!("{verdicts:?}")
    };
    assert_eq!(core.missing(), [], "who failed is not waited for");
}

#[test]
fn a_member_that_ends_before_the_barrier_keeps_it_shut() {
    let mut core = opened(2);
    cast(&mut core, 0, Ballot::Ready);
    cast(&mut core, 0, Ballot::Success);
    cast(&mut core, 1, Ballot::Ready);
    let verdicts = verdicts(&mut core);
    assert_eq!(verdicts, [GenerationVerdict::Succeeded { stamp: stamp(1), worker: worker(0) }]);
}

#[test]
fn the_first_result_stands() {
    let mut core = opened(2);
    cast(&mut core, 0, Ballot::Success);
    let exit = cast(&mut core, 0, failed(Some(ExitStatus::Code(1)), "atexit"));
    let stands = VoteEffect::Ignored(IgnoreReason::SuccessStands);
    assert_eq!(exit, VoteDecision::Taken(stands));
    cast(&mut core, 1, failed(None, "boom"));
    let success = cast(&mut core, 1, Ballot::Success);
    let stands = VoteEffect::Ignored(IgnoreReason::FailureStands);
    assert_eq!(success, VoteDecision::Taken(stands));
    let given = verdicts(&mut core);
    let [
        GenerationVerdict::Succeeded { .. },
        GenerationVerdict::Failed { .. },
        GenerationVerdict::AllSucceeded { .. },
    ] = given[..]
    else {
        panic!("not AllFailed: {given:?}")
    };
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
fn the_last_verdict_of_the_barrier_says_when_each_rank_voted() {
    let mut core = opened(2);
    let votes = [(30, 0, Ballot::Ready), (10, 1, Ballot::Ready), (40, 1, Ballot::Synced)];
    for (ms, slot, ballot) in votes {
        core.handle_vote(Time::from_ms(ms), &vote(1, slot, ballot));
    }
    // A vote that is said twice keeps its first time.
    core.handle_vote(Time::from_ms(45), &vote(1, 1, Ballot::Synced));
    core.handle_vote(Time::from_ms(50), &vote(1, 0, Ballot::Synced));
    let at = |ready_ms, synced_ms| MemberVotes {
        ready_at: Time::from_ms(ready_ms),
        synced_at: Time::from_ms(synced_ms),
    };
    let votes = vec![at(30, 50), at(10, 40)];
    assert_eq!(
        verdicts(&mut core).last(),
        Some(&GenerationVerdict::AllSynced { stamp: stamp(1), votes })
    );
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
    assert_eq!(
        verdicts(&mut core),
        [GenerationVerdict::AllSynced { stamp, votes: vec![AT_ONCE; 2] }]
    );
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
    core.open(NOW, stamp(2), vec![worker(0), worker(1)], RestartBudget::default()).expect("newer");
    assert_eq!(verdicts(&mut core), [], "G-2");
    assert_eq!(core.missing(), [worker(0), worker(1)]);
}

#[test]
fn a_broken_invariant_is_found() {
    type Breaks = fn(&mut RegistryCore);
    fn first(core: &mut RegistryCore) -> &mut MemberState {
        let generation = core.open.as_mut().expect("it is open");
        generation.members.get_mut(&worker(0)).expect("a member")
    }
    let cases: [(Breaks, &str); 4] = [
        (|core| core.newest = stamp(2), "G-2"),
        (|core| first(core).rank = 1, "G-3: rank 1 of a[1]#1 is another's, or none"),
        (|core| first(core).is_lost = true, "a[0]#1 is lost, and its generation goes on"),
        (|core| first(core).progress = MemberProgress::Ready, "the votes are"),
    ];
    for (breaks, expected) in cases {
        let mut core = opened(2);
        assert_eq!(core.check(), Ok(()));
        breaks(&mut core);
        let found = core.check().expect_err("something is wrong");
        assert!(found.starts_with(expected), "{found}");
    }
}
