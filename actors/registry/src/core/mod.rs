//! The registry's state machine: votes and incidents of one generation in, verdicts out. Called by the actor shell,
//! and directly by the simulation.
//!
//! A generation is a supervisor and its members are its children. READY of all opens the barrier at its start. The
//! first lost child ends it (one-for-all); the verdict says whether its restart budget is spent. SUCCESS of all is
//! its good end. The driver carries verdicts out; by itself it ends a generation only as planned. That takes a while.
//! Votes that arrive meanwhile are kept, and give verdicts of their own until the next generation is opened.

mod generation;
mod incident;
mod member;
mod verdict;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use elastic_protocol::messages::Vote;
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{NodeId, NodeName, Stamp, Time, WorkerId};

use self::generation::SupervisedGeneration;
pub use self::incident::{BudgetSpent, Incident, RestartBudget};
pub use self::member::{MemberProgress, MemberResult, MemberState, MemberVotes};
pub use self::verdict::{
    DropReason, GenerationVerdict, IgnoreReason, OpenError, VoteDecision, VoteEffect,
};

/// The open generation, and its votes.
#[derive(Debug, Default)]
pub struct RegistryCore {
    /// The newest generation that was ever opened; only grows (G-2).
    newest: Stamp,
    open: Option<SupervisedGeneration>,
    outputs: VecDeque<GenerationVerdict>,
    dropped: u64,
}

impl RegistryCore {
    /// A registry without an open generation: every vote is dropped.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens a generation. The one before is forgotten, with its unread verdicts.
    ///
    /// `members` stand by rank: the index is the rank that a [`WorkerFailure`](elastic_protocol::WorkerFailure) names.
    ///
    /// # Errors
    /// [`OpenError`]; the state is unchanged then.
    pub fn open(
        &mut self,
        now: Time,
        stamp: Stamp,
        members: Vec<WorkerId>,
        budget: RestartBudget,
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
        self.open = Some(SupervisedGeneration::new(stamp, table, budget));
        Ok(())
    }

    /// Takes a vote that came over the wire. Only the worker itself may cast it, and the driver for a worker whose
    /// process ended.
    pub fn handle_vote_from(&mut self, now: Time, from: &NodeId, vote: &Vote) -> VoteDecision {
        if from.name != NodeName::Driver && from.as_worker().as_ref() != Some(&vote.worker) {
            return self.drop_vote(DropReason::NotTheSender { from: from.clone() });
        }
        self.handle_vote(now, vote)
    }

    /// Takes a vote whose sender is known to be entitled to it.
    pub fn handle_vote(&mut self, now: Time, vote: &Vote) -> VoteDecision {
        match self.generation_for(vote.stamp, &vote.worker) {
            Err(reason) => self.drop_vote(reason),
            Ok(generation) => {
                let decision = generation.record(now, &vote.worker, &vote.ballot);
                self.conclude(now, &vote.worker, decision)
            }
        }
    }

    /// Takes an incident that the driver has seen: a member is lost, or has given the generation up. An incident of
    /// any generation but the newest has no effect.
    pub fn handle_incident(&mut self, now: Time, incident: Incident) {
        if let Some(generation) = self.open.as_mut().filter(|open| open.stamp == incident.stamp) {
            generation.suffer(now, incident, &mut self.outputs);
        }
    }

    /// The next verdict, in the order of their origin.
    pub fn poll_output(&mut self) -> Option<GenerationVerdict> {
        let output = self.outputs.pop_front();
        if output.is_none() {
            debug_assert_eq!(self.check(), Ok(()));
        }
        output
    }

    /// Checks the invariants of the open generation: that it is the newest, and that its members and counts agree.
    /// Runs after every input in debug builds and in the simulation.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check(&self) -> Result<(), String> {
        let Some(generation) = &self.open else { return Ok(()) };
        if generation.stamp != self.newest {
            let (open, newest) = (generation.stamp, self.newest);
            return Err(format!("G-2: {open:?} is open, and the newest is {newest:?}"));
        }
        generation.check()
    }

    /// Members that are waited for (G-9), by rank: those that have not voted READY; once the barrier is open, those
    /// that have not voted SYNCED. A member that succeeded or failed is not waited for.
    pub fn missing(&self) -> Vec<WorkerId> {
        let Some(generation) = &self.open else { return Vec::new() };
        let wanted =
            if generation.told.ready { MemberProgress::Synced } else { MemberProgress::Ready };
        let mut missing: Vec<_> = generation
            .members
            .iter()
            .filter(|(_, state)| {
                let is_late = state.progress < wanted || is_planted(Bug::VotersEvicted);
                state.result.is_none() && !state.is_lost && is_late
            })
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

    /// Number of votes dropped since the start (G-2).
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
    ) -> Result<&mut SupervisedGeneration, DropReason> {
        let newest = self.newest;
        if stamp < newest {
            return Err(DropReason::OlderGeneration { vote: stamp, newest });
        }
        if stamp > newest {
            return Err(DropReason::NewerGeneration { vote: stamp, newest });
        }
        let Some(generation) = &mut self.open else {
            return Err(DropReason::NotOpen { stamp });
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
    fn conclude(&mut self, now: Time, worker: &WorkerId, decision: VoteDecision) -> VoteDecision {
        let Some(generation) = self.open.as_mut() else { return decision };
        if decision == VoteDecision::Taken(VoteEffect::Recorded) {
            generation.give_verdicts(worker, &mut self.outputs);
            generation.fail(now, worker, &mut self.outputs);
        }
        decision
    }
}
