//! The oracle's checks of acknowledgements and of each end's sessions (TR-6): delivered frames are acknowledged in time, and
//! the sessions are in order after the inputs of an end. Called by the network, and by `bounds` at looks in time.

use elastic_runtime::session::Ack;
use elastic_runtime::transport::Conversation;

use super::super::World;
use super::super::bounds::SLACK_NS;
use super::{LinkSide, SimulatedConnection};

/// The oldest delivery of a connection's end whose acknowledgement has not come to the other end.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwedAck {
    conversation: Conversation,
    /// The number of frames that an acknowledgement must tell of.
    frames: u64,
    /// World time of the delivery.
    since: u64,
}

impl World {
    /// Notes that an end was given a frame.
    pub(super) fn note_delivered(
        &mut self,
        index: u32,
        number: u32,
        end: LinkSide,
        (conversation, sequence): (Conversation, u64),
    ) {
        let since = self.now;
        let Some(connection) = self.links[index as usize].connection(number) else { return };
        let owed = OwedAck { conversation, frames: sequence + 1, since };
        connection.end(end).owes.get_or_insert(owed);
    }

    /// Notes that an acknowledgement of an end has come to the other one.
    pub(super) fn note_acknowledged(&mut self, index: u32, number: u32, end: LinkSide, ack: Ack) {
        let Some(connection) = self.links[index as usize].connection(number) else { return };
        let owes = &mut connection.end(end).owes;
        *owes = owes.filter(|it| it.conversation != ack.conversation || it.frames > ack.frames);
    }

    /// Checks that delivered frames are acknowledged in time. Called at looks that find nothing out of order.
    pub(in crate::cores) fn check_acknowledged(&self) -> Result<(), String> {
        let life = self.driver.life;
        for link in self.links.iter().filter(|link| link.is_alive) {
            let stands = |it: &&SimulatedConnection| {
                it.life == life && it.driver.link.is_some() && it.peer.link.is_some()
            };
            for connection in link.connections.iter().filter(stands) {
                for end in [LinkSide::Driver, LinkSide::Peer] {
                    let Some(owed) = connection.peek(end).owes else { continue };
                    let lasted = self.calm_for(owed.since);
                    if lasted > SLACK_NS {
                        let (who, ms) = (link.place.label(), lasted / super::super::MS);
                        return Err(format!(
                            "TR-6: a frame between the driver and {who} was delivered {ms} ms ago \
                             at {end:?} and is not acknowledged"
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// Checks the invariants of an end's sessions: after every input at a peer; at the driver, whose check visits all its
    /// peers, after as many inputs as there are peers.
    pub(super) fn check_sessions(&mut self, index: u32, end: LinkSide) {
        let checked = match end {
            LinkSide::Peer => self.links[index as usize].peers.check(),
            LinkSide::Driver => {
                self.driver.sessions_unchecked += 1;
                if self.driver.sessions_unchecked < self.driver.peers.peer_count() {
                    return;
                }
                self.driver.sessions_unchecked = 0;
                self.driver.peers.check()
            }
        };
        if let Err(error) = checked {
            let place = self.links[index as usize].place;
            let who = if end == LinkSide::Driver { "the driver".to_owned() } else { place.label() };
            self.fail_safety(format!("sessions of {who}: {error}"));
        }
    }
}
