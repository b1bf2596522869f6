//! The wait of a rank before it sleeps: it polls a few times, and then yields its processor a few times.
//!
//! Yielding is the fastest way to let another rank of the group run: a microsecond or two. But where a process
//! outside the group runs instead, the processor is gone for a whole time slice, at each step, while a sleeper is
//! woken at once. So a rank that got its processor back late sleeps instead of yielding, for a pause that grows
//! with each repetition.

use std::time::{Duration, Instant};

use crate::clock;

/// Polls of the condition before a yield, a few microseconds, where each rank can have a processor of its own. Two
/// ranks may share one all the same, and then only the yield helps.
const SPINS: u32 = 100;
/// Polls before a yield where ranks outnumber processors: more would hardly help.
const SPINS_OVERSUBSCRIBED: u32 = 2;
const YIELDS: u32 = 32;
/// Yields longer than this count as late: the processor was not with a rank of the same operation.
const LATE: Duration = Duration::from_micros(200);
/// First and longest pause without yields after a late yield.
const PAUSE_LEAST: Duration = Duration::from_millis(10);
const PAUSE_MOST: Duration = Duration::from_secs(1);
/// Reduction of the next pause for each yield in time.
const FORGIVEN: Duration = Duration::from_millis(1);

/// A rank's record of its late yields.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpinPatience {
    spins: u32,
    /// The end of the pause without yields.
    resume: Option<Instant>,
    pause: Duration,
}

impl SpinPatience {
    pub(super) fn new(world: u32) -> SpinPatience {
        let processors = std::thread::available_parallelism().map_or(1, |number| number.get());
        let enough = world as usize <= processors;
        let spins = if enough { SPINS } else { SPINS_OVERSUBSCRIBED };
        SpinPatience { spins, resume: None, pause: PAUSE_LEAST }
    }

    /// Waits awake for the condition. Returns whether it came true.
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
            // The pause shrinks slowly: with other processes on the machine, some yields are in time all the same.
            self.pause = self.pause.saturating_sub(FORGIVEN).max(PAUSE_LEAST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_got_the_processor_back_late_pauses_longer_each_time() {
        let (mut patience, now) = (SpinPatience::new(2), clock::now());
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
        let came = SpinPatience::new(2).wait(|| {
            looks += 1;
            looks > SPINS
        });
        assert!(came);
    }
}
