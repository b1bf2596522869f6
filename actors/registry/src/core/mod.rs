//! The registry's state machine: votes of one generation in, verdicts out. Called by the actor shell, and
//! by the simulation as it is.
//!
//! A generation is a supervisor and its members are its children: READY of all is the barrier at its
//! start, one child lost is told at once (the driver ends all of them, one-for-all), SUCCESS of all is its
//! good end. What the driver does about a verdict takes a while; votes that arrive meanwhile are kept
//! and give verdicts of their own until the next generation is opened.

mod generation;
mod member;
mod verdict;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use elastic_protocol::messages::{Ballot, Vote};
use elastic_protocol::{NodeId, NodeName, Stamp, Time, WorkerId};

use self::generation::Generation;
pub use self::member::{MemberResult, MemberState, Progress};
pub use self::verdict::{Decision, DropReason, IgnoreReason, OpenError, Verdict, VoteDecision};

/// Who voted what in the open generation.
#[derive(Debug, Default)]
pub struct RegistryCore {
    /// The newest generation that was ever opened; it only grows (G-2).
    newest: Stamp,
    open: Option<Generation>,
    outputs: VecDeque<Verdict>,
    dropped: u64,
}

impl RegistryCore {
    /// Nothing is open; every vote is dropped.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens a generation, and forgets the one before it with its verdicts that nobody has fetched.
    ///
    /// `members` stand by rank: the index is the rank that a [`WorkerFailure`](elastic_protocol::WorkerFailure) names.
    ///
    /// # Errors
    /// [`OpenError`]; nothing has changed then.
    pub fn open(
        &mut self,
        now: Time,
        stamp: Stamp,
        members: Vec<WorkerId>,
    ) -> Result<(), OpenError> {
        if stamp <= self.newest {
            return Err(OpenError::NotNewer { stamp, newest: self.newest });
        }
        if members.is_empty() {
            return Err(OpenError::NoMembers { stamp });
        }
        let mut table = BTreeMap::new();
        for (rank, worker) in (0_u32..).zip(members) {
            if table.insert(worker.clone(), MemberState::new(rank, now)).is_some() {
                return Err(OpenError::TwoRanks { stamp, worker });
            }
        }
        self.newest = stamp;
        self.outputs.clear();
        self.open = Some(Generation::new(stamp, table));
        Ok(())
    }

    /// Takes a vote that came over the wire: only the worker itself, and the driver for a worker whose
    /// process ended, may cast it.
    pub fn handle_vote_from(&mut self, now: Time, from: &NodeId, vote: &Vote) -> VoteDecision {
        if from.name != NodeName::Driver && from.as_worker().as_ref() != Some(&vote.worker) {
            return self.drop_vote(DropReason::NotTheSender { from: from.clone() });
        }
        self.handle_vote(now, vote)
    }

    /// Takes a vote of a sender who is known to be entitled to it.
    pub fn handle_vote(&mut self, now: Time, vote: &Vote) -> VoteDecision {
        match self.generation_for(vote.stamp, &vote.worker) {
            Err(reason) => self.drop_vote(reason),
            Ok(generation) => {
                let decision = generation.record(now, &vote.worker, &vote.ballot);
                self.conclude(&vote.worker, decision)
            }
        }
    }

    /// The driver declares a member lost (its host is gone, it is silent): a FAILURE without a status.
    pub fn handle_lost(
        &mut self,
        now: Time,
        stamp: Stamp,
        worker: &WorkerId,
        reason: &str,
    ) -> VoteDecision {
        let ballot = Ballot::Failure { status: None, message: reason.to_owned() };
        self.handle_vote(now, &Vote { stamp, worker: worker.clone(), ballot })
    }

    /// Ends a generation: its later votes are dropped. Of any other generation than the open one it
    /// changes nothing.
    pub fn close(&mut self, stamp: Stamp) {
        self.open.take_if(|generation| generation.stamp == stamp);
    }

    /// The next verdict, in the order in which they came about.
    pub fn poll_output(&mut self) -> Option<Verdict> {
        self.outputs.pop_front()
    }

    /// Who is waited for (G-9), by rank: members that have not voted READY; once the barrier is
    /// open, those that have not voted SYNCED. A member that succeeded or failed is not waited for.
    pub fn missing(&self) -> Vec<WorkerId> {
        let Some(generation) = &self.open else { return Vec::new() };
        let wanted = if generation.told.ready { Progress::Synced } else { Progress::Ready };
        let mut missing: Vec<_> = generation
            .members
            .iter()
            .filter(|(_, state)| state.result.is_none() && state.progress < wanted)
            .collect();
        missing.sort_by_key(|(_, state)| state.rank);
        missing.into_iter().map(|(worker, _)| worker.clone()).collect()
    }

    /// A member's state in the open generation.
    pub fn state_of(&self, worker: &WorkerId) -> Option<&MemberState> {
        self.open.as_ref()?.members.get(worker)
    }

    /// The members of the open generation with their states, in the order of their ids.
    pub fn members(&self) -> impl Iterator<Item = (&WorkerId, &MemberState)> {
        self.open.iter().flat_map(|generation| &generation.members)
    }

    /// The open generation.
    pub fn open_stamp(&self) -> Option<Stamp> {
        self.open.as_ref().map(|generation| generation.stamp)
    }

    /// How many votes were dropped since the start (G-2).
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    fn drop_vote(&mut self, reason: DropReason) -> VoteDecision {
        self.dropped += 1;
        VoteDecision::Dropped(reason)
    }

    fn generation_for(
        &mut self,
        stamp: Stamp,
        worker: &WorkerId,
    ) -> Result<&mut Generation, DropReason> {
        let newest = self.newest;
        if stamp < newest {
            return Err(DropReason::OlderGeneration { vote: stamp, newest });
        }
        if stamp > newest {
            return Err(DropReason::NewerGeneration { vote: stamp, newest });
        }
        let Some(generation) = &mut self.open else {
            return Err(DropReason::Closed { stamp });
        };
        if generation.members.contains_key(worker) {
            return Ok(generation);
        }
        let other = generation
            .members
            .keys()
            .find(|member| member.host == worker.host && member.slot == worker.slot);
        Err(match other {
            Some(member) => DropReason::OtherIncarnation { member: member.clone() },
            None => DropReason::NotAMember { worker: worker.clone() },
        })
    }

    /// Gives the verdicts that a vote of this worker brought about.
    fn conclude(&mut self, worker: &WorkerId, decision: VoteDecision) -> VoteDecision {
        let Some(generation) = self.open.as_mut() else { return decision };
        if decision == VoteDecision::Taken(Decision::Recorded) {
            generation.give_verdicts(worker, &mut self.outputs);
        }
        decision
    }
}
