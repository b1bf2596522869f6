//! One generation as the supervisor of its members: their states, and the verdicts on them. Used by the registry's
//! core.

use std::collections::{BTreeMap, VecDeque};

use elastic_protocol::job::{WorkerFailure, shorten};
use elastic_protocol::messages::Ballot;
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{ExitStatus, ResetCause, Stamp, Time, WorkerId};

use super::incident::{Incident, RestartBudget};
use super::member::{MemberProgress, MemberResult, MemberState, MemberVotes};
use super::verdict::{DropReason, GenerationVerdict, VoteDecision, VoteEffect};

#[derive(Debug)]
pub(super) struct SupervisedGeneration {
    pub(super) stamp: Stamp,
    pub(super) members: BTreeMap<WorkerId, MemberState>,
    budget: RestartBudget,
    first_failure: Option<WorkerId>,
    /// Cause of the generation's end; none while it goes on.
    broken_by: Option<ResetCause>,
    /// Whether one of the failures was the end of a process by a signal, or with code 0.
    had_accident: bool,
    pub(super) told: GivenVerdicts,
    tally: MemberCounts,
}

/// Number of members by progress and result. A vote changes it by its own member only.
#[derive(Debug, Default, Eq, PartialEq)]
struct MemberCounts {
    ready: usize,
    synced: usize,
    succeeded: usize,
    failed: usize,
}

impl MemberCounts {
    fn add(&mut self, state: &MemberState) {
        self.ready += usize::from(state.progress >= MemberProgress::Ready);
        self.synced += usize::from(state.progress >= MemberProgress::Synced);
        self.succeeded += usize::from(state.is_succeeded());
        self.failed += usize::from(state.is_failed());
    }

    fn remove(&mut self, state: &MemberState) {
        self.ready -= usize::from(state.progress >= MemberProgress::Ready);
        self.synced -= usize::from(state.progress >= MemberProgress::Synced);
        self.succeeded -= usize::from(state.is_succeeded());
        self.failed -= usize::from(state.is_failed());
    }
}

/// Verdicts about all members that were given already. Each is given once.
#[derive(Debug, Default)]
pub(super) struct GivenVerdicts {
    pub(super) ready: bool,
    synced: bool,
    succeeded: bool,
    failed: bool,
}

impl SupervisedGeneration {
    /// A generation without votes.
    pub(super) fn new(
        stamp: Stamp,
        members: BTreeMap<WorkerId, MemberState>,
        budget: RestartBudget,
    ) -> Self {
        Self {
            stamp,
            members,
            budget,
            first_failure: None,
            broken_by: None,
            had_accident: false,
            told: GivenVerdicts::default(),
            tally: MemberCounts::default(),
        }
    }

    /// One-for-all: the first loss or accusation ends the generation, unless all members that are left have finished.
    pub(super) fn suffer(
        &mut self,
        now: Time,
        incident: Incident,
        outputs: &mut VecDeque<GenerationVerdict>,
    ) {
        let Incident { lost, failure, cause, evidence, .. } = incident;
        if let Some(worker) = &lost {
            let Some(state) = self.members.get_mut(worker) else { return };
            state.is_lost = true;
            if let Some(status) = failure {
                let ballot = Ballot::Failure { status: Some(status), message: String::new() };
                self.record(now, worker, &ballot);
                self.give_verdicts(worker, outputs);
            }
        }
        self.break_off(lost.as_ref(), cause, evidence, outputs);
    }

    fn break_off(
        &mut self,
        lost: Option<&WorkerId>,
        cause: ResetCause,
        evidence: Time,
        outputs: &mut VecDeque<GenerationVerdict>,
    ) {
        let stamp = self.stamp;
        if let Some(known) = &mut self.broken_by {
            if is_about_link_to(known, lost) {
                *known = cause.clone();
                outputs.push_back(GenerationVerdict::CauseKnown { stamp, cause });
            }
            return;
        }
        if self.the_finished_are_left() {
            if !self.told.succeeded {
                self.told.succeeded = true;
                outputs.push_back(GenerationVerdict::AllSucceeded { stamp });
            }
            return;
        }
        self.broken_by = Some(cause.clone());
        let spent = self.budget.spent_by(&cause);
        outputs.push_back(GenerationVerdict::Broken { stamp, cause, evidence, spent });
    }

    /// Whether only members that finished are left: they keep their result (H-21). Never for processes that live for
    /// one generation: each ends on its own, and its result is incomplete without the others' work.
    fn the_finished_are_left(&self) -> bool {
        let mut left = self.members.values().filter(|state| !state.is_lost).peekable();
        left.peek().is_some()
            && !self.budget.is_by_restart
            && left.all(|state| state.is_succeeded())
    }

    pub(super) fn record(&mut self, now: Time, worker: &WorkerId, ballot: &Ballot) -> VoteDecision {
        let Some(state) = self.members.get_mut(worker) else {
            return VoteDecision::Dropped(DropReason::NotAMember { worker: worker.clone() });
        };
        if *ballot == Ballot::Ready && state.rank == 1 && is_planted(Bug::LostVote) {
            return VoteDecision::Taken(VoteEffect::Repeated);
        }
        self.tally.remove(state);
        let decision = match ballot {
            Ballot::Ready => state.advance(now, MemberProgress::Ready),
            Ballot::Synced => state.advance(now, MemberProgress::Synced),
            Ballot::Success => state.succeed(),
            Ballot::Failure { status, message } => state.fail(*status, message),
        };
        self.tally.add(state);
        if let Some(MemberResult::Failed { status, .. }) = &state.result {
            self.first_failure.get_or_insert_with(|| worker.clone());
            self.had_accident |= decision == VoteDecision::Taken(VoteEffect::Recorded)
                && matches!(status, Some(ExitStatus::Signal(_) | ExitStatus::Code(0)));
        }
        decision
    }

    pub(super) fn give_verdicts(
        &mut self,
        worker: &WorkerId,
        outputs: &mut VecDeque<GenerationVerdict>,
    ) {
        let stamp = self.stamp;
        let Some(state) = self.members.get_mut(worker) else { return };
        if !state.result_told {
            match &state.result {
                Some(MemberResult::Succeeded) => {
                    outputs
                        .push_back(GenerationVerdict::Succeeded { stamp, worker: worker.clone() });
                    state.result_told = true;
                }
                Some(MemberResult::Failed { status, message }) => {
                    let failure = failure(worker, state.rank, *status, message);
                    outputs.push_back(GenerationVerdict::Failed { stamp, failure });
                    state.result_told = true;
                }
                None => {}
            }
        }
        self.give_verdicts_about_all(outputs);
    }

    fn give_verdicts_about_all(&mut self, outputs: &mut VecDeque<GenerationVerdict>) {
        let stamp = self.stamp;
        if !self.told.ready && self.all_ready() {
            self.told.ready = true;
            outputs.push_back(GenerationVerdict::AllReady { stamp });
        }
        if self.told.ready && !self.told.synced && self.all_synced() {
            self.told.synced = true;
            let votes = self.votes_by_rank();
            outputs.push_back(GenerationVerdict::AllSynced { stamp, votes });
        }
        if !self.told.succeeded && self.tally.succeeded == self.members.len() {
            self.told.succeeded = true;
            outputs.push_back(GenerationVerdict::AllSucceeded { stamp });
        }
        let may_go_otherwise = self.had_accident || self.budget.is_by_restart;
        if !self.told.failed
            && !may_go_otherwise
            && self.tally.failed == self.members.len()
            && let Some(first) = self.first_failure()
        {
            self.told.failed = true;
            outputs.push_back(GenerationVerdict::AllFailed { stamp, first });
        }
    }

    /// Loses a member that says that its training function has failed.
    pub(super) fn fail(
        &mut self,
        now: Time,
        worker: &WorkerId,
        outputs: &mut VecDeque<GenerationVerdict>,
    ) {
        let Some(state) = self.members.get_mut(worker) else { return };
        let Some(MemberResult::Failed { message, .. }) = &state.result else { return };
        if std::mem::replace(&mut state.is_lost, true) {
            return;
        }
        let error = shorten(message);
        let cause = ResetCause::WorkerFailed { worker: worker.clone(), error };
        self.break_off(Some(worker), cause, now, outputs);
    }

    /// A barrier must not open if a member has ended: the others would wait for it.
    fn all_ready(&self) -> bool {
        let missing = usize::from(is_planted(Bug::BarrierOneShort));
        let MemberCounts { ready, succeeded, failed, .. } = self.tally;
        ready + missing >= self.members.len() && succeeded + failed == 0 && self.broken_by.is_none()
    }

    /// A synced member may have finished already, when there was little to train.
    fn all_synced(&self) -> bool {
        self.tally.synced == self.members.len()
            && self.tally.failed == 0
            && self.broken_by.is_none()
    }

    fn votes_by_rank(&self) -> Vec<MemberVotes> {
        let mut states: Vec<&MemberState> = self.members.values().collect();
        states.sort_by_key(|state| state.rank);
        states.into_iter().map(|state| state.votes).collect()
    }

    /// Checks that ranks, counts, losses and verdicts agree.
    pub(super) fn check(&self) -> Result<(), String> {
        let mut counted = MemberCounts::default();
        let mut has_rank = vec![false; self.members.len()];
        for (worker, state) in &self.members {
            counted.add(state);
            let rank = has_rank.get_mut(state.rank as usize);
            if rank.is_none_or(|has_rank| std::mem::replace(has_rank, true)) {
                return Err(format!("G-3: rank {} of {worker} is another's, or none", state.rank));
            }
            if state.result_told != state.result.is_some() {
                return Err(format!("G-10: the verdict on {worker} and its result differ"));
            }
            if state.is_lost && self.broken_by.is_none() && !self.told.succeeded {
                return Err(format!("{worker} is lost, and its generation goes on"));
            }
        }
        if counted != self.tally {
            return Err(format!("the votes are {counted:?}, and counted {:?}", self.tally));
        }
        if self.told.synced && !self.told.ready {
            return Err("the barrier's second step is over before the first".to_owned());
        }
        Ok(())
    }

    fn first_failure(&self) -> Option<WorkerFailure> {
        let worker = self.first_failure.as_ref()?;
        let state = self.members.get(worker)?;
        match &state.result {
            Some(MemberResult::Failed { status, message }) => {
                Some(failure(worker, state.rank, *status, message))
            }
            _ => None,
        }
    }
}

/// Whether the known cause is provisional: only a broken link, perhaps the one to this member.
fn is_about_link_to(cause: &ResetCause, lost: Option<&WorkerId>) -> bool {
    match (cause, lost) {
        (ResetCause::PeerBroken { peer, .. }, Some(lost)) => {
            peer.as_ref().is_none_or(|peer| peer == lost)
        }
        _ => false,
    }
}

fn failure(
    worker: &WorkerId,
    rank: u32,
    status: Option<ExitStatus>,
    message: &str,
) -> WorkerFailure {
    WorkerFailure { worker: worker.clone(), rank: Some(rank), status, message: message.to_owned() }
}
