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
        Self { stamp, members, first_failure: None, told: Told::default() }
    }

    pub(super) fn record(&mut self, now: Time, worker: &WorkerId, ballot: &Ballot) -> VoteDecision {
        let Some(state) = self.members.get_mut(worker) else {
            return VoteDecision::Dropped(DropReason::NotAMember { worker: worker.clone() });
        };
        if *ballot == Ballot::Ready && state.rank == 1 && is_planted(Bug::LostVote) {
            return VoteDecision::Taken(Decision::Repeated);
        }
        let decision = match ballot {
            Ballot::Ready => state.advance(now, Progress::Ready),
            Ballot::Synced => state.advance(now, Progress::Synced),
            Ballot::Success => state.succeed(now),
            Ballot::Failure { status, message } => state.fail(now, *status, message),
        };
        if state.is_failed() && self.first_failure.is_none() {
            self.first_failure = Some(worker.clone());
        }
        let is_repeated = decision == VoteDecision::Taken(Decision::Repeated);
        if is_repeated && is_planted(Bug::RepeatedVoteCountsTwice) {
            let mut others = self.members.values_mut();
            if let Some(other) = others.find(|state| state.progress < Progress::Ready) {
                return other.advance(now, Progress::Ready);
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
        if !self.told.ready && self.all_alive_at(Progress::Ready) {
            self.told.ready = true;
            outputs.push_back(Verdict::AllReady { stamp });
        }
        if self.told.ready && !self.told.synced && self.all_synced() {
            self.told.synced = true;
            outputs.push_back(Verdict::AllSynced { stamp });
        }
        if !self.told.succeeded && self.members.values().all(MemberState::is_succeeded) {
            self.told.succeeded = true;
            outputs.push_back(Verdict::AllSucceeded { stamp });
        }
        if !self.told.failed
            && self.members.values().all(MemberState::is_failed)
            && let Some(first) = self.first_failure()
        {
            self.told.failed = true;
            outputs.push_back(Verdict::AllFailed { stamp, first });
        }
    }

    fn all(&self, progress: Progress) -> bool {
        if progress == Progress::Ready && is_planted(Bug::BarrierOneShort) {
            let ready = self.members.values().filter(|state| state.progress >= progress);
            return ready.count() + 1 >= self.members.len();
        }
        self.members.values().all(|state| state.progress >= progress)
    }

    /// A barrier that somebody has left by ending must not open: the others would wait for them.
    fn all_alive_at(&self, progress: Progress) -> bool {
        self.all(progress) && self.members.values().all(|state| state.result.is_none())
    }

    /// Whoever has synced may have finished already, when there was little to train.
    fn all_synced(&self) -> bool {
        self.all(Progress::Synced) && !self.members.values().any(MemberState::is_failed)
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
