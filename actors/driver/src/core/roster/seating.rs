//! Incremental view of the slots: wanted, empty, ready, unwanted. It is recomputed for changed hosts only, so the
//! cost of a review or of forming a generation depends on the number of changes and not of hosts.
//!
//! Only the roster writes it, from its own records, in `wanted`.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use elastic_host_manager::{HostEntry, HostState};
use elastic_protocol::{GenerationId, HostName, Step, WorkerId};
use serde::{Deserialize, Serialize};

use super::selection::{Selection, SlotClaim, SlotPosition};

/// A commit's place in the order of commits; none comes before all.
pub(crate) type CommitOrder = Option<(GenerationId, Step)>;

/// A host's entry in the list.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Listing {
    /// The host's place among hosts, older ones first. A host keeps its number while the order allows it.
    position: u64,
    /// Number of listed slots; 0 if the host is blacklisted.
    pub(crate) slots: u32,
    /// The same, whether or not the host is blacklisted.
    #[serde(default)]
    pub(crate) slots_of_list: u32,
}

/// Facts of a worker that the seating depends on.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct WorkerFacts {
    pub(crate) worker: WorkerId,
    /// Whether a generation can be formed with the worker now.
    pub(crate) is_eligible: bool,
    /// Whether the worker is a member of the generation formed last.
    pub(crate) is_member: bool,
    /// Whether the worker's training function has returned.
    pub(crate) has_finished: bool,
    /// Whether the worker is out of reach, or just back.
    pub(crate) is_away: bool,
    pub(crate) commit: CommitOrder,
}

/// Facts of a host that the seating depends on.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct HostFacts {
    /// Slots that could have a worker, with the rank of their claims.
    pub(crate) claims: Vec<(u32, u8)>,
    pub(crate) workers: Vec<WorkerFacts>,
    /// Whether the host's agent has asked to leave and has not been let go.
    pub(crate) is_draining: bool,
}

/// A host's contribution to the view.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
struct HostShare {
    ready: Vec<(SlotPosition, WorkerFacts)>,
    /// Workers on slots at rest that are not wanted, and with which a generation could be formed.
    at_rest: Vec<(SlotPosition, WorkerId)>,
    empty: Vec<SlotPosition>,
    unwanted: Vec<WorkerId>,
    away: Vec<WorkerId>,
    finished: u32,
}

#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
struct HostRecord {
    claims: Vec<SlotClaim>,
    facts: HostFacts,
    share: HostShare,
}

/// Incremental view of the slots: wanted, empty, ready, unwanted.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Seating {
    list: BTreeMap<HostName, Listing>,
    by_position: BTreeMap<u64, HostName>,
    /// The next position. Never reused: claims of a departed host may still be pending removal, and must not be taken
    /// for those of a new host.
    next_position: u64,
    listed_slots: u32,
    /// Hosts whose listing has changed.
    relisted: BTreeSet<HostName>,
    selection: Selection,
    hosts: BTreeMap<HostName, HostRecord>,
    /// Hosts whose share must be recomputed.
    stale: BTreeSet<HostName>,
    #[serde(with = "crate::recording::readable::pairs")]
    ready: BTreeMap<SlotPosition, WorkerId>,
    #[serde(with = "crate::recording::readable::pairs")]
    at_rest: BTreeMap<SlotPosition, WorkerId>,
    ready_members: usize,
    #[serde(with = "crate::recording::readable::pairs")]
    ready_commits: BTreeMap<CommitOrder, u32>,
    empty: BTreeSet<SlotPosition>,
    unwanted: BTreeSet<WorkerId>,
    away: BTreeSet<WorkerId>,
    draining: BTreeSet<HostName>,
    finished: u32,
    /// Whether the seating was compared with one made anew since its facts changed.
    #[serde(skip)]
    is_checked: Cell<bool>,
}

impl Seating {
    /// Without hosts. At most `cap` slots are wanted.
    pub(crate) fn new(cap: usize) -> Self {
        Self {
            list: BTreeMap::new(),
            by_position: BTreeMap::new(),
            next_position: 0,
            listed_slots: 0,
            relisted: BTreeSet::new(),
            selection: Selection::new(cap),
            hosts: BTreeMap::new(),
            stale: BTreeSet::new(),
            ready: BTreeMap::new(),
            at_rest: BTreeMap::new(),
            ready_members: 0,
            ready_commits: BTreeMap::new(),
            empty: BTreeSet::new(),
            unwanted: BTreeSet::new(),
            away: BTreeSet::new(),
            draining: BTreeSet::new(),
            finished: 0,
            is_checked: Cell::new(false),
        }
    }

    /// Takes the new list of hosts, the oldest first.
    pub(crate) fn set_list(&mut self, entries: &[HostEntry]) {
        // Equivalent mutant: the next check looks at less, and decides nothing.
        self.is_checked.set(false);
        let positions = self.positions(entries);
        let listing = |(entry, position): (&HostEntry, u64)| {
            let slots = if entry.state == HostState::Listed { entry.slots } else { 0 };
            (entry.name.clone(), Listing { position, slots, slots_of_list: entry.slots })
        };
        let list: BTreeMap<HostName, Listing> =
            entries.iter().zip(positions).map(listing).collect();
        let gone = self.list.keys().filter(|name| !list.contains_key(*name));
        let other = list.iter().filter(|(name, now)| self.list.get(*name) != Some(*now));
        self.relisted.extend(gone.chain(other.map(|(name, _)| name)).cloned());
        self.by_position =
            list.iter().map(|(name, listing)| (listing.position, name.clone())).collect();
        self.listed_slots =
            list.values().fold(0, |sum: u32, listing| sum.saturating_add(listing.slots));
        self.list = list;
    }

    /// Known hosts keep their positions if their order is the same and they come before all new ones.
    fn positions(&mut self, entries: &[HostEntry]) -> Vec<u64> {
        let mut next = self.next_position;
        let known = |entry: &HostEntry| self.list.get(&entry.name).map(|listing| listing.position);
        let mut positions: Vec<u64> = entries
            .iter()
            .map(|entry| {
                known(entry).unwrap_or_else(|| {
                    next += 1;
                    next - 1
                })
            })
            .collect();
        if !positions.is_sorted_by(|one, other| one < other) {
            positions = (next..).take(entries.len()).collect();
            next += entries.len() as u64;
        }
        self.next_position = next;
        positions
    }

    pub(crate) fn listing(&self, host: &HostName) -> Option<&Listing> {
        self.list.get(host)
    }

    /// Slots of all hosts that are listed, whether their agents are there or not.
    pub(crate) const fn listed_slots(&self) -> u32 {
        self.listed_slots
    }

    /// Hosts whose listing has changed since the last call.
    pub(crate) fn take_relisted(&mut self) -> BTreeSet<HostName> {
        std::mem::take(&mut self.relisted)
    }

    /// Takes the new facts of a host. [`Seating::settle`] must follow, after the last one.
    pub(crate) fn set_host(&mut self, host: &HostName, facts: HostFacts) {
        self.stale.insert(host.clone());
        let position = self.list.get(host).map(|listing| listing.position);
        let claims: Vec<SlotClaim> = position
            .into_iter()
            .flat_map(|position| {
                facts.claims.iter().map(move |(slot, rank)| {
                    let seat = SlotPosition { position, slot: *slot };
                    SlotClaim { rank: *rank, seat }
                })
            })
            .collect();
        let record = self.hosts.entry(host.clone()).or_default();
        let before = std::mem::replace(&mut record.claims, claims.clone());
        let same_facts = std::mem::replace(&mut record.facts, facts) == record.facts;
        // Equivalent mutant: the next check looks at less, and decides nothing.
        self.is_checked.set(self.is_checked.get() && same_facts && before == claims);
        let gone = before.iter().filter(|claim| !has(&claims, claim));
        let followers: Vec<SlotClaim> =
            gone.flat_map(|claim| self.selection.remove(claim)).collect();
        let new = claims.iter().filter(|claim| !has(&before, claim));
        let displaced: Vec<SlotClaim> =
            new.flat_map(|claim| self.selection.insert(*claim)).collect();
        self.are_stale(followers.into_iter().chain(displaced));
    }

    /// Sets the number of workers below which slots at rest are used, too. [`Seating::settle`] must follow.
    pub(crate) fn set_floor(&mut self, floor: usize) {
        let moved = self.selection.set_floor(floor);
        // Equivalent mutant: the next check looks at less, and decides nothing.
        self.is_checked.set(self.is_checked.get() && moved.is_empty());
        self.are_stale(moved);
    }

    fn are_stale(&mut self, claims: impl IntoIterator<Item = SlotClaim>) {
        for claim in claims {
            if let Some(host) = self.by_position.get(&claim.seat.position) {
                self.stale.insert(host.clone());
            }
        }
    }

    /// Number of slots that could have a worker and are not at rest, without some of them.
    pub(crate) fn usable_without(&self, left_out: &[(HostName, u32)]) -> usize {
        let is_usable = |(host, slot): &&(HostName, u32)| {
            self.hosts.get(host).is_some_and(|record| {
                record.claims.iter().any(|claim| claim.seat.slot == *slot && claim.is_firm())
            })
        };
        self.selection.firm() - left_out.iter().filter(is_usable).count()
    }

    /// Recomputes the shares of changed hosts.
    pub(crate) fn settle(&mut self) {
        for host in std::mem::take(&mut self.stale) {
            let Some(mut record) = self.hosts.remove(&host) else { continue };
            self.withdraw(&record.share);
            record.share = self.share_of(&record);
            self.contribute(&record.share);
            if record.facts.is_draining {
                self.draining.insert(host.clone());
            } else {
                self.draining.remove(&host);
            }
            if record != HostRecord::default() {
                self.hosts.insert(host, record);
            }
        }
    }

    fn share_of(&self, record: &HostRecord) -> HostShare {
        let mut share = HostShare::default();
        let kept: Vec<SlotPosition> = record
            .claims
            .iter()
            .filter(|claim| self.selection.is_kept(claim))
            .map(|claim| claim.seat)
            .collect();
        for facts in &record.facts.workers {
            share.finished += u32::from(facts.has_finished);
            if facts.is_away && facts.commit.is_some() {
                share.away.push(facts.worker.clone());
            }
            match kept.binary_search_by_key(&facts.worker.slot, |seat| seat.slot) {
                Err(_) => {
                    share.unwanted.push(facts.worker.clone());
                    let slot = facts.worker.slot;
                    let of_slot = record.claims.iter().find(|claim| claim.seat.slot == slot);
                    if let Some(claim) = of_slot.filter(|it| facts.is_eligible && !it.is_firm()) {
                        share.at_rest.push((claim.seat, facts.worker.clone()));
                    }
                }
                Ok(index) if facts.is_eligible => share.ready.push((kept[index], facts.clone())),
                Ok(_) => {}
            }
        }
        let has_worker = |seat: &SlotPosition| {
            record.facts.workers.binary_search_by_key(&seat.slot, |facts| facts.worker.slot).is_ok()
        };
        share.empty = kept.into_iter().filter(|seat| !has_worker(seat)).collect();
        share
    }

    fn contribute(&mut self, share: &HostShare) {
        for (seat, facts) in &share.ready {
            self.ready.insert(*seat, facts.worker.clone());
            self.ready_members += usize::from(facts.is_member);
            *self.ready_commits.entry(facts.commit).or_default() += 1;
        }
        self.at_rest.extend(share.at_rest.iter().cloned());
        self.empty.extend(&share.empty);
        self.unwanted.extend(share.unwanted.iter().cloned());
        self.away.extend(share.away.iter().cloned());
        self.finished += share.finished;
    }

    fn withdraw(&mut self, share: &HostShare) {
        for (seat, facts) in &share.ready {
            self.ready.remove(seat);
            self.ready_members -= usize::from(facts.is_member);
            if let Some(count) = self.ready_commits.get_mut(&facts.commit) {
                *count -= 1;
                if *count == 0 {
                    self.ready_commits.remove(&facts.commit);
                }
            }
        }
        for (seat, _) in &share.at_rest {
            self.at_rest.remove(seat);
        }
        for seat in &share.empty {
            self.empty.remove(seat);
        }
        for worker in &share.unwanted {
            self.unwanted.remove(worker);
        }
        for worker in &share.away {
            self.away.remove(worker);
        }
        self.finished -= share.finished;
    }

    /// Whether the seating was compared with one made anew since its facts changed.
    pub(crate) const fn is_checked(&self) -> bool {
        self.is_checked.get()
    }

    /// Notes that the seating equals one made anew from the same facts.
    pub(crate) fn note_checked(&self) {
        self.is_checked.set(self.relisted.is_empty() && self.stale.is_empty());
    }

    /// Hosts that the seating has facts of.
    pub(crate) fn known_hosts(&self) -> impl Iterator<Item = &HostName> {
        self.hosts.keys()
    }

    /// Whether these are the facts that the seating has of a host.
    pub(crate) fn has(&self, host: &HostName, facts: &HostFacts) -> bool {
        let none = HostFacts::default();
        self.hosts.get(host).map_or(&none, |record| &record.facts) == facts
    }

    /// All answers of the view, to compare two seatings.
    pub(crate) fn view(&self) -> impl std::fmt::Debug + PartialEq {
        let wanted: Vec<(HostName, Vec<u32>)> =
            self.wanted_by_host().map(|(host, slots)| (host.clone(), slots)).collect();
        let ready: Vec<WorkerId> = self.ready().cloned().collect();
        let at_rest: Vec<WorkerId> = self.at_rest.values().cloned().collect();
        (
            (wanted, self.wanted(), self.empty(), self.listed_slots()),
            (ready, at_rest, self.ready_members(), self.best_ready_commit()),
            (self.unwanted.clone(), self.away.clone(), self.draining.clone(), self.finished),
        )
    }

    /// A seating without hosts, with the same bounds.
    pub(crate) fn emptied(&self) -> Self {
        Self { selection: self.selection.emptied(), ..Self::new(0) }
    }

    /// Number of wanted slots.
    pub(crate) fn wanted(&self) -> usize {
        self.selection.len()
    }

    /// Wanted slots by rank, host by host.
    pub(crate) fn wanted_by_host(&self) -> impl Iterator<Item = (&HostName, Vec<u32>)> {
        self.by_position.values().filter_map(|host| {
            let record = self.hosts.get(host)?;
            let kept = record.claims.iter().filter(|claim| self.selection.is_kept(claim));
            let slots: Vec<u32> = kept.map(|claim| claim.seat.slot).collect();
            (!slots.is_empty()).then_some((host, slots))
        })
    }

    /// Wanted slots without a worker, by rank.
    pub(crate) fn empty(&self) -> Vec<(HostName, u32)> {
        let slot =
            |seat: &SlotPosition| Some((self.by_position.get(&seat.position)?.clone(), seat.slot));
        self.empty.iter().filter_map(slot).collect()
    }

    /// Ready workers by rank: they have wanted slots, and a generation can be formed with them now.
    pub(crate) fn ready(&self) -> impl ExactSizeIterator<Item = &WorkerId> {
        self.ready.values()
    }

    /// The ready workers by rank, and workers on slots at rest if the ready ones are fewer than needed.
    pub(crate) fn ready_for(&self, needed: usize) -> Vec<WorkerId> {
        let more = self.at_rest.iter().take(needed.saturating_sub(self.ready.len()));
        let all: BTreeMap<&SlotPosition, &WorkerId> = self.ready.iter().chain(more).collect();
        all.into_values().cloned().collect()
    }

    /// Sorts workers by the age of their hosts, the oldest first, and by their slots. Hosts that are not listed come first.
    pub(crate) fn sort_by_age(&self, workers: &mut [WorkerId]) {
        let position = |host: &HostName| self.listing(host).map(|listing| listing.position);
        workers.sort_by_cached_key(|it| (position(&it.host), it.host.clone(), it.slot));
    }

    /// Number of ready workers that are members of the generation formed last.
    pub(crate) const fn ready_members(&self) -> usize {
        self.ready_members
    }

    /// Highest commit among the ready workers.
    pub(crate) fn best_ready_commit(&self) -> CommitOrder {
        self.ready_commits.last_key_value().and_then(|(commit, _)| *commit)
    }

    /// Unwanted workers: their slots are not wanted, or they themselves are not.
    pub(crate) const fn unwanted(&self) -> &BTreeSet<WorkerId> {
        &self.unwanted
    }

    /// Workers with a commit that are out of reach, or just back.
    pub(crate) const fn away(&self) -> &BTreeSet<WorkerId> {
        &self.away
    }

    /// Hosts whose agents have asked to leave and have not been let go.
    pub(crate) const fn draining(&self) -> &BTreeSet<HostName> {
        &self.draining
    }

    /// Number of workers whose training functions have returned.
    pub(crate) const fn finished(&self) -> u32 {
        self.finished
    }
}

/// Whether a host's claims, sorted by slot, include this one.
fn has(claims: &[SlotClaim], claim: &SlotClaim) -> bool {
    let place = claims.binary_search_by_key(&claim.seat, |other| other.seat);
    place.is_ok_and(|place| claims[place] == *claim)
}

#[cfg(test)]
mod tests {
    use elastic_protocol::Incarnation;

    use super::*;

    /// Sets a host to one empty slot, or to none if it is not listed any more.
    fn refresh(seating: &mut Seating, name: &str) {
        let host = HostName::new(name).expect("a literal");
        let claims = seating.listing(&host).map(|_| (0, 3)).into_iter().collect();
        seating.set_host(&host, HostFacts { claims, ..HostFacts::default() });
    }

    #[test]
    fn g_7_a_host_that_comes_as_another_leaves_has_a_place_of_its_own() {
        let list = |names: &[&str]| -> Vec<HostEntry> {
            let entry = |name: &&str| HostEntry {
                name: HostName::new(name).expect("a literal"),
                slots: 1,
                state: HostState::Listed,
            };
            names.iter().map(entry).collect()
        };
        // First case: one host left and the other came between two refreshes. Second: the two changed places.
        for lists in [
            vec![list(&["b"]), list(&[]), list(&["a"])],
            vec![list(&["b", "a"]), list(&["a", "b"])],
        ] {
            let mut seating = Seating::new(4);
            for (number, list) in lists.iter().enumerate() {
                seating.set_list(list);
                if number + 1 == lists.len() || number == 0 {
                    for host in seating.take_relisted() {
                        refresh(&mut seating, host.as_str());
                    }
                    seating.settle();
                }
            }
            let last = lists.last().expect("there is one");
            let expected: Vec<(HostName, u32)> =
                last.iter().map(|entry| (entry.name.clone(), 0)).collect();
            assert_eq!(seating.empty(), expected);
        }
    }

    #[test]
    fn g_5_only_a_worker_that_is_away_and_holds_a_commit_is_waited_for() {
        let host = HostName::new("a").expect("a literal");
        let facts = |slot, is_away, commit| WorkerFacts {
            worker: WorkerId { host: host.clone(), slot, incarnation: Incarnation(1) },
            is_eligible: false,
            is_member: false,
            has_finished: false,
            is_away,
            commit,
        };
        let commit = Some((GenerationId(1), Step(2)));
        let workers = vec![facts(0, true, commit), facts(1, true, None), facts(2, false, commit)];
        let mut seating = Seating::new(4);
        seating.set_list(&[HostEntry { name: host.clone(), slots: 3, state: HostState::Listed }]);
        let claims = vec![(0, 0), (1, 0), (2, 0)];
        seating.set_host(&host, HostFacts { claims, workers, is_draining: false });
        seating.settle();
        let away: Vec<u32> = seating.away().iter().map(|worker| worker.slot).collect();
        assert_eq!(away, [0]);
    }
}
