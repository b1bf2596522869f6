//! [`SessionCore`]: one peer's session. Called by a transport's shell; does no I/O and knows no clock.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::hello::{Delivered, Hello, Resume, SessionId, Welcome};
use super::incoming::Incoming;
use super::limits::Limits;
use super::outgoing::Outgoing;
use crate::transport::{Conversation, LossReason, SendErrorReason};

/// What the session tells its node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum SessionEvent {
    /// A new session stands (TR-2).
    Up,
    /// The session is over (TR-2).
    Lost(LossReason),
    /// Handed back after `Lost`: taken by `send`, and not known to be delivered. A frame whose
    /// acknowledgement was on its way when the session ended may have been delivered all the same.
    Undeliverable {
        /// In which conversation.
        conversation: Conversation,
        /// The frame.
        frame: Bytes,
    },
}

/// A frame to put on its way.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Transmit {
    /// Its number within the conversation, from 0.
    pub sequence: u64,
    /// The frame.
    pub frame: Bytes,
}

/// Says how far a conversation has come at its receiver.
pub type Ack = Delivered;

/// A frame that `send` did not take.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct Refused {
    /// The frame, given back.
    pub frame: Bytes,
    /// Why.
    pub reason: SendErrorReason,
}

/// What to do with a frame that arrived.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Arrival {
    /// It is the next one: deliver it.
    Deliver,
    /// It has been delivered before: drop it.
    Duplicate,
}

/// The other end breaks the rules, or frames were lost on the way: the connection must be made again.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum SessionError {
    /// Something arrived outside of a connection that was greeted.
    #[error("nothing may arrive before the greeting")]
    NotGreeted,
    /// A frame is missing.
    #[error("frame {sequence} arrived where frame {expected} was expected")]
    Gap {
        /// The number that was expected.
        expected: u64,
        /// The number that came.
        sequence: u64,
    },
    /// An acknowledgement of what was never sent, or less than was acknowledged before.
    #[error("{frames} frames are acknowledged, which cannot be")]
    ImpossibleAck {
        /// How many were said to be delivered.
        frames: u64,
    },
    /// More conversations than [`Limits::conversations`].
    #[error("more than {limit} conversations")]
    TooManyConversations {
        /// The bound.
        limit: usize,
    },
    /// The answer names a session that was neither resumed nor proposed.
    #[error("the answer names a session that nobody proposed")]
    UnknownSession,
}

/// The session with one peer. Frames that it took are delivered exactly once and in order, or handed back.
#[derive(Debug, Default)]
pub struct SessionCore {
    limits: Limits,
    session: Option<SessionId>,
    proposed: Option<SessionId>,
    connected: bool,
    outgoing: BTreeMap<Conversation, Outgoing>,
    incoming: BTreeMap<Conversation, Incoming>,
    queued_frames: usize,
    bulk_frames: usize,
    bulk_bytes: usize,
    bulk_flight: usize,
    events: VecDeque<SessionEvent>,
}

impl SessionCore {
    /// No session yet.
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// The session that stands, if one does.
    pub fn session(&self) -> Option<SessionId> {
        self.session
    }

    /// Whether frames can travel now.
    pub fn is_connected(&self) -> bool {
        self.connected
    }

    /// Whether the other end has acknowledged all that was sent.
    pub fn is_flushed(&self) -> bool {
        self.queued_frames == 0
    }

    /// Frames that the other end has not acknowledged.
    pub fn queued_frames(&self) -> usize {
        self.queued_frames
    }

    /// What to tell the node next.
    pub fn poll_event(&mut self) -> Option<SessionEvent> {
        self.events.pop_front()
    }

    /// Queues a frame (TR-6).
    ///
    /// # Errors
    /// [`Refused`] gives it back.
    pub fn send(&mut self, conversation: Conversation, frame: Bytes) -> Result<(), Refused> {
        if let Err(reason) = self.admit(conversation, frame.len()) {
            return Err(Refused { frame, reason });
        }
        self.queued_frames += 1;
        if conversation != Conversation::Control {
            self.bulk_frames += 1;
            self.bulk_bytes += frame.len();
        }
        self.outgoing.entry(conversation).or_default().push(frame);
        Ok(())
    }

    fn admit(&self, conversation: Conversation, bytes: usize) -> Result<(), SendErrorReason> {
        let limits = &self.limits;
        if self.session.is_none() {
            return Err(SendErrorReason::NoSession);
        }
        if bytes > limits.frame_bytes {
            return Err(SendErrorReason::TooLarge);
        }
        let own = self.outgoing.get(&conversation);
        if own.is_none() && self.outgoing.len() >= limits.conversations {
            return Err(SendErrorReason::Full);
        }
        let (own_frames, own_bytes) = own.map_or((0, 0), |own| (own.len(), own.bytes()));
        let fits = if conversation == Conversation::Control {
            own_frames < limits.control_frames && own_bytes + bytes <= limits.control_bytes
        } else {
            let shared = self.bulk_frames < limits.bulk_frames
                && self.bulk_bytes + bytes <= limits.bulk_bytes;
            // An empty frame weighs nothing, so the reserve is also one of frames.
            let reserve = own_bytes + bytes <= limits.reserve_bytes
                && own_frames < limits.reserve_bytes >> 10;
            shared || reserve
        };
        if fits { Ok(()) } else { Err(SendErrorReason::Full) }
    }

    /// Whether bulk may be put on its way now.
    pub fn is_bulk_window_open(&self) -> bool {
        self.bulk_flight < self.limits.flight_bytes
    }

    /// The next frame of a conversation to put on its way over this connection, if one may go.
    pub fn poll_transmit(&mut self, conversation: Conversation) -> Option<Transmit> {
        let bulk = conversation != Conversation::Control;
        if !self.connected || (bulk && !self.is_bulk_window_open()) {
            return None;
        }
        let (sequence, frame) = self.outgoing.get_mut(&conversation)?.transmit()?;
        if bulk {
            self.bulk_flight += frame.len();
        }
        Some(Transmit { sequence, frame })
    }

    /// Conversations with frames to put on their way, control first.
    pub fn waiting(&self) -> impl Iterator<Item = Conversation> + '_ {
        self.outgoing
            .iter()
            .filter(|(_, outgoing)| self.connected && outgoing.has_more())
            .map(|(conversation, _)| *conversation)
    }

    /// A frame arrived. `Deliver` counts as delivered: the caller hands it on.
    ///
    /// # Errors
    /// [`SessionError`]: the connection must be made again.
    pub fn handle_frame(
        &mut self,
        conversation: Conversation,
        sequence: u64,
        bytes: usize,
    ) -> Result<Arrival, SessionError> {
        if !self.connected {
            return Err(SessionError::NotGreeted);
        }
        let limit = self.limits.conversations;
        if !self.incoming.contains_key(&conversation) && self.incoming.len() >= limit {
            return Err(SessionError::TooManyConversations { limit });
        }
        let incoming = self.incoming.entry(conversation).or_default();
        let expected = incoming.delivered;
        if sequence > expected {
            return Err(SessionError::Gap { expected, sequence });
        }
        if sequence < expected {
            return Ok(Arrival::Duplicate);
        }
        incoming.deliver(bytes);
        Ok(Arrival::Deliver)
    }

    /// Whether an acknowledgement should go at once; else it may wait a little for company.
    pub fn is_ack_due(&self, conversation: Conversation) -> bool {
        let (frames, bytes) = (self.limits.ack_frames, self.limits.ack_bytes);
        self.incoming.get(&conversation).is_some_and(|incoming| incoming.is_due(frames, bytes))
    }

    /// Whether anything waits to be acknowledged.
    pub fn has_acks(&self) -> bool {
        self.connected && self.incoming.values().any(Incoming::is_untold)
    }

    /// The next acknowledgement to send.
    pub fn poll_ack(&mut self) -> Option<Ack> {
        if !self.connected {
            return None;
        }
        let (conversation, incoming) =
            self.incoming.iter_mut().find(|(_, incoming)| incoming.is_untold())?;
        Some(Ack { conversation: *conversation, frames: incoming.tell() })
    }

    /// An acknowledgement arrived.
    ///
    /// # Errors
    /// [`SessionError`]: the connection must be made again.
    pub fn handle_ack(&mut self, ack: Ack) -> Result<(), SessionError> {
        if !self.connected {
            return Err(SessionError::NotGreeted);
        }
        self.check_ack(&ack)?;
        self.release(ack);
        Ok(())
    }

    fn check_ack(&self, ack: &Ack) -> Result<(), SessionError> {
        let possible = match self.outgoing.get(&ack.conversation) {
            Some(outgoing) => outgoing.is_possible(ack.frames),
            None => ack.frames == 0,
        };
        if possible { Ok(()) } else { Err(SessionError::ImpossibleAck { frames: ack.frames }) }
    }

    fn release(&mut self, ack: Ack) {
        let Some(outgoing) = self.outgoing.get_mut(&ack.conversation) else { return };
        let released = outgoing.release(ack.frames);
        self.queued_frames -= released.frames;
        if ack.conversation != Conversation::Control {
            self.bulk_frames -= released.frames;
            self.bulk_bytes -= released.bytes;
            self.bulk_flight -= released.flight;
        }
    }

    /// This end has made a connection: what to say first on it. `fresh` is a random number.
    pub fn hello(&mut self, fresh: SessionId) -> Hello {
        self.handle_disconnect();
        let fresh = *self.proposed.get_or_insert(fresh);
        let resume =
            self.session.map(|session| Resume { session, delivered: self.tell_delivered() });
        Hello { resume, fresh }
    }

    /// The other end has made a connection and said `hello`: what to answer.
    pub fn handle_hello(&mut self, hello: &Hello) -> Welcome {
        self.handle_disconnect();
        let nothing = Vec::new();
        let theirs = match (&hello.resume, self.session) {
            (Some(resume), Some(mine)) if resume.session == mine => Some(&resume.delivered),
            (_, Some(mine)) if hello.fresh == mine => Some(&nothing),
            _ => None,
        };
        let resumed = theirs.is_some_and(|delivered| self.resume(delivered).is_ok());
        if !resumed {
            self.end(LossReason::Forgotten);
            self.begin(hello.fresh);
        }
        self.connected = true;
        let session = self.session.unwrap_or(hello.fresh);
        Welcome(Resume { session, delivered: self.tell_delivered() })
    }

    /// The other end's answer to this end's hello.
    ///
    /// # Errors
    /// [`SessionError`]: the answer cannot be; the session is over if there was one.
    pub fn handle_welcome(&mut self, welcome: &Welcome) -> Result<(), SessionError> {
        let Welcome(Resume { session, delivered }) = welcome;
        if self.session != Some(*session) {
            self.end(LossReason::Forgotten);
            if self.proposed != Some(*session) {
                return Err(SessionError::UnknownSession);
            }
            self.begin(*session);
        }
        if let Err(error) = self.resume(delivered) {
            self.end(LossReason::Forgotten);
            return Err(error);
        }
        self.connected = true;
        Ok(())
    }

    /// The connection is gone; the session goes on.
    pub fn handle_disconnect(&mut self) {
        self.connected = false;
        self.bulk_flight = 0;
        self.outgoing.values_mut().for_each(Outgoing::rewind);
    }

    /// Ends the session, if there is one: `Lost`, then what was not acknowledged.
    pub fn end(&mut self, reason: LossReason) {
        self.handle_disconnect();
        self.incoming.clear();
        self.queued_frames = 0;
        self.bulk_frames = 0;
        self.bulk_bytes = 0;
        let outgoing = std::mem::take(&mut self.outgoing);
        if self.session.take().is_none() {
            return;
        }
        self.events.push_back(SessionEvent::Lost(reason));
        for (conversation, outgoing) in outgoing {
            for frame in outgoing.into_frames() {
                self.events.push_back(SessionEvent::Undeliverable { conversation, frame });
            }
        }
    }

    fn begin(&mut self, session: SessionId) {
        self.session = Some(session);
        self.proposed = None;
        self.events.push_back(SessionEvent::Up);
    }

    fn resume(&mut self, delivered: &[Delivered]) -> Result<(), SessionError> {
        delivered.iter().try_for_each(|ack| self.check_ack(ack))?;
        // A conversation that is not named has delivered nothing.
        let forgotten = self.outgoing.iter().find(|(conversation, outgoing)| {
            !outgoing.is_possible(0) && delivered.iter().all(|it| it.conversation != **conversation)
        });
        if forgotten.is_some() {
            return Err(SessionError::ImpossibleAck { frames: 0 });
        }
        for ack in delivered {
            // The same conversation may be named twice by a peer that means harm.
            self.check_ack(ack)?;
            self.release(*ack);
        }
        Ok(())
    }

    fn tell_delivered(&mut self) -> Vec<Delivered> {
        self.incoming
            .iter_mut()
            .map(|(conversation, incoming)| Delivered {
                conversation: *conversation,
                frames: incoming.tell(),
            })
            .collect()
    }
}
