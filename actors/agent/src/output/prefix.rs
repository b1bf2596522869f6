//! Prefix of each line of a worker's output that is shown. Made with the output plan of a process. The pump of the
//! process fills in the time.

use std::time::SystemTime;

use crate::core::SpawnOrder;

/// The default prefix.
const HOST_AND_SLOT: &str = "[${hostname}:${slot}] ";
/// The one placeholder that differs from line to line.
const TIME: &str = "${time}";
/// Text in place of a rank, for a process that does not keep one rank for life.
const NO_RANK: &str = "-";

/// The prefix of a process's lines: a template in which only the time is not filled in yet.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct LinePrefix(String);

impl LinePrefix {
    /// The prefix for a process: that of the order's settings, else `[host:slot] `, so that all workers of a job have the
    /// same form.
    pub(super) fn new(order: &SpawnOrder) -> Self {
        let role = order.environment.iter().rev().find(|(name, _)| name == "ROLE_NAME");
        let role = role.map_or("default", |(_, value)| value.as_str());
        let number = |of: Option<u32>| of.map_or_else(|| NO_RANK.to_owned(), |it| it.to_string());
        let template = order.output.prefix.as_deref().unwrap_or(HOST_AND_SLOT);
        let filled = template
            .replace("${role_name}", role)
            .replace("${rank}", &number(order.place.map(|place| place.rank)))
            .replace("${local_rank}", &number(order.place.map(|place| place.local_rank)))
            .replace("${slot}", &order.worker.slot.to_string())
            .replace("${hostname}", order.worker.host.as_str());
        Self(filled)
    }

    /// The text before lines that are read at `now`.
    pub(super) fn text(&self, now: SystemTime) -> String {
        if !self.0.contains(TIME) {
            return self.0.clone();
        }
        self.0.replace(TIME, &humantime::format_rfc3339_millis(now).to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use elastic_protocol::messages::{OutputSettings, ProcessPlace};
    use elastic_protocol::{
        GenerationId, HostName, Incarnation, ProgramSpec, Stamp, Term, WorkerId,
    };

    use super::*;
    use crate::core::WorkerCredential;

    /// The prefix of a process with this rank, or of one that lives on, half a second after the epoch.
    fn prefix(rank: Option<u32>, template: Option<&str>) -> String {
        let host = HostName::new("h").expect("a literal");
        let stamp = Stamp { term: Term(1), generation: GenerationId(7) };
        let place = rank.map(|rank| ProcessPlace { stamp, rank, local_rank: 1 });
        let prefix = template.map(ToOwned::to_owned);
        let order = SpawnOrder {
            worker: WorkerId { host, slot: 3, incarnation: Incarnation(1) },
            program: ProgramSpec::default(),
            environment: vec![("ROLE_NAME".to_owned(), "trainer".to_owned())],
            place,
            credential: WorkerCredential(String::new()),
            output: OutputSettings { prefix, ..OutputSettings::default() },
        };
        LinePrefix::new(&order).text(UNIX_EPOCH + Duration::from_millis(500))
    }

    #[test]
    fn every_worker_of_a_job_has_the_same_form() {
        assert_eq!([prefix(Some(5), None), prefix(None, None)], ["[h:3] ", "[h:3] "]);
    }

    #[test]
    fn a_prefix_can_be_given() {
        let of_torch = Some("[${role_name}${rank}] ${hostname}/${local_rank}> ");
        assert_eq!(prefix(Some(5), of_torch), "[trainer5] h/1> ");
        assert_eq!(prefix(None, of_torch), "[trainer-] h/-> ");
        let of_line = Some("${time} ${hostname}:${slot} ");
        assert_eq!(prefix(Some(5), of_line), "1970-01-01T00:00:00.500Z h:3 ");
        assert_eq!(prefix(None, Some("")), "");
    }
}
