//! Invariants of a node's peers. The tests check them after every input, and so does the simulation.

use elastic_protocol::NodeId;
use elastic_runtime::session::Payload;

use super::super::peer::Peer;
use super::{PeersCore, TransportStage};

impl<P: Payload> PeersCore<P> {
    /// Checks the invariants: connections and peers refer to each other, the silence of each session is judged, each
    /// closing peer is ended in time, and a closed transport keeps no peer.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check(&self) -> Result<(), String> {
        for (link, node) in &self.links {
            if self.peers.get(node).and_then(|peer| peer.link) != Some(*link) {
                return Err(format!("{link:?} carries no session of {node}"));
            }
        }
        for (node, peer) in &self.peers {
            peer.session.check().map_err(|error| format!("{node}: {error}"))?;
            self.check_peer(node, peer)?;
        }
        if self.stage == TransportStage::Closed && !self.peers.is_empty() {
            return Err("TR-2: a transport that is closed has peers".to_owned());
        }
        Ok(())
    }

    fn check_peer(&self, node: &NodeId, peer: &Peer<P>) -> Result<(), String> {
        let has_session = peer.session.session().is_some();
        let complain = |what: &str| Err(format!("{node} {what}"));
        if peer.is_over() {
            return complain("is kept, and nothing of it is left");
        }
        if peer.link.is_some_and(|link| self.links.get(&link) != Some(node)) {
            return complain("has a connection that nobody knows");
        }
        if peer.link.is_some() != peer.session.is_connected() {
            return complain("has a connection without a session, or the other way round");
        }
        if has_session && self.look_at.is_none() {
            return complain("has a session, and nobody judges its silence (TR-5)");
        }
        if self.stage != TransportStage::Open && peer.closing.is_none() {
            return complain("stays, and the transport shuts down");
        }
        if let Some(closing) = &peer.closing {
            if self.closing_at.is_none_or(|at| at > closing.at) {
                return complain("is closing, and nobody ends that in time");
            }
            if peer.has_nothing_to_wait_for() && !self.is_hurried {
                return complain("is closing and has acknowledged all, and nobody ends that");
            }
        }
        Ok(())
    }
}
