//! [`SessionCore`]: one peer's session. Called by a transport's shell; does no I/O and knows no clock.

mod check;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use elastic_protocol::planted::{Bug, is_planted};

use super::hello::{Delivered, Resume, SessionHello, SessionId, SessionWelcome};
use super::incoming::IncomingConversation;
use super::limits::SessionLimits;
use super::outgoing::OutgoingConversation;
use crate::transport::{Conversation, LossReason, SendErrorReason};

/// The payload of a session: bytes over QUIC, messages in a simulation that does not encode them.
pub trait Payload: Clone {
    /// Its weight against [`SessionLimits`], in bytes.
    fn weight(&self) -> usize;
}

impl Payload for Bytes {
    fn weight(&self) -> usize {
        self.len()
    }
}

/// Events that the session reports to its node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum SessionEvent<P = Bytes> {
    /// A new session stands (TR-2).
    Up,
    /// The session is over (TR-2).
    Lost(LossReason),
    /// A frame that `send` took and that is not known to be delivered; handed back after `Lost`. It may have
    /// been delivered all the same, if its acknowledgement was on its way when the session ended.
    Undeliverable {
        /// Its conversation.
        conversation: Conversation,
        /// The frame.
        frame: P,
    },
}

/// A frame to put on its way.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Transmit<P = Bytes> {
    /// Its number within the conversation, from 0.
    pub sequence: u64,
    /// The frame.
    pub frame: P,
}

/// An acknowledgement: how many frames of a conversation have been delivered.
pub type Ack = Delivered;

/// A frame that `send` did not take.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct RefusedFrame<P = Bytes> {
    /// The frame, given back.
    pub frame: P,
    /// The reason.
    pub reason: SendErrorReason,
}

/// Decision about a frame that arrived.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Arrival {
    /// The frame is the next one: deliver it.
    Deliver,
    /// The frame has been delivered before: drop it.
    Duplicate,
}

/// The other end broke the rules, or frames were lost on the way: the connection must be made again.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum SessionError {
    /// A frame or an acknowledgement arrived before the greeting.
    #[error("nothing may arrive before the greeting")]
    NotGreeted,
    /// One frame or more is missing.
    #[error("frame {sequence} arrived where frame {expected} was expected")]
    Gap {
        /// The expected number.
        expected: u64,
        /// The number that arrived.
        sequence: u64,
    },
    /// An acknowledgement of frames that were never sent, or of fewer than before.
    #[error("{frames} frames are acknowledged, which cannot be")]
    ImpossibleAck {
        /// The number of frames that it acknowledges.
        frames: u64,
    },
    /// More conversations than [`SessionLimits::conversations`].
    #[error("more than {limit} conversations")]
    TooManyConversations {
        /// The bound.
        limit: usize,
    },
    /// The answer to a hello names a session that was neither resumed nor proposed.
    #[error("the answer names a session that nobody proposed")]
    UnknownSession,
}

/// The session with one peer. Each frame that it takes is delivered exactly once and in order, or handed back.
#[derive(Debug)]
pub struct SessionCore<P = Bytes> {
    limits: SessionLimits,
    session: Option<SessionId>,
    proposed: Option<SessionId>,
    connected: bool,
    outgoing: BTreeMap<Conversation, OutgoingConversation<P>>,
    incoming: BTreeMap<Conversation, IncomingConversation>,
    queued_frames: usize,
    bulk_frames: usize,
    bulk_bytes: usize,
    bulk_flight: usize,
    events: VecDeque<SessionEvent<P>>,
}

impl<P: Payload> SessionCore<P> {
    /// A core without a session.
    pub fn new(limits: SessionLimits) -> Self {
        Self {
            limits,
            session: None,
            proposed: None,
            connected: false,
            outgoing: BTreeMap::new(),
            incoming: BTreeMap::new(),
            queued_frames: 0,
            bulk_frames: 0,
            bulk_bytes: 0,
            bulk_flight: 0,
            events: VecDeque::new(),
        }
    }

    /// The current session, if there is one.
    pub fn session(&self) -> Option<SessionId> {
        self.session
    }

    /// Whether frames can travel now.
    pub fn is_connected(&self) -> bool {
        self.connected
    }

    /// Whether the other end has acknowledged every frame.
    pub fn is_flushed(&self) -> bool {
        self.queued_frames == 0
    }

    /// Frames that the other end has not acknowledged.
    pub fn queued_frames(&self) -> usize {
        self.queued_frames
    }

    /// The next event for the node.
    pub fn poll_event(&mut self) -> Option<SessionEvent<P>> {
        self.events.pop_front()
    }

    /// Queues a frame (TR-6).
    ///
    /// # Errors
    /// [`RefusedFrame`] gives it back.
    pub fn send(&mut self, conversation: Conversation, frame: P) -> Result<(), RefusedFrame<P>> {
        if let Err(reason) = self.admit(conversation, frame.weight()) {
            return Err(RefusedFrame { frame, reason });
        }
        self.queued_frames += 1;
        if conversation != Conversation::Control {
            self.bulk_frames += 1;
            self.bulk_bytes += frame.weight();
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
            // The reserve bounds frames too, because an empty frame weighs nothing.
            let reserve = own_bytes + bytes <= limits.reserve_bytes
                && own_frames < limits.reserve_bytes >> 10;
            shared || reserve
        };
        if fits { Ok(()) } else { Err(SendErrorReason::Full) }
    }

    /// Whether a bulk frame may be sent now.
    pub fn is_bulk_window_open(&self) -> bool {
        self.bulk_flight < self.limits.flight_bytes
    }

    /// The next frame of a conversation to send over this connection; `None` if none may be sent now.
    pub fn poll_transmit(&mut self, conversation: Conversation) -> Option<Transmit<P>> {
        let bulk = conversation != Conversation::Control;
        if !self.connected || (bulk && !self.is_bulk_window_open()) {
            return None;
        }
        let (sequence, frame) = self.outgoing.get_mut(&conversation)?.transmit()?;
        if bulk {
            self.bulk_flight += frame.weight();
        }
        Some(Transmit { sequence, frame })
    }

    /// Conversations with frames to send, control first.
    pub fn waiting(&self) -> impl Iterator<Item = Conversation> + '_ {
        self.outgoing
            .iter()
            .filter(|(_, outgoing)| self.connected && outgoing.has_more())
            .map(|(conversation, _)| *conversation)
    }

    /// Takes an incoming frame. `Deliver` counts it as delivered: the caller hands it on.
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

    /// Whether an acknowledgement is due at once; otherwise it may wait a little for further ones.
    pub fn is_ack_due(&self, conversation: Conversation) -> bool {
        let (frames, bytes) = (self.limits.ack_frames, self.limits.ack_bytes);
        self.incoming.get(&conversation).is_some_and(|incoming| incoming.is_due(frames, bytes))
    }

    /// Whether any delivery is still unacknowledged by this end.
    pub fn has_acks(&self) -> bool {
        self.connected && self.incoming.values().any(IncomingConversation::is_untold)
    }

    /// The next acknowledgement to send.
    pub fn poll_ack(&mut self) -> Option<Ack> {
        if is_planted(Bug::NothingAcknowledged) {
            return None;
        }
        if !self.connected {
            return None;
        }
        let (conversation, incoming) =
            self.incoming.iter_mut().find(|(_, incoming)| incoming.is_untold())?;
        Some(Ack { conversation: *conversation, frames: incoming.tell() })
    }

    /// Takes an incoming acknowledgement.
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

    /// The first message on a connection that this end has made. `fresh` is a random number.
    pub fn hello(&mut self, fresh: SessionId) -> SessionHello {
        self.handle_disconnect();
        let fresh = *self.proposed.get_or_insert(fresh);
        let resume =
            self.session.map(|session| Resume { session, delivered: self.tell_delivered() });
        SessionHello { resume, fresh }
    }

    /// Whether this hello resumes the current session.
    pub fn is_resumed_by(&self, hello: &SessionHello) -> bool {
        self.session.is_some_and(|mine| {
            hello.fresh == mine || hello.resume.as_ref().is_some_and(|it| it.session == mine)
        })
    }

    /// Takes the hello of the end that made the connection; gives the answer.
    pub fn handle_hello(&mut self, hello: &SessionHello) -> SessionWelcome {
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
        SessionWelcome(Resume { session, delivered: self.tell_delivered() })
    }

    /// Takes the other end's answer to this end's hello.
    ///
    /// # Errors
    /// [`SessionError`]: the answer breaks the rules. The session, if there was one, is over.
    pub fn handle_welcome(&mut self, welcome: &SessionWelcome) -> Result<(), SessionError> {
        let SessionWelcome(Resume { session, delivered }) = welcome;
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
        if !is_planted(Bug::InFlightForgotten) {
            self.outgoing.values_mut().for_each(OutgoingConversation::rewind);
        }
    }

    /// Ends the session, if there is one. Reports `Lost`, and then every unacknowledged frame.
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
        // A conversation that is not named has no deliveries.
        let forgotten = self.outgoing.iter().find(|(conversation, outgoing)| {
            !outgoing.is_possible(0) && delivered.iter().all(|it| it.conversation != **conversation)
        });
        if forgotten.is_some() {
            return Err(SessionError::ImpossibleAck { frames: 0 });
        }
        for ack in delivered {
            // A malicious peer may name one conversation twice.
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
