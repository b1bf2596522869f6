//! Events from sessions to their nodes, and the oracle's check of their order (TR-1). Part of the simulated network.

use std::rc::Rc;

use elastic_protocol::{NodeId, NodeName};
use elastic_runtime::transport::{Conversation, LinkEvent, TransportEvent};

use super::super::World;
use super::{Carried, LinkFrame, LinkOwner, LinkSide};
use crate::decisions::words;
use crate::trace::TraceKind;

impl World {
    /// Passes the events of an end's sessions to its node, after serving its connections.
    pub(super) fn pump(&mut self, index: u32, end: LinkSide) {
        match end {
            LinkSide::Driver => self.pump_driver(),
            LinkSide::Peer => {
                self.serve(index, LinkSide::Peer);
                while let Some(event) = self.links[index as usize].peers.poll_event() {
                    self.pass_on(index, LinkSide::Peer, event);
                }
                self.serve(index, LinkSide::Peer);
                self.check_sessions(index, LinkSide::Peer);
            }
        }
    }

    /// The same for the current driver's life and all its peers.
    pub(super) fn pump_driver(&mut self) {
        self.serve(0, LinkSide::Driver);
        while self.driver.is_alive()
            && let Some(event) = self.driver.peers.poll_event()
        {
            let (TransportEvent::Link { peer: node, .. }
            | TransportEvent::Frame { from: node, .. }
            | TransportEvent::Undeliverable { to: node, .. }) = &event;
            if let Some(index) = self.link_of(node) {
                self.pass_on(index, LinkSide::Driver, event);
            }
        }
        self.serve(0, LinkSide::Driver);
        self.check_sessions(0, LinkSide::Driver);
    }

    /// The link of a peer of the driver.
    pub(in crate::cores) fn link_of(&self, peer: &NodeId) -> Option<u32> {
        let link = match peer.name {
            NodeName::Agent(_) => self.link_of_agent(peer)?,
            NodeName::Worker(..) => {
                self.link_of_incarnation(self.driver.job, peer.incarnation.0)?
            }
            _ => return None,
        };
        (self.links[link as usize].node.as_ref() == Some(peer)).then_some(link)
    }

    fn pass_on(&mut self, index: u32, end: LinkSide, event: TransportEvent<Carried>) {
        match event {
            TransportEvent::Link { event, .. } => self.link_event(index, end, event),
            TransportEvent::Frame { conversation, frame, .. } => {
                self.check_order(index, end, conversation, frame.serial);
                self.accept(index, end, frame.frame);
            }
            TransportEvent::Undeliverable { frame, .. } => {
                self.return_frame(index, end, frame.frame);
            }
        }
    }

    /// Checks TR-1: frames arrive in order, each at most once.
    fn check_order(&mut self, index: u32, end: LinkSide, conversation: Conversation, serial: u64) {
        let link = &mut self.links[index as usize];
        let life = if end == LinkSide::Driver { self.driver.life } else { link.life };
        let delivered = link.delivered.entry((end, life)).or_default();
        if conversation != Conversation::Control {
            return;
        }
        if serial <= *delivered {
            let reason = format!("TR-1: frame {serial} is delivered at {end:?} after {delivered}");
            return self.fail_safety(reason);
        }
        *delivered = serial;
    }

    fn return_frame(&mut self, index: u32, end: LinkSide, frame: Rc<LinkFrame>) {
        let link = &self.links[index as usize];
        let (place, owner) = (link.place, link.owner);
        self.record(TraceKind::Return, place, (frame.code(), 0), String::new);
        match (end, Rc::unwrap_or_clone(frame), owner) {
            (_, LinkFrame::Wire(packet), _) => self.hand_back(index, end, packet),
            (LinkSide::Peer, LinkFrame::FromAgent(message), LinkOwner::Agent { host, life }) => {
                self.agent_gets_back(host, life, message);
            }
            _ => {}
        }
    }

    fn link_event(&mut self, index: u32, end: LinkSide, event: LinkEvent) {
        if end == LinkSide::Driver {
            self.check_refusal(index, &event);
            self.check_starved(index, &event);
        }
        let place = self.links[index as usize].place;
        let code = match event {
            LinkEvent::Up => 0,
            LinkEvent::Silent { .. } => 1,
            LinkEvent::Heard => 2,
            LinkEvent::Lost { .. } => 3,
        };
        self.record(TraceKind::Link, place, (end as u64, code), || {
            format!("at {end:?}: {event:?}")
        });
        if end == LinkSide::Driver && matches!(event, LinkEvent::Lost { .. }) {
            self.links[index as usize].lost_at = Some(self.now);
        }
        if let (LinkSide::Peer, LinkOwner::Agent { host, life }) =
            (end, self.links[index as usize].owner)
        {
            self.note_company(host, life, &event);
        }
        let name = if end == LinkSide::Driver { "driver" } else { "node" };
        self.decide(place, || words::link(name, &event));
        if self.hub.is_some() {
            return self.tell_node_of_link(index, end, &event);
        }
        match (end, self.links[index as usize].owner) {
            (LinkSide::Driver, _) => self.driver_link_event(index, &event),
            (LinkSide::Peer, LinkOwner::Agent { host, life }) => {
                self.agent_link_event(host, life, &event)
            }
            (LinkSide::Peer, LinkOwner::Worker { process }) => {
                self.worker_link_event(process, &event)
            }
        }
    }
}
