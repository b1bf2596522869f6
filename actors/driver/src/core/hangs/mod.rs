//! [`Hangs`]: members that stand still while others wait for them in a collective. A part of the core. `handlers` finds
//! the awaited members, `naming` names the hanging ones, and `shown` makes the lines of the status.
//!
//! Workers report the standstill of their training thread with its place, and its end. A member that stands still inside
//! a collective waits. A member is awaited if it stands still outside of all collectives, or has finished. If all stand
//! still in collectives, the members in another one than most are awaited. Agents look at the processes of awaited
//! members. A wait that lasts for longer than is usual (`limits`) is a hang: the member is named, and the operator's
//! answer follows (`--on-hang`).

mod handlers;
mod limits;
mod naming;
mod shown;

use std::collections::BTreeMap;
use std::time::Duration;

use elastic_protocol::messages::{CollectivePosition, ProcessSight, TrainingSection};
use elastic_protocol::{Stamp, Time, WorkerId};
use serde::{Deserialize, Serialize};

use self::limits::UsualWaits;

/// Delay between a report and its review, so that the reports of many members share one.
const REVIEW_AFTER: Duration = Duration::from_millis(20);
/// First look at an awaited process after the wait began; each further one comes after twice the time.
const LOOK_AFTER: Duration = Duration::from_secs(1);
/// Longest time between two looks.
const LOOK_AFTER_MAX: Duration = Duration::from_secs(30);
/// Shortest time between two sights of a stopped process by which it counts as stopped: profilers and debuggers stop one
/// for a moment.
const STOPPED_FOR: Duration = Duration::from_millis(500);
/// Longest time that the event of a hang waits for the process's stacks.
const STACK_WITHIN: Duration = Duration::from_secs(2);

/// Members of the generation that trains whose training thread stands still, and the wait of others for them.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct Hangs {
    /// The generation that all of this is about.
    stamp: Option<Stamp>,
    /// Members whose training thread stands still.
    #[serde(with = "crate::recording::readable::pairs")]
    still: BTreeMap<WorkerId, StillMember>,
    /// The wait under way.
    wait: Option<WaitForMembers>,
    usual: UsualWaits,
    /// The review that was asked for.
    review_at: Option<Time>,
    /// The last sight of the process of each silent member.
    #[serde(with = "crate::recording::readable::pairs")]
    silent: BTreeMap<WorkerId, ProcessSight>,
}

/// A member whose training thread stands still.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct StillMember {
    position: CollectivePosition,
    since: Time,
}

/// Members that others wait for in a collective.
#[derive(Debug, Deserialize, Serialize)]
struct WaitForMembers {
    since: Time,
    /// The collective that they wait in, such as `all_reduce`, and the number of the call.
    operation: String,
    /// Number of members that wait.
    waiters: usize,
    #[serde(with = "crate::recording::readable::pairs")]
    awaited: BTreeMap<WorkerId, AwaitedMember>,
    /// Whether a process was seen stopped or frozen. Such a wait does not count among the usual ones.
    was_by_force: bool,
    /// The next look at the processes, and the time between it and the one after it.
    look_at: Time,
    look_after: Duration,
}

/// A member that others wait for.
#[derive(Debug, Deserialize, Serialize)]
struct AwaitedMember {
    /// The time since which others wait for it: it stood still before, or came to stand still meanwhile.
    since: Time,
    /// Whether its training function has returned.
    has_finished: bool,
    /// The section of the program that it is in.
    section: Option<TrainingSection>,
    /// The collective that it is in, which is another one than that of the others.
    #[serde(default)]
    inside: Option<String>,
    /// The last sight of its process.
    sight: Option<ProcessSight>,
    /// The time since which every sight was one of a stopped or frozen process.
    forced_since: Option<Time>,
    naming: Naming,
    /// Time at which the named member is to be replaced (`--on-hang replace`).
    #[serde(default)]
    replace_at: Option<Time>,
}

/// Progress of naming an awaited member as hanging.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
enum Naming {
    /// The wait is not too long yet.
    NotYet,
    /// The wait is too long. A last look at the process, with its stacks if they are wanted, is awaited until this time.
    Looking { until: Time },
    /// The event was written.
    Done,
}

impl AwaitedMember {
    /// A member that is awaited from now on. `still` is its standstill; none if it has finished.
    fn new(since: Time, still: Option<&StillMember>) -> Self {
        let position = still.map(|still| &still.position);
        Self {
            since,
            has_finished: still.is_none(),
            section: position.and_then(|position| position.section.clone()),
            inside: position.and_then(|it| Some(it.inside.as_ref()?.named(it.entered))),
            sight: None,
            forced_since: None,
            naming: Naming::NotYet,
            replace_at: None,
        }
    }
}

impl Hangs {
    /// Forgets the generation before.
    fn turn_to(&mut self, stamp: Option<Stamp>) {
        if self.stamp != stamp {
            self.stamp = stamp;
            self.still.clear();
            self.silent.clear();
            self.wait = None;
        }
    }

    /// Time of the next review.
    pub(crate) fn due_at(&self) -> Option<Time> {
        let looks = self.wait.iter().flat_map(|wait| {
            let stacks = wait.awaited.values().filter_map(|member| match member.naming {
                Naming::Looking { until } => Some(until),
                Naming::NotYet | Naming::Done => None,
            });
            let replaced = wait.awaited.values().filter_map(|member| member.replace_at);
            stacks.chain(replaced).chain([wait.look_at])
        });
        looks.chain(self.review_at).min()
    }

    /// Checks that the wait under way is for somebody.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub(crate) fn check(&self) -> Result<(), String> {
        match &self.wait {
            Some(wait) if wait.awaited.is_empty() || wait.waiters == 0 => {
                Err(format!("{} members wait for {} others", wait.waiters, wait.awaited.len()))
            }
            _ => Ok(()),
        }
    }
}
