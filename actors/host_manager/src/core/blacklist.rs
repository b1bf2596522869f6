//! Blacklisted hosts and the end of their stay. Used by the core.
//!
//! Without a cooldown a host that has failed stays out for ever. A host whose only fault is that another host does not
//! reach it ([`HostFault::Unreached`]) still comes back: either of the two may have been at fault, and paths heal.
//!
//! The k-th stay is MIN·2^(k-1), at most MAX, like Horovod's cooldown except that the first stay is MIN
//! (Horovod's is two to three times that). Jitter only lengthens a stay, by up to a tenth, so that hosts that
//! failed together do not return at the same time. A stay with jitter is also at most MAX.

use std::collections::BTreeMap;
use std::time::Duration;

use elastic_protocol::planted::{Bug, is_planted};
use elastic_protocol::{HostName, Time};
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::HostFault;
use super::config::CooldownRange;
use super::limits::PENALTIES_MAX;

/// The cooldown of hosts that are not reached, where none is set.
const UNREACHED_COOLDOWN: CooldownRange =
    CooldownRange { min: Duration::from_secs(60), max: Duration::from_secs(60 * 60) };

/// Jitter lengthens a stay by at most this part (1/10) of it.
const JITTER_PART: u32 = 10;

#[derive(Debug)]
pub(super) struct Blacklist {
    cooldown: Option<CooldownRange>,
    rng: ChaCha8Rng,
    penalties: BTreeMap<HostName, Penalty>,
}

/// A host's failures. Kept when the host leaves the list, so that leaving and returning does not reset the
/// penalty.
#[derive(Clone, Copy, Debug)]
struct Penalty {
    stays: u32,
    out: Option<Stay>,
}

/// A stay on the blacklist. `until` is its end; `None`: for ever.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stay {
    pub(super) until: Option<Time>,
    fault: HostFault,
}

impl Blacklist {
    pub(super) const fn new(cooldown: Option<CooldownRange>, rng: ChaCha8Rng) -> Self {
        Self { cooldown, rng, penalties: BTreeMap::new() }
    }

    /// The host's current stay, if it is blacklisted.
    pub(super) fn stay(&self, name: &HostName) -> Option<Stay> {
        self.penalties.get(name)?.out
    }

    /// The names of the hosts that are blacklisted now.
    pub(super) fn names(&self) -> impl Iterator<Item = &HostName> {
        let out = self.penalties.iter().filter(|(_, penalty)| penalty.out.is_some());
        out.map(|(name, _)| name)
    }

    /// Blacklists a host that is not blacklisted already.
    pub(super) fn put_out(&mut self, now: Time, name: &HostName, fault: HostFault) -> Stay {
        let stays = self.penalties.get(name).map_or(0, |penalty| penalty.stays);
        let stays = if is_planted(Bug::CooldownNotDoubled) { 0 } else { stays };
        let unreached = (fault == HostFault::Unreached).then_some(UNREACHED_COOLDOWN);
        let range = self.cooldown.or(unreached);
        let until = range.map(|range| now + self.length(range, stays));
        let stay = Stay { until, fault };
        let penalty = Penalty { stays: stays.saturating_add(1), out: Some(stay) };
        self.penalties.insert(name.clone(), penalty);
        self.forget_beyond_bound(name);
        stay
    }

    /// Lets a host in at once, and forgets its failures. Returns whether it was blacklisted.
    pub(super) fn forgive(&mut self, name: &HostName) -> bool {
        self.penalties.remove(name).is_some_and(|penalty| penalty.out.is_some())
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

    /// The end of the stay that ends next.
    pub(super) fn next_end(&self) -> Option<Time> {
        if is_planted(Bug::BlacklistNeverEnds) {
            return None;
        }
        self.penalties.values().filter_map(|penalty| penalty.out?.until).min()
    }

    /// Checks that penalties are bounded and come from stays, and that a stay ends if there is a cooldown, and only then.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.penalties.len() > PENALTIES_MAX {
            return Err(format!("{} hosts are remembered as failed", self.penalties.len()));
        }
        for (name, penalty) in &self.penalties {
            if penalty.stays == 0 {
                return Err(format!("host {name} has a penalty without a stay"));
            }
            let is_wrong = penalty.out.is_some_and(|stay| {
                let ends = self.cooldown.is_some() || stay.fault == HostFault::Unreached;
                ends != stay.until.is_some()
            });
            if is_wrong {
                return Err(format!(
                    "the stay of {name} is {:?}, against the settings",
                    penalty.out
                ));
            }
        }
        Ok(())
    }

    /// A list that breaks its invariants, for tests of the check.
    #[cfg(test)]
    pub(super) fn with_endless_stay(cooldown: Option<CooldownRange>, name: &HostName) -> Self {
        let rng = rand::SeedableRng::seed_from_u64(1);
        let penalty =
            Penalty { stays: 1, out: Some(Stay { until: None, fault: HostFault::Failed }) };
        Self { cooldown, rng, penalties: BTreeMap::from([(name.clone(), penalty)]) }
    }

    fn length(&mut self, range: CooldownRange, stays: u32) -> Duration {
        let doubled = 2_u32.checked_pow(stays).and_then(|factor| range.min.checked_mul(factor));
        let base = doubled.unwrap_or(range.max).min(range.max);
        let spread_ns = u64::try_from((base / JITTER_PART).as_nanos()).unwrap_or(u64::MAX);
        let jitter = Duration::from_nanos(self.rng.random_range(0..=spread_ns));
        base.saturating_add(jitter).min(range.max)
    }

    /// Forgets a penalty beyond the bound, which is needed only if more names failed than hosts can exist.
    /// Hosts that are not blacklisted are forgotten first, then those with the shortest remaining stay.
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

#[cfg(test)]
mod tests {
    use elastic_protocol::HostName;
    use rand::SeedableRng;

    use super::*;

    fn host(number: usize) -> HostName {
        HostName::new(&format!("h{number}")).expect("a host name")
    }

    /// A list at its bound, on which each host stays 10 % longer than the one before at the most.
    fn full() -> Blacklist {
        let range = CooldownRange { min: Duration::from_secs(10), max: Duration::from_secs(1_000) };
        let mut blacklist = Blacklist::new(Some(range), ChaCha8Rng::seed_from_u64(1));
        for number in 0..PENALTIES_MAX {
            blacklist.put_out(
                Time::from_ms(number as u64 * 2_000),
                &host(number),
                HostFault::Failed,
            );
        }
        blacklist
    }

    #[test]
    fn beyond_the_bound_the_shortest_stay_is_forgotten_and_never_the_newest() {
        let mut blacklist = full();
        let next = PENALTIES_MAX;
        let late = Time::from_ms(next as u64 * 2_000);
        blacklist.put_out(late, &host(next), HostFault::Failed);
        assert_eq!(blacklist.penalties.len(), PENALTIES_MAX);
        assert!(blacklist.stay(&host(0)).is_none(), "its stay ends first");
        assert!(blacklist.stay(&host(next - 1)).is_some());
        assert!(blacklist.stay(&host(next)).is_some());
    }

    #[test]
    fn beyond_the_bound_a_host_that_is_back_is_forgotten_first() {
        let mut blacklist = full();
        let next = PENALTIES_MAX;
        let over = blacklist.stay(&host(0)).and_then(|stay| stay.until).expect("it ends");
        blacklist.put_out(over, &host(1), HostFault::Failed);
        blacklist.expire(over);
        assert!(blacklist.stay(&host(0)).is_none() && blacklist.penalties.contains_key(&host(0)));
        blacklist.put_out(over, &host(next), HostFault::Failed);
        assert!(!blacklist.penalties.contains_key(&host(0)), "it is not blacklisted");
        assert_eq!(blacklist.penalties.len(), PENALTIES_MAX);
    }
}
