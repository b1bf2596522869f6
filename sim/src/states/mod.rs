//! Recorded states: the fields of the nodes' cores at each look at a run of a committed seed. Decisions show a mistake only
//! once it changes the messages of a node. A set that is not cleared or a mark that is not set shows in the state at once, and
//! perhaps never in these runs' decisions. `sim states` compares the states with the committed ones (`record`).
//!
//! Outputs of the cores are recorded too, with all their fields: decisions in words leave out fields that are no decision.
//!
//! A state is read from its `Debug` text (`digest`), so that the product needs no code for this. Names of fields do not count.

mod digest;
pub mod record;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Debug;

use crate::dataset::mix;
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

impl StatePart {
    /// Adds the next value under the same name.
    fn append(&mut self, next: Self) {
        self.digest = mix(self.digest, next.digest);
        if let (Some(text), Some(next)) = (&mut self.text, next.text) {
            *text += "; ";
            *text += &next;
        }
    }
}

/// State of one core at one moment, or its outputs since the moment before.
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
    /// Outputs since the last look, by node and core.
    outputs: BTreeMap<(TracePlace, &'static str), StatePart>,
    /// World time of the last of them.
    output_at: u64,
}

impl StateLog {
    pub(crate) const fn new(kept: KeptStates) -> Self {
        Self { kept, looks: Vec::new(), outputs: BTreeMap::new(), output_at: 0 }
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.kept != KeptStates::None
    }

    /// Notes the state of a core, under the name of the core; nothing if states are not wanted.
    pub(crate) fn note(&mut self, at: u64, place: TracePlace, core: &str, state: &dyn Debug) {
        if self.is_wanted() {
            let parts = digest::parts(core, state, self.kept == KeptStates::Words);
            self.looks.push(StateLook { at, place, parts });
        }
    }

    /// Notes an output of a core, under the name of the core; nothing if states are not wanted.
    #[inline]
    pub(crate) fn put_out(
        &mut self,
        at: u64,
        place: TracePlace,
        core: &'static str,
        output: &dyn Debug,
    ) {
        if self.is_wanted() {
            self.output_at = at;
            let has_text = self.kept == KeptStates::Words;
            let now = digest::whole(&format!("{core}.put_out"), output, has_text);
            match self.outputs.entry((place, core)) {
                Entry::Vacant(first) => {
                    first.insert(now);
                }
                Entry::Occupied(mut before) => before.get_mut().append(now),
            }
        }
    }

    /// Notes the outputs since the last look. Called as a look begins.
    pub(crate) fn begin_look(&mut self, at: u64) {
        for ((place, _), part) in std::mem::take(&mut self.outputs) {
            self.looks.push(StateLook { at, place, parts: vec![part] });
        }
    }

    pub(crate) fn take(&mut self) -> Vec<StateLook> {
        self.begin_look(self.output_at);
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
