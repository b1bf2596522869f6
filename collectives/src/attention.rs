//! [`attentive`]: lets the caller of a blocked call end it, by a check that the blocked thread makes now and then.
//! Python's bindings use it: signals are handled on the thread that is blocked.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use crate::abort::AbortHandle;
use crate::clock;

struct Attention {
    look: Box<dyn FnMut() -> Option<String>>,
    interval: Duration,
    due: Instant,
}

thread_local! {
    static ATTENTION: RefCell<Option<Attention>> = const { RefCell::new(None) };
}

/// Restores what was set before, also after a panic.
struct Restore(Option<Attention>);

impl Drop for Restore {
    fn drop(&mut self) {
        ATTENTION.replace(self.0.take());
    }
}

/// Runs `body`. Collectives that block in it call `look` every `interval`; a reason from it aborts their generation.
pub fn attentive<T>(
    interval: Duration,
    look: impl FnMut() -> Option<String> + 'static,
    body: impl FnOnce() -> T,
) -> T {
    let attention = Attention { look: Box::new(look), interval, due: clock::now() + interval };
    let _restore = Restore(ATTENTION.replace(Some(attention)));
    body()
}

/// The timeout of a wait of this thread, at most to the next look.
pub(crate) fn until_look(timeout: Duration, now: Instant) -> Duration {
    ATTENTION.with_borrow(|attention| match attention {
        Some(attention) => timeout.min(attention.due.saturating_duration_since(now)),
        None => timeout,
    })
}

impl AbortHandle {
    /// Looks up, if it is time; aborts `generation` of `term` for a reason to end. Waits of collectives call it.
    pub fn attend(&self, term: u64, generation: u64) {
        // Taken out for the call: what it calls may wait, too.
        let Some(mut attention) = ATTENTION.take() else { return };
        let now = clock::now();
        if now >= attention.due {
            if let Some(reason) = (attention.look)() {
                self.abort(term, generation, reason);
            }
            attention.due = now + attention.interval;
        }
        ATTENTION.replace(Some(attention));
    }
}
