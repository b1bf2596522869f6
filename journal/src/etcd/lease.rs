//! [`Lease`]: the time until which a driver may act. Driven by `keeper`. It is a core without a clock: times
//! are since any fixed moment, by a monotonic clock.

use std::time::Duration;

/// Safety margin: this part (1/8) of a lease is not used, against clocks that run at different rates and the
/// time that it takes to stop.
const MARGIN: u32 = 8;

/// Renewals within the duration of a lease.
const RENEWALS: u32 = 4;

/// Longest standstill of the driver's actors, as a part (1/8) of a lease; after it the lease is not renewed.
const STALL: u32 = 8;

/// A lease of etcd, as its holder must see it. etcd counts from the receipt of a request, the holder from its
/// sending, so the lease ends first at the holder.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Lease {
    duration: Duration,
    asked_at: Duration,
    next_at: Duration,
}

/// Causes of the end of a lease.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LeaseEnd {
    /// etcd reports that the lease no longer exists.
    Gone,
    /// No member of etcd answered in time.
    Unheard,
    /// The driver's actors stood still.
    Stalled,
    /// The leader key is gone from etcd, although the lease is not.
    KeyGone,
    /// Another driver holds the leader key.
    KeyTaken,
}

impl std::fmt::Display for LeaseEnd {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Gone => "etcd has ended the lease",
            Self::Unheard => "etcd did not renew the lease in time",
            Self::Stalled => "the driver's actors stood still, so that the lease was not renewed",
            Self::KeyGone => "its leader key is gone from etcd",
            Self::KeyTaken => "another driver holds the leader key",
        })
    }
}

impl Lease {
    /// A lease of this duration that was asked for at `asked_at`, and granted.
    pub fn new(duration: Duration, asked_at: Duration) -> Self {
        Self { duration, asked_at, next_at: asked_at + duration / RENEWALS }
    }

    /// The time until which the holder may act.
    pub fn valid_until(&self) -> Duration {
        self.asked_at + self.duration - self.duration / MARGIN
    }

    /// Whether the holder may act.
    pub fn is_valid(&self, now: Duration) -> bool {
        now < self.valid_until()
    }

    /// The time of the next action: a renewal, or the end of the lease.
    pub fn poll_timeout(&self) -> Duration {
        self.next_at.min(self.valid_until())
    }

    /// Takes the answer to a renewal that was asked for at `asked_at`. `duration` is zero if the lease no
    /// longer exists.
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
        // A late answer does not revive the lease: the holder has stopped acting, or should have.
        self.check(now)?;
        *self = Self::new(duration, asked_at.max(self.asked_at));
        Ok(())
    }

    /// Takes a renewal that failed or was not answered. It is tried again soon.
    ///
    /// # Errors
    /// [`LeaseEnd`]: its holder must stop acting now.
    pub fn handle_silence(&mut self, now: Duration) -> Result<(), LeaseEnd> {
        self.next_at = now + self.duration / (RENEWALS * 4);
        self.check(now)
    }

    /// The longest standstill of the driver's actors; after it the lease is not renewed.
    pub fn stalls_after(&self) -> Duration {
        self.duration / STALL
    }

    /// Leaves the lease unrenewed, since the driver's actors stand still. They are checked again soon.
    ///
    /// # Errors
    /// [`LeaseEnd`]: its holder must stop acting now.
    pub fn handle_stall(&mut self, now: Duration) -> Result<(), LeaseEnd> {
        self.handle_silence(now).map_err(|_| LeaseEnd::Stalled)
    }

    /// Checks that the lease is valid.
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

    #[test]
    fn s_1_a_stall_ends_the_lease_when_silence_would() {
        let mut lease = Lease::new(4 * SECOND, SECOND);
        assert_eq!(lease.stalls_after(), Duration::from_millis(500));
        assert_eq!(lease.handle_stall(2 * SECOND), Ok(()));
        assert!(lease.poll_timeout() < 3 * SECOND);
        assert_eq!(lease.handle_stall(Duration::from_millis(4_500)), Err(LeaseEnd::Stalled));
    }

    proptest! {
        /// D-2: whichever messages are answered or lost, and whenever, the lease ends at the holder before it
        /// ends at etcd.
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
