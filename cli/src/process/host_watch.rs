//! The agent's watch over its host: tells the driver about lanes of the agent's process that do not answer, and about
//! the address at which other hosts reach this one after it was renumbered. Used by [`agent`](super::agent).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use elastic_agent::{AgentActor, HostChange, StandardStreams};
use elastic_protocol::messages::LaneStatus;
use elastic_runtime::{DroppingWriterTrouble, OffloadPort};
use tokio::time::sleep;

use super::driver_address::RouteToDriver;
use super::network::free_port;
use super::random::system_rng;

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

/// The watched lanes and route, and the address that the driver knows.
pub(super) struct HostWatch {
    pub(super) lanes: AgentLanes,
    pub(super) route: RouteToDriver,
    pub(super) meeting: Option<SocketAddr>,
}

impl HostWatch {
    /// Tells the agent each change, for as long as it runs.
    pub(super) async fn tell(mut self, agent: Addr<AgentActor>) {
        let mut told: Vec<String> = Vec::new();
        while agent.connected() {
            sleep(LOOK_EVERY).await;
            let hanging = self.lanes.hanging();
            let names: Vec<String> = hanging.iter().map(|lane| lane.name.clone()).collect();
            let has_moved = self.follow();
            if names != told || has_moved {
                told = names;
                agent.do_send(HostChange { meeting: self.meeting, hanging });
            }
        }
    }

    /// Takes the host's new address, if it has one. Without any, the host may just be between two.
    fn follow(&mut self) -> bool {
        let Some(ip) = self.route.data_ip(None) else { return false };
        if self.meeting.is_none_or(|meeting| meeting.ip() == ip || ip.is_loopback()) {
            return false;
        }
        let new = meeting_at(Some(ip));
        if let (Some(old), Some(new)) = (self.meeting, new) {
            tracing::warn!(old = %old.ip(), new = %new.ip(), "this host has another address");
        }
        self.meeting = new.or(self.meeting);
        new.is_some()
    }
}

/// An address with a free port, at which programs of other hosts reach one of this host.
pub(super) fn meeting_at(ip: Option<IpAddr>) -> Option<SocketAddr> {
    let ip = ip.unwrap_or(Ipv4Addr::LOCALHOST.into());
    free_port(ip, &mut system_rng()).map(|port| SocketAddr::new(ip, port))
}
