//! [`PaceSpell`]: a time in which a member or link was slow, or fast again, in looks in a row. Used by `stragglers` for
//! members, and by `links` for links.

use std::time::Duration;

use elastic_protocol::Time;
use serde::{Deserialize, Serialize};

/// Least duration, and least number of looks, of a spell that is reported.
pub(crate) const LASTING: Duration = Duration::from_secs(10);
pub(crate) const LOOKS_MIN: u32 = 5;

/// A series of looks in which a member or link was slow, or one in which it was fast.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct PaceSpell {
    since: Time,
    looks: u32,
    /// Number of looks in which the member or link was clearly so; in the others it was only nearly so.
    clear: u32,
}

impl PaceSpell {
    /// Time at which the spell began.
    pub(crate) const fn since(self) -> Time {
        self.since
    }

    /// Whether the spell has enough looks to be reported.
    pub(crate) const fn is_seen_often(self) -> bool {
        self.looks >= LOOKS_MIN
    }

    /// Whether it is long enough, and three quarters of its looks are clear.
    pub(crate) const fn has_lasted(self, now: Time) -> bool {
        now.since(self.since).as_nanos() >= LASTING.as_nanos()
            && self.is_seen_often()
            && self.clear as u64 * 4 >= self.looks as u64 * 3
    }

    /// The spell after one more look: a clear one begins it, and one that is not over continues it.
    pub(crate) fn after(
        spell: Option<Self>,
        now: Time,
        is_clear: bool,
        is_over: bool,
    ) -> Option<Self> {
        let begun = is_clear.then_some(Self { since: now, looks: 0, clear: 0 });
        let Self { since, looks, clear } = spell.filter(|_| !is_over).or(begun)?;
        Some(Self {
            since,
            looks: looks.saturating_add(1),
            clear: clear.saturating_add(u32::from(is_clear)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_quarters_of_the_looks_of_a_spell_that_is_told_are_clear() {
        let has_lasted = |looks: [bool; 8]| {
            let at = |number: u32| Time::ZERO + LASTING / 4 * number;
            let spell = (0..).zip(looks).fold(None, |spell, (number, is_clear)| {
                PaceSpell::after(spell, at(number), is_clear, false)
            });
            spell.is_some_and(|spell| spell.has_lasted(at(7)))
        };
        assert!(has_lasted([true, true, false, true, true, false, true, true]));
        assert!(!has_lasted([true, true, false, true, true, false, false, true]));
    }
}
