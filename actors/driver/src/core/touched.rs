//! Maps that remember of which hosts something has changed, so that what is derived from them is worked out
//! anew for those hosts only. The driver's agents, slots and workers are kept in such.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use elastic_protocol::{HostName, WorkerId};

use super::table::SlotId;

/// A key that is of a host.
pub(crate) trait OfHost: Ord {
    /// Which host.
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

/// An ordered map; reading it is reading the map.
#[derive(Clone, Debug)]
pub(crate) struct Touched<K, V> {
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

    /// To change what nothing is derived from.
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

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.map.iter_mut().map(|(key, value)| {
            self.hosts.insert(key.host().clone());
            value
        })
    }

    /// The hosts that were touched since this was asked last.
    pub(crate) fn take_hosts(&mut self) -> BTreeSet<HostName> {
        std::mem::take(&mut self.hosts)
    }
}
