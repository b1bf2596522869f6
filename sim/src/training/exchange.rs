//! [`GroupExchange`]: the memory through which the simulated groups pass their data, shared by all training threads of a run.
//! An offer of a rank is there for the others as soon as it is made. Used by `communicator` and `fabric`. The scheduler asks it
//! for the threads that can go on.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use elastic_collectives::wire::OperationSignature;
use elastic_protocol::Stamp;

/// The number of a worker's process; none is given twice.
pub(super) type NodeNumber = u32;

/// A group: its generation, and the splits that led to it.
pub(super) type GroupName = (Stamp, String);

/// Offer of a rank to an operation.
#[derive(Clone, Debug)]
pub(super) struct GroupOffer {
    /// Signature on which all ranks must agree; none in a split.
    pub(super) signature: Option<OperationSignature>,
    /// One content for each buffer, or for each receiver.
    pub(super) parts: Vec<Vec<u8>>,
    /// Colour and key of a split.
    pub(super) split: Option<(Option<u32>, i32)>,
}

/// Reason why a collective fails at one rank, by the plan.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum GroupBreak {
    /// The connection to this rank.
    Connection(u32),
    /// This rank has not come in time.
    Deadline(u32),
    /// This rank sent bytes that are no frame.
    Garbage(u32),
    /// The system refused a resource that the rank itself needs.
    System,
}

/// Reason why a rank is not there any more.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum GoneRank {
    /// Its process died.
    Died,
    /// It has left the group in good order.
    Left,
    /// It has given the group up.
    GaveUp,
}

#[derive(Debug, Default)]
pub(super) struct ExchangeGroup {
    /// The processes, by rank.
    members: Vec<NodeNumber>,
    /// By number of the operation and rank.
    offers: BTreeMap<(u64, u32), GroupOffer>,
    /// Number of ranks that have finished an operation, by the operation's number.
    finished: BTreeMap<u64, usize>,
    messages: BTreeMap<(u32, u32), VecDeque<Vec<u8>>>,
    gone: BTreeMap<u32, GoneRank>,
    breaks: BTreeMap<u32, GroupBreak>,
}

/// Wait of a thread.
#[derive(Clone, Debug)]
pub(super) enum GroupWait {
    /// All members form.
    Form(Stamp),
    /// These ranks' offers to this operation.
    Offers(GroupName, u64, Vec<u32>),
    /// A message from one rank to another.
    Message(GroupName, u32, u32),
}

/// Result of a wait.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum WaitOutcome {
    /// The wait is fulfilled.
    There,
    /// It goes on waiting.
    Waits,
    /// This rank is waited for in vain.
    Lost(u32, GoneRank),
    /// The plan breaks it.
    Broken(GroupBreak),
}

/// A generation that forms.
#[derive(Debug, Default)]
struct FormingRanks {
    members: Vec<NodeNumber>,
    came: BTreeSet<NodeNumber>,
    breaks: BTreeMap<NodeNumber, GroupBreak>,
}

/// All groups of a run.
#[derive(Debug, Default)]
pub(super) struct GroupExchange {
    groups: BTreeMap<GroupName, ExchangeGroup>,
    forums: BTreeMap<Stamp, FormingRanks>,
    waits: BTreeMap<NodeNumber, GroupWait>,
    dead: BTreeSet<NodeNumber>,
    /// Operations that were offered so far.
    pub(super) offered: u64,
    /// The first disagreement between ranks.
    pub(super) disagreement: Option<String>,
}

impl GroupExchange {
    /// A member comes to form a generation.
    pub(super) fn come(&mut self, node: NodeNumber, stamp: Stamp, members: &[NodeNumber]) {
        let forum = self.forums.entry(stamp).or_default();
        forum.members = members.to_vec();
        forum.came.insert(node);
        if forum.came.len() == members.len() {
            let members = members.to_vec();
            let group = ExchangeGroup { members, ..ExchangeGroup::default() };
            self.groups.entry((stamp, String::new())).or_insert(group);
        }
        self.waits.insert(node, GroupWait::Form(stamp));
    }

    /// Makes the group of a part of another one, once for all of its ranks.
    pub(super) fn divide(&mut self, name: &GroupName, ranks: &[u32], of: &GroupName) {
        let Some(parent) = self.groups.get(of) else { return };
        let member = |rank: &u32| parent.members.get(*rank as usize).copied();
        let members: Vec<NodeNumber> = ranks.iter().filter_map(member).collect();
        let gone = (0..).zip(&members).filter(|(_, member)| self.dead.contains(member));
        let gone = gone.map(|(rank, _)| (rank, GoneRank::Died)).collect();
        let group = ExchangeGroup { members, gone, ..ExchangeGroup::default() };
        self.groups.entry(name.clone()).or_insert(group);
    }

    /// A rank makes an offer, and waits for those of the ranks that it needs.
    pub(super) fn offer(
        &mut self,
        node: NodeNumber,
        (name, number, rank): (&GroupName, u64, u32),
        offer: GroupOffer,
        needs: Vec<u32>,
    ) {
        self.offered += 1;
        let Some(group) = self.groups.get_mut(name) else { return };
        let other = group.offers.range((number, 0)..=(number, u32::MAX)).next();
        if let Some(((_, other), theirs)) = other
            && !agree(theirs.signature.as_ref(), offer.signature.as_ref())
        {
            self.disagreement.get_or_insert_with(|| {
                let (theirs, ours) = (&theirs.signature, &offer.signature);
                format!("operation {number} of {name:?}: rank {other} is in {theirs:?}, rank {rank} in {ours:?}")
            });
        }
        group.offers.insert((number, rank), offer);
        self.waits.insert(node, GroupWait::Offers(name.clone(), number, needs));
    }

    /// The offer of a rank to an operation, if it has come.
    pub(super) fn offered_by(
        &self,
        name: &GroupName,
        number: u64,
        rank: u32,
    ) -> Option<&GroupOffer> {
        self.groups.get(name)?.offers.get(&(number, rank))
    }

    /// A rank has finished an operation: once all have, its offers are forgotten.
    pub(super) fn finish(&mut self, name: &GroupName, number: u64) {
        let Some(group) = self.groups.get_mut(name) else { return };
        let finished = group.finished.entry(number).or_default();
        *finished += 1;
        if *finished == group.members.len() {
            group.finished.remove(&number);
            group.offers.retain(|(of, _), _| *of != number);
        }
    }

    /// A message is on its way.
    pub(super) fn send(&mut self, name: &GroupName, from: u32, to: u32, bytes: Vec<u8>) {
        if let Some(group) = self.groups.get_mut(name) {
            group.messages.entry((from, to)).or_default().push_back(bytes);
        }
    }

    /// A rank waits for a message.
    pub(super) fn expect(&mut self, node: NodeNumber, name: &GroupName, from: u32, to: u32) {
        self.waits.insert(node, GroupWait::Message(name.clone(), from, to));
    }

    /// Takes the message that was waited for.
    pub(super) fn take(&mut self, name: &GroupName, from: u32, to: u32) -> Option<Vec<u8>> {
        self.groups.get_mut(name)?.messages.get_mut(&(from, to))?.pop_front()
    }

    /// Present result of a thread's wait.
    pub(super) fn outcome(&self, node: NodeNumber) -> WaitOutcome {
        let Some(wait) = self.waits.get(&node) else { return WaitOutcome::There };
        match wait {
            GroupWait::Form(stamp) => self.form_outcome(node, *stamp),
            GroupWait::Offers(name, number, needs) => {
                let is_there =
                    |group: &ExchangeGroup, rank: u32| group.offers.contains_key(&(*number, rank));
                self.group_outcome(node, name, needs, is_there)
            }
            GroupWait::Message(name, from, to) => {
                let is_there = |group: &ExchangeGroup, from: u32| {
                    group.messages.get(&(from, *to)).is_some_and(|queue| !queue.is_empty())
                };
                self.group_outcome(node, name, &[*from], is_there)
            }
        }
    }

    fn form_outcome(&self, node: NodeNumber, stamp: Stamp) -> WaitOutcome {
        let Some(forum) = self.forums.get(&stamp) else { return WaitOutcome::Waits };
        if let Some(of) = forum.breaks.get(&node) {
            return WaitOutcome::Broken(*of);
        }
        if forum.came.len() == forum.members.len() {
            return WaitOutcome::There;
        }
        let is_dead = |member: &NodeNumber| self.dead.contains(member);
        match forum.members.iter().position(is_dead) {
            Some(rank) => WaitOutcome::Lost(rank as u32, GoneRank::Died),
            None => WaitOutcome::Waits,
        }
    }

    fn group_outcome(
        &self,
        node: NodeNumber,
        name: &GroupName,
        needs: &[u32],
        is_there: impl Fn(&ExchangeGroup, u32) -> bool,
    ) -> WaitOutcome {
        let Some(group) = self.groups.get(name) else { return WaitOutcome::Waits };
        let own = group.members.iter().position(|member| *member == node).unwrap_or_default();
        if let Some(of) = group.breaks.get(&(own as u32)) {
            return WaitOutcome::Broken(*of);
        }
        let mut missing = needs.iter().copied().filter(|rank| !is_there(group, *rank)).peekable();
        if missing.peek().is_none() {
            return WaitOutcome::There;
        }
        let lost = missing.find_map(|rank| Some((rank, *group.gone.get(&rank)?)));
        lost.map_or(WaitOutcome::Waits, |(rank, why)| WaitOutcome::Lost(rank, why))
    }

    /// The process of a rank.
    pub(super) fn member(&self, name: &GroupName, rank: u32) -> Option<NodeNumber> {
        let members = match self.groups.get(name) {
            Some(group) => &group.members,
            None => &self.forums.get(&name.0)?.members,
        };
        members.get(rank as usize).copied()
    }

    /// The wait of a thread is over.
    pub(super) fn end_wait(&mut self, node: NodeNumber) {
        self.waits.remove(&node);
    }

    /// Breaks the wait of a thread. `pick` chooses the rank that is blamed. None: the thread waits for nothing that can break.
    pub(super) fn break_wait(
        &mut self,
        node: NodeNumber,
        of: impl Fn(u32) -> GroupBreak,
        pick: u32,
    ) -> Option<GroupBreak> {
        let wait = self.waits.get(&node)?.clone();
        let chosen = |members: &[NodeNumber]| {
            let own = members.iter().position(|member| *member == node)? as u32;
            let others = members.len() as u32 - 1;
            let other = own.checked_add(1)?.checked_add(pick.checked_rem(others)?)?;
            Some((own, of(other % members.len() as u32)))
        };
        match wait {
            GroupWait::Form(stamp) => {
                let forum = self.forums.get_mut(&stamp)?;
                let (_, broken) = chosen(&forum.members)?;
                forum.breaks.insert(node, broken);
                Some(broken)
            }
            GroupWait::Offers(name, ..) | GroupWait::Message(name, ..) => {
                let group = self.groups.get_mut(&name)?;
                let (own, broken) = chosen(&group.members)?;
                group.breaks.insert(own, broken);
                Some(broken)
            }
        }
    }

    /// A rank leaves a group.
    pub(super) fn leave(&mut self, name: &GroupName, rank: u32, why: GoneRank) {
        if let Some(group) = self.groups.get_mut(name) {
            group.gone.entry(rank).or_insert(why);
        }
    }

    /// A process dies.
    pub(super) fn die(&mut self, node: NodeNumber) {
        self.dead.insert(node);
        for group in self.groups.values_mut() {
            if let Some(rank) = group.members.iter().position(|member| *member == node) {
                group.gone.entry(rank as u32).or_insert(GoneRank::Died);
            }
        }
    }

    /// Forgets generations before this one.
    pub(super) fn forget_before(&mut self, stamp: Stamp) {
        self.groups.retain(|(of, _), _| *of >= stamp);
        self.forums.retain(|of, _| *of >= stamp);
    }
}

/// Whether two ranks are in the same operation. Parts of operations with a number for each rank have lengths of their own.
fn agree(one: Option<&OperationSignature>, other: Option<&OperationSignature>) -> bool {
    use elastic_collectives::wire::OperationKind::{AllGatherV, AllToAllV};
    match (one, other) {
        (Some(one), Some(other)) if matches!(one.kind, AllGatherV | AllToAllV) => {
            (one.kind, one.data_type) == (other.kind, other.data_type)
        }
        (one, other) => one == other,
    }
}
