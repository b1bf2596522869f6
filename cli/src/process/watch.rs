//! The watchdog over the blocking work of a process: the state of each lane, for `status`, and a line in the log when
//! a lane begins to hang. Used by the processes of driver and agent.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use elastic_protocol::messages::LaneStatus;
use elastic_runtime::{BlockingLane, DroppingWriter, OffloadPort};
use tokio::time::sleep;

/// Interval between two looks at the lanes for the log.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The lanes of a driver's process.
#[derive(Clone, Debug)]
pub(crate) struct Lanes {
    /// Work on the journal, and on the store of several drivers.
    pub(crate) journal: OffloadPort,
    /// Reads of the host file, starts of the discovery script.
    pub(crate) discovery: OffloadPort,
    /// Starts of the driver's own agents.
    pub(crate) agents: OffloadPort,
    /// Work on the state directory.
    pub(crate) state: OffloadPort,
}

impl Lanes {
    /// Lanes without threads yet.
    pub(crate) fn new() -> Self {
        let kinds = [
            BlockingLane::JOURNAL,
            BlockingLane::DISCOVERY,
            BlockingLane::AGENTS,
            BlockingLane::STATE,
        ];
        let [journal, discovery, agents, state] = kinds.map(OffloadPort::lane);
        Self { journal, discovery, agents, state }
    }
}

/// All watched lanes. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Watch(Rc<Watched>);

#[derive(Debug)]
struct Watched {
    lanes: Lanes,
    words: Vec<DroppingWriter>,
    /// Longest stall of the actors after which the lease is still renewed; none without a lease.
    actors: Option<Duration>,
}

impl Watch {
    pub(crate) fn new(lanes: Lanes, words: Vec<DroppingWriter>, actors: Option<Duration>) -> Self {
        Self(Rc::new(Watched { lanes, words, actors }))
    }

    /// The status of each lane.
    pub(crate) fn lanes(&self) -> Vec<LaneStatus> {
        let status = |name: &str, within: Duration, hanging: Option<Duration>, dropped_lines| {
            let (name, answers_within_ms) = (name.to_owned(), ms(within));
            LaneStatus { name, answers_within_ms, hanging_ms: hanging.map(ms), dropped_lines }
        };
        let actors = self.0.actors.map(|within| status("actors", within, None, 0));
        let ports = self.ports().map(|port| {
            let (bounds, hanging) = (port.bounds(), port.hanging());
            status(bounds.name, bounds.answers_within, hanging.map(|it| it.since), 0)
        });
        let words = self.0.words.iter().map(|words| {
            let (bounds, trouble) = (words.bounds(), words.trouble());
            let dropped = trouble.as_ref().map_or(0, |trouble| trouble.dropped_lines);
            status(bounds.name, bounds.answers_within, trouble.and_then(|it| it.hanging), dropped)
        });
        actors.into_iter().chain(ports).chain(words).collect()
    }

    /// Warnings about lanes that do not answer in time, or have dropped lines.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let hanging = self.ports().filter_map(OffloadPort::hanging).map(|it| it.to_string());
        let troubled =
            self.0.words.iter().filter_map(DroppingWriter::trouble).map(|it| it.to_string());
        hanging.chain(troubled).collect()
    }

    /// Logs when a lane begins to hang, and when it works again.
    pub(crate) async fn tell(self) {
        tell(self.ports().cloned().collect()).await;
    }

    fn ports(&self) -> impl Iterator<Item = &OffloadPort> {
        let Lanes { journal, discovery, agents, state } = &self.0.lanes;
        [journal, discovery, agents, state].into_iter()
    }
}

/// Logs when one of these lanes begins to hang, and when it works again.
pub(crate) async fn tell(ports: Vec<OffloadPort>) {
    let mut said: BTreeMap<&'static str, bool> = BTreeMap::new();
    loop {
        sleep(LOOK_EVERY).await;
        for port in &ports {
            let (lane, hanging) = (port.bounds().name, port.hanging());
            let was_said = said.insert(lane, hanging.is_some()).unwrap_or_default();
            match hanging {
                Some(hanging) if !was_said => tracing::warn!("{hanging}"),
                None if was_said => tracing::info!("{lane}: answers again"),
                _ => {}
            }
        }
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
