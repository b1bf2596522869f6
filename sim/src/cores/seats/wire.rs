//! The network, from the side of nodes that are actors.

use bytes::Bytes;
use elastic_protocol::messages::{DriverToAgent, DriverToWorker};
use elastic_protocol::{NodeId, NodeName, WorkerId};
use elastic_runtime::session::Limits;
use elastic_runtime::transport::{Conversation, LinkEvent, SendErrorReason, TransportEvent};

use super::super::World;
use super::super::driver::DriverLife;
use super::super::network::{End, Frame, Lane, Owner};
use super::super::wire::Packet;
use crate::actors::{DriverNode, Side};

impl World {
    fn lane(end: End) -> Lane {
        match end {
            End::Driver => Lane::ToPeer,
            End::Peer => Lane::ToDriver,
        }
    }

    fn place_of_end(&self, side: Side, peer: &NodeId) -> Option<(u32, End)> {
        match side {
            Side::Peer { link } => Some((link, End::Peer)),
            Side::Driver { .. } => {
                let number = peer.incarnation.0;
                let link = match peer.name {
                    NodeName::Agent(_) => self.link_of_agent(peer)?,
                    NodeName::Worker(..) => self.link_of_incarnation(self.driver.job, number)?,
                    _ => return None,
                };
                let is_same = self.links[link as usize].node.as_ref() == Some(peer);
                is_same.then_some((link, End::Driver))
            }
        }
    }

    /// Does something as the node that is at this side.
    pub(crate) fn at_side<R>(&mut self, side: Side, act: impl FnOnce(&mut Self) -> R) -> Option<R> {
        match side {
            Side::Driver { life } => self.in_life(life, act),
            Side::Peer { .. } => Some(act(self)),
        }
    }

    pub(crate) fn node_sends(
        &mut self,
        side: Side,
        to: &NodeId,
        conversation: Conversation,
        bytes: &Bytes,
    ) -> Result<(), SendErrorReason> {
        if matches!(side, Side::Driver { .. }) && self.dies_midway() {
            return Err(SendErrorReason::NoSession);
        }
        let frame = self.wiretap.read(bytes);
        if let Some(Frame::ToAgent(DriverToAgent::Start { worker, .. })) = &frame {
            self.check_recorded(worker);
        }
        if let Some(Frame::ToWorker(DriverToWorker::Assign(formation))) = &frame {
            let (job, term) = (self.driver.job, self.driver.term);
            // A former driver that stood still tells late of what it had recorded: its successor has formed that.
            let is_news = !self.oracle.knows(job, formation.stamp);
            if formation.stamp > self.driver.stamp && is_news {
                match self.oracle.members_told(job, formation) {
                    Ok(members) => {
                        self.check_recorded_generation(formation.stamp);
                        self.open_generation(formation.stamp, &members);
                    }
                    Err(reason) => self.fail_safety(reason),
                }
            }
            let checked = match self.worker_named(to) {
                Some(worker) => self.oracle.assigned(job, term, formation, &worker),
                None => Err(format!("an assignment is sent to {to}")),
            };
            self.demand(checked);
        }
        if let Some(Frame::ToWorker(DriverToWorker::Go { stamp })) = &frame
            && *stamp > self.wiretap.gone
        {
            self.wiretap.gone = *stamp;
            let checked = self.oracle.barrier_opened(self.driver.job, *stamp);
            self.demand(checked);
        }
        let Some((link, end)) = self.place_of_end(side, to) else {
            return Err(SendErrorReason::NoSession);
        };
        if let Some(Frame::FromWorker(message)) = &frame
            && let Owner::Worker { process } = self.links[link as usize].owner
        {
            self.check_said(process, message);
        }
        let lane = Self::lane(end);
        if self.links[link as usize].queued(lane) >= Limits::DEFAULT.control_frames {
            return Err(SendErrorReason::Full);
        }
        let is_goodbye = matches!(
            frame,
            Some(Frame::ToWorker(DriverToWorker::Leave { .. } | DriverToWorker::Finished { .. }))
        );
        let welcomes = matches!(
            frame,
            Some(
                Frame::ToWorker(DriverToWorker::Welcome { .. })
                    | Frame::ToAgent(DriverToAgent::Welcome { .. })
            )
        );
        let code = frame.as_ref().map_or(0, Frame::code);
        let vote = match frame {
            Some(Frame::Vote(vote)) => Some(Box::new(vote)),
            _ => None,
        };
        let packet =
            Packet { bytes: bytes.clone(), conversation, code, is_goodbye, welcomes, vote };
        self.send(link, lane, Frame::Wire(packet)).map_err(|_frame| SendErrorReason::NoSession)
    }

    fn worker_named(&self, node: &NodeId) -> Option<WorkerId> {
        let NodeName::Worker(host, slot) = &node.name else { return None };
        Some(WorkerId { host: host.clone(), slot: *slot, incarnation: node.incarnation })
    }

    /// An end closes its session for good; for how long it had not heard the other, if there was a session.
    pub(crate) fn node_closes(&mut self, side: Side, peer: &NodeId) -> Option<u64> {
        let (link, end) = self.place_of_end(side, peer)?;
        self.close(link, end)
    }

    fn tell_node(&self, link: u32, end: End, event: TransportEvent) {
        match (end, self.links[link as usize].owner) {
            (End::Driver, _) => {
                let life = self.life(self.links[link as usize].life);
                if let Some(driver) = life.and_then(DriverLife::node) {
                    driver.tell(event);
                }
            }
            (End::Peer, Owner::Agent { host, life }) => {
                let agent = self.hosts[host as usize].agent.as_ref();
                let agent = agent.filter(|agent| agent.life == life);
                if let Some(node) = agent.and_then(|agent| agent.node()) {
                    node.tell(event);
                }
            }
            (End::Peer, Owner::Worker { process }) => {
                if let Some(node) = self.processes[process as usize].state.node() {
                    node.tell(event);
                }
            }
        }
    }

    /// Whom an end of a link is linked with.
    fn other_end(&self, link: u32, end: End) -> Option<NodeId> {
        match end {
            End::Driver => self.links[link as usize].node.clone(),
            End::Peer => Some(DriverNode::id(self.term_of(self.links[link as usize].life))),
        }
    }

    pub(in crate::cores) fn tell_node_of_link(&mut self, link: u32, end: End, event: &LinkEvent) {
        if let Some(peer) = self.other_end(link, end) {
            self.tell_node(link, end, TransportEvent::Link { peer, event: event.clone() });
        }
    }

    pub(in crate::cores) fn hand_packet(&mut self, link: u32, end: End, packet: Packet) {
        if packet.is_goodbye
            && let Owner::Worker { process } = self.links[link as usize].owner
        {
            self.processes[process as usize].is_leaving = true;
        }
        if packet.welcomes {
            self.is_outdated(link, true);
        }
        if let Some(vote) = &packet.vote {
            let life = self.links[link as usize].life;
            let job = self.life(life).map_or(self.driver.job, |driver| driver.job);
            self.oracle.voted(job, vote);
        }
        if let Some(from) = self.other_end(link, end) {
            let Packet { bytes: frame, conversation, .. } = packet;
            self.tell_node(link, end, TransportEvent::Frame { from, conversation, frame });
        }
    }

    pub(in crate::cores) fn hand_back(&mut self, link: u32, end: End, packet: Packet) {
        if let Some(to) = self.other_end(link, end) {
            let Packet { bytes: frame, conversation, .. } = packet;
            self.tell_node(link, end, TransportEvent::Undeliverable { to, conversation, frame });
        }
    }
}
