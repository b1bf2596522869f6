//! Tests of the ledger: a story with exact figures, and the sum under any events.

use elastic_driver::{EventKind, ListedHost, ResetWay};
use elastic_protocol::messages::{HangGrounds, HangSureness, JobPhase, PhaseMs};
use elastic_protocol::{ExitStatus, Incarnation, ResetCause, Term};
use proptest::prelude::*;

use super::*;

struct Story {
    ledger: GoodputLedger,
    now: Time,
    generation: u64,
}

fn at(seconds: u64) -> Time {
    Time::from_ms(seconds * 1_000)
}

fn name(host: &str) -> HostName {
    HostName::new(host).expect("allowed")
}

fn worker(host: &str, slot: u32, incarnation: u64) -> WorkerId {
    WorkerId { host: name(host), slot, incarnation: Incarnation(incarnation) }
}

fn listed(hosts: &[(&str, u32)]) -> EventKind {
    let hosts = hosts.iter().map(|(host, slots)| ListedHost {
        name: name(host),
        slots: *slots,
        is_blacklisted: false,
        is_drained: false,
    });
    EventKind::HostsChanged { needed: 1, min_np: 1, hosts: hosts.collect() }
}

fn killed(worker: &WorkerId) -> [EventKind; 2] {
    let status = ExitStatus::Signal(9);
    let cause = ResetCause::WorkerExited { worker: worker.clone(), status };
    let (worker, expected, killed_after_grace) = (worker.clone(), false, false);
    [
        EventKind::WorkerExited { worker, status, expected, killed_after_grace },
        EventKind::ResetDecided { cause, way: ResetWay::Abort },
    ]
}

impl Story {
    fn new() -> Self {
        Self { ledger: GoodputLedger::new(Time::ZERO), now: Time::ZERO, generation: 0 }
    }

    fn at(&mut self, seconds: u64, kinds: impl IntoIterator<Item = EventKind>) {
        self.now = at(seconds);
        for kind in kinds {
            if matches!(kind, EventKind::GenerationFormed { .. }) {
                self.generation += 1;
            }
            let generation = GenerationId(self.generation);
            let event = DriverEvent { term: Term(1), generation, kind };
            self.ledger.handle_event(self.now, &event);
            self.ledger.check().expect("the sums agree");
        }
    }

    fn seconds(&self, bucket: TimeBucket) -> f64 {
        self.ledger.totals(self.now).seconds_of(bucket)
    }

    /// Two workers on two hosts train from second 10 on.
    fn two_train() -> (Self, [WorkerId; 2]) {
        let mut story = Self::new();
        let members = [worker("a", 0, 1), worker("b", 0, 2)];
        story.at(0, [listed(&[("a", 1), ("b", 1)])]);
        story.at(1, [joined("a"), joined("b")]);
        story.at(1, members.clone().map(|worker| EventKind::WorkerStarted { worker }));
        story.at(2, members.clone().map(|worker| EventKind::ProcessStarted { worker, pid: 1 }));
        story.at(5, members.clone().map(|worker| EventKind::WorkerAttached { worker, pid: 1 }));
        story.at(7, [formed(&members, 0)]);
        story.at(10, [EventKind::GenerationRunning { world_size: 2 }]);
        (story, members)
    }
}

fn joined(host: &str) -> EventKind {
    EventKind::HostJoined { host: name(host), slots: 1 }
}

fn formed(members: &[WorkerId], step: u64) -> EventKind {
    EventKind::GenerationFormed { members: members.to_vec(), root: None, step }
}

fn done(detect: f64, sync: f64, steps_lost: u64, cause: &WorkerId) -> EventKind {
    let ms = PhaseMs { detect, form: Some(0.0), sync: Some(sync), total: None };
    done_from(GenerationId(1), ms, steps_lost, cause)
}

fn done_from(from: GenerationId, ms: PhaseMs, steps_lost: u64, cause: &WorkerId) -> EventKind {
    let cause = ResetCause::WorkerExited { worker: cause.clone(), status: ExitStatus::Signal(9) };
    EventKind::ResetDone { cause, from, ms, steps_lost, lost_ms: 0 }
}

#[test]
fn a_kill_is_charged_with_what_it_cost() {
    let (mut story, [a, b]) = Story::two_train();
    story.at(110, killed(&b));
    story.at(112, [formed(std::slice::from_ref(&a), 9)]);
    story.at(116, [EventKind::GenerationRunning { world_size: 1 }]);
    // A second until it was noticed; one step of ten is lost; three of the four seconds were the sync.
    story.at(116, [done(1_000.0, 3_000.0, 1, &b)]);
    assert_eq!(story.seconds(TimeBucket::Absent), 2.0);
    assert_eq!(
        (story.seconds(TimeBucket::Starting), story.seconds(TimeBucket::Importing)),
        (2.0, 6.0)
    );
    assert_eq!(story.seconds(TimeBucket::Detecting), 2.0);
    assert_eq!(story.seconds(TimeBucket::Lost), 19.8);
    assert_eq!(story.seconds(TimeBucket::Training), 200.0 - 2.0 - 19.8);
    assert_eq!(story.seconds(TimeBucket::Syncing), 3.0);
    assert_eq!(story.seconds(TimeBucket::Backoff), 6.0);
    let account = story.ledger.resets().next_back().expect("one reset").clone();
    assert_eq!((account.from, account.to), (GenerationId(1), Some(GenerationId(2))));
    let cost = |bucket| account.cost.seconds_of(bucket);
    assert_eq!(cost(TimeBucket::Backoff), 6.0, "the slot of the killed one");
    assert_eq!(cost(TimeBucket::Gathering), 2.0);
    assert_eq!((cost(TimeBucket::Forming), cost(TimeBucket::Syncing)), (1.0, 3.0));
    assert_eq!((cost(TimeBucket::Lost), cost(TimeBucket::Training)), (19.8, 0.0));
}

#[test]
fn of_a_total_loss_the_steps_up_to_the_loaded_checkpoint_are_kept() {
    let (mut story, [a, b]) = Story::two_train();
    let next = [worker("a", 0, 3), worker("b", 0, 4)];
    story.at(110, killed(&a));
    story.at(110, killed(&b).into_iter().take(1));
    story.at(111, next.clone().map(|worker| EventKind::WorkerStarted { worker }));
    story.at(112, next.clone().map(|worker| EventKind::WorkerAttached { worker, pid: 1 }));
    // No member holds a commit. The root finds the checkpoint of step 90 of 100.
    story.at(113, [formed(&next, 0)]);
    story.at(114, [EventKind::CheckpointLoaded { step: Some(90), regained: 0, notes: Vec::new() }]);
    story.at(115, [EventKind::GenerationRunning { world_size: 2 }]);
    story.at(115, [done(0.0, 1_000.0, 10, &a)]);
    assert_eq!(story.seconds(TimeBucket::Lost), 20.0, "10 of 100 steps in 100 s of two slots");
    assert_eq!(story.seconds(TimeBucket::Training), 180.0);
    // The steps of the new generation are counted from the checkpoint on: 10 of its 20 are lost.
    story.at(125, killed(&next[1]));
    story.at(125, [formed(&next[..1], 100)]);
    story.at(126, [EventKind::GenerationRunning { world_size: 1 }]);
    story.at(126, [done_from(GenerationId(2), PhaseMs::default(), 10, &next[1])]);
    assert_eq!(story.seconds(TimeBucket::Lost), 20.0 + 10.0);
}

#[test]
fn a_slot_whose_process_cannot_be_started_is_in_back_off_again() {
    let (mut story, [a, b]) = Story::two_train();
    story.at(110, killed(&b));
    story.at(110, [formed(std::slice::from_ref(&a), 9)]);
    story.at(111, [EventKind::GenerationRunning { world_size: 1 }]);
    let next = worker("b", 0, 3);
    story.at(112, [EventKind::WorkerStarted { worker: next.clone() }]);
    let reason = "no such file".to_owned();
    let (starting, backoff) =
        (story.seconds(TimeBucket::Starting), story.seconds(TimeBucket::Backoff));
    story.at(113, [EventKind::WorkerNotStarted { worker: next, reason }]);
    story.at(143, []);
    assert_eq!(story.seconds(TimeBucket::Starting), starting + 1.0);
    assert_eq!(story.seconds(TimeBucket::Backoff), backoff + 30.0);
}

#[test]
fn the_process_in_the_place_of_a_killed_one_is_charged_to_the_kill_until_it_trains() {
    let (mut story, [a, b]) = Story::two_train();
    story.at(110, killed(&b));
    story.at(110, [formed(std::slice::from_ref(&a), 9)]);
    story.at(111, [EventKind::GenerationRunning { world_size: 1 }]);
    let next = worker("b", 0, 3);
    story.at(112, [EventKind::WorkerStarted { worker: next.clone() }]);
    story.at(117, [EventKind::WorkerAttached { worker: next.clone(), pid: 1 }]);
    let cause = ResetCause::HostsChanged { added: vec![next.clone()], removed: Vec::new() };
    story.at(119, [EventKind::ResetDecided { cause, way: ResetWay::Interrupt }]);
    story.at(120, [formed(&[a, next], 20)]);
    story.at(121, [EventKind::GenerationRunning { world_size: 2 }]);
    story.at(221, []);
    let of_kill = story.ledger.resets().next().expect("the kill").cost;
    assert_eq!(of_kill.seconds_of(TimeBucket::Backoff), 2.0);
    assert_eq!(of_kill.seconds_of(TimeBucket::Starting), 5.0);
    assert_eq!(of_kill.seconds_of(TimeBucket::Waiting), 3.0);
    let of_join = story.ledger.resets().next_back().expect("the join").cost;
    assert_eq!(of_join.seconds_of(TimeBucket::Pausing), 1.0);
}

#[test]
fn slots_that_are_not_listed_any_more_are_not_counted_any_more() {
    let (mut story, _) = Story::two_train();
    story.at(20, [listed(&[("a", 1)])]);
    story.at(30, []);
    assert_eq!(story.ledger.slots(), 1);
    assert_eq!(story.seconds(TimeBucket::Training), 20.0 + 10.0);
}

#[test]
fn time_without_a_driver_is_said_to_be_so() {
    let (mut story, [a, b]) = Story::two_train();
    story.ledger.handle_driver_gone(at(20));
    story.ledger.handle_driver_back(at(25));
    let members = vec![a, b];
    let phase = JobPhase::Run;
    story.at(25, [EventKind::TakeoverBegun { hosts: 2, workers: 2, members, phase }]);
    story.at(30, []);
    assert_eq!(story.seconds(TimeBucket::DriverAway), 10.0);
    assert_eq!(story.seconds(TimeBucket::Training), 30.0);
    story.at(31, [EventKind::TakeoverDone { lost: 0, ms: 6_000.0 }]);
    assert_eq!(story.seconds(TimeBucket::DriverAway), 0.0, "all members have trained on");
    assert_eq!(story.seconds(TimeBucket::Training), 42.0);
}

#[test]
fn a_member_that_a_driver_wanted_to_stop_as_it_died_trains_on_under_the_next_one() {
    let (mut story, [a, b]) = Story::two_train();
    let reason = "its generation ended".to_owned();
    story.at(20, [EventKind::WorkerStopped { worker: a.clone(), reason }]);
    story.ledger.handle_driver_gone(at(20));
    story.ledger.handle_driver_back(at(25));
    let (members, phase) = (vec![a, b], JobPhase::Run);
    story.at(25, [EventKind::TakeoverBegun { hosts: 2, workers: 2, members, phase }]);
    story.at(30, []);
    assert_eq!(story.seconds(TimeBucket::Leaving), 0.0);
    assert_eq!(story.seconds(TimeBucket::Training), 30.0);
}

#[test]
fn time_without_a_driver_stays_unknown_where_a_member_is_lost_meanwhile() {
    let (mut story, [a, b]) = Story::two_train();
    story.ledger.handle_driver_gone(at(20));
    story.ledger.handle_driver_back(at(25));
    let (members, phase) = (vec![a, b.clone()], JobPhase::Run);
    story.at(25, [EventKind::TakeoverBegun { hosts: 2, workers: 2, members, phase }]);
    story.at(27, killed(&b));
    story.at(27, [EventKind::TakeoverDone { lost: 1, ms: 2_000.0 }]);
    assert_eq!(story.seconds(TimeBucket::DriverAway), 10.0);
}

#[test]
fn the_status_looks_ahead_to_now_and_ten_minutes_back() {
    let (story, _) = Story::two_train();
    let status = story.ledger.status(at(2_010));
    assert_eq!(status.slot_seconds, 4_020.0);
    assert_eq!(status.since_start, Some(4_000.0 / 4_020.0));
    assert_eq!(status.last_10_min, Some(1.0));
    assert_eq!(GoodputLedger::new(Time::ZERO).status(at(9)).since_start, None);
}

#[test]
fn what_steps_waited_for_is_booked_and_whom() {
    let (mut story, [_, b]) = Story::two_train();
    let (ms, slowest) = (30_000.0, vec![b]);
    let measured =
        EventKind::StepsMeasured { ms, data: 0.1, commit: 0.05, straggler: 0.25, slowest };
    story.at(110, [measured]);
    // Of the last 30 s of two slots.
    assert_eq!(story.seconds(TimeBucket::Data), 6.0);
    assert_eq!(story.seconds(TimeBucket::CheckpointStall), 3.0);
    assert_eq!(story.seconds(TimeBucket::Straggler), 15.0);
    assert_eq!(story.seconds(TimeBucket::Training), 200.0 - 24.0);
    let stragglers = story.ledger.status(story.now).stragglers;
    assert_eq!(stragglers, BTreeMap::from([("b:0".to_owned(), 15.0)]));
}

#[test]
fn what_only_may_be_a_hang_is_booked_as_training() {
    let (mut story, [_, b]) = Story::two_train();
    let grounds =
        HangGrounds { sureness: HangSureness::Possible, why: "it alone works".to_owned() };
    story.at(
        50,
        [EventKind::WorkerStalled {
            worker: b.clone(),
            rank: 1,
            pid: None,
            operation: String::new(),
            waiting: 1,
            late_ms: 10_000,
            doing: "works".to_owned(),
            stack: None,
            native_stack: None,
            grounds: Some(grounds),
            silent_ms: None,
        }],
    );
    story.at(60, [EventKind::StallEnded { worker: b, ms: 20_000.0, usual: false }]);
    assert_eq!(story.seconds(TimeBucket::Hung), 0.0);
}

fn stalled(worker: &WorkerId, silent_ms: Option<u64>) -> EventKind {
    EventKind::WorkerStalled {
        worker: worker.clone(),
        rank: 1,
        pid: Some(7),
        operation: "all_reduce, call 17".to_owned(),
        waiting: 1,
        late_ms: 10_000,
        doing: "is stopped".to_owned(),
        stack: None,
        native_stack: None,
        grounds: None,
        silent_ms,
    }
}

#[test]
fn the_time_of_a_worker_that_is_given_up_for_its_silence_is_that_of_noticing_it() {
    let (mut story, [_, b]) = Story::two_train();
    story.at(50, [stalled(&b, Some(10_000))]);
    story.at(50, killed(&b));
    assert_eq!(story.seconds(TimeBucket::Hung), 0.0);
}

#[test]
fn a_hang_is_booked_from_its_begin_and_charged_to_the_reset_that_ends_it() {
    let (mut story, [_, b]) = Story::two_train();
    let stalled = || stalled(&b, None);
    story.at(50, [stalled()]);
    story.at(60, [EventKind::StallEnded { worker: b.clone(), ms: 20_000.0, usual: false }]);
    assert_eq!(story.seconds(TimeBucket::Hung), 40.0, "two slots from second 40 to 60");
    assert_eq!(story.seconds(TimeBucket::Training), 60.0);
    story.at(110, [stalled()]);
    story.at(120, killed(&b));
    assert_eq!(story.seconds(TimeBucket::Hung), 80.0);
    story.at(130, []);
    let account = story.ledger.resets().next_back().expect("one reset");
    assert_eq!(account.cost.seconds_of(TimeBucket::Hung), 40.0, "the second one");
    assert_eq!(story.seconds(TimeBucket::Training), 60.0 + 80.0);
}

#[test]
fn hosts_that_are_too_few_are_waited_for_in_a_bucket_of_its_own_and_a_drained_one_has_one() {
    let mut story = Story::new();
    let EventKind::HostsChanged { hosts, .. } = listed(&[("a", 1), ("b", 1)]) else {
        unreachable!()
    };
    story.at(0, [EventKind::HostsChanged { needed: 2, min_np: 1, hosts }, joined("a")]);
    story.at(0, [EventKind::WorkerAttached { worker: worker("a", 0, 1), pid: 1 }]);
    story.at(10, [joined("b")]);
    assert_eq!(story.seconds(TimeBucket::Idle), 10.0);
    story.at(15, []);
    assert_eq!(
        (story.seconds(TimeBucket::Idle), story.seconds(TimeBucket::Gathering)),
        (10.0, 5.0)
    );
    let out = |is_blacklisted| {
        let hosts = [("a", false), ("b", is_blacklisted)];
        let hosts = hosts.map(|(host, is_blacklisted)| ListedHost {
            name: name(host),
            slots: 1,
            is_blacklisted,
            is_drained: is_blacklisted,
        });
        EventKind::HostsChanged { needed: 1, min_np: 1, hosts: hosts.to_vec() }
    };
    story.at(15, [out(true)]);
    story.at(25, [out(false)]);
    story.at(30, []);
    assert_eq!(story.seconds(TimeBucket::Drained), 10.0);
    assert_eq!(story.seconds(TimeBucket::Blacklisted), 0.0);
}

fn any_worker() -> impl Strategy<Value = WorkerId> {
    (0..3_usize, 0..3_u32, 1..6_u64)
        .prop_map(|(host, slot, incarnation)| worker(["a", "b", "c"][host], slot, incarnation))
}

fn any_host() -> impl Strategy<Value = HostName> {
    (0..3_usize).prop_map(|host| name(["a", "b", "c"][host]))
}

fn any_kind() -> impl Strategy<Value = EventKind> {
    let host = |(name, slots, is_blacklisted)| ListedHost {
        name,
        slots,
        is_blacklisted,
        is_drained: is_blacklisted && slots > 1,
    };
    let hosts = proptest::collection::vec((any_host(), 0..4_u32, any::<bool>()), 0..4);
    let hosts = hosts.prop_map(move |hosts| {
        let by_name: BTreeMap<HostName, _> =
            hosts.into_iter().map(|host| (host.0.clone(), host)).collect();
        EventKind::HostsChanged {
            needed: 1,
            min_np: 1,
            hosts: by_name.into_values().map(host).collect(),
        }
    });
    let members = || proptest::collection::vec(any_worker(), 1..5);
    let way =
        prop_oneof![Just(ResetWay::Abort), Just(ResetWay::Interrupt), Just(ResetWay::Restart)];
    prop_oneof![
        hosts,
        any_host().prop_map(|host| EventKind::HostJoined { host, slots: 3 }),
        any_host().prop_map(|host| EventKind::HostLost { host, reason: String::new() }),
        any_worker().prop_map(|worker| EventKind::WorkerStarted { worker }),
        any_worker().prop_map(|worker| EventKind::ProcessStarted { worker, pid: 1 }),
        any_worker().prop_map(|worker| EventKind::WorkerAttached { worker, pid: 1 }),
        (any_worker(), 0..60_000_u64).prop_map(|(worker, late_ms)| EventKind::WorkerStalled {
            worker,
            rank: 0,
            pid: None,
            operation: String::new(),
            waiting: 1,
            late_ms,
            doing: String::new(),
            stack: None,
            native_stack: None,
            grounds: None,
            silent_ms: None,
        }),
        any_worker().prop_map(|worker| EventKind::StallEnded { worker, ms: 1.0, usual: true }),
        (any_worker(), 0.0..9e4_f64, [0.0..1.0_f64, 0.0..1.0, 0.0..1.0]).prop_map(
            |(slowest, ms, [data, commit, straggler])| EventKind::StepsMeasured {
                ms,
                data,
                commit,
                straggler,
                slowest: vec![slowest],
            }
        ),
        any_worker().prop_map(|worker| EventKind::WorkerStopped { worker, reason: String::new() }),
        (any_worker(), any::<bool>(), 0..2_i32).prop_map(|(worker, expected, code)| {
            let status = ExitStatus::Code(code);
            EventKind::WorkerExited { worker, status, expected, killed_after_grace: false }
        }),
        (members(), 0..20_u64).prop_map(|(members, step)| EventKind::GenerationFormed {
            members,
            root: None,
            step
        }),
        Just(EventKind::GenerationRunning { world_size: 1 }),
        (any_worker(), way).prop_map(|(worker, way)| {
            let status = ExitStatus::Signal(9);
            EventKind::ResetDecided { cause: ResetCause::WorkerExited { worker, status }, way }
        }),
        (any_worker(), 0.0..9e4_f64, 0.0..9e4_f64, 0..9_u64)
            .prop_map(|(worker, detect, sync, lost)| done(detect, sync, lost, &worker)),
        members().prop_map(|members| {
            EventKind::TakeoverBegun { hosts: 1, workers: 1, members, phase: JobPhase::Run }
        }),
    ]
}

#[test]
fn the_exit_status_of_a_death_reaches_the_account_of_its_reset() {
    let mut story = Story::new();
    let victim = worker("b", 0, 2);
    let cause = ResetCause::WorkerDied { worker: victim.clone() };
    story.at(1, [EventKind::ResetDecided { cause, way: ResetWay::Abort }]);
    let [exited, _decided] = killed(&victim);
    story.at(2, [exited]);
    let causes: Vec<_> = story.ledger.resets.all().map(|account| account.cause.clone()).collect();
    let status = ExitStatus::Signal(9);
    assert_eq!(causes, [ResetCause::WorkerExited { worker: victim, status }]);
}

proptest! {
    #[test]
    fn buckets_add_up_to_the_wall_clock_times_the_slots_whatever_happens(
        events in proptest::collection::vec((any_kind(), 0..30_000_000_000_u64, 0..20_u8), 1..60),
    ) {
        let mut ledger = GoodputLedger::new(Time::ZERO);
        let (mut now, mut slots, mut slot_nanos) = (0_u64, 0_u64, 0_u128);
        for (number, (kind, wait, gone)) in (1..).zip(events) {
            now += wait;
            slot_nanos += u128::from(slots) * u128::from(wait);
            match gone {
                0 => ledger.handle_driver_gone(Time(now)),
                1 => ledger.handle_driver_back(Time(now)),
                _ => {}
            }
            if let EventKind::HostsChanged { hosts, .. } = &kind {
                slots = hosts.iter().map(|host| u64::from(host.slots)).sum();
            }
            let event = DriverEvent { term: Term(1), generation: GenerationId(number), kind };
            ledger.handle_event(Time(now), &event);
            prop_assert_eq!(ledger.check(), Ok(()));
            prop_assert_eq!(ledger.totals(Time(now)).sum(), slot_nanos);
            prop_assert_eq!(ledger.slots(), slots);
            let recent = ledger.status(Time(now)).last_10_min.unwrap_or_default();
            prop_assert!((0.0..=1.0).contains(&recent));
        }
    }
}
