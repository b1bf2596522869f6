//! The files of `/proc` on the state of a process: its `stat`, its `status`, its `io`. Called by `inspection` and
//! `orphans`.

use std::fs;

/// A process or a thread, by `/proc/PID/stat`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct ProcessStat {
    /// The name of its program, cut to 15 bytes by the system.
    pub(super) name: String,
    /// The state of its main thread, such as `S`.
    pub(super) state: char,
    pub(super) parent: i32,
    /// Pages that had to be read from a disk or from swap.
    pub(super) major_faults: u64,
    /// CPU time of all its threads, and of children that have ended and were waited for, in ticks.
    pub(super) cpu_ticks: u64,
    /// Time of its start, in ticks. Together with the process id it identifies a process for good.
    pub(super) started: u64,
    /// Its exit status in the encoding of wait(2). Zero if the status is not visible.
    pub(super) exit: i32,
}

impl ProcessStat {
    pub(super) fn of(pid: i32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The name may hold any character, a parenthesis, too.
    fn parse(stat: &str) -> Option<Self> {
        let (before, behind) = stat.rsplit_once(')')?;
        let (_, name) = before.split_once('(')?;
        let words: Vec<&str> = behind.split_whitespace().collect();
        // proc_pid_stat(5) counts from one, and the state is the third.
        let field = |number: usize| words.get(number - 3).copied();
        let count = |number: usize| field(number)?.parse::<u64>().ok();
        Some(Self {
            name: name.to_owned(),
            state: field(3)?.chars().next()?,
            parent: field(4)?.parse().ok()?,
            major_faults: count(12)?,
            cpu_ticks: count(14)? + count(15)? + count(16)? + count(17)?,
            started: count(22)?,
            exit: field(52).and_then(|exit| exit.parse().ok()).unwrap_or_default(),
        })
    }

    /// Whether it has ended and was not waited for.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

/// `/proc/PID/status`: a name and a value on each line.
#[derive(Clone, Debug)]
pub(super) struct ProcessStatus(String);

impl ProcessStatus {
    pub(super) fn of(pid: i32) -> Option<Self> {
        fs::read_to_string(format!("/proc/{pid}/status")).ok().map(Self)
    }

    /// The number of a line; zero where there is none.
    pub(super) fn number(&self, name: &str) -> u64 {
        let number = |value: &str| value.split_whitespace().next()?.parse().ok();
        self.value(name).and_then(number).unwrap_or_default()
    }

    /// Whether the process has a handler for a signal.
    pub(super) fn catches(&self, signal: i32) -> bool {
        let caught = self.value("SigCgt").and_then(|mask| u64::from_str_radix(mask, 16).ok());
        let bit = signal.checked_sub(1).and_then(|shift| 1_u64.checked_shl(shift.cast_unsigned()));
        caught.zip(bit).is_some_and(|(caught, bit)| caught & bit != 0)
    }

    fn value(&self, name: &str) -> Option<&str> {
        let lines = self.0.lines().filter_map(|line| line.split_once(':'));
        lines.into_iter().find(|(it, _)| *it == name).map(|(_, value)| value.trim())
    }
}

/// Bytes that a process has read and written since its start by read(2), write(2) and the like, on any kind of file;
/// zero if the count is not visible. The kernel does not count the bytes of recv(2) and send(2). A process that uses
/// only those is recognised by its processor time, and by the number of times that its main thread is woken.
pub(super) fn moved_bytes(pid: i32) -> u64 {
    let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let fields = io.lines().filter_map(|line| line.split_once(": "));
    let moved = fields.filter(|(name, _)| matches!(*name, "rchar" | "wchar"));
    moved.filter_map(|(_, count)| count.parse::<u64>().ok()).sum()
}

/// Time that the main thread of a process has waited for a processor since its start, ready to run, in nanoseconds. It
/// is the second number of `/proc/PID/schedstat`; zero if that is not visible.
pub(super) fn kept_waiting_ns(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|it| it.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_is_read_whatever_the_name_is() {
        let behind = "S 7 5 5 0 -1 4194304 100 200 3 4 10 20 30 40 20 0 1 0 777 1 1 1";
        let stat = ProcessStat::parse(&format!("12 (a) b (c) {behind}")).expect("it is whole");
        assert_eq!((stat.name.as_str(), stat.state, stat.parent), ("a) b (c", 'S', 7));
        assert_eq!((stat.major_faults, stat.cpu_ticks, stat.started, stat.exit), (3, 100, 777, 0));
        assert_eq!(ProcessStat::parse("12 (a) S 7"), None);
        assert_eq!(ProcessStat::parse(""), None);
    }

    #[test]
    fn a_status_tells_numbers_and_signals() {
        let status =
            ProcessStatus("VmSwap:\t    12 kB\nTracerPid:\t7\nSigCgt:\t1000000000000002\n".into());
        assert_eq!((status.number("VmSwap"), status.number("TracerPid")), (12, 7));
        assert_eq!(status.number("Nothing"), 0);
        assert!(status.catches(2) && status.catches(61) && !status.catches(60));
        assert!(!status.catches(0) && !status.catches(65));
    }
}
