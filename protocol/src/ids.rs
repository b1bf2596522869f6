//! Identities of jobs, terms, generations, hosts, workers and nodes; used by every crate. All are ordered, so
//! that maps of them iterate the same way in every run.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

/// One elastic run, from the first worker to the result.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct JobId(pub Uuid);

impl fmt::Display for JobId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

macro_rules! counter {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
        )]
        pub struct $name(pub u64);

        impl $name {
            /// The next number.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(formatter)
            }
        }
    };
}

counter! {
    /// Incarnation of the driver; never goes back (G-2).
    Term
}
counter! {
    /// Number of one membership; only grows (G-2). 0 is before the first.
    GenerationId
}
counter! {
    /// Number of one life of a name. The driver gives each number out once only.
    Incarnation
}

impl Incarnation {
    /// Bits of the counter in an enrolled incarnation: at most 2^40 agents and clients for one term of the
    /// driver.
    const ENROLLED_BITS: u32 = 40;

    /// The incarnation of the `number`-th agent or client that enrols with the driver of a term. Each term has
    /// a range of its own, so no number is given out twice (D-1). Workers' incarnations are counted otherwise.
    #[must_use]
    pub const fn enrolled(term: Term, number: u64) -> Self {
        Self((term.0 << Self::ENROLLED_BITS) + number)
    }

    /// The term in which an agent or a client with this incarnation enrolled.
    #[must_use]
    pub const fn enrolled_in(self) -> Term {
        Term(self.0 >> Self::ENROLLED_BITS)
    }
}

/// Term and generation, carried by every message about a generation: an older stamp is dropped and counted
/// (G-2).
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
pub struct Stamp {
    /// The driver's term.
    pub term: Term,
    /// The generation.
    pub generation: GenerationId,
}

/// A host's name as users wrote it: 1 to 255 bytes, no control characters.
///
/// Any other character is allowed (spaces, non-ASCII, `../`), so a host name is never used as a path as it is.
#[derive(Clone, Eq, PartialEq)]
pub struct HostName {
    /// The name's first bytes as a number, first byte highest, filled up with zeros.
    ///
    /// The driver's tables are ordered by names. Most names differ here, so a comparison reads no memory of its own.
    start: u64,
    text: Arc<str>,
}

/// Why a host name was refused.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidHostName {
    /// The name is empty, or white space alone.
    #[error("the host name is empty")]
    Empty,
    /// The name has more than [`HostName::BYTES_MAX`] bytes.
    #[error("the host name has {bytes} bytes; at most 255 are allowed")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// The name has a control character, such as a line break.
    #[error("the host name {name:?} has a control character")]
    ControlCharacter {
        /// The name.
        name: String,
    },
}

impl HostName {
    /// Longest host name, in bytes (a DNS name's limit).
    pub const BYTES_MAX: usize = 255;

    /// Checks and takes a name, without the white space around it.
    ///
    /// # Errors
    /// [`InvalidHostName`] says what is wrong with it.
    pub fn new(name: &str) -> Result<Self, InvalidHostName> {
        let name = name.trim();
        if name.is_empty() {
            return Err(InvalidHostName::Empty);
        }
        if name.len() > Self::BYTES_MAX {
            return Err(InvalidHostName::TooLong { bytes: name.len() });
        }
        if name.chars().any(char::is_control) {
            return Err(InvalidHostName::ControlCharacter { name: name.to_owned() });
        }
        Ok(Self { start: start_of(name), text: Arc::from(name) })
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// The first eight bytes of a text, in the order of texts.
fn start_of(name: &str) -> u64 {
    let mut start = [0; 8];
    let length = name.len().min(start.len());
    start[..length].copy_from_slice(&name.as_bytes()[..length]);
    u64::from_be_bytes(start)
}

impl Ord for HostName {
    /// The order of the texts. A name has no zero byte, so names that differ in their starts have the order of these.
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        self.start.cmp(&other.start).then_with(|| match Arc::ptr_eq(&self.text, &other.text) {
            true => Ordering::Equal,
            false => self.text.cmp(&other.text),
        })
    }
}

impl PartialOrd for HostName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Hash for HostName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl fmt::Debug for HostName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("HostName").field(&self.text).finish()
    }
}

impl Serialize for HostName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_newtype_struct("HostName", &*self.text)
    }
}

impl FromStr for HostName {
    type Err = InvalidHostName;

    fn from_str(name: &str) -> Result<Self, InvalidHostName> {
        Self::new(name)
    }
}

impl<'de> Deserialize<'de> for HostName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::new(&name).map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(formatter)
    }
}

/// One life of the process on one slot of a host.
#[derive(Clone, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct WorkerId {
    /// Its host.
    pub host: HostName,
    /// Its slot, from 0.
    pub slot: u32,
    /// Number of this life.
    pub incarnation: Incarnation,
}

impl fmt::Display for WorkerId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}[{}]#{}", self.host, self.slot, self.incarnation)
    }
}

/// A text that names no worker.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{text:?} is no worker: it is written host[slot]#incarnation")]
pub struct InvalidWorkerId {
    text: String,
}

impl FromStr for WorkerId {
    type Err = InvalidWorkerId;

    /// Reads the output of `Display`. A host's name may have any of the brackets in it, so the text is read from its end.
    fn from_str(text: &str) -> Result<Self, InvalidWorkerId> {
        let parse = || {
            let (rest, incarnation) = text.rsplit_once('#')?;
            let (host, slot) = rest.strip_suffix(']')?.rsplit_once('[')?;
            let host = HostName::new(host).ok()?;
            let incarnation = Incarnation(incarnation.parse().ok()?);
            Some(Self { host, slot: slot.parse().ok()?, incarnation })
        };
        parse().ok_or_else(|| InvalidWorkerId { text: text.to_owned() })
    }
}

/// The name of a node, without its incarnation.
#[derive(Clone, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub enum NodeName {
    /// The job's authority.
    Driver,
    /// A host's agent.
    Agent(HostName),
    /// The process on a host's slot.
    Worker(HostName, u32),
    /// A process that only asks, such as `elastic-node status`.
    Client,
}

/// One life of a node: an end of connections, and the subject of a certificate.
#[derive(Clone, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct NodeId {
    /// Its name.
    pub name: NodeName,
    /// Number of this life.
    pub incarnation: Incarnation,
}

impl NodeId {
    /// The node of a worker process.
    pub fn worker(worker: &WorkerId) -> Self {
        Self {
            name: NodeName::Worker(worker.host.clone(), worker.slot),
            incarnation: worker.incarnation,
        }
    }

    /// The worker that this node is; `None` for other nodes.
    pub fn as_worker(&self) -> Option<WorkerId> {
        match &self.name {
            NodeName::Worker(host, slot) => {
                Some(WorkerId { host: host.clone(), slot: *slot, incarnation: self.incarnation })
            }
            _ => None,
        }
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            NodeName::Driver => write!(formatter, "driver#{}", self.incarnation),
            NodeName::Agent(host) => write!(formatter, "agent {host}#{}", self.incarnation),
            NodeName::Worker(host, slot) => {
                write!(formatter, "worker {host}[{slot}]#{}", self.incarnation)
            }
            NodeName::Client => write!(formatter, "client#{}", self.incarnation),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d_1_each_term_enrols_under_numbers_of_its_own() {
        let last = Incarnation::enrolled(Term(1), (1 << 40) - 1);
        let first = Incarnation::enrolled(Term(2), 1);
        assert!(last < first);
        assert_eq!((last.enrolled_in(), first.enrolled_in()), (Term(1), Term(2)));
    }

    #[test]
    fn a_worker_is_read_as_it_is_written_whatever_its_host_is_called() {
        for name in ["a", "rack[3]#1", "a:b]", "ü [x]"] {
            let host = HostName::new(name).expect("allowed");
            let worker = WorkerId { host, slot: 2, incarnation: Incarnation(7) };
            assert_eq!(worker.to_string().parse(), Ok(worker));
        }
        for text in ["", "a", "a[1]", "a[x]#1", "[1]#1", "a[1]#-1"] {
            assert!(text.parse::<WorkerId>().is_err(), "{text}");
        }
    }

    #[test]
    fn host_names_are_checked() {
        assert_eq!(HostName::new(" a ").map(|name| name.to_string()), Ok("a".to_owned()));
        assert_eq!(HostName::new("  "), Err(InvalidHostName::Empty));
        assert_eq!(HostName::new(&"x".repeat(256)), Err(InvalidHostName::TooLong { bytes: 256 }));
        assert!(HostName::new(&"x".repeat(255)).is_ok());
        assert!(matches!(HostName::new("a\nb"), Err(InvalidHostName::ControlCharacter { .. })));
        assert!(HostName::new("../x").is_ok(), "X-20: taken as a name, never used as a path");
    }

    #[test]
    fn host_names_have_the_order_of_their_texts() {
        let texts = [
            "a",
            "a b",
            "h1",
            "h10",
            "h2",
            "host-0001",
            "host-00010",
            "host-0002",
            "host-000é",
            "é",
            "日本",
        ];
        for (one, other) in texts.iter().flat_map(|one| texts.iter().map(move |other| (one, other)))
        {
            let [left, right] = [one, other].map(|text| HostName::new(text).expect("allowed"));
            assert_eq!(left.cmp(&right), one.cmp(other), "{one} and {other}");
            assert_eq!(left == right, one == other, "{one} and {other}");
        }
    }

    #[test]
    fn a_host_name_from_the_wire_is_checked_too() {
        let bytes = postcard::to_stdvec("a\u{7}b").unwrap_or_default();
        assert!(postcard::from_bytes::<HostName>(&bytes).is_err());
    }

    #[test]
    fn a_later_term_beats_any_generation() {
        let old = Stamp { term: Term(1), generation: GenerationId(9) };
        let new = Stamp { term: Term(2), generation: GenerationId(1) };
        assert!(new > old);
    }
}
