//! The network as nodes that are actors use it: send, close, deliver, hand back. Called by the simulated transport.

use bytes::Bytes;
use elastic_protocol::messages::{DriverToAgent, DriverToWorker};
use elastic_protocol::{NodeId, NodeName, WorkerId};
use elastic_runtime::transport::{Conversation, LinkEvent, SendErrorReason, TransportEvent};

use super::super::World;
use super::super::network::{LinkDirection, LinkFrame, LinkOwner, LinkSide};
use super::super::wire::Packet;
use crate::actors::{DriverNode, Side};

impl World {
    fn lane(end: LinkSide) -> LinkDirection {
        match end {
            LinkSide::Driver => LinkDirection::ToPeer,
            LinkSide::Peer => LinkDirection::ToDriver,
        }
    }

    fn place_of_end(&self, side: Side, peer: &NodeId) -> Option<(u32, LinkSide)> {
        match side {
            Side::Peer { link } => Some((link, LinkSide::Peer)),
            Side::Driver { .. } => Some((self.link_of(peer)?, LinkSide::Driver)),
        }
    }

    /// Acts as the node at a side.
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
        if let Some(LinkFrame::ToAgent(DriverToAgent::Start { worker, .. })) = &frame {
            self.check_recorded(worker);
        }
        if let Some(LinkFrame::ToWorker(DriverToWorker::Assign(formation))) = &frame {
            let (job, term) = (self.driver.job, self.driver.term);
            // A former driver that stood still may report a recorded generation late. Its successor has formed that
            // generation.
            let is_news = !self.oracle.knows(job, formation.stamp);
            if formation.stamp > self.driver.stamp && is_news {
                match self.oracle.members_told(job, term, formation) {
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
        if let Some(LinkFrame::ToWorker(DriverToWorker::Go { stamp, .. })) = &frame
            && *stamp > self.wiretap.gone
        {
            self.wiretap.gone = *stamp;
            self.check_opened(*stamp);
            let checked = self.oracle.barrier_opened(self.driver.job, *stamp);
            self.demand(checked);
        }
        let Some((link, end)) = self.place_of_end(side, to) else {
            return Err(SendErrorReason::NoSession);
        };
        if let Some(LinkFrame::FromWorker(message)) = &frame
            && let LinkOwner::Worker { process } = self.links[link as usize].owner
        {
            self.check_said(process, message);
        }
        if let Some(frame) = &frame {
            self.note_said(link, frame);
        }
        let lane = Self::lane(end);
        let is_goodbye = matches!(
            frame,
            Some(LinkFrame::ToWorker(
                DriverToWorker::Leave { .. } | DriverToWorker::Finished { .. }
            ))
        );
        let welcomes = matches!(
            frame,
            Some(
                LinkFrame::ToWorker(DriverToWorker::Welcome { .. })
                    | LinkFrame::ToAgent(DriverToAgent::Welcome { .. })
            )
        );
        let code = frame.as_ref().map_or(0, LinkFrame::code);
        let vote = match frame {
            Some(LinkFrame::Vote(vote)) => Some(Box::new(vote)),
            _ => None,
        };
        let packet =
            Packet { bytes: bytes.clone(), conversation, code, is_goodbye, welcomes, vote };
        self.send(link, lane, LinkFrame::Wire(packet)).map_err(|refused| refused.reason)
    }

    fn worker_named(&self, node: &NodeId) -> Option<WorkerId> {
        let NodeName::Worker(host, slot) = &node.name else { return None };
        Some(WorkerId { host: host.clone(), slot: *slot, incarnation: node.incarnation })
    }

    /// Closes an end's session for good.
    pub(crate) fn node_closes(&mut self, side: Side, peer: &NodeId, reason: &str) {
        if let Some((link, end)) = self.place_of_end(side, peer) {
            self.close(link, end, peer, reason);
        }
    }

    fn tell_node(&self, link: u32, end: LinkSide, event: TransportEvent) {
        match (end, self.links[link as usize].owner) {
            (LinkSide::Driver, _) => {
                // The current driver is the life whose sessions are pumped. The peer may have met a later one
                // already.
                if let Some(driver) = self.driver.node() {
                    driver.tell(event);
                }
            }
            (LinkSide::Peer, LinkOwner::Agent { host, life }) => {
                let agent = self.hosts[host as usize].agent.as_ref();
                let agent = agent.filter(|agent| agent.life == life);
                if let Some(node) = agent.and_then(|agent| agent.node()) {
                    node.tell(event);
                }
            }
            (LinkSide::Peer, LinkOwner::Worker { process }) => {
                if let Some(node) = self.processes[process as usize].state.node() {
                    node.tell(event);
                }
            }
        }
    }

    /// The node at the other end of a link.
    fn other_end(&self, link: u32, end: LinkSide) -> Option<NodeId> {
        match end {
            LinkSide::Driver => self.links[link as usize].node.clone(),
            LinkSide::Peer => Some(DriverNode::id(self.term_of(self.links[link as usize].life))),
        }
    }

    pub(in crate::cores) fn tell_node_of_link(
        &mut self,
        link: u32,
        end: LinkSide,
        event: &LinkEvent,
    ) {
        if let Some(peer) = self.other_end(link, end) {
            self.tell_node(link, end, TransportEvent::Link { peer, event: event.clone() });
        }
    }

    pub(in crate::cores) fn hand_packet(&mut self, link: u32, end: LinkSide, packet: Packet) {
        if packet.is_goodbye
            && !self.is_outdated(link, false)
            && let LinkOwner::Worker { process } = self.links[link as usize].owner
        {
            self.processes[process as usize].note_told_to_leave();
        }
        if packet.welcomes {
            self.is_outdated(link, true);
        }
        if let Some(vote) = &packet.vote {
            self.oracle.voted(self.driver.job, vote, self.now);
        }
        if let Some(from) = self.other_end(link, end) {
            let Packet { bytes: frame, conversation, .. } = packet;
            self.tell_node(link, end, TransportEvent::Frame { from, conversation, frame });
        }
    }

    pub(in crate::cores) fn hand_back(&mut self, link: u32, end: LinkSide, packet: Packet) {
        if let Some(to) = self.other_end(link, end) {
            let Packet { bytes: frame, conversation, .. } = packet;
            self.tell_node(link, end, TransportEvent::Undeliverable { to, conversation, frame });
        }
    }
}
