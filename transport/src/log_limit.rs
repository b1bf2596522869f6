//! [`LogLimit`]: keeps strangers from filling the log. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use elastic_protocol::Time;

/// Lets through so many lines of each kind in [`LogLimit::WINDOW`], and counts the rest.
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
    /// Lines of a kind in a window.
    pub(crate) const LINES: u32 = 5;

    /// Whether a line may be written; if so, how many of its kind were withheld before it.
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
        assert_eq!(passed, 5);
        assert_eq!(limit.pass(Time::from_ms(2), "other"), Some(0));
        assert_eq!(limit.pass(Time::from_ms(10_001), "flood"), Some(995));
    }
}
