//! The agent's core under random orders, links and processes. A model of the processes carries out the core's
//! outputs and checks the invariants: at most one live process on a slot, one report for each process, each
//! stop ends within its grace period, no process runs after `Exit`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use elastic_protocol::messages::{AgentToDriver, DriverToAgent};
use elastic_protocol::{Deadlines, ExitStatus, Time, WorkerId};
use proptest::prelude::*;

use super::tests::{host, start, stop, welcome, worker};
use super::*;

const SLOTS: u32 = 3;

/// Time that a killed process of the model takes to end.
const KILL_TAKES: Duration = Duration::from_millis(3);

/// Bound on the events of one wait; no run reaches it.
const STEPS_MAX: usize = 10_000;

#[derive(Clone, Debug)]
enum Action {
    Driver(Box<DriverToAgent>),
    /// An order to start the next incarnation on a slot, numbered as a driver does it.
    StartNext {
        slot: u32,
    },
    StopNewest {
        slot: u32,
        grace_ms: u64,
    },
    Up,
    /// A new session with a driver that is accepted.
    Reconnect,
    /// The session ends; the last `returned` messages come back undelivered.
    Lost {
        returned: usize,
    },
    Crash {
        slot: u32,
        /// Whether the worker's lock shows its death before the process has ended.
        is_seen: bool,
    },
    Drain,
    Wait {
        ms: u64,
    },
}

/// Behaviour of a process of the model.
#[derive(Clone, Copy, Debug)]
struct Nature {
    spawn_ms: u64,
    spawn_fails: bool,
    /// The time that the process takes to end after SIGTERM; `None`: the process ignores SIGTERM.
    obeys_after_ms: Option<u64>,
}

fn driver(message: DriverToAgent) -> Action {
    Action::Driver(Box::new(message))
}

fn action() -> impl Strategy<Value = Action> {
    let slot = 0..SLOTS + 1;
    prop_oneof![
        12 => slot.clone().prop_map(|slot| Action::StartNext { slot }),
        4 => (slot.clone(), 0..6_u64)
            .prop_map(|(slot, life)| driver(start(worker(slot, life)))),
        12 => (slot.clone(), 0..200_u64)
            .prop_map(|(slot, grace_ms)| Action::StopNewest { slot, grace_ms }),
        2 => (slot.clone(), 0..6_u64, 0..200_u64)
            .prop_map(|(slot, life, grace_ms)| driver(stop(worker(slot, life), grace_ms))),
        3 => (1..4_u64).prop_map(|term| driver(welcome(1, term))),
        6 => Just(Action::Reconnect),
        2 => Just(Action::Up),
        4 => (0..3_usize).prop_map(|returned| Action::Lost { returned }),
        6 => (slot, any::<bool>()).prop_map(|(slot, is_seen)| Action::Crash { slot, is_seen }),
        12 => (0..300_u64).prop_map(|ms| Action::Wait { ms }),
        1 => prop_oneof![
            Just(Action::Drain),
            Just(Action::Wait { ms: 40_000 }),
            Just(driver(welcome(2, 9))),
            Just(driver(DriverToAgent::Leave { code: 0, reason: "over".to_owned() })),
            Just(driver(DriverToAgent::Refused { reason: "no".to_owned() })),
        ],
    ]
}

fn nature() -> impl Strategy<Value = Nature> {
    (0..20_u64, prop::bool::weighted(0.1), prop::option::weighted(0.7, 0..300_u64)).prop_map(
        |(spawn_ms, spawn_fails, obeys_after_ms)| Nature { spawn_ms, spawn_fails, obeys_after_ms },
    )
}

#[derive(Debug)]
struct Model {
    core: AgentCore,
    now: Time,
    natures: Vec<Nature>,
    spawned: usize,
    /// Processes that are being spawned, each with the time at which that is done.
    spawning: BTreeMap<WorkerId, (Time, Nature)>,
    /// Live processes, each with the time and status of its end if that is decided.
    live: BTreeMap<WorkerId, (Option<(Time, ExitStatus)>, Nature)>,
    /// The deadline by which each stopped process must have ended.
    due: BTreeMap<WorkerId, Time>,
    /// Processes that have ended, and whether the end was reported.
    ended: BTreeMap<WorkerId, bool>,
    newest: BTreeMap<u32, u64>,
    link_up: bool,
    sent: Vec<AgentToDriver>,
    exit: bool,
}

impl Model {
    fn new(natures: Vec<Nature>) -> Self {
        Self {
            core: AgentCore::new(Time::ZERO, AgentSettings::new(host(), SLOTS)),
            now: Time::ZERO,
            natures,
            spawned: 0,
            spawning: BTreeMap::new(),
            live: BTreeMap::new(),
            due: BTreeMap::new(),
            ended: BTreeMap::new(),
            newest: BTreeMap::new(),
            link_up: false,
            sent: Vec::new(),
            exit: false,
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Driver(message) => {
                if !self.link_up {
                    return;
                }
                if let DriverToAgent::Stop { worker, grace_ms, .. } = message.as_ref()
                    && self.core.accepted
                    && (self.live.contains_key(worker) || self.spawning.contains_key(worker))
                {
                    self.is_due(worker.clone(), *grace_ms);
                }
                self.core.handle_driver(self.now, *message);
            }
            Action::StartNext { slot } => {
                let life = self.newest.entry(slot).or_insert(10);
                *life += 1;
                let message = start(worker(slot, *life));
                if !self.link_up {
                    return;
                }
                let mut running = self.live.keys().chain(self.spawning.keys());
                let old = running.find(|old| old.slot == slot).cloned();
                let obeys = self.core.accepted && matches!(self.core.phase, AgentPhase::Serving);
                self.core.handle_driver(self.now, message);
                if let Some(old) = old.filter(|old| obeys && !self.due.contains_key(old)) {
                    self.is_due(old, 0);
                }
            }
            Action::StopNewest { slot, grace_ms } => {
                let newest = worker(slot, self.newest.get(&slot).copied().unwrap_or(0));
                return self.act(driver(stop(newest, grace_ms)));
            }
            Action::Reconnect => {
                self.act(Action::Up);
                return self.act(driver(welcome(1, 5)));
            }
            Action::Up => {
                if !self.link_up {
                    self.link_up = true;
                    self.core.handle_link(self.now, DriverLink::Up);
                }
            }
            Action::Lost { returned } => {
                if !self.link_up {
                    return;
                }
                self.link_up = false;
                self.core.handle_link(self.now, DriverLink::Lost { reason: "test".to_owned() });
                let from = self.sent.len().saturating_sub(returned);
                for message in self.sent.split_off(from) {
                    if let AgentToDriver::Exited { worker, .. } = &message {
                        self.ended.insert(worker.clone(), false);
                    }
                    self.core.handle_undeliverable(self.now, message);
                }
            }
            Action::Crash { slot, is_seen } => {
                let now = self.now;
                if let Some((worker, (end, _))) =
                    self.live.iter_mut().find(|(worker, _)| worker.slot == slot)
                {
                    *end = Some((now, ExitStatus::Signal(11)));
                    if is_seen {
                        self.core.handle_dying(worker);
                    }
                }
            }
            Action::Drain => self.core.handle_drain(self.now, "SIGTERM", 143),
            Action::Wait { ms } => return self.advance(self.now + Duration::from_millis(ms)),
        }
        self.carry_out();
        self.advance(self.now);
    }

    /// Notes the deadline of a worker that was told to end.
    fn is_due(&mut self, worker: WorkerId, grace_ms: u64) {
        let due = self.now + Duration::from_millis(grace_ms) + KILL_TAKES;
        let due = self.spawning.get(&worker).map_or(due, |(at, _)| due.max(*at + KILL_TAKES));
        let earlier = self.due.entry(worker).or_insert(due);
        *earlier = due.min(*earlier);
    }

    /// Lets time pass, event by event.
    fn advance(&mut self, until: Time) {
        for _step in 0..STEPS_MAX {
            let spawns = self.spawning.values().map(|(at, _)| *at);
            let ends = self.live.values().filter_map(|(end, _)| end.map(|(at, _)| at));
            let next = spawns.chain(ends).chain(self.core.poll_timeout()).min();
            let Some(next) = next.filter(|next| *next <= until) else {
                return self.arrive(until);
            };
            self.now = self.now.max(next);
            self.step();
            self.carry_out();
        }
        panic!("it asks for the same moment again and again");
    }

    fn arrive(&mut self, until: Time) {
        self.now = self.now.max(until);
        for (worker, due) in &self.due {
            let runs = self.live.contains_key(worker) || self.spawning.contains_key(worker);
            assert!(!runs || *due > self.now, "{worker} outlived its stop, due {due}");
        }
    }

    fn step(&mut self) {
        let now = self.now;
        if let Some((worker, nature)) = self
            .spawning
            .iter()
            .find(|(_, (at, _))| *at <= now)
            .map(|(worker, (_, nature))| (worker.clone(), *nature))
        {
            self.spawning.remove(&worker);
            if nature.spawn_fails {
                return self.core.handle_spawned(
                    now,
                    &worker,
                    Err("no such program".to_owned().into()),
                );
            }
            assert!(
                self.live.keys().all(|other| other.slot != worker.slot),
                "{worker} was started on a slot that is taken"
            );
            self.live.insert(worker.clone(), (None, nature));
            return self.core.handle_spawned(now, &worker, Ok(7));
        }
        let ended = self.live.iter().find_map(|(worker, (end, _))| {
            end.filter(|(at, _)| *at <= now).map(|(_, status)| (worker.clone(), status))
        });
        if let Some((worker, status)) = ended {
            self.live.remove(&worker);
            self.ended.insert(worker.clone(), false);
            self.core.handle_exited(&worker, status, LibraryTrace::Unseen);
            return self.core.handle_last_words(&worker, LastWords::default());
        }
        self.core.handle_timeout(now);
    }

    fn carry_out(&mut self) {
        while let Some(output) = self.core.poll_output() {
            assert!(!self.exit, "after Exit: {output:?}");
            match output {
                AgentOutput::Spawn(order) => {
                    let taken = self.live.keys().chain(self.spawning.keys());
                    assert!(
                        taken.clone().all(|other| other.slot != order.worker.slot),
                        "{} shares its slot",
                        order.worker
                    );
                    assert!(!self.ended.contains_key(&order.worker), "a life was started twice");
                    let nature = self.natures[self.spawned % self.natures.len()];
                    self.spawned += 1;
                    let at = self.now + Duration::from_millis(nature.spawn_ms);
                    self.spawning.insert(order.worker, (at, nature));
                }
                AgentOutput::Signal { worker, signal, .. } => self.signal(&worker, signal),
                AgentOutput::ToDriver(message) => self.sent_to_driver(message),
                AgentOutput::Exit { .. } => {
                    self.exit = true;
                    assert!(self.live.is_empty() && self.spawning.is_empty(), "left behind");
                }
                AgentOutput::Inspect { .. }
                | AgentOutput::CheckHealth { .. }
                | AgentOutput::Warn(_) => {}
            }
        }
    }

    fn signal(&mut self, worker: &WorkerId, signal: StopSignal) {
        let now = self.now;
        let (end, nature) = self.live.get_mut(worker).expect("only live processes are signalled");
        let (at, number) = match (signal, nature.obeys_after_ms) {
            (StopSignal::Kill, _) => (now + KILL_TAKES, 9),
            (StopSignal::Terminate, Some(ms)) => (now + Duration::from_millis(ms), 15),
            (StopSignal::Terminate, None) => return,
        };
        if end.is_none_or(|(earlier, _)| at < earlier) {
            *end = Some((at, ExitStatus::Signal(number)));
        }
    }

    fn sent_to_driver(&mut self, message: AgentToDriver) {
        assert!(self.link_up, "sent without a link: {message:?}");
        match &message {
            AgentToDriver::Exited { worker, .. } => {
                let reported = self.ended.insert(worker.clone(), true);
                assert_eq!(reported, Some(false), "{worker} was reported twice, or never ended");
            }
            AgentToDriver::Dying { worker } => {
                assert!(self.live.contains_key(worker), "{worker} dies after its end");
            }
            AgentToDriver::Join { live, .. } => {
                let theirs: BTreeSet<_> = live.iter().map(|live| live.worker.clone()).collect();
                let ours: BTreeSet<_> = self.live.keys().cloned().collect();
                assert_eq!(theirs, ours, "Join tells what runs");
            }
            _ => {}
        }
        self.sent.push(message);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_processes_end_and_are_reported(
        actions in prop::collection::vec(action(), 1..80),
        natures in prop::collection::vec(nature(), 1..8),
    ) {
        let mut model = Model::new(natures);
        model.act(Action::Up);
        model.act(driver(welcome(1, 1)));
        for action in actions {
            model.act(action);
        }
        // At the end a driver of the same job connects, and receives every report.
        model.act(Action::Up);
        model.act(driver(welcome(1, 9)));
        if !model.exit {
            prop_assert!(model.ended.values().all(|reported| *reported), "{:?}", model.ended);
            prop_assert_eq!(model.core.unreported(), 0);
            model.act(driver(DriverToAgent::Leave { code: 0, reason: "over".to_owned() }));
        }
        model.act(Action::Wait { ms: 2 * ms(Deadlines::default().grace) });
        prop_assert!(model.exit);
    }
}
