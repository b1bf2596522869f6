//! The agent's watch over its host: tells the driver about lanes of the agent's process that do not answer, and about
//! the address at which other hosts reach this one after it was renumbered. Used by [`agent`](super::agent).

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use elastic_agent::{AgentActor, HostChange, StandardStreams};
use elastic_protocol::messages::LaneStatus;
use elastic_runtime::{DroppingWriterTrouble, OffloadPort};
use futures_util::future::{Either, select};
use tokio::time::sleep;

use super::driver_address::RouteToDriver;
use super::meeting_point::MeetingPoint;

/// Interval between two looks at the host.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The lanes of an agent's process.
pub(super) struct AgentLanes {
    pub(super) ports: Vec<OffloadPort>,
    pub(super) streams: Arc<StandardStreams>,
    /// Finds the output file that has not been written for longest, if one hangs.
    pub(super) files: Box<dyn Fn() -> Option<DroppingWriterTrouble>>,
}

impl AgentLanes {
    /// The lanes that do not answer.
    fn hanging(&self) -> Vec<LaneStatus> {
        let ports = self.ports.iter().filter_map(|port| {
            let (bounds, hanging) = (port.bounds(), port.hanging()?);
            Some(status(bounds.name, bounds.answers_within, hanging.since, 0))
        });
        let words = self.streams.troubles().into_iter().chain((self.files)());
        let words = words.filter_map(|trouble| {
            let DroppingWriterTrouble { lane, answers_within, hanging, dropped_lines } = trouble;
            Some(status(lane, answers_within, hanging?, dropped_lines))
        });
        ports.chain(words).collect()
    }
}

fn status(name: &str, within: Duration, hanging: Duration, dropped_lines: u64) -> LaneStatus {
    let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    LaneStatus {
        name: name.to_owned(),
        answers_within_ms: ms(within),
        hanging_ms: Some(ms(hanging)),
        dropped_lines,
    }
}

/// The watched lanes, route and meeting point.
pub(super) struct HostWatch {
    pub(super) lanes: AgentLanes,
    pub(super) route: RouteToDriver,
    pub(super) meeting: Rc<MeetingPoint>,
}

impl HostWatch {
    /// Tells the agent each change, for as long as it runs.
    pub(super) async fn tell(self, agent: Addr<AgentActor>) {
        let mut told: Vec<String> = Vec::new();
        while agent.connected() {
            let has_another_port = {
                let (used, look) = (pin!(self.meeting.changed()), pin!(sleep(LOOK_EVERY)));
                matches!(select(used, look).await, Either::Left(_))
            };
            let hanging = self.lanes.hanging();
            let names: Vec<String> = hanging.iter().map(|lane| lane.name.clone()).collect();
            // Without an address, the host may just be between two.
            let has_moved = self.route.data_ip(None).is_some_and(|ip| self.meeting.move_to(ip));
            if names != told || has_moved || has_another_port {
                told = names;
                agent.do_send(HostChange { meeting: self.meeting.address(), hanging });
            }
        }
    }
}
