//! The form of events in the event log: workers, hosts and causes are written as texts, and parsed from them. Called by
//! serde for the events of `event`.

use std::fmt;
use std::str::FromStr;

use elastic_host_manager::{HostEntry, HostState};
use elastic_protocol::HostName;
use elastic_protocol::messages::JobPhase;

/// Mark of a host that the operator has taken out; it follows the number of slots.
const DRAINED: &str = ", drained";

/// A host that the job may use, as an event names it: `name:slots`, in parentheses when it gets no workers, there with
/// `, drained` if the operator has taken it out.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ListedHost {
    /// The host.
    pub name: HostName,
    /// Number of its slots.
    pub slots: u32,
    /// Whether it gets no workers at present: it is blacklisted, or drained.
    pub is_blacklisted: bool,
    /// Whether it gets none because the operator has taken it out.
    pub is_drained: bool,
}

impl ListedHost {
    /// A host of the host manager's list.
    pub(crate) fn new(entry: &HostEntry) -> Self {
        let is_blacklisted = entry.state != HostState::Listed;
        let is_drained = entry.state == HostState::Drained;
        Self { name: entry.name.clone(), slots: entry.slots, is_blacklisted, is_drained }
    }
}

impl fmt::Display for ListedHost {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, slots, is_blacklisted, is_drained } = self;
        match (is_blacklisted, is_drained) {
            (false, _) => write!(formatter, "{name}:{slots}"),
            (true, false) => write!(formatter, "({name}:{slots})"),
            (true, true) => write!(formatter, "({name}:{slots}{DRAINED})"),
        }
    }
}

/// A text that names no listed host.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{text:?} is no listed host: it is written name:slots, in parentheses when blacklisted")]
pub struct InvalidListedHost {
    text: String,
}

impl FromStr for ListedHost {
    type Err = InvalidListedHost;

    fn from_str(text: &str) -> Result<Self, InvalidListedHost> {
        let listed = |text: &str, is_blacklisted, is_drained| {
            let (name, slots) = text.rsplit_once(':')?;
            let (name, slots) = (HostName::new(name).ok()?, slots.parse().ok()?);
            Some(Self { name, slots, is_blacklisted, is_drained })
        };
        let inner = text.strip_prefix('(').and_then(|text| text.strip_suffix(')'));
        let drained = inner.and_then(|inner| inner.strip_suffix(DRAINED));
        drained
            .and_then(|drained| listed(drained, true, true))
            .or_else(|| listed(inner?, true, false))
            .or_else(|| listed(text, false, false))
            .ok_or_else(|| InvalidListedHost { text: text.to_owned() })
    }
}

/// The phase on record in events of versions that did not tell it.
pub(crate) const fn gather() -> JobPhase {
    JobPhase::Gather
}

/// A value as its text.
pub(crate) mod text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

    pub(crate) fn serialize<T: Display, S: Serializer>(
        value: &T,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(crate) fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// Values as their texts.
pub(crate) mod texts {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

    pub(crate) fn serialize<T: Display, S: Serializer>(
        values: &[T],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(values.iter().map(ToString::to_string))
    }

    pub(crate) fn deserialize<'de, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        let texts = Vec::<String>::deserialize(deserializer)?;
        texts.iter().map(|text| text.parse().map_err(D::Error::custom)).collect()
    }
}

/// An exit status as its text: `exit code 1`, `signal 9 (SIGKILL)`.
pub(crate) mod status {
    use elastic_protocol::ExitStatus;
    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

    pub(crate) fn serialize<S: Serializer>(
        value: &ExitStatus,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<ExitStatus, D::Error> {
        let text = String::deserialize(deserializer)?;
        let number = |rest: &str| rest.split(' ').next().and_then(|number| number.parse().ok());
        let code = text.strip_prefix("exit code ").and_then(number).map(ExitStatus::Code);
        let signal = text.strip_prefix("signal ").and_then(number).map(ExitStatus::Signal);
        code.or(signal).ok_or_else(|| D::Error::custom(format!("{text:?} is no exit status")))
    }
}

/// The cause of a reset: `cause`, a text for people, and `cause_data`, its parts for programs.
pub(crate) mod cause {
    use elastic_protocol::ResetCause;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize)]
    struct CauseToWrite<'a> {
        cause: String,
        cause_data: &'a ResetCause,
    }

    #[derive(Deserialize)]
    struct CauseToRead {
        cause_data: ResetCause,
    }

    pub(crate) fn serialize<S: Serializer>(
        value: &ResetCause,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        CauseToWrite { cause: value.to_string(), cause_data: value }.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<ResetCause, D::Error> {
        Ok(CauseToRead::deserialize(deserializer)?.cause_data)
    }
}

#[cfg(test)]
mod tests {
    use elastic_protocol::messages::PhaseMs;
    use elastic_protocol::{ExitStatus, GenerationId, Incarnation, ResetCause, Term, WorkerId};
    use serde_json::json;

    use super::super::event::{DriverEvent, EventKind, ResetWay};
    use super::*;

    fn worker(host: &str) -> WorkerId {
        let host = HostName::new(host).expect("allowed");
        WorkerId { host, slot: 1, incarnation: Incarnation(3) }
    }

    #[test]
    fn what_the_log_says_is_read_back_as_it_was() {
        let listed = |name: &str, is_blacklisted| ListedHost {
            name: HostName::new(name).expect("allowed"),
            slots: 2,
            is_blacklisted,
            is_drained: is_blacklisted && name == "b",
        };
        let status = ExitStatus::Signal(9);
        let cause = ResetCause::WorkerExited { worker: worker("a"), status };
        let ms = PhaseMs { detect: 1.5, form: Some(2.0), sync: None, total: None };
        let kinds = [
            EventKind::HostsChanged {
                needed: 2,
                min_np: 1,
                hosts: vec![
                    listed("a", false),
                    listed("b", true),
                    listed("c", true),
                    listed("(c", false),
                ],
            },
            EventKind::WorkerExited {
                worker: worker("(x)"),
                status: ExitStatus::Code(-1),
                expected: true,
                killed_after_grace: false,
            },
            EventKind::GenerationFormed { members: vec![worker("a")], root: None, step: 7 },
            EventKind::ResetDecided { cause: cause.clone(), way: ResetWay::Restart },
            EventKind::ResetDone { cause, from: GenerationId(4), ms, steps_lost: 2, lost_ms: 70 },
            EventKind::TakeoverBegun {
                hosts: 1,
                workers: 1,
                members: vec![worker("a")],
                phase: JobPhase::Run,
            },
        ];
        for kind in kinds {
            let event = DriverEvent { term: Term(1), generation: GenerationId(2), kind };
            let line = serde_json::to_string(&event).expect("an object");
            let read: DriverEvent = serde_json::from_str(&line).expect("the same object");
            assert_eq!(read, event, "{line}");
        }
    }

    #[test]
    fn a_cause_is_a_text_for_people_and_parts_for_programs() {
        let cause = ResetCause::HostLost {
            host: HostName::new("a").expect("allowed"),
            reason: "gone".to_owned(),
        };
        let kind = EventKind::ResetDecided { cause, way: ResetWay::Abort };
        let expected = json!({
            "kind": "reset_decided", "way": "abort", "cause": "host a lost: gone",
            "cause_data": {"HostLost": {"host": "a", "reason": "gone"}},
        });
        assert_eq!(serde_json::to_value(kind).expect("an object"), expected);
    }
}
