//! [`StoreWorld`]: a run in mode `store`: one scheduler, which draws the next step, the driver's store, a relay for each host,
//! and their clients. Called by `sim::run`.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;

use elastic_protocol::{
    GenerationId, HostName, Incarnation, NodeId, NodeName, Stamp, Term, Time, WorkerId,
};
use elastic_runtime::random::stream;
use elastic_store::core::StoreCore;
use elastic_store::limits::{PENDING_MAX, READ_BYTES};
use elastic_store::messages::{ClientId, FromStore, ToStore};
use elastic_store::relay::core::{ConnectionOwner, RelayCore};
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::client::{ClientFault, StoreClient};
use super::faults::{self, PlannedStoreFault};
use super::model::StoreModel;
use super::script;
use crate::decisions::store as words;
use crate::options::RunOptions;
use crate::report::{RunFailure, RunReport, RunVerdict};
use crate::trace::{Recording, RunTrace, TraceKind, TracePlace};

const MS: u64 = 1_000_000;

/// Most messages on the way from a relay to the store.
const ON_THE_WAY_MAX: usize = 8;

/// Events between two looks at the states of the nodes, if states are recorded.
const LOOK_EVERY: u64 = 64;

/// Most events after the last fault until all is answered.
const EVENTS_TO_END_MAX: u64 = 40_000;

/// Most clients that come to end the waits of others.
const RESCUES_MAX: u32 = 60;

/// A host: its agent's relay, its session with the driver, and its clients.
pub(super) struct SimulatedAgent {
    pub(super) node: NodeId,
    pub(super) relay: RelayCore,
    pub(super) is_up: bool,
    /// The life of the driver with which the last session was.
    pub(super) known_driver: NodeId,
    pub(super) up: VecDeque<ToStore>,
    /// Messages of the store, each with its sender.
    pub(super) down: VecDeque<(NodeId, FromStore)>,
    pub(super) clients: BTreeMap<ClientId, StoreClient>,
    /// Bytes of long answers that the store does not know as taken, by client.
    pub(super) untaken: BTreeMap<u64, usize>,
}

/// Steps that the scheduler can draw.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum NextStoreStep {
    Connect(usize),
    Send(usize, ClientId),
    Read(usize, ClientId),
    Take(usize, ClientId),
    Fetch(usize),
    ToStore(usize),
    FromStore(usize),
    SessionBegins(usize),
}

/// The run.
pub(crate) struct StoreWorld {
    options: RunOptions,
    random: ChaCha8Rng,
    plan: Vec<PlannedStoreFault>,
    next_fault: usize,
    trace: RunTrace,
    now: u64,
    events: u64,
    has_long_values: bool,
    pub(super) agents: Vec<SimulatedAgent>,
    pub(super) store: StoreCore,
    pub(super) model: StoreModel,
    pub(super) driver: NodeId,
    generation: u64,
    /// Number of clients before a program shows that it is elastic in process: later clients may belong to no generation, and no
    /// other generation begins.
    kept_after: u32,
    /// Clients that are still to come.
    to_come: u32,
    next_slot: u32,
    rescues: u32,
    pub(super) answers: u64,
    driver_deaths: u64,
    pub(super) failure: Option<RunFailure>,
    is_done: bool,
}

fn driver(life: u64) -> NodeId {
    NodeId { name: NodeName::Driver, incarnation: Incarnation(life) }
}

/// Half of the jobs are by restart to the end.
fn draw_kept_after(seed: u64) -> u32 {
    let mut random = stream(seed, "kept", 0);
    if random.random_bool(0.5) { u32::MAX } else { random.random_range(0..24) }
}

impl StoreWorld {
    pub(crate) fn new(options: &RunOptions, recording: Recording) -> Self {
        let mut random = stream(options.seed, "store order", 0);
        let plan = if options.calm { Vec::new() } else { faults::draw(options.seed) };
        let hosts = random.random_range(1..4);
        let agent = |number: usize| {
            let host = HostName::new(&format!("h{number}")).expect("a short name");
            let mut relay = RelayCore::new();
            relay.handle_up(Time::ZERO, driver(1));
            SimulatedAgent {
                node: NodeId { name: NodeName::Agent(host), incarnation: Incarnation(1) },
                relay,
                is_up: true,
                known_driver: driver(1),
                up: VecDeque::new(),
                down: VecDeque::new(),
                clients: BTreeMap::new(),
                untaken: BTreeMap::new(),
            }
        };
        Self {
            options: options.clone(),
            plan,
            next_fault: 0,
            trace: RunTrace::new(recording),
            now: MS,
            events: 0,
            has_long_values: random.random_bool(0.2),
            agents: (0..hosts).map(agent).collect(),
            store: StoreCore::new(),
            model: StoreModel::default(),
            driver: driver(1),
            generation: 1,
            kept_after: draw_kept_after(options.seed),
            to_come: random.random_range(2..16),
            next_slot: 0,
            rescues: 0,
            answers: 0,
            driver_deaths: 0,
            failure: None,
            is_done: false,
            random,
        }
    }

    pub(super) const fn time(&self) -> Time {
        Time(self.now)
    }

    pub(super) fn violated(&mut self, what: String) {
        self.fail(RunVerdict::Safety, what);
    }

    fn fail(&mut self, verdict: RunVerdict, reason: String) {
        self.failure.get_or_insert(RunFailure { verdict, reason });
    }

    pub(super) fn record(&mut self, kind: TraceKind, host: usize, numbers: (u64, u64)) {
        let place = TracePlace::agent(host as u32);
        self.trace.record(self.now, kind, place, numbers, String::new);
    }

    /// Notes a decision of a node.
    pub(super) fn decide(&mut self, host: usize, words: impl FnOnce() -> String) {
        self.trace.decisions.note(self.now, TracePlace::agent(host as u32), words);
    }

    /// Runs to the end.
    pub(crate) fn run(mut self) -> RunReport {
        while self.failure.is_none() && !self.is_done {
            self.step();
        }
        self.report()
    }

    /// Notes an output of a core, if states are recorded.
    pub(super) fn put_out(&mut self, place: TracePlace, core: &'static str, output: &dyn Debug) {
        self.trace.states.put_out(self.now, place, core, output);
    }

    /// Notes the states of the store and the relays.
    fn look_at_nodes(&mut self) {
        let (at, states) = (self.now, &mut self.trace.states);
        states.begin_look(at);
        states.note(at, TracePlace::DRIVER, "store", &self.store);
        for (host, agent) in self.agents.iter().enumerate() {
            states.note(at, TracePlace::agent(host as u32), "relay", &agent.relay);
        }
    }

    fn step(&mut self) {
        if self.trace.states.is_wanted() && self.events.is_multiple_of(LOOK_EVERY) {
            self.look_at_nodes();
        }
        self.events += 1;
        self.now += self.random.random_range(1..8) * MS;
        while let Some(planned) = self.plan.get(self.next_fault).copied()
            && planned.at <= self.events
        {
            let number = self.next_fault;
            self.next_fault += 1;
            if self.options.keep.as_ref().is_none_or(|keep| keep.contains(&number)) {
                self.record(TraceKind::Fault, number, (planned.at, u64::from(planned.pick)));
                self.strike(planned);
            }
        }
        self.fire_timers();
        let choices = self.choices();
        if choices.is_empty() {
            return self.come_to_rest();
        }
        let next = choices[self.random.random_range(0..choices.len())];
        self.carry_out(next);
        let last_fault = self.plan.last().map_or(0, |planned| planned.at);
        if self.events > last_fault + EVENTS_TO_END_MAX {
            let reason = format!("not all is answered: {}", self.waits());
            self.fail(RunVerdict::Liveness, reason);
        }
    }

    /// Lets time pass. Relays read what they may before: their readers wait for nothing else.
    pub(super) fn pass(&mut self, seconds: u64) {
        while let Some((host, client)) = self.readable() {
            self.read(host, client);
        }
        self.now += seconds * 1_000 * MS;
    }

    /// A client of which the relay may read now.
    fn readable(&self) -> Option<(usize, ClientId)> {
        let of = |(host, agent): (usize, &SimulatedAgent)| {
            let mut clients = agent.clients.iter();
            let found = clients.find(|(_, it)| it.is_read && !it.socket.is_empty());
            found.map(|(client, _)| (host, *client))
        };
        self.agents.iter().enumerate().find_map(of)
    }

    fn fire_timers(&mut self) {
        let now = self.time();
        for host in 0..self.agents.len() {
            if self.agents[host].relay.poll_timeout().is_some_and(|at| at <= now) {
                self.agents[host].relay.handle_timeout(now);
                self.record(TraceKind::Timer, host, (0, 0));
                self.hear_relay(host);
            }
        }
    }

    fn choices(&self) -> Vec<NextStoreStep> {
        let mut choices = Vec::new();
        for (host, agent) in self.agents.iter().enumerate() {
            if self.to_come > 0 {
                choices.push(NextStoreStep::Connect(host));
            }
            for (client, it) in &agent.clients {
                if it.may_send() {
                    choices.push(NextStoreStep::Send(host, *client));
                }
                if it.is_read && !it.socket.is_empty() {
                    choices.push(NextStoreStep::Read(host, *client));
                }
                if !it.unread.is_empty() {
                    choices.push(NextStoreStep::Take(host, *client));
                }
            }
            if !agent.is_up {
                choices.push(NextStoreStep::SessionBegins(host));
                continue;
            }
            if agent.up.len() < ON_THE_WAY_MAX {
                choices.push(NextStoreStep::Fetch(host));
            }
            if !agent.up.is_empty() {
                choices.push(NextStoreStep::ToStore(host));
            }
            if !agent.down.is_empty() {
                choices.push(NextStoreStep::FromStore(host));
            }
        }
        // A fetch that finds nothing changes nothing: it does not keep the run from coming to rest.
        let only_fetches = choices.iter().all(|it| matches!(it, NextStoreStep::Fetch(_)));
        if only_fetches { Vec::new() } else { choices }
    }

    fn carry_out(&mut self, next: NextStoreStep) {
        let now = self.time();
        match next {
            NextStoreStep::Connect(host) => {
                self.to_come -= 1;
                let script = script::draw(&mut self.random, self.has_long_values);
                let fault = match self.random.random_range(0..20) {
                    _ if self.options.calm => None,
                    0 => Some(ClientFault::Nonsense(self.random.random_range(0..4))),
                    1 => Some(ClientFault::StandsStill),
                    _ => None,
                };
                let stamp = self.draw_stamp();
                self.connect(host, stamp, script, fault);
            }
            NextStoreStep::Send(host, client) => {
                if let Some(it) = self.agents[host].clients.get_mut(&client) {
                    it.send(now);
                }
                self.record(TraceKind::Enter, host, (client.0, 0));
            }
            NextStoreStep::Read(host, client) => self.read(host, client),
            NextStoreStep::Take(host, client) => self.take(host, client),
            NextStoreStep::Fetch(host) => self.fetch(host),
            NextStoreStep::ToStore(host) => {
                if let Some(message) = self.agents[host].up.pop_front() {
                    self.store_hears(host, message);
                }
            }
            NextStoreStep::FromStore(host) => {
                if let Some((from, message)) = self.agents[host].down.pop_front() {
                    self.relay_hears(host, &from, message);
                }
            }
            NextStoreStep::SessionBegins(host) => self.begin_session(host),
        }
    }

    /// Whether the program has shown that it is elastic in process.
    const fn is_in_process(&self) -> bool {
        self.next_slot >= self.kept_after
    }

    /// The generation of a process: mostly the newest one, sometimes the one before, and none for a process that was started
    /// since the program is elastic in process.
    fn draw_stamp(&mut self) -> Stamp {
        match self.random.random_range(0..10) {
            0..5 if self.is_in_process() => Stamp::default(),
            2 => self.stamp_of(self.generation.saturating_sub(1).max(1)),
            _ => self.stamp_of(self.generation),
        }
    }

    const fn stamp_of(&self, generation: u64) -> Stamp {
        Stamp { term: Term(1), generation: GenerationId(generation) }
    }

    fn connect(
        &mut self,
        host: usize,
        stamp: Stamp,
        script: Vec<elastic_store::wire::Request>,
        fault: Option<ClientFault>,
    ) {
        let NodeName::Agent(name) = self.agents[host].node.name.clone() else { return };
        self.next_slot += 1;
        let worker = WorkerId { host: name, slot: self.next_slot / 2, incarnation: Incarnation(1) };
        let owner = ConnectionOwner { worker: worker.clone(), stamp };
        let Some(client) = self.agents[host].relay.handle_connected(owner) else {
            return self.violated("a connection is refused".to_owned());
        };
        let it = StoreClient::new(worker, stamp, script, fault);
        self.agents[host].clients.insert(client, it);
        self.record(TraceKind::Start, host, (client.0, stamp.generation.0));
    }

    fn read(&mut self, host: usize, client: ClientId) {
        let now = self.time();
        let most = if self.random.random_bool(0.2) { 7 } else { READ_BYTES };
        let agent = &mut self.agents[host];
        let Some(it) = agent.clients.get_mut(&client) else { return };
        let length = it.socket.len().min(most);
        let bytes: Vec<u8> = it.socket.drain(..length).collect();
        it.is_read = false;
        let reads_on = agent.relay.handle_bytes(now, client, &bytes);
        if let Some(it) = agent.clients.get_mut(&client) {
            it.is_read = reads_on;
        }
        self.record(TraceKind::Deliver, host, (client.0, length as u64));
        self.hear_relay(host);
    }

    fn take(&mut self, host: usize, client: ClientId) {
        let now = self.time();
        let agent = &mut self.agents[host];
        let Some(it) = agent.clients.get_mut(&client) else { return };
        if let Err(wrong) = it.take() {
            return self.violated(format!("client {} of h{host}: {wrong}", client.0));
        }
        self.answers += 1;
        agent.relay.handle_written(now, client);
        self.record(TraceKind::Result, host, (client.0, 0));
        self.hear_relay(host);
    }

    fn fetch(&mut self, host: usize) {
        let Some(message) = self.agents[host].relay.poll_message() else { return };
        self.check_passed_on(host, &message);
        self.decide(host, || words::to_store(&message));
        self.agents[host].up.push_back(message);
        self.record(TraceKind::Send, host, (0, 0));
    }

    /// A client closes its connection.
    pub(super) fn close_client(&mut self, host: usize, client: ClientId) {
        let now = self.time();
        let agent = &mut self.agents[host];
        if agent.clients.remove(&client).is_some() {
            agent.relay.handle_closed(now, client);
            self.record(TraceKind::Exit, host, (client.0, 0));
            self.hear_relay(host);
        }
    }

    /// A worker's process is stopped.
    pub(super) fn stop_worker(&mut self, host: usize, worker: &WorkerId) {
        let now = self.time();
        let agent = &mut self.agents[host];
        agent.clients.values_mut().filter(|it| it.worker == *worker).for_each(|it| {
            it.is_refused = true;
        });
        agent.relay.handle_generation_ended(now, worker);
        self.record(TraceKind::Signal, host, (u64::from(worker.slot), 0));
        self.hear_relay(host);
        if self.agents[host].clients.values().any(|it| it.worker == *worker) {
            self.violated(format!("a connection of {worker} outlives its generation"));
        }
    }

    /// A generation begins, and processes come. One in process keeps the processes of the former one.
    pub(super) fn begin_generation(&mut self) {
        self.generation += u64::from(!self.is_in_process());
        self.to_come += self.random.random_range(1..5);
    }

    /// Nothing happens any more: either all is answered, or a client comes that ends the waits.
    fn come_to_rest(&mut self) {
        for host in 0..self.agents.len() {
            let message = self.agents[host].relay.poll_message();
            if let Some(message) = message {
                self.check_passed_on(host, &message);
                self.agents[host].up.push_back(message);
                return;
            }
        }
        let faults_are_over = self.next_fault == self.plan.len();
        let waiting = self.agents.iter().flat_map(|agent| agent.clients.values());
        let waiting = waiting.filter(|it| it.is_sound() && !it.is_done()).count();
        if waiting > 0 && self.rescues < RESCUES_MAX {
            self.rescues += 1;
            // A client that stands still gives its turn up after a while.
            self.pass(if self.rescues.is_multiple_of(3) { 31 } else { 0 });
            let host = self.rescues as usize % self.agents.len();
            let newest = self.stamp_of(self.generation);
            let stamps = [if self.is_in_process() { Stamp::default() } else { newest }, newest];
            return self.connect(host, stamps[self.rescues as usize % 2], script::rescue(), None);
        }
        if waiting > 0 {
            let reason = format!("not all is answered: {}", self.waits());
            return self.fail(RunVerdict::Liveness, reason);
        }
        if faults_are_over {
            return self.end();
        }
        // The next fault comes at once.
        self.events = self.plan.get(self.next_fault).map_or(self.events, |planned| planned.at);
    }

    /// All clients go: nothing may be left of them.
    fn end(&mut self) {
        for host in 0..self.agents.len() {
            let clients: Vec<ClientId> = self.agents[host].clients.keys().copied().collect();
            clients.into_iter().for_each(|client| self.close_client(host, client));
            while let Some(message) = self.agents[host].relay.poll_message() {
                self.store_hears(host, message);
            }
            let bytes = self.agents[host].relay.bytes();
            if bytes > 0 {
                self.violated(format!("the relay of h{host} keeps {bytes} bytes of nobody"));
            }
        }
        if self.store.clients() > 0 {
            self.violated(format!(
                "the store keeps {} clients that are gone",
                self.store.clients()
            ));
        }
        self.is_done = true;
    }

    /// The driver dies, and another life of it begins. Messages on their way are lost, but for one to each host, which may come
    /// late.
    pub(super) fn replace_driver(&mut self) {
        self.driver_deaths += 1;
        self.driver = driver(self.driver_deaths + 1);
        self.store = StoreCore::new();
        self.model = StoreModel::default();
        for host in 0..self.agents.len() {
            let late = self.agents[host].down.pop_front().filter(|_| self.random.random_bool(0.5));
            self.cut(host);
            self.agents[host].down.extend(late);
        }
    }

    /// A host's session with the driver breaks.
    pub(super) fn lose_session(&mut self, host: usize) {
        if self.agents[host].is_up {
            self.cut(host);
            let node = self.agents[host].node.clone();
            self.store.handle_lost(&node);
            for key in self.model.clients_of(host as u32) {
                self.model.forget(key);
            }
            self.hear_store();
        }
    }

    fn cut(&mut self, host: usize) {
        let agent = &mut self.agents[host];
        agent.is_up = false;
        agent.up.clear();
        agent.down.clear();
        agent.untaken.clear();
        agent.relay.handle_lost();
        self.record(TraceKind::Link, host, (0, 0));
    }

    pub(super) fn waits(&self) -> String {
        let of = |(host, agent): (usize, &SimulatedAgent)| {
            let clients = agent.clients.iter().filter(|(_, it)| it.is_sound() && !it.is_done());
            let clients: Vec<String> = clients
                .map(|(client, it)| format!("client {} of h{host}: {}", client.0, it.waits()))
                .collect();
            clients.join("; ")
        };
        self.agents.iter().enumerate().map(of).collect::<Vec<_>>().join(" | ")
    }

    fn report(mut self) -> RunReport {
        self.trace.finish();
        let plan = self.plan.iter().enumerate();
        let plan = plan.map(|(number, planned)| format!("{number}: {planned:?}")).collect();
        RunReport {
            options: self.options.clone(),
            events: self.trace.count(),
            nanoseconds: self.now,
            hash: self.trace.hash(),
            checkpoints: self.trace.checkpoints().to_vec(),
            resets: self.driver_deaths,
            generations: self.generation,
            commits: self.answers,
            shards: None,
            interregna: 0,
            faults: self.plan.len(),
            plan,
            result: self.is_done.then(|| "all is answered".to_owned()),
            failure: self.failure.take(),
            decisions: self.trace.decisions.take(),
            states: self.trace.states.take(),
            recordings: Vec::new(),
            last_events: self.trace.columns(),
        }
    }

    /// Most requests of a connection that the relay holds.
    pub(super) const fn pending_max() -> usize {
        PENDING_MAX
    }
}
