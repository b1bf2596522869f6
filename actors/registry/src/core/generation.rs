//! One generation: its members' states, and the verdicts that they come to. Used by the registry's core.

use std::collections::{BTreeMap, VecDeque};

use elastic_protocol::job::WorkerFailure;
use elastic_protocol::messages::Ballot;
use elastic_protocol::{ExitStatus, Stamp, Time, WorkerId};
use elastic_runtime::planted::{Bug, is_planted};

use super::member::{MemberResult, MemberState, Progress};
use super::verdict::{Decision, DropReason, Verdict, VoteDecision};

#[derive(Debug)]
pub(super) struct Generation {
    pub(super) stamp: Stamp,
    pub(super) members: BTreeMap<WorkerId, MemberState>,
    first_failure: Option<WorkerId>,
    pub(super) told: Told,
    tally: Tally,
}

/// How many members have come how far: a vote changes it by its own member only.
#[derive(Debug, Default)]
struct Tally {
    ready: usize,
    synced: usize,
    succeeded: usize,
    failed: usize,
}

impl Tally {
    fn add(&mut self, state: &MemberState) {
        self.ready += usize::from(state.progress >= Progress::Ready);
        self.synced += usize::from(state.progress >= Progress::Synced);
        self.succeeded += usize::from(state.is_succeeded());
        self.failed += usize::from(state.is_failed());
    }

    fn remove(&mut self, state: &MemberState) {
        self.ready -= usize::from(state.progress >= Progress::Ready);
        self.synced -= usize::from(state.progress >= Progress::Synced);
        self.succeeded -= usize::from(state.is_succeeded());
        self.failed -= usize::from(state.is_failed());
    }
}

/// Verdicts about all members that were given already: each is given once.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) ready: bool,
    synced: bool,
    succeeded: bool,
    failed: bool,
}

impl Generation {
    /// Nobody has voted.
    pub(super) fn new(stamp: Stamp, members: BTreeMap<WorkerId, MemberState>) -> Self {
        let (told, tally) = (Told::default(), Tally::default());
        Self { stamp, members, first_failure: None, told, tally }
    }

    pub(super) fn record(&mut self, now: Time, worker: &WorkerId, ballot: &Ballot) -> VoteDecision {
        let Some(state) = self.members.get_mut(worker) else {
            return VoteDecision::Dropped(DropReason::NotAMember { worker: worker.clone() });
        };
        if *ballot == Ballot::Ready && state.rank == 1 && is_planted(Bug::LostVote) {
            return VoteDecision::Taken(Decision::Repeated);
        }
        self.tally.remove(state);
        let decision = match ballot {
            Ballot::Ready => state.advance(now, Progress::Ready),
            Ballot::Synced => state.advance(now, Progress::Synced),
            Ballot::Success => state.succeed(now),
            Ballot::Failure { status, message } => state.fail(now, *status, message),
        };
        self.tally.add(state);
        if state.is_failed() && self.first_failure.is_none() {
            self.first_failure = Some(worker.clone());
        }
        let is_repeated = decision == VoteDecision::Taken(Decision::Repeated);
        if is_repeated && is_planted(Bug::RepeatedVoteCountsTwice) {
            let mut others = self.members.values_mut();
            if let Some(other) = others.find(|state| state.progress < Progress::Ready) {
                self.tally.remove(other);
                let decision = other.advance(now, Progress::Ready);
                self.tally.add(other);
                return decision;
            }
        }
        decision
    }

    pub(super) fn give_verdicts(&mut self, worker: &WorkerId, outputs: &mut VecDeque<Verdict>) {
        let stamp = self.stamp;
        let Some(state) = self.members.get_mut(worker) else { return };
        if !state.result_told {
            match &state.result {
                Some(MemberResult::Succeeded) => {
                    outputs.push_back(Verdict::Succeeded { stamp, worker: worker.clone() });
                    state.result_told = true;
                }
                Some(MemberResult::Failed { status, message }) => {
                    let failure = failure(worker, state.rank, *status, message);
                    outputs.push_back(Verdict::Failed { stamp, failure });
                    state.result_told = true;
                }
                None => {}
            }
        }
        if !self.told.ready && self.all_ready() {
            self.told.ready = true;
            outputs.push_back(Verdict::AllReady { stamp });
        }
        if self.told.ready && !self.told.synced && self.all_synced() {
            self.told.synced = true;
            outputs.push_back(Verdict::AllSynced { stamp });
        }
        if !self.told.succeeded && self.tally.succeeded == self.members.len() {
            self.told.succeeded = true;
            outputs.push_back(Verdict::AllSucceeded { stamp });
        }
        if !self.told.failed
            && self.tally.failed == self.members.len()
            && let Some(first) = self.first_failure()
        {
            self.told.failed = true;
            outputs.push_back(Verdict::AllFailed { stamp, first });
        }
    }

    /// A barrier that somebody has left by ending must not open: the others would wait for them.
    fn all_ready(&self) -> bool {
        let missing = usize::from(is_planted(Bug::BarrierOneShort));
        let Tally { ready, succeeded, failed, .. } = self.tally;
        ready + missing >= self.members.len() && succeeded + failed == 0
    }

    /// Whoever has synced may have finished already, when there was little to train.
    fn all_synced(&self) -> bool {
        self.tally.synced == self.members.len() && self.tally.failed == 0
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

fn failure(
    worker: &WorkerId,
    rank: u32,
    status: Option<ExitStatus>,
    message: &str,
) -> WorkerFailure {
    WorkerFailure { worker: worker.clone(), rank: Some(rank), status, message: message.to_owned() }
}
