//! The oracle's check of blacklist stays. The k-th stay under a driver lasts MIN doubled k - 1 times, with up to a
//! tenth more for jitter, and MAX at most. Called with the driver's events.

use std::collections::{BTreeMap, BTreeSet};

use elastic_host_manager::{CooldownRange, HostState, HostsSnapshot, KnownHost};
use elastic_protocol::{HostName, Time};

/// The stays of a driver's hosts.
#[derive(Debug, Default)]
pub(crate) struct Cooldowns {
    /// Number of each host's stays, and the end of the last one.
    stays: BTreeMap<HostName, (u32, Option<Time>)>,
    /// Hosts that were in the last list and not blacklisted.
    listed: BTreeSet<HostName>,
    /// Hosts with stays that the oracle has not seen.
    unseen: BTreeSet<HostName>,
}

impl Cooldowns {
    /// Of a driver that begins with these hosts. Stays of hosts off the list go on under it, and cannot be seen.
    pub(crate) fn of(known: &[KnownHost]) -> Self {
        let unlisted = known.iter().filter(|host| !host.is_listed);
        Self { unseen: unlisted.map(|it| it.host.name.clone()).collect(), ..Self::default() }
    }

    /// A host is blamed. If it is not in the list, this stay cannot be seen, but it counts.
    pub(crate) fn blamed(&mut self, host: &HostName) {
        if !self.stays.contains_key(host) {
            self.unseen.insert(host.clone());
        }
    }

    /// Checks a new list. A host's stays while it is not in the list cannot be seen, so it is not judged again.
    pub(crate) fn check(
        &mut self,
        now: Time,
        range: Option<CooldownRange>,
        snapshot: &HostsSnapshot,
    ) -> Result<(), String> {
        let Some(CooldownRange { min, max }) = range else { return Ok(()) };
        let listed = std::mem::take(&mut self.listed);
        let mut complaint = Ok(());
        for entry in &snapshot.hosts {
            let name = &entry.name;
            match entry.state {
                HostState::Listed => {
                    self.listed.insert(name.clone());
                    if !self.unseen.contains(name) {
                        self.stays.entry(name.clone()).or_insert((0, None));
                    }
                }
                HostState::Drained => {
                    complaint = Err(format!("{name} is drained, and nobody asked"))
                }
                HostState::Blacklisted { until: None } => {
                    complaint = Err(format!("{name} is blacklisted for ever"));
                }
                HostState::Blacklisted { until: Some(until) } => {
                    let Some((stays, last)) = self.stays.get_mut(name) else {
                        self.unseen.insert(name.clone());
                        continue;
                    };
                    if *last == Some(until) {
                        continue;
                    }
                    *last = Some(until);
                    *stays += 1;
                    let doubled = 2_u32.checked_pow(*stays - 1).and_then(|it| min.checked_mul(it));
                    let least = doubled.unwrap_or(max).min(max);
                    let most = (least + least / 10).min(max);
                    let lasts = until.since(now);
                    if listed.contains(name) && !(least..=most).contains(&lasts) {
                        complaint = Err(format!(
                            "{name} is blacklisted for {lasts:?} the {stays}th time: {least:?} to {most:?} is meant"
                        ));
                    }
                }
            }
        }
        let is_in = |name: &HostName| snapshot.hosts.iter().any(|entry| entry.name == *name);
        let gone: Vec<HostName> = self.stays.keys().filter(|name| !is_in(name)).cloned().collect();
        for name in gone {
            self.stays.remove(&name);
            self.unseen.insert(name);
        }
        complaint
    }
}
