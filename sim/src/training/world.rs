//! [`TrainingWorld`]: a run in mode `training`: one scheduler, which draws the next step, the processes, the driver's script
//! and the oracle. Called by `sim::run`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use elastic_protocol::{Stamp, Time};
use elastic_runtime::random::stream;
use elastic_runtime::transport::LinkEvent;
use elastic_worker::state::core::{RunExit, TrainingCommand};
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::driver::{ScriptPhase, ScriptedDriver};
use super::exchange::{GroupExchange, NodeNumber};
use super::faults::{self, PlannedStrike};
use super::job::{DataAccess, TrainingJob};
use super::nodes::{NodeSurroundings, NodeWord, TrainingNode, train_alone};
use super::program::{FAILS, PANICS};
use super::seat::lock;
use super::store::{self, RunStore};
use super::turnstile::{SimulatedThreadEnd, ThreadHalt, Turnstile};
use super::witness::{GenerationBegin, Witness};
use crate::dataset::mix;
use crate::decisions::{thread, words};
use crate::options::RunOptions;
use crate::report::{RunFailure, RunReport, RunVerdict};
use crate::trace::{Recording, RunTrace, TraceKind, TracePlace};

/// Most events after the last fault until the job has ended.
const EVENTS_TO_END_MAX: u64 = 60_000;

/// Events between two looks at the States, if states are recorded.
const LOOK_EVERY: u64 = 64;

/// Most processes that are there at once.
const NODES_MAX: usize = 8;

const MS: u64 = 1_000_000;

/// Steps that the scheduler can draw.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum NextStep {
    /// A training thread has the turn.
    Thread(NodeNumber),
    /// A State hears its thread.
    FromThread(NodeNumber),
    /// A State hears the driver.
    FromDriver(NodeNumber),
    /// The driver hears a process.
    ToDriver(NodeNumber),
    /// A part of a checkpoint is written, or a checkpoint sealed.
    Write(NodeNumber),
    /// The driver learns of the end of a process.
    Death(NodeNumber),
    /// The driver does what is due.
    Driver,
}

/// The run.
pub(crate) struct TrainingWorld {
    options: RunOptions,
    pub(super) job: TrainingJob,
    strikes: Vec<PlannedStrike>,
    next_strike: usize,
    trace: RunTrace,
    now: u64,
    events: u64,
    pub(super) order: ChaCha8Rng,
    pub(super) around: NodeSurroundings,
    pub(super) nodes: BTreeMap<NodeNumber, TrainingNode>,
    next_number: NodeNumber,
    pub(super) driver: ScriptedDriver,
    /// Processes whose end the driver has not learnt of.
    unheard_deaths: BTreeSet<NodeNumber>,
    /// Processes that were told to leave.
    pub(super) departing: BTreeSet<NodeNumber>,
    /// Processes whose State's actor is gone.
    pub(super) gone: BTreeSet<NodeNumber>,
    /// Number of operations until the disk loses power in the next write.
    pub(super) power_fails: Option<u64>,
    pub(super) progress: BTreeMap<NodeNumber, (Stamp, u64)>,
    pub(super) seen_digests: BTreeMap<(Stamp, u64, u64), (NodeNumber, u64, bool)>,
    /// The ways in which each process has gone through a pass, by generation, step and pass.
    pub(super) seen_ways: BTreeMap<(Stamp, u64, u64), BTreeMap<NodeNumber, BTreeSet<u64>>>,
    pub(super) tensors: BTreeMap<u64, String>,
    pub(super) checkpoints: BTreeMap<u64, u64>,
    pub(super) resumes: u64,
    /// The shards that were dealt to each rank, if they were dealt by number.
    pub(super) dealt: Vec<u32>,
    failure: Option<RunFailure>,
    is_done: bool,
}

impl TrainingWorld {
    pub(crate) fn new(options: &RunOptions, recording: Recording) -> Self {
        let job = TrainingJob::draw(options.seed);
        let strikes = if options.calm { Vec::new() } else { faults::draw(options) };
        let store = RunStore::new(options.seed);
        store::join(&store, None);
        let witness = Arc::new(Mutex::new(Witness::new(&job)));
        let exchange = Arc::new(Mutex::new(GroupExchange::default()));
        let around = NodeSurroundings { job: job.clone(), store, exchange, witness };
        Self {
            options: options.clone(),
            job,
            strikes,
            next_strike: 0,
            trace: RunTrace::new(recording),
            now: MS,
            events: 0,
            order: stream(options.seed, "training order", 0),
            around,
            nodes: BTreeMap::new(),
            next_number: 1,
            driver: ScriptedDriver::new(),
            unheard_deaths: BTreeSet::new(),
            departing: BTreeSet::new(),
            gone: BTreeSet::new(),
            power_fails: None,
            progress: BTreeMap::new(),
            seen_digests: BTreeMap::new(),
            seen_ways: BTreeMap::new(),
            tensors: BTreeMap::new(),
            checkpoints: BTreeMap::new(),
            resumes: 0,
            dealt: Vec::new(),
            failure: None,
            is_done: false,
        }
    }

    pub(super) fn witness(&self) -> MutexGuard<'_, Witness> {
        lock(&self.around.witness)
    }

    pub(super) fn lock_exchange(&self) -> MutexGuard<'_, GroupExchange> {
        lock(&self.around.exchange)
    }

    pub(super) fn violated(&self, what: String) {
        self.witness().violated(what);
    }

    pub(super) const fn time(&self) -> Time {
        Time::from_ms(self.now / MS)
    }

    /// The highest step that a process holds.
    pub(super) fn newest_step(&self) -> u64 {
        let held = |node: &NodeNumber| self.witness().facts(*node).held.map_or(0, |held| held.step);
        self.nodes.keys().map(held).max().unwrap_or_default()
    }

    /// A process is started.
    pub(super) fn start_node(&mut self) {
        if self.nodes.len() >= NODES_MAX || self.driver.phase == ScriptPhase::Finished {
            return;
        }
        let number = self.next_number;
        self.next_number += 1;
        let now = self.time();
        let mut node = TrainingNode::start(number, &self.around, now);
        node.core.handle_link(now, &LinkEvent::Up);
        node.carry_out(now);
        self.nodes.insert(number, node);
        self.record(TraceKind::Start, number, (0, 0));
    }

    /// A process is killed.
    pub(super) fn kill(&mut self, number: NodeNumber) {
        if let Some(node) = self.nodes.get_mut(&number) {
            node.kill();
            self.end_node(number);
        }
    }

    /// A process is gone.
    fn end_node(&mut self, number: NodeNumber) {
        if let Some(node) = self.nodes.remove(&number) {
            node.seat.exchange().die(number);
            self.departing.remove(&number);
            self.unheard_deaths.insert(number);
            self.record(TraceKind::Exit, number, (0, 0));
        }
    }

    fn record(&mut self, kind: TraceKind, node: NodeNumber, numbers: (u64, u64)) {
        let place = TracePlace { host: node, slot: 0 };
        self.trace.record(self.now, kind, place, numbers, String::new);
        self.note_commands();
    }

    /// Notes a decision of a process.
    fn decide(&mut self, node: NodeNumber, words: impl FnOnce() -> String) {
        self.trace.decisions.note(self.now, TracePlace { host: node, slot: 0 }, words);
    }

    /// Notes the States' commands to their threads since the last event.
    fn note_commands(&mut self) {
        for (number, node) in &mut self.nodes {
            for command in node.commanded.drain(..) {
                let place = TracePlace { host: *number, slot: 0 };
                self.trace.decisions.note(self.now, place, || words::training(&command));
            }
        }
    }

    /// Runs to the end.
    pub(crate) fn run(mut self) -> RunReport {
        self.run_alone();
        for _ in 0..self.job.world_first {
            self.start_node();
        }
        while self.failure.is_none() && !self.is_done {
            self.step();
            self.judge();
        }
        for node in self.nodes.values_mut() {
            node.kill();
        }
        self.report()
    }

    /// The program in a world of one, without a driver.
    fn run_alone(&mut self) {
        let mut around = self.around.clone();
        if let DataAccess::Shards { by_driver, .. } = &mut around.job.access {
            *by_driver = false;
        }
        let held = self.witness().initial();
        let begin = GenerationBegin { held, goes_on: false, root: 0 };
        self.witness().facts(0).held = Some(held);
        self.witness().begin(Stamp::default(), begin);
        train_alone(&around);
    }

    /// Notes the contents of the States.
    fn look_at_nodes(&mut self) {
        for (number, node) in &self.nodes {
            let place = TracePlace { host: *number, slot: 0 };
            self.trace.states.note(self.now, place, "state", &node.core);
        }
    }

    fn step(&mut self) {
        if self.trace.states.is_wanted() && self.events.is_multiple_of(LOOK_EVERY) {
            self.look_at_nodes();
        }
        self.events += 1;
        self.now += self.order.random_range(1..12) * MS;
        while let Some(strike) = self.strikes.get(self.next_strike).copied()
            && strike.at <= self.events
        {
            let number = self.next_strike;
            self.next_strike += 1;
            if self.options.keep.as_ref().is_none_or(|keep| keep.contains(&number)) {
                self.record(TraceKind::Fault, number as u32, (strike.at, u64::from(strike.pick)));
                self.strike(strike);
            }
        }
        if self.next_strike == self.strikes.len() {
            self.around.store.files.fill(false);
        }
        if self.nodes.is_empty() {
            self.start_node();
        }
        let now = self.time();
        for node in self.nodes.values_mut() {
            if node.core.poll_timeout().is_some_and(|at| at <= now) {
                node.core.handle_timeout(now);
                node.carry_out(now);
            }
        }
        let choices = self.choices();
        if choices.is_empty() {
            let is_late = self.events > self.last_fault() + EVENTS_TO_END_MAX;
            if self.nodes.values().all(|node| node.core.poll_timeout().is_none()) || is_late {
                let reason = format!("nothing is left to happen: {}", self.waits());
                self.fail(RunVerdict::Liveness, reason);
            }
            return;
        }
        let next = choices[self.order.random_range(0..choices.len())];
        self.carry_out(next);
    }

    fn choices(&self) -> Vec<NextStep> {
        let mut choices = Vec::new();
        for (number, node) in &self.nodes {
            if node.can_run() {
                choices.push(NextStep::Thread(*number));
            }
            let is_gone = self.gone.contains(number);
            if !is_gone && !lock(&node.seat.told).is_empty() {
                choices.push(NextStep::FromThread(*number));
            }
            if !is_gone && !node.from_driver.is_empty() {
                choices.push(NextStep::FromDriver(*number));
            }
            if !node.to_driver.is_empty() {
                choices.push(NextStep::ToDriver(*number));
            }
            if node.shared.checkpoints().is_write_due() {
                choices.push(NextStep::Write(*number));
            }
        }
        choices.extend(self.unheard_deaths.iter().map(|number| NextStep::Death(*number)));
        if self.driver_can_act() {
            choices.push(NextStep::Driver);
        }
        choices
    }

    fn carry_out(&mut self, next: NextStep) {
        let now = self.time();
        match next {
            NextStep::Thread(number) => self.run_thread(number),
            NextStep::FromThread(number) => {
                let Some(node) = self.nodes.get_mut(&number) else { return };
                let message = node.hear_thread(now);
                node.carry_out(now);
                if let Some(message) = message {
                    self.decide(number, || thread::message(&message));
                }
                self.record(TraceKind::Thread, number, (1, 0));
            }
            NextStep::FromDriver(number) => {
                let Some(node) = self.nodes.get_mut(&number) else { return };
                if let Some(message) = node.from_driver.pop_front() {
                    node.core.handle_driver(now, message);
                    node.carry_out(now);
                }
                self.record(TraceKind::Deliver, number, (0, 0));
            }
            NextStep::ToDriver(number) => {
                let word = self.nodes.get_mut(&number).and_then(|node| node.to_driver.pop_front());
                self.record(TraceKind::Deliver, number, (1, 0));
                if let Some(word) = word {
                    self.decide(number, || match &word {
                        NodeWord::Driver(message) => words::from_worker(message),
                        NodeWord::Vote(vote) => words::vote(vote),
                    });
                    self.driver_hears(number, word);
                }
            }
            NextStep::Write(number) => self.write(number),
            NextStep::Death(number) => {
                self.unheard_deaths.remove(&number);
                self.driver.forget(number);
                self.record(TraceKind::Link, number, (0, 0));
                if self.driver.members.contains(&number) {
                    self.abort("a member has died");
                }
            }
            NextStep::Driver => {
                self.record(TraceKind::Local, 0, (self.driver.phase as u64, 0));
                self.driver_acts();
            }
        }
    }

    /// A part is written, or a checkpoint sealed; the disk may lose power meanwhile.
    fn write(&mut self, number: NodeNumber) {
        let Some(node) = self.nodes.get_mut(&number) else { return };
        let cut = self.power_fails.take();
        if let Some(after) = cut {
            self.around.store.files.cut_after(after);
        }
        node.shared.checkpoints().write_next();
        if cut.is_some() {
            self.around.store.files.lose_power();
        }
        let operations = self.around.store.files.operations();
        self.record(TraceKind::Journal, number, (operations, 0));
        self.decide(number, || format!("{operations} operations on files so far"));
    }

    fn run_thread(&mut self, number: NodeNumber) {
        let Some(node) = self.nodes.get_mut(&number) else { return };
        let halt = node.run();
        let Some(halt) = halt else {
            return self.fail(
                RunVerdict::Liveness,
                format!("the thread of process {number} does not come back"),
            );
        };
        let batches = self.witness().batches;
        let commits = self.witness().commits_made;
        let offered = self.lock_exchange().offered;
        self.record(TraceKind::Thread, number, (batches << 32 | commits, offered));
        self.decide(number, || {
            let halt = match &halt {
                ThreadHalt::Between => "goes on",
                ThreadHalt::Command => "waits for a command",
                ThreadHalt::Group => "waits for its group",
                ThreadHalt::Ended(_) => "has ended",
            };
            format!("{halt}: {batches} batches, {commits} commits, {offered} operations so far")
        });
        if let ThreadHalt::Ended(end) = halt {
            self.check_end(number, &end);
            self.end_node(number);
        }
    }

    /// A thread ends as it should.
    fn check_end(&self, number: NodeNumber, end: &SimulatedThreadEnd) {
        let Some(node) = self.nodes.get(&number) else { return };
        let exit = match &node.exit {
            Some(TrainingCommand::Exit(exit)) => Some(exit),
            _ => None,
        };
        let is_gone = self.gone.contains(&number);
        let is_right = match (end, exit) {
            (
                SimulatedThreadEnd::Returned,
                Some(RunExit::Left { .. } | RunExit::Finished { .. }),
            ) => true,
            (SimulatedThreadEnd::Failed(error), Some(RunExit::Failed)) => {
                error == FAILS || error.contains("on the GPU")
            }
            (SimulatedThreadEnd::Failed(error), _) if is_gone => {
                error.contains("actor") || error == FAILS
            }
            (SimulatedThreadEnd::Panicked(text), _) => text == PANICS,
            _ => false,
        };
        if !is_right {
            self.violated(format!("process {number} ends with {end:?}, and was told {exit:?}"));
        }
    }

    /// State of the driver's script, and the waits of all processes, in words.
    fn waits(&self) -> String {
        let halt = |node: &TrainingNode| node.seat.turnstile.as_ref().map(Turnstile::halt);
        let halts: Vec<_> = self.nodes.iter().map(|(number, node)| (number, halt(node))).collect();
        format!("{:?}, processes {halts:?}", self.driver)
    }

    fn last_fault(&self) -> u64 {
        self.strikes.last().map_or(0, |strike| strike.at)
    }

    fn fail(&mut self, verdict: RunVerdict, reason: String) {
        self.failure.get_or_insert(RunFailure { verdict, reason });
    }

    fn judge(&mut self) {
        let disagreement = self.lock_exchange().disagreement.take();
        let violation = self.witness().violation.take();
        if let Some(reason) = violation.or(disagreement) {
            self.fail(RunVerdict::Safety, reason);
        }
        if self.driver.phase == ScriptPhase::Finished && self.nodes.is_empty() {
            self.is_done = true;
        } else if self.events > self.last_fault() + EVENTS_TO_END_MAX {
            let reason = format!("the job has not ended: {}", self.waits());
            self.fail(RunVerdict::Liveness, reason);
        }
    }

    /// Notes the content of the checkpoint files at the end of the run.
    fn decide_files(&mut self) {
        if !self.trace.decisions.is_wanted() {
            return;
        }
        for path in self.around.store.files.files() {
            let (mut length, mut hash) = (0, 0);
            let read = self.around.store.files.change(&path, |bytes| {
                length = bytes.len();
                let told = without_time(bytes);
                hash = told.iter().fold(0, |hash, byte| mix(hash, u64::from(*byte)));
            });
            if read.is_ok() {
                self.decide(0, || {
                    format!("{}: {length} bytes {:04x}", path.display(), hash & 0xffff)
                });
            }
        }
    }

    fn report(mut self) -> RunReport {
        self.trace.finish();
        self.decide_files();
        let plan = self.strikes.iter().enumerate();
        let plan = plan.map(|(number, strike)| format!("{number}: {strike:?}")).collect();
        let commits = self.witness().commits_made;
        RunReport {
            options: self.options.clone(),
            events: self.trace.count(),
            nanoseconds: self.now,
            hash: self.trace.hash(),
            checkpoints: self.trace.checkpoints().to_vec(),
            resets: self.driver.resets,
            generations: self.driver.generations,
            commits,
            shards: self.job.shards(),
            interregna: 0,
            faults: self.strikes.len(),
            plan,
            result: self.is_done.then(|| "all have returned".to_owned()),
            failure: self.failure.take(),
            decisions: self.trace.decisions.take(),
            states: self.trace.states.take(),
            recordings: Vec::new(),
            last_events: self.trace.columns(),
        }
    }
}

/// A file's bytes, for a manifest without the time at which it was written, which is the machine's, and the checksum over it.
fn without_time(bytes: &[u8]) -> Vec<u8> {
    match serde_json::from_slice::<serde_json::Value>(bytes) {
        Ok(mut manifest) if manifest.get("saved_at_ms").is_some() => {
            manifest["saved_at_ms"] = 0.into();
            manifest["checksum"] = "".into();
            manifest.to_string().into_bytes()
        }
        _ => bytes.to_vec(),
    }
}
