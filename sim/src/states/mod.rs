//! Recorded states: what the nodes' cores hold at each look at a run of a committed seed. Decisions show a mistake once it changes
//! what a node says; a set that is not cleared or a mark that is not set shows in the state at once, and perhaps never in these runs'
//! decisions. `sim states` compares them with the committed ones (`record`).
//!
//! A state is read from its `Debug` text (`digest`), so that the product needs no code for this. Names of fields do not count.

mod digest;
pub mod record;

use std::fmt::Debug;

use crate::trace::TracePlace;

/// One part of a core's state: a field of the core.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StatePart {
    /// The core and its field: `driver.roster`.
    pub name: String,
    /// Digest of the field's value.
    pub digest: u64,
    /// The value, if words are wanted.
    pub text: Option<String>,
}

/// What one core holds at one moment.
#[derive(Clone, Debug)]
pub struct StateLook {
    /// World time in nanoseconds.
    pub at: u64,
    /// The node.
    pub place: TracePlace,
    /// The core's fields in their order.
    pub parts: Vec<StatePart>,
}

/// Whether states are kept, and how.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum KeptStates {
    /// None.
    #[default]
    None,
    /// Their digests.
    Digests,
    /// Digests and values.
    Words,
}

/// The looks of a run, in order.
#[derive(Debug, Default)]
pub(crate) struct StateLog {
    kept: KeptStates,
    looks: Vec<StateLook>,
}

impl StateLog {
    pub(crate) const fn new(kept: KeptStates) -> Self {
        Self { kept, looks: Vec::new() }
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.kept != KeptStates::None
    }

    /// Notes what a core holds, under the name of the core; nothing if states are not wanted.
    pub(crate) fn note(&mut self, at: u64, place: TracePlace, core: &str, state: &dyn Debug) {
        if self.is_wanted() {
            let parts = digest::parts(core, state, self.kept == KeptStates::Words);
            self.looks.push(StateLook { at, place, parts });
        }
    }

    pub(crate) fn take(&mut self) -> Vec<StateLook> {
        std::mem::take(&mut self.looks)
    }
}

/// The looks as text: one line for each field of each core at each look.
pub fn lines(looks: &[StateLook]) -> String {
    let mut text = String::new();
    for StateLook { at, place, parts } in looks {
        for part in parts {
            let value = part.text.as_deref().unwrap_or_default();
            let (seconds, label) = (*at as f64 / 1e9, place.label());
            text += &format!("{seconds:>10.6} {label:8} {}: {value}\n", part.name);
        }
    }
    text
}
