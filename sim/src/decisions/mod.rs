//! Recorded decisions: what driver, registry, host manager, agents, States, training threads, and the key-value store with its
//! relays decide in runs of committed seeds, with times and reasons. A run is deterministic, so a change of behaviour changes its decisions, whether or not a rule of
//! the oracle is about it. `sim decisions` compares them with the committed ones (`record`).

pub mod record;
pub(crate) mod store;
pub(crate) mod thread;
pub(crate) mod words;

use std::borrow::Cow;

use crate::trace::TracePlace;

/// The driver's release as it stands in texts.
const RELEASE: &str = concat!("elastic-node ", env!("CARGO_PKG_VERSION"));

/// A text without the driver's release: the next one decides the same.
pub(crate) fn without_release(text: &str) -> Cow<'_, str> {
    match text.contains(RELEASE) {
        true => Cow::Owned(text.replace(RELEASE, "elastic-node of this release")),
        false => Cow::Borrowed(text),
    }
}

/// Whether, and which decisions of a run are kept, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct DecisionLog(Option<Vec<String>>);

impl DecisionLog {
    pub(crate) fn new(is_wanted: bool) -> Self {
        Self(is_wanted.then(Vec::new))
    }

    pub(crate) const fn is_wanted(&self) -> bool {
        self.0.is_some()
    }

    /// Notes a decision of a node at a world time in nanoseconds; `words` is called only where decisions are wanted.
    #[inline]
    pub(crate) fn note(&mut self, at: u64, place: TracePlace, words: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.0 {
            lines.push(format!(
                "{:>6}.{:06} {:8} {}",
                at / 1_000_000_000,
                at / 1_000 % 1_000_000,
                place.label(),
                without_release(&words()).replace('\n', " ")
            ));
        }
    }

    pub(crate) fn take(&mut self) -> Vec<String> {
        self.0.take().unwrap_or_default()
    }
}
