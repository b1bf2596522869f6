//! Failures of slots: the back-off before the next process, until the host is blacklisted or the program itself is at
//! fault. Called when a loss is seen (`losses`).

use std::collections::BTreeSet;
use std::time::Duration;

use elastic_host_manager::{HostEntry, HostFault, HostState};
use elastic_protocol::job::shorten;
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{HostName, Time, WorkerId};
use elastic_runtime::restart::RestartBackoff;

use super::DriverCore;
use super::config::{ElasticMode, OnFailure};
use super::event::EventKind;
use super::phase::RoundPhase;
use super::table::{SlotId, Stance};
use super::timers::Timer;

/// Back-off of a slot whose worker failed: it doubles with every failure.
const BACKOFF: RestartBackoff =
    RestartBackoff { base: Duration::from_millis(250), cap: Duration::from_secs(30) };

/// Exits on each slot, before any worker attached, after which the program itself is at fault. Failed starts do not count,
/// since they tell nothing of the program.
const EARLY_EXITS: u32 = 2;

/// Number of hosts lacking the program after which it counts as missing everywhere, however many more hosts there are.
/// Fewer may be tried if the job needs few slots.
pub const PROGRAMLESS_HOSTS: usize = 16;

/// The release of this driver.
const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// Whether a library says that it is of this driver's release: `elastic-node 0.1.0, protocol …`.
fn is_of_release(theirs: &str) -> bool {
    let rest = theirs.strip_prefix("elastic-node ").and_then(|it| it.strip_prefix(RELEASE));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(','))
}

impl DriverCore {
    /// Counts a process that could not be started as a failure of its slot. Such failures never take out a host on which other
    /// workers run: nothing of the host has failed, and a missing resource (a program that is just being replaced, memory,
    /// process ids) may be there at the next attempt.
    pub(crate) fn count_start_failure(&mut self, now: Time, worker: &WorkerId, reason: &str) {
        let slot_id = (worker.host.clone(), worker.slot);
        let failures = self.roster.slot(&slot_id).map_or(0, |slot| slot.failures);
        let is_last = match self.config.on_failure {
            OnFailure::Blacklist => true,
            OnFailure::Restart => failures >= self.config.max_restarts,
        };
        let others_run = self.roster.records_of(&worker.host).any(|(other, record)| {
            other != worker && !record.stance.is_gone() && record.stance != Stance::Starting
        });
        if is_last && others_run && !self.round.phase().is_over() {
            return self.back_off(slot_id, now + BACKOFF.cap);
        }
        self.count_failure(now, worker, reason);
    }

    /// Counts a failure of a slot's worker: back-off or blacklist.
    pub(crate) fn count_failure(&mut self, now: Time, worker: &WorkerId, message: &str) {
        if self.round.phase().is_over() {
            return;
        }
        let is_by_restart = self.is_by_restart();
        let slot_id = (worker.host.clone(), worker.slot);
        let failures = self.roster.count_failure(&slot_id);
        let is_out = match self.config.on_failure {
            OnFailure::Blacklist => true,
            OnFailure::Restart if is_planted(Bug::BlamedTooEarly) => {
                failures >= self.config.max_restarts
            }
            OnFailure::Restart => failures > self.config.max_restarts,
        };
        if is_out {
            let reason = match self.config.on_failure {
                OnFailure::Blacklist => format!("{worker} failed: {}", shorten(message)),
                OnFailure::Restart => {
                    format!("slot {} failed {failures} times", worker.slot)
                }
            };
            self.roster.forgive(&slot_id);
            self.record_slot(&worker.host, worker.slot);
            self.report_failed_host(worker.host.clone(), HostFault::Failed, reason);
            return;
        }
        // By restart, the first failure has no back-off: restarting the whole group takes time enough.
        let earlier = if is_by_restart { failures - 1 } else { failures };
        let wait = match earlier.checked_sub(1) {
            Some(earlier) => BACKOFF.wait(earlier, &mut self.random),
            None => Duration::ZERO,
        };
        let until = now + wait;
        let until = if is_planted(Bug::BackOffNeverEnds) { Time(u64::MAX) } else { until };
        self.back_off(slot_id, until);
    }

    /// Starts no process on a slot before `until`.
    fn back_off(&mut self, slot: SlotId, until: Time) {
        self.roster.back_off(&slot, until);
        self.record_slot(&slot.0, slot.1);
        self.agenda.set(until, Timer::Slot(slot));
    }

    /// Fails the job if its program, in the in-process mode, has attached nowhere and ends again and again on every
    /// slot that the job can use: it would not do better elsewhere (H-10, as if every worker raised). Jobs that hosts
    /// may join at will go on: the next host may be well.
    pub(crate) fn judge_early_failures(&mut self, now: Time) {
        if self.config.mode != ElasticMode::InProcess
            || self.round.program_attaches()
            || self.round.phase().is_over()
        {
            return;
        }
        let failing = self
            .roster
            .slots()
            .map(|(_, slot)| slot)
            .filter(|slot| slot.exits >= EARLY_EXITS)
            .count();
        if !self.config.hosts_join && failing >= self.slots_of_list() {
            let reason = format!(
                "the program ended on every slot {EARLY_EXITS} times before its first call of the library"
            );
            self.fail_with_first_cause(now, &reason);
        }
    }

    /// Slots of all hosts of the list, those set aside included, up to the cap.
    fn slots_of_list(&self) -> usize {
        let listed: usize = self.roster.hosts().iter().map(|entry| entry.slots as usize).sum();
        listed.min(self.config.max_np.map_or(usize::MAX, |max| max as usize))
    }

    /// Fails the job at once if its program cannot be started on any slot: it is missing on every host, or is not
    /// executable, and would be at the next attempt. A job that uses few of its hosts tries the others
    /// first. A job that hosts may join at will waits for the number of slots that it needs.
    pub(crate) fn judge_missing_program(&mut self, now: Time, worker: &WorkerId) {
        self.roster.note_programless(worker);
        let Some(programless) = self.roster.programless() else { return };
        if self.round.phase().is_over() {
            return;
        }
        let joined = if self.config.hosts_join { self.workers_needed() as usize } else { 0 };
        let lacking: BTreeSet<&HostName> = programless.iter().map(|(host, _)| host).collect();
        let may_have_it =
            |entry: &HostEntry| entry.state != HostState::Drained && !lacking.contains(&entry.name);
        let is_everywhere =
            lacking.len() >= PROGRAMLESS_HOSTS || !self.roster.hosts().iter().any(may_have_it);
        if is_everywhere && programless.len() >= self.slots_of_list().max(joined) {
            self.fail_with_first_cause(now, "the program cannot be started on any host");
        }
    }

    /// Handles the end of a process whose library is of another release than this driver, which has refused it: no host is
    /// at fault, and no process of the slot would do better before the library is replaced. The slot is tried again now
    /// and then. Fails the job if it cannot begin without such slots. A job that hosts may join at will fails if there are no
    /// other slots, and at least as many of such slots as it needs.
    pub(crate) fn handle_other_release(&mut self, now: Time, worker: &WorkerId, theirs: &str) {
        if self.round.phase().is_over() {
            return;
        }
        let slot = (worker.host.clone(), worker.slot);
        let theirs = shorten(theirs);
        let reason = format!(
            "{worker} was refused: the library of its program is {theirs}, and this driver is elastic-node {RELEASE}{}",
            if is_of_release(&theirs) { ", of another build" } else { "" },
        );
        self.note_failure(worker, None, &reason);
        if is_planted(Bug::OtherReleaseBlamed) {
            return self.count_failure(now, worker, &reason);
        }
        self.back_off(slot.clone(), now + BACKOFF.cap);
        if self.roster.note_other_release(slot) {
            let pause = BACKOFF.cap.as_secs();
            let message = format!("{reason}; its slot is tried again every {pause} s");
            self.event(EventKind::Warning { message });
        }
        // A commit is worth a wait: others may train on from it.
        if self.state.committed().is_some() {
            return;
        }
        let needed = self.workers_needed() as usize;
        let refused = self.roster.other_releases();
        let listed = self.roster.seating().listed_slots() as usize;
        let others = listed.saturating_sub(refused);
        let is_hopeless = match self.config.hosts_join {
            true => others == 0 && refused >= needed,
            // A list that is too short without them, too, may grow.
            false => others == 0 || (others < needed && needed <= listed),
        };
        if is_hopeless {
            let hint = match is_of_release(&theirs) {
                true => format!(
                    "both are {RELEASE}, of different builds: install driver and library from the same build, such as \
                     the release on PyPI and crates.io, or build both from the same source"
                ),
                false => format!(
                    "install the driver's release for the program: pip install elastic-node=={RELEASE}, or \
                     elastic-node = \"={RELEASE}\" in its Cargo.toml"
                ),
            };
            self.fail(now, &reason, Some(&hint));
        }
    }

    /// Begins to watch members whose slots have failed before, since their generation trains.
    pub(crate) fn watch_failed_slots(&mut self, now: Time) {
        let alive = self.round.current().into_iter().flat_map(|current| &current.alive);
        let slots: Vec<SlotId> = alive.map(|worker| (worker.host.clone(), worker.slot)).collect();
        for slot in slots {
            self.consider_forgiveness(now, &slot);
        }
    }

    /// Forgives the failures of a slot that has been well for long: failures in the course of weeks are not one
    /// fault. A slot whose generation has ended just now is looked at again when the next one trains.
    pub(crate) fn consider_forgiveness(&mut self, now: Time, slot: &SlotId) {
        if !matches!(self.round.phase(), RoundPhase::Run) {
            return;
        }
        let Some(record) = self.roster.slot(slot) else { return };
        let alive = self.round.current().map(|current| &current.alive);
        let trains =
            record.worker.as_ref().is_some_and(|it| alive.is_some_and(|all| all.contains(it)));
        if record.failures == 0 || !trains {
            return;
        }
        let Some(since) = record.trains_since else {
            self.roster.note_training(slot, now);
            let until = now + self.config.forgiven_after;
            return self.agenda.set(until, Timer::Forgiveness(slot.clone()));
        };
        if now.since(since) >= self.config.forgiven_after {
            self.roster.forgive(slot);
            self.record_slot(&slot.0, slot.1);
        }
    }
}
