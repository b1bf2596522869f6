//! [`Inactivity`]: members by restart that are inactive while their peers work, or the reverse. A part of the core; its
//! handlers are in `handlers`.
//!
//! By restart, programs bring their own collectives, and workers do not report their position in them. So processes are
//! compared from outside. Agents look at all members' processes at intervals. They read processor time, bytes moved and the
//! number of times that the main thread was woken. torch's flight recorder gives the number of collectives that a process
//! has entered (`not_entered`). A member that differs from the others for long is named, with the grounds and how sure they
//! are. Only a process that was stopped or frozen is started anew for that (`--on-hang restart`): any other conclusion from
//! outside is not enough to stop a job.

mod handlers;
mod not_entered;

use std::collections::BTreeMap;
use std::time::Duration;

use elastic_protocol::messages::{HangGrounds, HangSureness, ProcessSight};
use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{Stamp, Time, WorkerId};
use serde::{Deserialize, Serialize};

use not_entered::not_entered;

/// Interval between two looks at all members; shorter with a short `--hang-timeout`.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Shortest interval between two looks; longer than [`STACK_WITHIN`], so that a member is named between two of them.
const LOOK_EVERY_MIN: Duration = Duration::from_secs(3);
/// Looks that fit into the time for which a member must be inactive before it is named.
const LOOKS_MIN: u32 = 4;
/// Time for which a member is inactive before it is named, if `--hang-timeout` is not less.
const INACTIVE_FOR: Duration = Duration::from_secs(60);
/// Multiple of that time for which all others are inactive before the one active member is named: it may evaluate, or write
/// a checkpoint.
const ALONE_FACTOR: u32 = 5;
/// Delay between a look's first answer and the comparison of all members: a look at 4,000 members has as many answers, and
/// one comparison serves them all.
const REVIEW_AFTER: Duration = Duration::from_millis(20);
/// Longest time between the first and the last answer to one look: a peer that was seen earlier may have gone on since.
const COMPARED_WITHIN: Duration = Duration::from_secs(2);
/// Longest time that the event of a hang waits for the process's stacks.
const STACK_WITHIN: Duration = Duration::from_secs(2);

/// Members by restart of the generation that trains, as their agents see their processes.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct Inactivity {
    /// The generation that all of this is about.
    stamp: Option<Stamp>,
    #[serde(with = "crate::recording::readable::pairs")]
    members: BTreeMap<WorkerId, WatchedMember>,
    /// The last look at all members.
    looked_at: Option<Time>,
    /// The next one.
    look_at: Option<Time>,
    /// Time at which members are compared.
    pub(super) review_at: Option<Time>,
}

/// A member whose process is looked at.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct WatchedMember {
    /// The last time at which it was known to be active.
    active_at: Time,
    /// The last look at it.
    seen_at: Time,
    /// Whether the last look showed it active.
    is_active: bool,
    /// The last time at which it was known to enter or to complete a collective, as its recorder has it.
    collectives_at: Time,
    sight: ProcessSight,
    naming: InactivityNaming,
}

/// Progress of naming a member.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
enum InactivityNaming {
    NotYet,
    /// It is to be named. Its stacks are awaited until this time.
    Looking {
        until: Time,
    },
    /// The event was written.
    Done {
        grounds: Grounds,
        since: Time,
    },
}

/// Grounds for naming a member, from the comparison with its peers.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
enum Grounds {
    /// Somebody has stopped or frozen its process.
    Stopped,
    /// It is inactive, and most others are active; `others` is their number.
    AloneInactive { others: usize },
    /// It is active, and all others are inactive; `others` is their number.
    AloneActive { others: usize },
    /// It has entered fewer collectives than all others, and for long no member has entered or completed one. `others` is
    /// the number of the others.
    NotEntered { others: usize, counts: (u64, u64), is_active: bool },
    /// All are inactive, and all others wait in another place (`wait_in`); `others` is their number.
    WaitsElsewhere { others: usize, wait_in: String },
}

impl Grounds {
    /// In words that follow the member's name.
    fn told(&self) -> HangGrounds {
        let (sureness, why) = match self {
            Self::Stopped => (HangSureness::Certain, "its process was stopped".to_owned()),
            // A member that is done with its part waits in the same way for others that are slow.
            Self::AloneInactive { others } => (
                HangSureness::Possible,
                format!(
                    "it has done nothing, while {others} others work: it hangs, or waits for them"
                ),
            ),
            Self::AloneActive { others } => (
                HangSureness::Possible,
                match others {
                    1 => "it alone works, and the other one seems to wait for it".to_owned(),
                    _ => format!("it alone works, and {others} others seem to wait for it"),
                },
            ),
            Self::NotEntered { others, counts: (its, theirs), is_active } => (
                if *is_active { HangSureness::Possible } else { HangSureness::Likely },
                match others {
                    1 => format!(
                        "torch has recorded {its} collectives of it, and {theirs} of the other one, which waits"
                    ),
                    _ => format!(
                        "torch has recorded {its} collectives of it, and {theirs} of each of {others} others, which wait"
                    ),
                },
            ),
            Self::WaitsElsewhere { others, wait_in } => (
                HangSureness::Likely,
                format!("nobody works, and {others} others wait in something else: {wait_in}"),
            ),
        };
        HangGrounds { sureness, why }
    }
}

/// A member that is to be named.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Suspect {
    worker: WorkerId,
    grounds: Grounds,
    since: Time,
}

impl WatchedMember {
    fn new(now: Time, sight: ProcessSight) -> Self {
        let naming = InactivityNaming::NotYet;
        Self { active_at: now, seen_at: now, is_active: true, collectives_at: now, sight, naming }
    }

    /// Takes a look over.
    fn take(&mut self, now: Time, sight: ProcessSight) {
        let passed = now.since(self.seen_at);
        self.is_active = sight.is_active_since(&self.sight, passed);
        if is_planted(Bug::InactivityAssumed) {
            self.is_active = false;
        }
        if self.is_active || is_planted(Bug::InactivityForgotten) {
            self.active_at = now;
        }
        if sight.collectives != self.sight.collectives {
            self.collectives_at = now;
        }
        self.seen_at = now;
        let former = std::mem::replace(&mut self.sight, sight);
        self.sight.keep_stacks_of(former);
    }
}

impl Inactivity {
    /// Forgets the generation before.
    fn turn_to(&mut self, stamp: Option<Stamp>) {
        if self.stamp != stamp {
            *self = Self { stamp, ..Self::default() };
        }
    }

    /// Time of the next look or comparison, or of the end of a wait for stacks.
    pub(crate) fn due_at(&self) -> Option<Time> {
        let looking = self.members.values().filter_map(|member| match member.naming {
            InactivityNaming::Looking { until } => Some(until),
            InactivityNaming::NotYet | InactivityNaming::Done { .. } => None,
        });
        looking.chain(self.look_at).chain(self.review_at).min()
    }

    /// The interval between two looks, by the time for which a member must be inactive.
    fn look_every(limit: Duration) -> Duration {
        (limit / LOOKS_MIN).clamp(LOOK_EVERY_MIN, LOOK_EVERY)
    }

    /// Time for which a member is inactive before it is named. `cap` is the operator's bound.
    fn limit(cap: Option<Duration>) -> Duration {
        cap.map_or(INACTIVE_FOR, |cap| cap.min(INACTIVE_FOR))
    }

    /// Whether a member that was named on these grounds goes on.
    fn goes_on(&self, worker: &WorkerId, grounds: &Grounds) -> bool {
        match grounds {
            Grounds::AloneActive { .. } => {
                self.members.iter().any(|(other, member)| other != worker && member.is_active)
            }
            Grounds::NotEntered { counts: (its, _), .. } => {
                let member = self.members.get(worker);
                member.and_then(|it| it.sight.collectives).is_none_or(|it| it.entered != *its)
            }
            _ => self.members.get(worker).is_some_and(|member| member.is_active),
        }
    }

    /// The members to be named. `running` are the members whose processes run.
    fn suspects(&self, now: Time, running: &[WorkerId], limit: Duration) -> Vec<Suspect> {
        let known = running.iter().filter_map(|worker| Some((worker, self.members.get(worker)?)));
        let known: Vec<(&WorkerId, &WatchedMember)> = known.collect();
        // Members are compared by looks of one time. Nothing is known of a member that was not seen in the last look.
        let is_seen = |member: &WatchedMember| Some(member.seen_at) >= self.looked_at;
        let all_are_seen = known.len() == running.len() && known.iter().all(|(_, it)| is_seen(it));
        // A member that is about to be named was looked at once more, for its stacks.
        let is_compared =
            |it: &WatchedMember| !matches!(it.naming, InactivityNaming::Looking { .. });
        let compared = known.iter().filter(|(_, it)| is_compared(it));
        let (first, last) = compared.fold((now, Time::ZERO), |(first, last), (_, it)| {
            (first.min(it.seen_at), last.max(it.seen_at))
        });
        let spread = last.since(first);
        if known.len() < 2 || !all_are_seen || spread > COMPARED_WITHIN {
            return Vec::new();
        }
        let (active, inactive): (Vec<_>, Vec<_>) = known.iter().partition(|(_, it)| it.is_active);
        let inactive_for = |member: &WatchedMember| now.since(member.active_at);
        let suspect = |worker: &WorkerId, since: Time, grounds| {
            let worker = worker.clone();
            Suspect { worker, grounds, since }
        };
        // A process that was stopped or frozen does not go on by itself.
        let forced = inactive.iter().filter(|(_, it)| it.sight.is_by_force());
        let forced: Vec<Suspect> =
            forced.map(|(worker, it)| suspect(worker, it.active_at, Grounds::Stopped)).collect();
        if !forced.is_empty() {
            return forced;
        }
        let behind = not_entered(now, &known, limit);
        if !behind.is_empty() {
            return behind;
        }
        let others = known.len() - 1;
        match (&active[..], &inactive[..]) {
            // Of two members, the other one may as well hang: the conclusion is no more than possible.
            ([(worker, _)], [_, ..]) => {
                let since = inactive.iter().map(|(_, it)| it.active_at).max().unwrap_or(now);
                let is_long = now.since(since) >= limit * ALONE_FACTOR;
                let it = suspect(worker, since, Grounds::AloneActive { others });
                if is_long { vec![it] } else { Vec::new() }
            }
            ([_, _, ..], _) if inactive.len() < active.len() => {
                let long = inactive.iter().filter(|(_, it)| inactive_for(it) >= limit);
                let grounds = Grounds::AloneInactive { others: active.len() };
                long.map(|(worker, it)| suspect(worker, it.active_at, grounds.clone())).collect()
            }
            ([], all) if all.iter().all(|(_, it)| inactive_for(it) >= limit) => {
                let of = |member: &WatchedMember| member.sight.waits_in.clone().unwrap_or_default();
                let mut counts: BTreeMap<String, usize> = BTreeMap::new();
                for (_, member) in all {
                    *counts.entry(of(member)).or_default() += 1;
                }
                let theirs = counts.iter().find(|(_, count)| **count == others).map(|(it, _)| it);
                let odd = |theirs: &String| all.iter().find(|(_, member)| of(member) != *theirs);
                let found =
                    theirs.filter(|_| others > 1).and_then(|theirs| Some((theirs, odd(theirs)?)));
                let grounds =
                    |wait_in: &String| Grounds::WaitsElsewhere { others, wait_in: wait_in.clone() };
                found
                    .map(|(theirs, (worker, it))| suspect(worker, it.active_at, grounds(theirs)))
                    .into_iter()
                    .collect()
            }
            _ => Vec::new(),
        }
    }
}
