//! Settings of the host manager, and their validation. Made by the command line.

use std::collections::BTreeSet;
use std::time::Duration;

use elastic_protocol::HostName;

use super::limits::{HOSTS_MAX, SLOTS_MAX};

/// A host, and the number of workers that it can run at once.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HostSlots {
    /// Its name.
    pub name: HostName,
    /// The number of its slots, at least 1.
    pub slots: u32,
}

/// Source of the list of hosts.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum HostSource {
    /// The output of a script, or of a host file that is read repeatedly.
    Script,
    /// A fixed list, the oldest first.
    Fixed(Vec<HostSlots>),
    /// Agents that join.
    Joined,
}

/// Cooldown of a blacklisted host: `min` at first, twice as long each time, at most `max`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CooldownRange {
    /// The first stay.
    pub min: Duration,
    /// The longest stay.
    pub max: Duration,
}

/// Settings of the host manager.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HostManagerConfig {
    /// Source of the list of hosts.
    pub source: HostSource,
    /// Slots of a discovered host that is printed without a number of slots. Default: `None`, such a line is
    /// malformed.
    pub default_slots: Option<u32>,
    /// Delay between the end of one poll and the beginning of the next. Default: 1 s.
    pub poll_interval: Duration,
    /// Timeout of one poll. Default: 10 s.
    pub script_timeout: Duration,
    /// Cooldown of a blacklisted host. Default: for ever.
    pub cooldown: Option<CooldownRange>,
    /// The hosts of an earlier driver, the oldest first. Default: none.
    pub known: Vec<KnownHost>,
}

/// A host of an earlier driver.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KnownHost {
    /// Its name and slots; the slots of a host off the list are not known, and 0.
    pub host: HostSlots,
    /// Whether it was on the list. A host off the list is known only because it may have no workers.
    pub is_listed: bool,
    /// Whether it was blacklisted; if so, its stay begins again.
    pub is_blacklisted: bool,
    /// Whether that stay had an end.
    pub comes_back: bool,
    /// Whether the operator had taken it out.
    pub is_drained: bool,
}

/// Errors in the settings.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidConfig {
    /// The cooldown's minimum is zero, or above its maximum.
    #[error("the blacklist cooldown range {min:?} to {max:?}: MIN must be above 0 and at most MAX")]
    Cooldown {
        /// The first stay.
        min: Duration,
        /// The longest stay.
        max: Duration,
    },
    /// A duration is zero that must not be.
    #[error("the {what} must be above 0")]
    Zero {
        /// The name of the setting.
        what: &'static str,
    },
    /// A host without slots, or with more than [`SLOTS_MAX`].
    #[error("{whose} has {slots} slots: give 1 to {SLOTS_MAX}")]
    Slots {
        /// The host, or the setting.
        whose: String,
        /// The number of slots.
        slots: u32,
    },
    /// There is no host to run workers on.
    #[error("the list of hosts is empty: name at least one, such as -H localhost:2")]
    NoHosts,
    /// More than [`HOSTS_MAX`].
    #[error("{hosts} hosts are given; at most {HOSTS_MAX} are allowed")]
    TooManyHosts {
        /// The number of hosts.
        hosts: usize,
    },
    /// A host is named twice.
    #[error("host {name} is given twice: name it once, with all its slots")]
    DuplicateHost {
        /// Its name.
        name: HostName,
    },
}

impl HostManagerConfig {
    /// The defaults, for this source.
    pub const fn new(source: HostSource) -> Self {
        Self {
            source,
            default_slots: None,
            poll_interval: Duration::from_secs(1),
            script_timeout: Duration::from_secs(10),
            cooldown: None,
            known: Vec::new(),
        }
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// `InvalidConfig` names the first invalid setting.
    pub fn validate(self) -> Result<Self, InvalidConfig> {
        if let Some(CooldownRange { min, max }) = self.cooldown
            && (min.is_zero() || min > max)
        {
            return Err(InvalidConfig::Cooldown { min, max });
        }
        for (what, duration) in [
            ("discovery interval", self.poll_interval),
            ("discovery's time limit", self.script_timeout),
        ] {
            if duration.is_zero() {
                return Err(InvalidConfig::Zero { what });
            }
        }
        if let Some(slots) = self.default_slots {
            check_slots("a host without slots of its own", slots)?;
        }
        if let HostSource::Fixed(hosts) = &self.source {
            check_fixed(hosts)?;
        }
        Ok(self)
    }
}

fn check_fixed(hosts: &[HostSlots]) -> Result<(), InvalidConfig> {
    if hosts.is_empty() {
        return Err(InvalidConfig::NoHosts);
    }
    if hosts.len() > HOSTS_MAX {
        return Err(InvalidConfig::TooManyHosts { hosts: hosts.len() });
    }
    let mut names = BTreeSet::new();
    for host in hosts {
        check_slots(host.name.as_str(), host.slots)?;
        if !names.insert(&host.name) {
            return Err(InvalidConfig::DuplicateHost { name: host.name.clone() });
        }
    }
    Ok(())
}

fn check_slots(whose: &str, slots: u32) -> Result<(), InvalidConfig> {
    if (1..=SLOTS_MAX).contains(&slots) {
        return Ok(());
    }
    Err(InvalidConfig::Slots { whose: whose.to_owned(), slots })
}
