//! Who stays out until when. Used by the core.
//!
//! The k-th stay is MIN·2^(k-1), at most MAX, like Horovod's cooldown except that the first stay is MIN
//! (Horovod's is two to three times that). Jitter only ever lengthens a stay, by up to a tenth, so that
//! hosts that failed together do not return in the same instant; MAX holds with it.

use std::collections::BTreeMap;
use std::time::Duration;

use elastic_protocol::{HostName, Time};
use elastic_runtime::planted::{Bug, is_planted};
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::config::CooldownRange;
use super::limits::PENALTIES_MAX;

/// A stay is lengthened by at most this part of it.
const JITTER_PART: u32 = 10;

#[derive(Debug)]
pub(super) struct Blacklist {
    cooldown: Option<CooldownRange>,
    rng: ChaCha8Rng,
    penalties: BTreeMap<HostName, Penalty>,
}

/// A host's failures. Kept when it leaves the list, so that leaving and returning is no way around it.
#[derive(Clone, Copy, Debug)]
struct Penalty {
    stays: u32,
    out: Option<Stay>,
}

/// Until when, or for ever.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stay {
    pub(super) until: Option<Time>,
}

impl Blacklist {
    pub(super) const fn new(cooldown: Option<CooldownRange>, rng: ChaCha8Rng) -> Self {
        Self { cooldown, rng, penalties: BTreeMap::new() }
    }

    /// The host's present stay, if it is out.
    pub(super) fn stay(&self, name: &HostName) -> Option<Stay> {
        self.penalties.get(name)?.out
    }

    /// Puts a host out that is not out already.
    pub(super) fn put_out(&mut self, now: Time, name: &HostName) -> Stay {
        let stays = self.penalties.get(name).map_or(0, |penalty| penalty.stays);
        let until = self.cooldown.map(|range| now + self.length(range, stays));
        let stay = Stay { until };
        let penalty = Penalty { stays: stays.saturating_add(1), out: Some(stay) };
        self.penalties.insert(name.clone(), penalty);
        self.forget_beyond_bound(name);
        stay
    }

    /// Ends the stays that are over.
    pub(super) fn expire(&mut self, now: Time) {
        if is_planted(Bug::BlacklistNeverEnds) {
            return;
        }
        let over = |stay: &mut Stay| stay.until.is_some_and(|until| until <= now);
        for penalty in self.penalties.values_mut() {
            penalty.out.take_if(over);
        }
    }

    /// When the next stay is over.
    pub(super) fn next_end(&self) -> Option<Time> {
        if is_planted(Bug::BlacklistNeverEnds) {
            return None;
        }
        self.penalties.values().filter_map(|penalty| penalty.out?.until).min()
    }

    fn length(&mut self, range: CooldownRange, stays: u32) -> Duration {
        let doubled = 2_u32.checked_pow(stays).and_then(|factor| range.min.checked_mul(factor));
        let base = doubled.unwrap_or(range.max).min(range.max);
        let spread_ns = u64::try_from((base / JITTER_PART).as_nanos()).unwrap_or(u64::MAX);
        let jitter = Duration::from_nanos(self.rng.random_range(0..=spread_ns));
        base.saturating_add(jitter).min(range.max)
    }

    /// Only ever needed when more names failed than hosts can exist: those that are in go first, then
    /// those that are out for the shortest time.
    fn forget_beyond_bound(&mut self, keep: &HostName) {
        if self.penalties.len() <= PENALTIES_MAX {
            return;
        }
        let least = self
            .penalties
            .iter()
            .filter(|(name, _)| *name != keep)
            .min_by_key(|(_, penalty)| match penalty.out {
                None => (false, Time::ZERO),
                Some(stay) => (true, stay.until.unwrap_or(Time(u64::MAX))),
            })
            .map(|(name, _)| name.clone());
        if let Some(name) = least {
            self.penalties.remove(&name);
        }
    }
}
