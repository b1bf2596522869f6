//! Maps that remember the hosts whose entries have changed, so that derived data is recomputed for those hosts only.
//! The roster keeps agents, slots and workers in such maps.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use elastic_protocol::{HostName, WorkerId};
use serde::{Deserialize, Serialize};

use crate::core::table::SlotId;

/// A key that belongs to a host.
pub(crate) trait OfHost: Ord {
    /// The host.
    fn host(&self) -> &HostName;
}

impl OfHost for HostName {
    fn host(&self) -> &HostName {
        self
    }
}

impl OfHost for SlotId {
    fn host(&self) -> &HostName {
        &self.0
    }
}

impl OfHost for WorkerId {
    fn host(&self) -> &HostName {
        &self.host
    }
}

/// An ordered map that remembers changed hosts; it dereferences to the map.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(bound(
    serialize = "K: Serialize, V: Serialize",
    deserialize = "K: Deserialize<'de> + Ord, V: Deserialize<'de>"
))]
pub(crate) struct Touched<K, V> {
    #[serde(with = "crate::recording::readable::pairs")]
    map: BTreeMap<K, V>,
    hosts: BTreeSet<HostName>,
}

impl<K, V> Default for Touched<K, V> {
    fn default() -> Self {
        Self { map: BTreeMap::new(), hosts: BTreeSet::new() }
    }
}

impl<K, V> Deref for Touched<K, V> {
    type Target = BTreeMap<K, V>;

    fn deref(&self) -> &Self::Target {
        &self.map
    }
}

impl<K: OfHost, V> Touched<K, V> {
    pub(crate) fn touch(&mut self, host: &HostName) {
        if !self.hosts.contains(host) {
            self.hosts.insert(host.clone());
        }
    }

    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.touch(key.host());
        self.map.insert(key, value)
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        self.touch(key.host());
        self.map.remove(key)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.touch(key.host());
        self.map.get_mut(key)
    }

    /// An entry to change in fields from which nothing is derived: its host does not count as changed.
    pub(crate) fn get_mut_untouched(&mut self, key: &K) -> Option<&mut V> {
        self.map.get_mut(key)
    }

    pub(crate) fn get_or_default(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        self.touch(key.host());
        self.map.entry(key).or_default()
    }

    /// Hosts that were touched since [`Self::take_hosts`].
    pub(crate) const fn hosts(&self) -> &BTreeSet<HostName> {
        &self.hosts
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.map.iter_mut().map(|(key, value)| {
            self.hosts.insert(key.host().clone());
            value
        })
    }

    /// Hosts that were touched since the last call.
    pub(crate) fn take_hosts(&mut self) -> BTreeSet<HostName> {
        std::mem::take(&mut self.hosts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Map = Touched<(HostName, u32), u8>;

    #[test]
    fn whatever_changes_an_entry_marks_its_host() {
        let host = HostName::new("a").expect("a literal");
        let key = || (host.clone(), 0_u32);
        let mut map = Map::default();
        let mut check = |name: &str, change: &dyn Fn(&mut Map)| {
            change(&mut map);
            assert_eq!(map.take_hosts(), BTreeSet::from([host.clone()]), "{name}");
            map.get_mut_untouched(&key());
            assert!(map.hosts().is_empty(), "after {name}");
        };
        check("insert", &|map| assert_eq!(map.insert(key(), 1), None));
        check("get_mut", &|map| *map.get_mut(&key()).expect("it is there") = 2);
        check("get_or_default", &|map| *map.get_or_default(key()) = 3);
        check("values_mut", &|map| map.values_mut().for_each(|value| *value += 1));
        check("remove", &|map| assert_eq!(map.remove(&key()), Some(4)));
    }
}
