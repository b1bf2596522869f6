//! Stragglers: members that compute for longer than the others, which wait for them in each step. Part of `DriverCore`. Its
//! handlers are in `handlers`, the scores in `scoring`, the shares of step time in `shares`, and the lines of the status in
//! `shown`.
//!
//! Workers report with their progress the duration of their steps, and the part of it that is computation. As all ranks
//! wait for each other, their whole steps are equally long: only the time of computation shows a slow member. It is compared
//! with the median of the others' times, and with the worker's own time before. A member that is slow for long enough is
//! named. If several members of one host are slow, and none elsewhere, their host is at fault.

mod handlers;
mod scoring;
mod shares;
mod shown;

use std::collections::BTreeMap;
use std::time::Duration;

use elastic_protocol::messages::StepTimes;
use elastic_protocol::{HostName, Stamp, Time, WorkerId};
use serde::{Deserialize, Serialize};

use self::scoring::{MemberPace, PaceScore, PeerTimes};

/// Delay between step times and their review: one review serves those of all members.
const REVIEW_AFTER: Duration = Duration::from_secs(1);

/// Least number of peers with well-known times that are needed to replace a member for being slower than they are.
const PEERS_MIN: usize = 2;

/// Times of computation in a step of the members of the generation that trains, and the slow ones among them.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct Stragglers {
    /// The generation that all of this is about, but for `named`.
    stamp: Option<Stamp>,
    #[serde(with = "crate::recording::readable::pairs")]
    paces: BTreeMap<WorkerId, MemberPace>,
    /// Members that were named, with the time since which they are slow. They remain named in later generations, until they
    /// are as fast as the others or their process is gone.
    #[serde(with = "crate::recording::readable::pairs")]
    named: BTreeMap<WorkerId, NamedStraggler>,
    /// The review that was asked for.
    review_at: Option<Time>,
    /// Time of the last report of the step shares of this generation; at first, the time at which step times first came.
    shares_told_at: Option<Time>,
}

/// A member that was named.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct NamedStraggler {
    since: Time,
    /// Whether its host was named with it.
    is_host: bool,
}

impl Stragglers {
    /// Forgets the generation before, and workers that are no members any more.
    fn turn_to(&mut self, stamp: Option<Stamp>, is_member: impl Fn(&WorkerId) -> bool) {
        if self.stamp != stamp {
            self.stamp = stamp;
            self.paces.clear();
            self.shares_told_at = None;
            self.named.retain(|worker, _| is_member(worker));
        }
    }

    /// The present times of all members.
    fn peers(&self) -> PeerTimes {
        PeerTimes::new(self.paces.values().map(|pace| (pace.compute_us(), pace.shards())))
    }

    /// The score of a member, against the present times of its peers.
    fn score_of(&self, worker: &WorkerId) -> Option<PaceScore> {
        self.peers().score(self.paces.get(worker)?)
    }

    /// Members of a host that are slow now, named or not.
    fn slow_of<'a>(&'a self, host: &'a HostName) -> impl Iterator<Item = &'a WorkerId> {
        let slow = self.paces.iter().filter(move |(worker, _)| worker.host == *host);
        slow.filter(|(_, pace)| pace.is_slow()).map(|(worker, _)| worker)
    }

    /// Whether a host has members that are slow now, named or not.
    pub(crate) fn has_slow_on(&self, host: &HostName) -> bool {
        self.slow_of(host).next().is_some()
    }

    /// Whether a host is at fault: at least two of its members are slow, there are others elsewhere, and none of them is slow.
    fn is_fault_of(&self, host: &HostName) -> bool {
        let mut elsewhere = self.paces.iter().filter(|(worker, _)| worker.host != *host).peekable();
        self.slow_of(host).nth(1).is_some()
            && elsewhere.peek().is_some()
            && elsewhere.all(|(_, pace)| !pace.is_slow())
    }

    /// Members that were named and have been slow for long in this generation, each with whether its host was named.
    pub(crate) fn slow_for_long(&self, now: Time) -> Vec<(WorkerId, bool)> {
        let is_slow = |worker: &WorkerId| {
            self.paces.get(worker).is_some_and(|pace| pace.slow_since(now).is_some())
        };
        let slow = self.named.iter().filter(|(worker, _)| is_slow(worker));
        slow.map(|(worker, named)| (worker.clone(), named.is_host)).collect()
    }

    /// Whether enough is known of a member to replace it: it is slower than several others whose times are known well, or
    /// much slower than it was itself.
    pub(crate) fn is_sure(&self, worker: &WorkerId) -> bool {
        let others = self.paces.iter().filter(|(other, pace)| *other != worker && pace.is_known());
        others.count() >= PEERS_MIN || self.score_of(worker).is_some_and(PaceScore::has_become_slow)
    }

    /// Whether a member has been as fast as the others for long enough in this generation.
    pub(crate) fn is_fast(&self, worker: &WorkerId, now: Time) -> bool {
        self.paces.get(worker).is_some_and(|pace| pace.is_fast(now))
    }

    /// Time that a member takes for as many shards as its peers, in thousandths of the median of theirs. Each time is a median
    /// over several looks.
    pub(crate) fn slowness_of(&self, worker: &WorkerId) -> Option<u32> {
        let measured = |pace: &MemberPace| Some((pace.measured_us()?, pace.shards()));
        let peers = PeerTimes::new(self.paces.values().filter_map(measured));
        let (us, shards) = measured(self.paces.get(worker)?)?;
        peers.slowness(us, shards)
    }

    /// Whether at least this number of members deal their steps by shards.
    pub(crate) fn all_carry_shards(&self, members: usize) -> bool {
        self.paces.values().filter(|pace| pace.shards() > 0).count() >= members
    }

    /// The time of computation of the member that computes longest, in microseconds.
    pub(crate) fn longest_compute_us(&self) -> Option<u64> {
        self.paces.values().filter_map(MemberPace::measured_us).max()
    }

    /// Median of the whole steps of all members, in microseconds.
    pub(crate) fn step_us(&self) -> Option<u64> {
        let mut all: Vec<u64> = self.paces.values().map(|pace| pace.times().step_us).collect();
        all.sort_unstable();
        all.get(all.len() / 2).copied()
    }

    /// The same, once the times of all members of the generation are known well.
    pub(crate) fn settled_step_us(&self, members: usize) -> Option<u64> {
        let known = self.paces.values().filter(|pace| pace.is_known()).count();
        self.step_us().filter(|_| known >= members)
    }

    /// Time of the next review.
    pub(crate) const fn due_at(&self) -> Option<Time> {
        self.review_at
    }

    /// The step times that a member of the present generation has told last.
    pub(crate) fn times_of(&self, worker: &WorkerId, stamp: Option<Stamp>) -> Option<StepTimes> {
        let pace = self.paces.get(worker).filter(|_| self.stamp == stamp)?;
        Some(pace.times())
    }
}
