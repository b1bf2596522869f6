//! [`LogLimit`]: a bound on log lines that strangers can cause. Without I/O; used by the listener.

use std::collections::BTreeMap;
use std::time::Duration;

use elastic_protocol::Time;

/// Passes so many lines of each kind in each [`LogLimit::WINDOW`], and counts the others.
#[derive(Debug, Default)]
pub(crate) struct LogLimit {
    kinds: BTreeMap<&'static str, Window>,
}

#[derive(Debug, Default)]
struct Window {
    began: Time,
    passed: u32,
    withheld: u64,
}

impl LogLimit {
    /// Length of a window.
    pub(crate) const WINDOW: Duration = Duration::from_secs(10);
    /// Lines of a kind in a window. One, because a line that a stranger can cause ten thousand times is logged
    /// once, with its count.
    pub(crate) const LINES: u32 = 1;

    /// Whether a line may be written; if so, the number of lines of its kind that were withheld before it.
    pub(crate) fn pass(&mut self, now: Time, kind: &'static str) -> Option<u64> {
        let window = self.kinds.entry(kind).or_default();
        if now.since(window.began) >= Self::WINDOW {
            window.began = now;
            window.passed = 0;
        }
        if window.passed >= Self::LINES {
            window.withheld += 1;
            return None;
        }
        window.passed += 1;
        Some(std::mem::take(&mut window.withheld))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_instead() {
        let mut limit = LogLimit::default();
        let passed = (0..1000).filter(|_| limit.pass(Time::from_ms(1), "flood").is_some()).count();
        assert_eq!(passed, 1);
        assert_eq!(limit.pass(Time::from_ms(2), "other"), Some(0));
        assert_eq!(limit.pass(Time::from_ms(10_001), "flood"), Some(999));
    }
}
