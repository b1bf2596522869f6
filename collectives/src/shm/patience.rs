//! What a rank does before it sleeps: it looks a few times, and then gives its processor away a few times.
//!
//! Giving it away is the fastest way to let another rank of the group run, a microsecond or two. But where
//! a stranger runs instead, the processor is gone for a whole time slice, and that at each step; who sleeps
//! is woken at once. So a rank that got its processor back late sleeps instead, for a while, and longer
//! where it happens again.

use std::time::{Duration, Instant};

use crate::clock;

/// Where each rank can have a processor of its own, it looks at the condition for a few microseconds before
/// it gives the processor away: two of them may be on one all the same, and then only that helps.
const SPINS: u32 = 100;
/// Where ranks outnumber processors, hardly any look helps.
const SPINS_OVERSUBSCRIBED: u32 = 2;
const YIELDS: u32 = 32;
/// A processor that is gone for longer was not with another rank that is in the same operation.
const LATE: Duration = Duration::from_micros(200);
/// For how long a rank does not give its processor away after it got it back late.
const PAUSE_LEAST: Duration = Duration::from_millis(10);
const PAUSE_MOST: Duration = Duration::from_secs(1);
/// What each yield in time takes off the next pause.
const FORGIVEN: Duration = Duration::from_millis(1);

/// What a rank has seen of its processor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    spins: u32,
    /// No yields before that.
    resume: Option<Instant>,
    pause: Duration,
}

impl Patience {
    pub(super) fn new(world: u32) -> Patience {
        let processors = std::thread::available_parallelism().map_or(1, |number| number.get());
        let enough = world as usize <= processors;
        let spins = if enough { SPINS } else { SPINS_OVERSUBSCRIBED };
        Patience { spins, resume: None, pause: PAUSE_LEAST }
    }

    /// Whether the condition came true while this rank was awake.
    pub(super) fn wait(&mut self, mut is_true: impl FnMut() -> bool) -> bool {
        if is_true() {
            return true;
        }
        for _ in 0..self.spins {
            std::hint::spin_loop();
            if is_true() {
                return true;
            }
        }
        let mut given = clock::now();
        if self.resume.is_some_and(|resume| given < resume) {
            return false;
        }
        for _ in 0..YIELDS {
            std::thread::yield_now();
            let back = clock::now();
            let is_late = back.duration_since(given) > LATE;
            self.learn(is_late, back);
            if is_true() {
                return true;
            }
            if is_late {
                return false;
            }
            given = back;
        }
        false
    }

    fn learn(&mut self, is_late: bool, now: Instant) {
        if is_late {
            self.resume = Some(now + self.pause);
            self.pause = (self.pause * 2).min(PAUSE_MOST);
        } else {
            self.resume = None;
            // Slowly: where strangers run, some yields go well all the same.
            self.pause = self.pause.saturating_sub(FORGIVEN).max(PAUSE_LEAST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_got_the_processor_back_late_pauses_longer_each_time() {
        let (mut patience, now) = (Patience::new(2), clock::now());
        for pause_ms in [10, 20, 40, 80, 160, 320, 640, 1000, 1000] {
            patience.learn(true, now);
            assert_eq!(patience.resume, Some(now + Duration::from_millis(pause_ms)));
        }
        patience.learn(false, now);
        assert_eq!((patience.resume, patience.pause), (None, PAUSE_MOST - FORGIVEN));
        (0..1000).for_each(|_| patience.learn(false, now));
        assert_eq!(patience.pause, PAUSE_LEAST);
    }

    #[test]
    fn no_look_is_lost() {
        let mut looks = 0;
        let came = Patience::new(2).wait(|| {
            looks += 1;
            looks > SPINS
        });
        assert!(came);
    }
}
