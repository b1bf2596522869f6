//! Time of a node, for shells: made from tokio's clock, which the simulation pauses and moves. Cores get
//! `now` from here as an argument.

use std::time::{Duration, SystemTime};

use elastic_protocol::Time;
use tokio::time::Instant;

const MILLION: u64 = 1_000_000;

/// A node's clock: nanoseconds since the node started.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Instant,
    /// Nanoseconds of this clock for each million nanoseconds of tokio's.
    rate: u64,
}

impl Clock {
    /// A clock whose origin is now.
    pub fn start() -> Self {
        Self { started: Instant::now(), rate: MILLION }
    }

    /// A clock whose origin is now, too fast by so many millionths. The clocks of two machines never agree, and
    /// the simulation imitates that.
    #[cfg(any(test, feature = "test-util"))]
    pub fn start_at_rate(ppm: i64) -> Self {
        Self { started: Instant::now(), rate: MILLION.saturating_add_signed(ppm).max(1) }
    }

    /// Now.
    pub fn now(&self) -> Time {
        let passed = Time::ZERO + self.started.elapsed();
        if self.rate == MILLION { passed } else { Time(scale(passed.0, self.rate, MILLION)) }
    }

    /// The moment on tokio's clock at which this clock shows `time`.
    pub fn instant(&self, time: Time) -> Instant {
        let passed = if self.rate == MILLION {
            time.0
        } else {
            // Rounded up, so that the moment is not before its time.
            scale(time.0, MILLION, self.rate).saturating_add(2)
        };
        self.started + Duration::from_nanos(passed)
    }

    /// Time on tokio's clock until this one shows `time`.
    pub fn until(&self, time: Time) -> Duration {
        if self.rate == MILLION {
            return time.since(self.now());
        }
        self.instant(time).saturating_duration_since(Instant::now())
    }
}

/// `value * times / by`.
const fn scale(value: u64, times: u64, by: u64) -> u64 {
    (value / by).saturating_mul(times).saturating_add(value % by * times / by)
}

/// The machine's wall clock: for what people read (logs, reports), never for decisions.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
pub fn wall_clock() -> SystemTime {
    SystemTime::now()
}

/// The time of the wall clock at the moment `at`, given that it shows `wall_clock` at `now`. `at` may be past or
/// future. The result is never before 1970, which a clock that was set back could give.
pub fn moment_at(at: Time, now: Time, wall_clock: SystemTime) -> SystemTime {
    let moment = match at > now {
        true => wall_clock.checked_add(at - now),
        false => wall_clock.checked_sub(now - at),
    };
    moment.unwrap_or(wall_clock).max(SystemTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::run_paused;

    #[test]
    fn x_19_a_clock_that_was_set_back_to_1970_shows_no_moment_before() {
        let second = Duration::from_secs(1);
        let clock = SystemTime::UNIX_EPOCH + second;
        let now = Time::ZERO + 60 * second;
        assert_eq!(moment_at(Time::ZERO + 59 * second, now, clock), SystemTime::UNIX_EPOCH);
        assert_eq!(moment_at(Time::ZERO, now, clock), SystemTime::UNIX_EPOCH);
        assert_eq!(moment_at(now + second, now, clock), clock + second);
    }

    #[test]
    fn a_clock_of_another_rate_shows_a_time_not_before_it_is_there() {
        run_paused(async {
            for ppm in [-20_000, -1, 0, 7, 20_000] {
                let clock = Clock::start_at_rate(ppm);
                for time in [Time::from_ms(1), Time::from_ms(999), Time::from_ms(100_001)] {
                    tokio::time::sleep_until(clock.instant(time)).await;
                    let late = clock.now().since(time);
                    assert!(clock.now() >= time, "{ppm} {time}");
                    assert!(late <= Duration::from_millis(2), "{ppm} {time} {late:?}");
                    assert_eq!(clock.until(time), Duration::ZERO);
                }
            }
        });
    }
}
