//! [`Lease`]: until when a driver may act. A core without a clock: times are since any fixed moment, by a clock that
//! never goes back. Driven by `keeper`.

use std::time::Duration;

/// Which part of a lease is given away, against clocks that run at different rates and the time that it takes to stop.
const MARGIN: u32 = 8;

/// How often a lease is renewed while it lasts.
const RENEWALS: u32 = 4;

/// A lease of etcd's, as its holder must see it: etcd counts from when it hears, the holder from when it spoke, so that
/// the holder's time is over first.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Lease {
    duration: Duration,
    asked_at: Duration,
    next_at: Duration,
}

/// Why a lease has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LeaseEnd {
    /// etcd says that it is no more.
    Gone,
    /// Nobody could be asked in time.
    Unheard,
}

impl std::fmt::Display for LeaseEnd {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Gone => "etcd has ended the lease",
            Self::Unheard => "etcd did not renew the lease in time",
        })
    }
}

impl Lease {
    /// A lease of this duration that was asked for at `asked_at`, and granted.
    pub fn new(duration: Duration, asked_at: Duration) -> Self {
        Self { duration, asked_at, next_at: asked_at + duration / RENEWALS }
    }

    /// Until when its holder may act.
    pub fn valid_until(&self) -> Duration {
        self.asked_at + self.duration - self.duration / MARGIN
    }

    /// Whether its holder may act.
    pub fn is_valid(&self, now: Duration) -> bool {
        now < self.valid_until()
    }

    /// When something is to be done: it is to be renewed, or has ended.
    pub fn poll_timeout(&self) -> Duration {
        self.next_at.min(self.valid_until())
    }

    /// A renewal that was asked for at `asked_at` was answered: for how long, zero if the lease is no more.
    ///
    /// # Errors
    /// [`LeaseEnd`]: its holder must stop acting now.
    pub fn handle_answer(
        &mut self,
        now: Duration,
        asked_at: Duration,
        duration: Duration,
    ) -> Result<(), LeaseEnd> {
        if duration.is_zero() {
            return Err(LeaseEnd::Gone);
        }
        // Too late is too late: it has stopped acting, or should have.
        self.check(now)?;
        *self = Self::new(duration, asked_at.max(self.asked_at));
        Ok(())
    }

    /// A renewal could not be asked for, or was not answered: it is tried again soon.
    ///
    /// # Errors
    /// [`LeaseEnd`]: its holder must stop acting now.
    pub fn handle_silence(&mut self, now: Duration) -> Result<(), LeaseEnd> {
        self.next_at = now + self.duration / (RENEWALS * 4);
        self.check(now)
    }

    /// Whether it still lasts.
    ///
    /// # Errors
    /// [`LeaseEnd`]: its holder must stop acting now.
    pub fn check(&self, now: Duration) -> Result<(), LeaseEnd> {
        if self.is_valid(now) { Ok(()) } else { Err(LeaseEnd::Unheard) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn it_is_renewed_well_before_it_ends() {
        let mut lease = Lease::new(4 * SECOND, SECOND);
        assert_eq!(lease.poll_timeout(), 2 * SECOND);
        lease.handle_answer(3 * SECOND, 2 * SECOND, 4 * SECOND).expect("in time");
        assert_eq!(lease.valid_until(), Duration::from_millis(5_500));
    }

    #[test]
    fn an_answer_that_comes_too_late_brings_nothing_back() {
        let mut lease = Lease::new(4 * SECOND, SECOND);
        assert_eq!(lease.handle_answer(5 * SECOND, 2 * SECOND, 4 * SECOND), Err(LeaseEnd::Unheard));
        assert_eq!(lease.handle_answer(2 * SECOND, SECOND, Duration::ZERO), Err(LeaseEnd::Gone));
    }

    proptest! {
        /// D-2: whatever is answered or lost, and whenever, the holder's time ends before etcd's.
        #[test]
        fn d_2_the_holder_stops_before_the_lease_can_be_anothers(
            rounds in prop::collection::vec((1_u64..5_000, 0_u64..2_000, 0_u64..2_000, any::<bool>(), any::<bool>()), 1..60),
        ) {
            let duration = 3 * SECOND;
            let (mut now, mut server_until) = (Duration::ZERO, duration);
            let mut lease = Lease::new(duration, now);
            for (wait, there, back, reaches, returns) in rounds {
                now += Duration::from_millis(wait);
                if lease.check(now).is_err() {
                    break;
                }
                let asked_at = now;
                let heard_at = asked_at + Duration::from_millis(there);
                let alive = heard_at < server_until;
                if reaches && alive {
                    server_until = heard_at + duration;
                }
                now = heard_at + Duration::from_millis(back);
                let ended = if reaches && returns {
                    let granted = if alive { duration } else { Duration::ZERO };
                    lease.handle_answer(now, asked_at, granted)
                } else {
                    lease.handle_silence(now)
                };
                if ended.is_err() {
                    break;
                }
                prop_assert!(lease.valid_until() < server_until);
                prop_assert!(lease.poll_timeout() <= lease.valid_until());
            }
        }
    }
}
