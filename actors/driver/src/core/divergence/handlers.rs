//! Handlers of the members' digests, and answers to differences. Called by the handlers of workers' messages, when a
//! generation begins to train, and at the end of a takeover.

use std::collections::BTreeSet;

use elastic_protocol::messages::{StateDigests, StatusReport};
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{Stamp, Step, Time, WorkerId};

use super::judging::{ArrayVerdict, judge, ways_apart};
use super::{
    ArrayStanding, CoveredSteps, DIFFERING_MAX, DifferingArray, PendingRepair, REPAIRS_MAX,
    ROTATION, SILENT_COMMITS_MAX, TENSORS_MAX, TOLD_MAX,
};
use crate::core::DriverCore;
use crate::core::config::OnDivergence;
use crate::core::event::EventKind;
use crate::core::phase::RoundPhase;
use crate::journal::{DistrustedImage, JournalRecord};

impl DriverCore {
    /// Begins to compare the replicas of a generation that begins to train.
    pub(crate) fn begin_divergence(&mut self) {
        if self.divergence.stamp != self.round.stamp() {
            self.divergence.begin(self.round.stamp());
        }
    }

    /// Takes digests that a member of the present generation has sent of its commits.
    pub(crate) fn handle_digests(
        &mut self,
        now: Time,
        worker: &WorkerId,
        stamp: Stamp,
        told: StateDigests,
    ) {
        // The bounds are checked here, too, since a worker may be another program than ours.
        let is_bounded = told.digests.len() <= StateDigests::DIGESTS_MAX
            && told.names.len() <= StateDigests::NAMES_MAX
            && told.names.iter().all(|it| it.tensor.len() <= StateDigests::NAME_BYTES_MAX);
        let Some(rank) = self.round.rank_of(worker).filter(|_| is_bounded) else {
            return self.drop_message();
        };
        let trains = matches!(self.round.phase(), RoundPhase::Run);
        if self.divergence.stamp != Some(stamp) {
            // Until all members train, some may hold the content of the generation before.
            if !trains {
                return;
            }
            // A driver that has taken over a generation which trained learns anew which arrays are replicated.
            self.divergence.begin(Some(stamp));
        }
        self.note_digests_of(rank);
        self.divergence.take(rank, told);
        let members = self.round.current().map_or(0, |current| current.assignment.world_size());
        if !trains || self.divergence.covered.len() < members as usize {
            return;
        }
        let through = self.divergence.covered.values().map(|covered| covered.through).min();
        self.judge_through(now, through.unwrap_or_default(), members);
    }

    /// Takes a member's report of progress that has no digests. No step can be compared until all have sent theirs, so a member that
    /// sends none for long is named.
    pub(crate) fn handle_no_digests(&mut self, worker: &WorkerId, stamp: Stamp, step: Step) {
        let Some(rank) = self.round.rank_of(worker) else { return };
        let members = self.round.current().map_or(0, |current| current.assignment.world_size());
        let trains = matches!(self.round.phase(), RoundPhase::Run);
        if !trains || members < 2 || self.divergence.stamp != Some(stamp) {
            return;
        }
        let divergence = &mut self.divergence;
        let since = *divergence.silent_since.entry(rank).or_insert(step.0);
        let bound = since.saturating_add(SILENT_COMMITS_MAX);
        // A program that saves without a commit has no digests on any rank.
        let others_tell = divergence.covered.values().any(|covered| covered.through >= bound);
        if step.0 < bound || !others_tell {
            return;
        }
        divergence.silent.insert(rank);
        if !divergence.silent_told.insert(rank) {
            return;
        }
        let reason = format!(
            "nothing of the state is compared since step {since}: rank {rank} ({worker}) sends no digests of its commits"
        );
        self.event(EventKind::NotCompared { tensor: String::new(), reason });
    }

    /// A member has sent digests.
    fn note_digests_of(&mut self, rank: u32) {
        self.divergence.silent_since.remove(&rank);
        self.divergence.silent.remove(&rank);
    }

    /// Compares the digests of all steps whose digests every member has sent.
    fn judge_through(&mut self, now: Time, through: u64, members: u32) {
        let mut found = false;
        while let Some(entry) = self.divergence.pending.first_entry() {
            let step = *entry.key();
            if step > through {
                break;
            }
            let mut digests = entry.remove();
            self.divergence.pending_count -= digests.len();
            let has_told = |covered: &CoveredSteps| covered.since < step;
            if !self.divergence.covered.values().all(has_told) {
                continue;
            }
            digests.sort_unstable();
            for of_tensor in digests.chunk_by(|a, b| a.tensor == b.tensor) {
                let tensor = of_tensor[0].tensor;
                if of_tensor[0].is_pass() {
                    if let Some(ways) = ways_apart(of_tensor, members) {
                        return self.end_apart(now, step, tensor, &ways);
                    }
                    continue;
                }
                found |= self.take_verdict(step, tensor, judge(of_tensor, members), members);
            }
        }
        let divergence = &mut self.divergence;
        divergence.judged = divergence.judged.max(through);
        let from = *divergence.judged_from.get_or_insert(through);
        if members > 1 && divergence.standing.is_empty() && divergence.judged >= from + ROTATION {
            self.say_unclear(
                0,
                "nothing of the state is compared: no array of it has a name and fractions",
            );
        }
        if found {
            self.answer_divergence(now);
        }
    }

    /// Ends the job: the members go through a sampler's pass in different ways, so samples are lost and others given twice.
    fn end_apart(&mut self, now: Time, step: u64, pass: u64, ways: &[(u64, BTreeSet<u32>)]) {
        let in_words = |(way, ranks): &(u64, BTreeSet<u32>)| {
            let named: Vec<String> =
                ranks.iter().take(StatusReport::DIVERGENCE_MAX).map(u32::to_string).collect();
            let more = ranks.len() - named.len();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let noun = if ranks.len() > 1 { "ranks" } else { "rank" };
            format!("{} on {noun} {}{more}", self.divergence.name(*way), named.join(", "))
        };
        let said = ways.iter().take(StatusReport::DIVERGENCE_MAX).map(in_words);
        let said = said.collect::<Vec<_>>().join("; ");
        let pass = self.divergence.name(pass);
        let reason = format!(
            "the ranks' places in the data differ at commit {step}: they go through the {pass} by {said}"
        );
        let hint = "all ranks give a sampler a data set of the same length, the same batch size, seed and epoch number, and commit at the \
                    same steps; ranks that go through data of their own name their passes apart by `named`";
        self.fail(now, &reason, Some(hint));
    }

    /// Notes the result of a comparison of an array. Returns whether a member was found to differ.
    fn take_verdict(
        &mut self,
        step: u64,
        tensor: u64,
        verdict: ArrayVerdict,
        members: u32,
    ) -> bool {
        let divergence = &mut self.divergence;
        let standing = divergence.standing.get(&tensor).copied();
        let may_add = divergence.standing.len() < TENSORS_MAX && members > 1;
        match verdict {
            ArrayVerdict::Same { changed } => {
                if changed && standing.is_none() && may_add {
                    divergence.standing.insert(tensor, ArrayStanding::Replicated);
                }
                false
            }
            ArrayVerdict::Lacking { ranks } => {
                let lacks = ranks.first().copied().unwrap_or_default();
                self.say_unclear(
                    tensor,
                    &format!("is not compared: rank {lacks} has no digest of it"),
                );
                false
            }
            ArrayVerdict::Differ { outvoted, agreeing } => match standing {
                Some(ArrayStanding::Replicated) => {
                    self.found_to_differ(step, tensor, &outvoted, (agreeing, members))
                }
                None if is_planted(Bug::PerRankStateAccused) => {
                    self.found_to_differ(step, tensor, &outvoted, (agreeing, members))
                }
                Some(ArrayStanding::Unlike) => false,
                None => {
                    if may_add {
                        divergence.standing.insert(tensor, ArrayStanding::Unlike);
                    }
                    let rank = outvoted.first().copied().unwrap_or_default();
                    let reason = format!(
                        "is not compared: at step {step}, rank {rank} held another than others before any step changed it \
                         alike on all ranks"
                    );
                    self.say_unclear(tensor, &reason);
                    false
                }
            },
        }
    }

    /// Reports once that an array is not compared, with the reason.
    fn say_unclear(&mut self, tensor: u64, reason: &str) {
        let unclear = &mut self.divergence.unclear;
        if unclear.len() >= StatusReport::AWAITED_MAX || unclear.contains_key(&tensor) {
            return;
        }
        unclear.insert(tensor, reason.to_owned());
        let name = if tensor == 0 { String::new() } else { self.divergence.name(tensor) };
        self.event(EventKind::NotCompared { tensor: name, reason: reason.to_owned() });
    }

    /// Notes that ranks differ in an array, for a successor too. Returns whether that is news.
    fn found_to_differ(
        &mut self,
        step: u64,
        tensor: u64,
        outvoted: &[u32],
        (agreeing, members): (u32, u32),
    ) -> bool {
        let Some(current) = self.round.current() else { return false };
        let worker_of = |rank: &u32| Some((current.assignment.member(*rank)?.worker, *rank));
        let workers: Vec<(WorkerId, u32)> = outvoted.iter().filter_map(worker_of).collect();
        let divergence = &mut self.divergence;
        let mut news = Vec::new();
        for (worker, rank) in workers {
            let is_known = |it: &DifferingArray| it.tensor == tensor && it.worker == worker;
            let is_full = divergence.differing.len() >= DIFFERING_MAX;
            if is_full || divergence.differing.iter().any(is_known) {
                continue;
            }
            if agreeing * 2 > members {
                divergence.distrusted.insert(worker.clone());
            }
            news.push((worker.clone(), rank));
            divergence.differing.push(DifferingArray {
                tensor,
                worker,
                rank,
                step,
                agreeing,
                members,
            });
        }
        let is_news = !news.is_empty();
        if is_news && agreeing * 2 > members && !is_planted(Bug::DistrustNotRecorded) {
            let distrusted = DistrustedImage {
                id: tensor,
                tensor: divergence.name(tensor),
                members: news.clone(),
                step,
                agreeing,
                world_size: members,
            };
            let stamp = current.stamp;
            self.record(&JournalRecord::ReplicasDistrusted { stamp, distrusted });
        }
        let divergence = &mut self.divergence;
        if is_news && divergence.told < TOLD_MAX {
            divergence.told += 1;
            let tensor = divergence.name(tensor);
            let ranks = outvoted.iter().copied().take(StatusReport::DIVERGENCE_MAX).collect();
            let news = news.into_iter().map(|(worker, _)| worker);
            let workers = news.take(StatusReport::DIVERGENCE_MAX).collect();
            self.event(EventKind::ReplicasDiffer {
                tensor,
                step,
                workers,
                ranks,
                agreeing,
                members,
            });
        }
        is_news
    }

    /// Answers differences that a former driver found in the generation that trains, once the takeover is over.
    pub(crate) fn answer_restored_divergence(&mut self, now: Time) {
        if matches!(self.round.phase(), RoundPhase::Run) {
            self.answer_divergence(now);
        }
    }

    /// Answers members that were found to differ.
    fn answer_divergence(&mut self, now: Time) {
        match self.config.on_divergence {
            OnDivergence::Tell => {}
            OnDivergence::Fail => {
                let Some(first) = self.divergent_replicas().into_iter().next() else { return };
                let reason = format!("replicas of the state differ: {first}");
                let hint = "the host's memory, or a step that is not the same on all ranks; --on-divergence repair takes the \
                            majority's content over, and docs/divergence.md says what is compared";
                self.fail(now, &reason, Some(hint));
            }
            OnDivergence::Repair => self.ask_repair(now),
        }
    }

    /// Asks for a repair: the generation ends by plan, and the next one begins from a member of the majority.
    fn ask_repair(&mut self, now: Time) {
        let divergence = &mut self.divergence;
        let is_due = |worker: &&WorkerId| {
            divergence.repairs.get(*worker).is_none_or(|repairs| *repairs < REPAIRS_MAX)
        };
        let workers: Vec<WorkerId> = divergence.distrusted.iter().filter(is_due).cloned().collect();
        let first = divergence.differing.iter().find(|it| workers.contains(&it.worker));
        let Some((tensor, step)) = first.map(|it| (it.tensor, it.step)) else {
            // Without a majority, or after too many repairs, the difference is only told.
            return;
        };
        if divergence.repair.is_none() {
            for worker in &workers {
                *divergence.repairs.entry(worker.clone()).or_default() += 1;
            }
            let tensor = divergence.name(tensor);
            divergence.repair = Some(PendingRepair { workers, tensor, step });
        }
        self.agenda.ask_review(now);
    }
}
