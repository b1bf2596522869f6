//! [`WaitedTime`]: time for which the process has been blocked in collectives. Kept by
//! [`OperationWatch`](crate::OperationWatch); a worker divides its steps by it into waiting and the rest.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock;

/// The time in which at least one thread was blocked in a collective. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct WaitedTime(Arc<Mutex<WaitedState>>);

#[derive(Debug, Default)]
struct WaitedState {
    /// Waits that are under way.
    waits: u32,
    /// The time at which the first of them began.
    since: Duration,
    /// Time of the waits before.
    total: Duration,
}

/// A moment, with the time that the process has been blocked in collectives until then.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct WaitReading {
    /// The monotonic time, since a moment that is the same in all readings of a process.
    pub at: Duration,
    /// Time for which the process had been blocked in collectives until then.
    pub waited: Duration,
}

/// A wait that is under way. Dropping it ends it.
#[derive(Debug)]
#[must_use = "the wait lasts until this is dropped"]
pub struct WaitUnderWay(Option<WaitedTime>);

impl WaitedTime {
    fn state(&self) -> MutexGuard<'_, WaitedState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A wait begins. Of waits that overlap, each moment counts once.
    pub(crate) fn begin(time: Option<&Self>) -> WaitUnderWay {
        if let Some(time) = time {
            time.begin_at(clock::since_start());
        }
        WaitUnderWay(time.cloned())
    }

    fn begin_at(&self, now: Duration) {
        let mut state = self.state();
        if state.waits == 0 {
            state.since = now;
        }
        state.waits += 1;
    }

    fn end_at(&self, now: Duration) {
        let mut state = self.state();
        state.waits = state.waits.saturating_sub(1);
        if state.waits == 0 {
            let waited = now.saturating_sub(state.since);
            state.total += waited;
        }
    }

    /// The present moment, with a wait under way as far as it has come.
    pub(crate) fn reading(&self) -> WaitReading {
        self.reading_at(clock::since_start())
    }

    fn reading_at(&self, at: Duration) -> WaitReading {
        let state = self.state();
        let under_way =
            if state.waits > 0 { at.saturating_sub(state.since) } else { Duration::ZERO };
        WaitReading { at, waited: state.total + under_way }
    }
}

impl Drop for WaitUnderWay {
    fn drop(&mut self) {
        if let Some(time) = &self.0 {
            time.end_at(clock::since_start());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_in_which_two_threads_wait_counts_once() {
        let time = WaitedTime::default();
        let ms = Duration::from_millis;
        time.begin_at(ms(10));
        time.begin_at(ms(15));
        time.end_at(ms(20));
        assert_eq!(time.reading_at(ms(22)), WaitReading { at: ms(22), waited: ms(12) });
        time.end_at(ms(30));
        time.begin_at(ms(40));
        time.end_at(ms(41));
        assert_eq!(time.reading_at(ms(90)).waited, ms(21));
    }
}
