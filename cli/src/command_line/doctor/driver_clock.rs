//! The difference between the clocks of this host and of the driver. Called by `join`.

use std::time::{Duration, SystemTime};

/// Difference from which on it is a problem: times in the logs of both hosts cannot be compared any more. Joining does not
/// depend on it.
const CLOCK_DIFFERENCE_MAX: Duration = Duration::from_secs(60);

/// Time by which this host's clock is ahead of the driver's, in milliseconds: the driver is taken to have answered in
/// the middle between question and answer. `None` if its answer is no time, or if the clock jumped meanwhile.
pub(super) fn ahead_ms(asked: SystemTime, answered: SystemTime, said: &str) -> Option<i64> {
    let said = humantime::parse_rfc3339(said).ok()?;
    let here = asked + answered.duration_since(asked).ok()? / 2;
    let ms = |it: Duration| i64::try_from(it.as_millis()).ok();
    match here.duration_since(said) {
        Ok(ahead) => ms(ahead),
        Err(behind) => ms(behind.duration()).map(|behind| -behind),
    }
}

/// The problem with such a difference, and a remedy; `None` if it is small.
pub(super) fn fault_of(ahead_ms: i64) -> Option<(String, &'static str)> {
    let difference = Duration::from_millis(ahead_ms.unsigned_abs());
    let (s, side) = (difference.as_secs(), if ahead_ms > 0 { "ahead of" } else { "behind" });
    (difference > CLOCK_DIFFERENCE_MAX).then(|| {
        (
            format!("this host's clock is {s} s {side} the driver's"),
            "set the clocks of both: `timedatectl set-ntp true`. Times in their logs cannot be compared",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x_19_the_difference_is_that_of_the_middle_and_small_ones_are_no_problem() {
        let at = |ms: u64| SystemTime::UNIX_EPOCH + Duration::from_millis(ms);
        let ahead = |said: &str| ahead_ms(at(100_000), at(100_400), said);
        assert_eq!(ahead("1970-01-01T00:01:40.200Z"), Some(0));
        assert_eq!(ahead("1970-01-01T00:00:30.200Z"), Some(70_000));
        assert_eq!(ahead("1970-01-01T00:02:40.300Z"), Some(-60_100));
        assert_eq!(ahead("noon"), None);
        assert_eq!(ahead_ms(at(2), at(1), "1970-01-01T00:00:00Z"), None, "the clock jumped");
        assert_eq!(fault_of(60_000), None);
        let (what, _) = fault_of(70_000).expect("too much");
        assert_eq!(what, "this host's clock is 70 s ahead of the driver's");
        let (what, _) = fault_of(-60_100).expect("too much");
        assert_eq!(what, "this host's clock is 60 s behind the driver's");
    }
}
