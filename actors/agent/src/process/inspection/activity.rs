//! Tells by two readings of a process which [`ProcessActivity`] it shows. Called by `reading`.

use elastic_protocol::messages::ProcessActivity;

use super::reading::Reading;

/// The part of the watched time that a process must compute for to count as working: one in so many.
pub(super) const PART_OF_TIME: u64 = 10;

/// Bytes that move while a program waits: an event loop that is woken writes and reads eight bytes of an eventfd each
/// time, and an idle loop wakes up a few times in a look.
const MOVED_BY_WAKE_UPS: u64 = 1_024;

/// Whether a process, with all that it has started, computes or moves data.
pub(super) fn is_work(watched_ms: u64, cpu_ms: u64, moved_bytes: u64) -> bool {
    cpu_ms * PART_OF_TIME >= watched_ms || moved_bytes > MOVED_BY_WAKE_UPS
}

/// The activity of a process between two readings. `is_work` is the answer of [`is_work`] for the same time.
pub(super) fn activity(first: &Reading, second: &Reading, is_work: bool) -> ProcessActivity {
    // A main thread that ran in between, and is in such a sleep again, gets its data, if slowly.
    let is_same_sleep = first.switches == second.switches && first.stat.state == 'D';
    match second.stat.state {
        _ if second.stat.has_ended() => ProcessActivity::Ended,
        'T' => ProcessActivity::Stopped,
        // A profiler stops a process for a moment each time that it looks.
        't' if first.stat.state == 't' => ProcessActivity::Stopped,
        _ if second.is_frozen => ProcessActivity::Frozen,
        'D' if is_same_sleep => ProcessActivity::Uninterruptible,
        _ if is_work => ProcessActivity::Working,
        _ => ProcessActivity::Waiting,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_a_tenth_of_the_time_or_more_bytes_than_wake_ups_take() {
        assert!(is_work(200, 20, 0) && is_work(200, 0, 4_096));
        assert!(!is_work(200, 10, 0) && !is_work(200, 0, 160));
    }
}
