//! Reports about hangs: the position of a training thread among its collectives and the sections of its program, the
//! activity of a process as its agent observed it, and the objects that `status` shows of both.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::HostName;

/// Position of a worker's training thread among the collectives of its generation, and the section of its program.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct CollectivePosition {
    /// Collectives of the group of all ranks that the worker has entered in this generation.
    pub entered: u64,
    /// The collective that it is in; `None` while it is in none, such as in its own computation.
    pub inside: Option<CurrentCollective>,
    /// The section of the program that it is in, if the program names it.
    pub section: Option<TrainingSection>,
}

/// A section of a training program, such as an evaluation, that the program has named: waits for a worker in it are
/// compared with waits in the same section.
#[derive(Clone, Debug, Default, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct TrainingSection {
    /// Its name; at most [`TrainingSection::NAME_BYTES_MAX`] bytes.
    pub name: String,
    /// Time limit for others' waits for a worker in it, in milliseconds. A worker that exceeds it counts as hanging.
    /// `None`: the usual limit.
    pub within_ms: Option<u64>,
}

impl TrainingSection {
    /// Longest name, in bytes.
    pub const NAME_BYTES_MAX: usize = 64;
    /// Name of the sections in which a program waits for its data. They are part of a step; other sections are not.
    pub const DATA: &str = "data";
}

/// The collective that a worker is in.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct CurrentCollective {
    /// Its kind, such as `all_reduce`; at most [`CurrentCollective::KIND_BYTES_MAX`] bytes.
    pub kind: String,
    /// Whether all ranks take part, not those of a sub-group alone.
    pub is_of_all: bool,
    /// Number of its group: the same on each of the group's ranks, another one for each other group of the generation.
    /// Zero is the group of all ranks.
    #[serde(default)]
    pub group: u64,
    /// Number of the group's ranks; zero if unknown.
    #[serde(default)]
    pub ranks: u32,
}

impl CurrentCollective {
    /// Longest kind, in bytes.
    pub const KIND_BYTES_MAX: usize = 32;

    /// The collective with its number among those of all ranks, which only these share.
    #[must_use]
    pub fn named(&self, call: u64) -> String {
        let Self { kind, is_of_all, ranks, .. } = self;
        match (is_of_all, ranks) {
            (true, _) => format!("{kind}, call {call}"),
            (false, 0) => format!("{kind} of a sub-group"),
            (false, ranks) => format!("{kind} of a sub-group of {ranks}"),
        }
    }
}

/// Activity of a process, as far as its host's system shows it.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessActivity {
    /// A signal has stopped it (SIGSTOP, SIGTSTP), or a debugger holds it.
    Stopped,
    /// Its control group is frozen.
    Frozen,
    /// It is in uninterruptible sleep, mostly for a disk or a network file system.
    Uninterruptible,
    /// It sleeps, and neither it nor a process that it has started computes or moves data.
    Waiting,
    /// It, or a process that it has started, computes or moves data.
    Working,
    /// It has ended, and was not reaped.
    Ended,
}

/// A process as its agent saw it over a short time.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct ProcessSight {
    /// Its activity.
    pub activity: ProcessActivity,
    /// Duration of the observation, in milliseconds.
    pub watched_ms: u64,
    /// CPU time that it and its descendants have used in that time, in milliseconds.
    pub cpu_ms: u64,
    /// Bytes that they have read and written in that time, from files, pipes and sockets. The kernel does not count
    /// bytes moved by recv(2) and send(2).
    pub moved_bytes: u64,
    /// The system call that its main thread waits in, such as `write to file descriptor 1 (a pipe)`.
    pub waits_in: Option<String>,
    /// Other possible causes, such as a child that has ended; at most [`ProcessSight::FINDINGS_MAX`].
    pub findings: Vec<String>,
    /// The Python stack of each of its threads, the innermost call first; empty if there is none. At most
    /// [`ProcessSight::STACK_BYTES_MAX`] bytes.
    pub stack: String,
    /// The native stack of its main thread, a function on each line, the innermost call first; empty if it was not asked
    /// for or cannot be had. At most [`ProcessSight::NATIVE_STACK_BYTES_MAX`] bytes.
    #[serde(default)]
    pub native_stack: String,
    /// Work of the process and its descendants since its start. Two sights tell whether it did anything between them.
    #[serde(default)]
    pub counters: ProcessCounters,
    /// Its collectives of all ranks, as its framework's recorder counts them. `None` if there is none.
    #[serde(default)]
    pub collectives: Option<RecordedCollectives>,
}

/// Collectives of all ranks that a process has entered since its start, as torch's flight recorder counts them for the default
/// process group.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct RecordedCollectives {
    /// Collectives that were handed to the backend.
    pub entered: u64,
    /// The last one that was completed here.
    pub completed: u64,
}

/// Work of a process and its descendants since their start.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct ProcessCounters {
    /// CPU time, in milliseconds.
    pub cpu_ms: u64,
    /// Bytes read and written, as in [`ProcessSight::moved_bytes`].
    pub moved_bytes: u64,
    /// Number of times that its main thread has given its processor up, or lost it.
    pub switches: u64,
}

impl ProcessCounters {
    /// Share of the CPU time that an idle process may use: one part in so many of all time. The threads of its
    /// libraries look after their connections.
    const IDLE_PART_OF_TIME: u64 = 50;
    /// Cost of one observation of it, on top of that: the signal for its stacks, a stop for its native stack.
    const LOOK: Self = Self { cpu_ms: 50, moved_bytes: 64 << 10, switches: 10 };

    /// Whether more than nothing was done since an earlier moment. None if the counts cannot be compared: descendants
    /// that have ended without being waited for took theirs with them.
    fn is_more_than_idle_since(&self, earlier: &Self, passed_ms: u64) -> Option<bool> {
        let cpu_ms = self.cpu_ms.checked_sub(earlier.cpu_ms)?;
        let moved_bytes = self.moved_bytes.checked_sub(earlier.moved_bytes)?;
        let switches = self.switches.checked_sub(earlier.switches)?;
        Some(
            cpu_ms > Self::LOOK.cpu_ms + passed_ms / Self::IDLE_PART_OF_TIME
                || moved_bytes > Self::LOOK.moved_bytes
                || switches > Self::LOOK.switches + passed_ms / 1_000,
        )
    }
}

impl ProcessSight {
    /// Longest stack, in bytes.
    pub const STACK_BYTES_MAX: usize = 4096;
    /// Longest native stack, in bytes.
    pub const NATIVE_STACK_BYTES_MAX: usize = 2048;
    /// Most findings.
    pub const FINDINGS_MAX: usize = 4;
    /// Longest finding, and longest `waits_in`, in bytes.
    pub const TEXT_BYTES_MAX: usize = 256;

    /// A sight with this activity over `watched_ms` milliseconds, and nothing else.
    #[must_use]
    pub fn new(activity: ProcessActivity, watched_ms: u64) -> Self {
        Self {
            activity,
            watched_ms,
            cpu_ms: 0,
            moved_bytes: 0,
            waits_in: None,
            findings: Vec::new(),
            stack: String::new(),
            native_stack: String::new(),
            counters: ProcessCounters::default(),
            collectives: None,
        }
    }

    /// Whether the process was at work since an earlier sight of it. The counts of all that time decide, and not the
    /// moment for which it is watched: a process that only polls for its data may be at that in each of these moments.
    #[must_use]
    pub fn is_active_since(&self, earlier: &Self, passed: Duration) -> bool {
        let passed_ms = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX);
        let is_active = self.counters.is_more_than_idle_since(&earlier.counters, passed_ms);
        is_active.unwrap_or(self.activity == ProcessActivity::Working)
    }

    /// Takes the stacks of an earlier sight over if this one shows none: they are taken once, when the worker is about
    /// to be named.
    pub fn keep_stacks_of(&mut self, earlier: Self) {
        if !self.has_stack() {
            (self.stack, self.native_stack) = (earlier.stack, earlier.native_stack);
        }
    }

    /// Forgets its stacks.
    pub fn drop_stacks(&mut self) {
        self.stack.clear();
        self.native_stack.clear();
    }

    /// Whether it shows a stack, of Python or of native code.
    #[must_use]
    pub const fn has_stack(&self) -> bool {
        !self.stack.is_empty() || !self.native_stack.is_empty()
    }

    /// Whether the process stands still since somebody has stopped or frozen it.
    #[must_use]
    pub const fn is_by_force(&self) -> bool {
        matches!(self.activity, ProcessActivity::Stopped | ProcessActivity::Frozen)
    }
}

/// The process's activity, in words that follow its name.
impl fmt::Display for ProcessSight {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.activity {
            ProcessActivity::Stopped => {
                formatter.write_str("is stopped by a signal or a debugger")?
            }
            ProcessActivity::Frozen => formatter.write_str("is frozen with its control group")?,
            ProcessActivity::Uninterruptible => {
                formatter
                    .write_str("is in uninterruptible sleep, as for a disk that does not answer")?;
            }
            ProcessActivity::Waiting => formatter.write_str("waits")?,
            ProcessActivity::Working => {
                let Self { cpu_ms, moved_bytes, watched_ms, .. } = self;
                write!(formatter, "works: {cpu_ms} ms of CPU time")?;
                if *moved_bytes > 0 {
                    write!(formatter, " and {moved_bytes} bytes moved")?;
                }
                write!(formatter, " in {watched_ms} ms")?;
            }
            ProcessActivity::Ended => formatter.write_str("has ended")?,
        }
        if let Some(waits_in) = &self.waits_in {
            write!(formatter, ", in {waits_in}")?;
        }
        self.findings.iter().try_for_each(|finding| write!(formatter, "; {finding}"))
    }
}

/// A worker for which others wait.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct AwaitedWorker {
    /// The worker, as `HOST[SLOT]#INCARNATION`.
    pub worker: String,
    /// Its host.
    pub host: HostName,
    /// The reason why others wait for it, and its own activity, as far as known.
    pub why: String,
    /// Time for which it has been awaited, in milliseconds.
    pub for_ms: u64,
}

/// A worker that hangs: others have waited for it for longer than is usual.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct StalledWorker {
    /// Its rank.
    pub rank: u32,
    /// Its host.
    pub host: HostName,
    /// Its slot.
    pub slot: u32,
    /// Its process on that host; absent if it is not known.
    #[serde(default)]
    pub pid: Option<u32>,
    /// The collective in which the others wait for it, such as `all_reduce, call 17`.
    pub operation: String,
    /// Time for which they have waited, in milliseconds.
    pub late_ms: u64,
    /// Its own activity meanwhile.
    pub doing: String,
    /// The Python stack of each of its threads, the innermost call first; absent if there is none.
    #[serde(default)]
    pub stack: Option<String>,
    /// The native stack of its main thread, a function on each line, the innermost call first; absent if there is none.
    #[serde(default)]
    pub native_stack: Option<String>,
    /// By restart, the grounds for taking it to hang; absent if the worker reports its position.
    #[serde(default)]
    pub grounds: Option<HangGrounds>,
}

/// Grounds for the finding that a worker hangs, if the worker does not report its position.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct HangGrounds {
    /// Certainty of the finding.
    pub sureness: HangSureness,
    /// Activity of its process compared with its peers', in words.
    pub why: String,
}

/// Certainty that a worker hangs.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HangSureness {
    /// Its process cannot go on.
    Certain,
    /// It differs from its peers as one that hangs does.
    Likely,
    /// It may take long for a good reason.
    Possible,
}

impl HangGrounds {
    /// Whether the job counts as standing still. A worker whose hang is only possible may be training.
    #[must_use]
    pub fn is_more_than_possible(&self) -> bool {
        self.sureness != HangSureness::Possible
    }
}

impl fmt::Display for HangGrounds {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sureness = match self.sureness {
            HangSureness::Certain => "certain",
            HangSureness::Likely => "likely",
            HangSureness::Possible => "possible",
        };
        write!(formatter, "{} ({sureness})", self.why)
    }
}

impl StalledWorker {
    /// Whether the job counts as standing still for it.
    #[must_use]
    pub fn holds_up_all(&self) -> bool {
        self.grounds.as_ref().is_none_or(HangGrounds::is_more_than_possible)
    }
}

/// One line, without the stack.
impl fmt::Display for StalledWorker {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, host, slot, operation, late_ms, doing, grounds, pid, .. } = self;
        let who = ProcessNamed(*pid);
        if let Some(grounds) = grounds {
            return write!(
                formatter,
                "rank {rank} ({host}:{slot}) hangs: for {late_ms} ms {grounds}, and {who} {doing}"
            );
        }
        write!(
            formatter,
            "rank {rank} ({host}:{slot}) hangs: others have waited {late_ms} ms for it in {operation}, and {who} {doing}"
        )
    }
}

/// The process of a worker that was named before, as the subject of a clause about its activity.
#[derive(Clone, Copy, Debug)]
pub struct ProcessNamed(pub Option<u32>);

impl fmt::Display for ProcessNamed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(pid) => write!(formatter, "its process {pid}"),
            None => formatter.write_str("it"),
        }
    }
}

impl fmt::Display for AwaitedWorker {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} for {} ms: {}", self.worker, self.for_ms, self.why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sight(activity: ProcessActivity, counters: ProcessCounters) -> ProcessSight {
        ProcessSight { counters, ..ProcessSight::new(activity, 200) }
    }

    #[test]
    fn x_2_who_polls_is_inactive_though_each_look_falls_on_a_poll() {
        let of = |seconds: u64| {
            // Each second it reads a file of 1.4 kB, and sleeps.
            let switches = 2 * seconds;
            let counters =
                ProcessCounters { cpu_ms: seconds, moved_bytes: 1_400 * seconds, switches };
            sight(ProcessActivity::Working, counters)
        };
        assert!(!of(103).is_active_since(&of(100), Duration::from_secs(3)));
        assert!(!of(110).is_active_since(&of(100), Duration::from_secs(10)));
    }

    #[test]
    fn who_has_done_more_than_a_look_costs_is_active_though_the_look_shows_it_waiting() {
        let earlier = ProcessCounters { cpu_ms: 700, moved_bytes: 9_000, switches: 40 };
        let before = sight(ProcessActivity::Waiting, earlier);
        let since = |change: fn(&mut ProcessCounters)| {
            let mut counters = earlier;
            change(&mut counters);
            let now = sight(ProcessActivity::Waiting, counters);
            now.is_active_since(&before, Duration::from_secs(10))
        };
        assert!(!since(|_| {}));
        assert!(!since(|it| it.cpu_ms += 250) && since(|it| it.cpu_ms += 251));
        assert!(!since(|it| it.moved_bytes += 65_536) && since(|it| it.moved_bytes += 65_537));
        assert!(!since(|it| it.switches += 20) && since(|it| it.switches += 21));
    }

    #[test]
    fn what_the_look_shows_decides_where_descendants_have_taken_their_counts_with_them() {
        let counters = |cpu_ms| ProcessCounters { cpu_ms, moved_bytes: 0, switches: 0 };
        let before = sight(ProcessActivity::Working, counters(5_000));
        let is_active = |activity| {
            sight(activity, counters(4_000)).is_active_since(&before, Duration::from_secs(10))
        };
        assert!(is_active(ProcessActivity::Working) && !is_active(ProcessActivity::Waiting));
    }
}
