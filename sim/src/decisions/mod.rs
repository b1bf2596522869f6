//! Recorded decisions of the driver, registry, host manager, agents, States, training threads, and the key-value store with its
//! relays, in runs of committed seeds, with times and reasons. A run is deterministic, so a change of behaviour changes its
//! decisions, whether or not a rule of the oracle covers it. `sim decisions` compares them with the committed ones (`record`).

pub mod record;
pub(crate) mod store;
pub(crate) mod thread;
pub(crate) mod words;

use std::borrow::Cow;

use crate::trace::TracePlace;

/// The driver's release as it stands in texts.
const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// A text without the driver's release: the next one decides the same. Digits of an address are no release.
pub(crate) fn without_release(text: &str) -> Cow<'_, str> {
    if !text.contains(RELEASE) {
        return Cow::Borrowed(text);
    }
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(RELEASE) {
        let (before, after) = (&rest[..at], &rest[at + RELEASE.len()..]);
        let goes_on = |text: &str| {
            text.trim_start_matches('.').starts_with(|next: char| next.is_ascii_digit())
        };
        let is_number = before.ends_with(|last: char| last.is_ascii_digit() || last == '.');
        kept += before;
        kept += if is_number || goes_on(after) { RELEASE } else { "RELEASE" };
        rest = after;
    }
    Cow::Owned(kept + rest)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_left_out_and_an_address_is_not() {
        let text =
            format!("this is {RELEASE}, install =={RELEASE}. Not 1.{RELEASE} or {RELEASE}.7:80");
        let expected =
            format!("this is RELEASE, install ==RELEASE. Not 1.{RELEASE} or {RELEASE}.7:80");
        assert_eq!(without_release(&text), expected);
        assert_eq!(without_release("nothing"), "nothing");
    }
}
