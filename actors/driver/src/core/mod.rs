//! The driver as a state machine: no actix, no tokio, no clock. Called by `actor`, and by the simulation.
//!
//! Inputs are `handle_*`, outputs `poll_output`, the one deadline `poll_timeout`. A loss is acted upon at once. A
//! change that may wait (of hosts, slots, workers) only asks for a *review* a moment later, which compares the wanted
//! state with the actual one. The review is level-triggered: no change is lost however changes interleave (G-7), and
//! a burst of changes costs one pass.

mod agenda;
mod agents;
mod checkpoints;
mod commit_pace;
mod config;
mod divergence;
mod drivers;
mod ending;
mod environment;
mod event;
mod event_form;
mod first_cause;
mod first_steps;
mod former_nodes;
mod fruitless;
mod gather;
mod hangs;
mod health;
pub(crate) mod held_answers;
mod inactivity;
mod input;
mod interrupt;
mod job_command;
mod journal_check;
mod journaling;
mod last_save;
mod leavers;
mod links;
mod losses;
mod membership;
mod outbox;
mod outdated;
mod output;
mod pace_spell;
mod pacing;
mod phase;
mod quarrels;
mod random;
mod rebalancing;
mod refused;
mod replacements;
mod reset_rate;
mod reset_report;
mod restart;
mod restored;
mod review;
mod roster;
mod round;
mod slot_closing;
mod slot_failures;
mod slow_load;
mod standing;
mod state_losses;
mod status;
mod stopping;
mod stragglers;
mod table;
mod takeover;
mod tell;
#[cfg(test)]
mod tests;
mod timers;
mod trained_state;
mod untrained_ends;
mod workers;

use std::collections::BTreeMap;

use elastic_host_manager::{HostEntry, HostState, HostsSnapshot};
use elastic_protocol::messages::DriverStatus;
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{JobId, Term, Time};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use self::agenda::Timetable;
use self::checkpoints::Checkpoints;
pub use self::config::{
    CheckpointEvery, CheckpointSettings, DriverConfig, ElasticMode, HealthCheck,
    InvalidDriverConfig, OnDivergence, OnFailure, OnHang, OnStraggler, OnTotalLoss, ResumeFrom,
};
use self::divergence::Divergence;
pub use self::event::{DriverEvent, EventKind, HostResetMs, ReplacedFor, ResetWay};
pub use self::event_form::{InvalidListedHost, ListedHost};
use self::first_cause::FirstCause;
use self::first_steps::FirstSteps;
use self::former_nodes::Takeover;
use self::hangs::Hangs;
use self::health::HealthChecks;
use self::inactivity::Inactivity;
pub use self::input::DriverInput;
use self::links::Links;
use self::outbox::DriverOutbox;
pub use self::output::DriverOutput;
use self::pacing::Pacing;
use self::phase::RoundPhase;
use self::quarrels::Quarrels;
use self::random::DriverRandom;
use self::rebalancing::Rebalancing;
use self::replacements::Replacements;
use self::reset_rate::ResetRate;
use self::roster::Roster;
use self::round::Round;
pub use self::slot_failures::PROGRAMLESS_HOSTS;
pub use self::standing::{Until, WorkerStanding};
pub use self::status::Glance;
use self::stopping::PendingStop;
use self::stragglers::Stragglers;
use self::table::Stance;
use self::timers::Timer;
use self::trained_state::TrainedState;
use self::untrained_ends::UntrainedEnds;
use crate::journal::Image;

/// The driver's state machine; one for each job. It routes inputs to its handlers, one file for each topic. The
/// handlers' state is owned by its parts. Each part checks its own invariants after every input, in debug builds and
/// in the simulation.
#[derive(Debug, Deserialize, Serialize)]
pub struct DriverCore {
    config: DriverConfig,
    job: JobId,
    term: Term,
    /// Source of back-off jitter and of the keys of generations.
    #[serde(skip)]
    random: DriverRandom,
    /// Hosts, agents, slots and workers.
    roster: Roster,
    /// The current generation, its phase, and resets.
    round: Round,
    /// Failures since a generation last trained.
    first_cause: FirstCause,
    /// The members' first steps after a reset.
    #[serde(default)]
    first_steps: FirstSteps,
    /// Hosts that do not reach each other.
    quarrels: Quarrels,
    /// Members that stand still while others wait for them.
    #[serde(default)]
    hangs: Hangs,
    /// Members by restart that stand still against their peers.
    #[serde(default)]
    inactivity: Inactivity,
    /// Members' times of computation in a step, and the slow members.
    #[serde(default)]
    stragglers: Stragglers,
    /// Rates of data between hosts, and the slow links.
    #[serde(default)]
    links: Links,
    /// Members that were replaced since they hung or were slow.
    #[serde(default)]
    replacements: Replacements,
    /// Health checks of the hosts of replaced members.
    #[serde(default)]
    health: HealthChecks,
    /// Members that are slow and carry fewer shards.
    #[serde(default)]
    rebalancing: Rebalancing,
    /// Digests of the members' commits, and replicas that differ.
    #[serde(default)]
    divergence: Divergence,
    /// Resets that bring the job no further.
    pacing: Pacing,
    /// Unplanned resets of the last minutes.
    #[serde(default)]
    reset_rate: ResetRate,
    /// Progress of the training state, and the number of lost steps.
    state: TrainedState,
    /// Slots whose process has ended without having trained.
    #[serde(default)]
    untrained_ends: UntrainedEnds,
    /// Saves of durable checkpoints.
    checkpoints: Checkpoints,
    /// The operator's request to end, while it waits for a checkpoint.
    #[serde(default)]
    stopping: Option<PendingStop>,
    /// The signal and the reason of the operator's request to end, while it waits for the end of a takeover.
    #[serde(default)]
    stop_asked: Option<(i32, String)>,
    /// Timers, and the pending review.
    agenda: Timetable,
    /// Pending outputs, and the records that they wait for.
    outbox: DriverOutbox,
    /// State of a takeover, until all agents and workers of the former driver are back or lost; else none.
    takeover: Option<Takeover>,
    /// Standby drivers.
    standbys: Vec<DriverStatus>,
    dropped_messages: u64,
}

impl DriverCore {
    /// A driver at the beginning of its job. `rng` must be seeded from the system's entropy outside of tests: the
    /// keys of the collectives come from it.
    pub fn new(config: DriverConfig, job: JobId, term: Term, rng: ChaCha8Rng, now: Time) -> Self {
        let deadline = now + config.deadlines.elastic;
        let workers_max = Self::workers_max(config.max_np);
        let mut agenda = Timetable::default();
        let round = Round::new(now, deadline, &mut agenda);
        Self {
            config,
            job,
            term,
            random: DriverRandom::new(rng),
            roster: Roster::new(workers_max),
            round,
            first_cause: FirstCause::default(),
            first_steps: FirstSteps::default(),
            quarrels: Quarrels::default(),
            hangs: Hangs::default(),
            inactivity: Inactivity::default(),
            stragglers: Stragglers::default(),
            links: Links::default(),
            replacements: Replacements::default(),
            health: HealthChecks::default(),
            rebalancing: Rebalancing::default(),
            divergence: Divergence::default(),
            pacing: Pacing::default(),
            reset_rate: ResetRate::default(),
            state: TrainedState::default(),
            untrained_ends: UntrainedEnds::default(),
            checkpoints: Checkpoints::restored(None),
            stopping: None,
            stop_asked: None,
            agenda,
            outbox: DriverOutbox::default(),
            takeover: None,
            standbys: Vec::new(),
            dropped_messages: 0,
        }
    }

    /// The next output; call after every input until none is left. An output that depends on an unstored record
    /// waits, and so do all after it.
    pub fn poll_output(&mut self) -> Option<DriverOutput> {
        let output = self.outbox.poll();
        if output.is_none() {
            debug_assert_eq!(self.check(), Ok(()));
        }
        output
    }

    /// Time at which `handle_timeout` must be called next.
    pub fn poll_timeout(&self) -> Option<Time> {
        if self.outbox.is_retired() {
            return None;
        }
        [self.agenda.next(), self.outbox.retry_at()].into_iter().flatten().min()
    }

    /// Whether outputs wait for a record.
    pub(crate) fn holds_outputs(&self) -> bool {
        self.outbox.holds_outputs()
    }

    pub(crate) const fn job(&self) -> JobId {
        self.job
    }

    pub(crate) const fn term(&self) -> Term {
        self.term
    }

    pub(crate) const fn config(&self) -> &DriverConfig {
        &self.config
    }

    /// The state that all records of the journal give, and the number of the last of them; none without a journal.
    pub(crate) fn journaled(&self) -> Option<(&Image, u64)> {
        self.outbox.journaled()
    }

    /// Keeps the numbers that are drawn, for a recording.
    pub(crate) fn keep_drawn(&mut self) {
        self.random.keep_drawn();
    }

    /// The numbers drawn since the last call.
    pub(crate) fn take_drawn(&mut self) -> Vec<u64> {
        self.random.take_drawn()
    }

    /// Gives a core that is replayed the numbers that its next inputs draw.
    pub(crate) fn give_drawn(&mut self, drawn: Vec<u64>) {
        self.random.give(drawn);
    }

    /// Checks the invariants of the parts, and between them.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check(&self) -> Result<(), String> {
        self.roster.check()?;
        self.roster.check_seating(&self.round)?;
        self.round.check()?;
        self.quarrels.check()?;
        self.hangs.check()?;
        self.replacements.check(self.config.replacements_max)?;
        self.rebalancing.check(self.config.rebalances_max)?;
        self.divergence.check()?;
        self.pacing.check()?;
        self.reset_rate.check()?;
        self.outbox.check(self.round.orders())?;
        self.takeover.as_ref().map_or(Ok(()), Takeover::check)?;
        self.check_state()?;
        self.check_members()?;
        self.check_drained_agents()?;
        self.check_timers()?;
        self.check_journal()
    }

    /// Checks that the roster and the generation formed last agree.
    fn check_members(&self) -> Result<(), String> {
        if self.takeover.is_none()
            && self.round.phase().is_generation_active()
            && let Some(worker) = self.round.alive().find(|worker| !self.roster.has_worker(worker))
        {
            return Err(format!("{worker} is alive in its generation and not on the roster"));
        }
        for (worker, record) in self.roster.workers() {
            let takes_part = matches!(record.stance, Stance::Member | Stance::Finished);
            if takes_part && self.round.rank_of(worker).is_none() {
                return Err(format!("{worker} is a member and has no rank"));
            }
        }
        // A pause waits for answers, also of a member that has just arrived since a collective of its failed. The
        // registry's verdict on that failure ends the pause.
        let phase = self.round.phase();
        let is_pausing = matches!(phase, RoundPhase::Pausing { .. });
        let awaited = phase.waiting_for().filter(|_| !is_pausing).into_iter().flatten();
        for worker in awaited {
            let record = self.roster.worker(worker);
            if record.is_some_and(|record| record.stance == Stance::Arrived) {
                return Err(format!("{worker} is waited for and has arrived"));
            }
        }
        Ok(())
    }

    /// Checks that no agent that asked to leave and is gone with all its workers is kept as a lost one.
    fn check_drained_agents(&self) -> Result<(), String> {
        let reviews = self.takeover.is_none() && self.stopping.is_none();
        if !reviews || self.round.phase().is_over() || self.agenda.is_review_asked() {
            return Ok(());
        }
        for (host, agent) in self.roster.agents() {
            let is_lost = agent.link == table::PeerLink::Down;
            if is_lost && !agent.dismissed && self.roster.has_drained(host) {
                return Err(format!("X-17: the agent of {host} has left and is kept as lost"));
            }
        }
        Ok(())
    }

    /// Checks that every wait has its timer (G-9).
    fn check_timers(&self) -> Result<(), String> {
        if let Some(deadline) = self.round.phase().deadline()
            && !self.agenda.covers(deadline, Timer::Phase)
        {
            return Err(format!("G-9: the phase {} has no timer", self.round.phase().name()));
        }
        if let Some(takeover) = &self.takeover
            && !self.agenda.covers(takeover.deadline(), Timer::Takeover)
        {
            return Err("G-9: the takeover has no timer".to_owned());
        }
        if let Some(at) = self.hangs.due_at()
            && !self.agenda.covers(at, Timer::Hang)
        {
            return Err("G-9: the wait of members for others has no timer".to_owned());
        }
        if let Some(at) = self.inactivity.due_at()
            && !self.agenda.covers(at, Timer::Inactivity)
        {
            return Err("G-9: the look at members by restart has no timer".to_owned());
        }
        if let Some(at) = self.stragglers.due_at()
            && !self.agenda.covers(at, Timer::Straggler)
        {
            return Err("G-9: the review of step times has no timer".to_owned());
        }
        for (host, join) in self.roster.pending_joins() {
            if !self.agenda.covers(join.deadline, Timer::Join(host.clone())) {
                return Err(format!("G-9: the pending join of {host} has no timer"));
            }
        }
        let start = self.config.deadlines.start;
        for (worker, record) in self.roster.workers() {
            let is_awaited = record.stance == Stance::Starting && record.stage.is_none();
            let timer = Timer::Start(worker.clone());
            if is_awaited && !self.agenda.covers(record.since + start, timer.clone()) {
                return Err(format!("G-9: the start of {worker} has no timer"));
            }
            let rests_by = record.since + self.rest_deadline();
            if record.stance == Stance::Attached && !self.agenda.covers(rests_by, timer) {
                return Err(format!("G-9: the rest of {worker} has no timer"));
            }
            let ends_by = record.since + self.config.deadlines.grace;
            let timer = Timer::Departure(worker.clone());
            if record.stance == Stance::Dying && !self.agenda.covers(ends_by, timer) {
                return Err(format!("G-9: the end of {worker}, which has died, has no timer"));
            }
        }
        for (slot, record) in self.roster.slots() {
            let until = record.backoff_until;
            if until.is_some_and(|until| !self.agenda.covers(until, Timer::Slot(slot.clone()))) {
                return Err(format!("G-9: the back-off of {}[{}] has no timer", slot.0, slot.1));
            }
            let until = record.rest.map(|rest| rest.until);
            if until.is_some_and(|until| !self.agenda.covers(until, Timer::Rest(slot.clone()))) {
                return Err(format!("G-9: the rest of {}[{}] has no timer", slot.0, slot.1));
            }
        }
        Ok(())
    }

    /// Takes the hosts that the job may use, from the host manager.
    pub fn handle_hosts(&mut self, now: Time, snapshot: HostsSnapshot) {
        let forms = matches!(self.round.phase(), RoundPhase::Form { .. } | RoundPhase::Sync { .. });
        if forms && is_planted(Bug::ChangeWhileFormingIsLost) {
            return;
        }
        let described = |hosts: &[HostEntry]| -> Vec<ListedHost> {
            hosts.iter().map(ListedHost::new).collect()
        };
        let hosts = described(&snapshot.hosts);
        let changed = hosts != described(self.roster.hosts());
        let unlisted_changed = snapshot.unlisted != self.roster.unlisted();
        for warning in &snapshot.warnings {
            if !self.roster.host_warnings().contains(warning) {
                self.event(EventKind::Warning { message: warning.clone() });
            }
        }
        self.quarrels.handle_hosts(&snapshot.hosts);
        let told = self.changes_of_hosts(now, &snapshot.hosts);
        self.roster.set_hosts(snapshot);
        if !changed {
            if unlisted_changed {
                self.record_hosts();
                self.expel_blacklisted(now);
                self.agenda.ask_review(now);
            }
            return;
        }
        let (needed, min_np) = (self.workers_needed(), self.min_np());
        self.event(EventKind::HostsChanged { needed, min_np, hosts });
        for told in told {
            self.event(told);
        }
        self.record_hosts();
        self.expel_blacklisted(now);
        self.round.gather_changed(now);
        self.agenda.ask_review(now);
    }

    /// The hosts that may not have workers from now on, and those that may again, as events.
    fn changes_of_hosts(&self, now: Time, hosts: &[HostEntry]) -> Vec<EventKind> {
        let known: BTreeMap<_, _> =
            self.roster.hosts().iter().map(|entry| (&entry.name, entry.state)).collect();
        let change = |entry: &HostEntry| {
            // A host that is not known is new, or a former driver has told of it.
            let (host, before) = (entry.name.clone(), *known.get(&entry.name)?);
            match (before, entry.state) {
                (HostState::Blacklisted { .. }, HostState::Blacklisted { .. })
                | (HostState::Drained, HostState::Drained)
                | (HostState::Listed, HostState::Listed) => None,
                (_, HostState::Blacklisted { until }) => {
                    let reason = self.roster.blame_of(&host).unwrap_or("it failed").to_owned();
                    let for_ms = until.map(|until| until.ms_since(now));
                    Some(EventKind::HostBlacklisted { host, reason, for_ms })
                }
                (_, HostState::Drained) => Some(EventKind::HostDrained { host }),
                (_, HostState::Listed) => Some(EventKind::HostReadmitted { host }),
            }
        };
        hosts.iter().filter_map(change).collect()
    }

    fn output(&mut self, output: DriverOutput) {
        self.outbox.put(output);
    }

    fn event(&mut self, kind: EventKind) {
        let (term, generation) = (self.term, self.round.generation());
        self.output(DriverOutput::Event(DriverEvent { term, generation, kind }));
    }

    /// Counts a message that is not obeyed (G-2).
    fn drop_message(&mut self) {
        self.dropped_messages += 1;
    }
}
