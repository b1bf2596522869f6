//! References to actors: one type for actors of this node and of others. Shells hold them, and send messages to
//! each other through them.

use std::fmt;
use std::rc::Rc;

use actix::Recipient;
use elastic_protocol::codec::encode;
use elastic_protocol::{ActorId, WireMessage};

use crate::delivery::Returned;
use crate::envelope::{Header, frame};
use crate::failure::{Undelivered, UndeliveredReason};
use crate::node::{NodeHandle, ReturnSlot};
use crate::transport::Conversation;

/// Sends messages `M` (a [`WireMessage`]: [`tell`](Self::tell)), or asks questions `M` (a
/// [`WireRequest`](elastic_protocol::WireRequest): [`ask`](ActorRef::ask)), to one actor of the cluster. Made
/// by [`NodeHandle::reference`]; clones are cheap.
///
/// A reference finds the actor at each send. So it may be made before the actor is published, and reaches the
/// new actor after a restart. Messages to one actor in one conversation arrive in the order in which they were
/// sent, each at most once (TR-1); answers to questions have no order among other messages.
pub struct ActorRef<M> {
    pub(crate) id: ActorId,
    pub(crate) node: NodeHandle,
    pub(crate) conversation: Conversation,
    returns: Option<Rc<ReturnSlot>>,
    kind: std::marker::PhantomData<fn(M)>,
}

impl<M> ActorRef<M> {
    pub(crate) fn new(id: ActorId, node: NodeHandle) -> Self {
        let conversation = Conversation::Control;
        Self { id, node, conversation, returns: None, kind: std::marker::PhantomData }
    }

    /// The id of the actor.
    pub const fn id(&self) -> &ActorId {
        &self.id
    }

    /// Whether the actor is of this node.
    pub fn is_local(&self) -> bool {
        self.id.node == *self.node.local()
    }

    /// The same reference, in another conversation than [`Conversation::Control`].
    #[must_use]
    pub const fn in_conversation(mut self, conversation: Conversation) -> Self {
        self.conversation = conversation;
        self
    }
}

impl<M: WireMessage> ActorRef<M> {
    /// The same reference, with a recipient for undeliverable messages. A message that the transport takes
    /// through it (or a clone) and cannot deliver later goes to `returns`, for as long as one of them lives.
    #[must_use]
    pub fn returning(mut self, returns: Recipient<Returned<M>>) -> Self {
        self.returns = Some(Rc::new(ReturnSlot::new(&self.node.inner, returns)));
        self
    }

    /// Sends a message. Never waits.
    ///
    /// `Ok` means that the actor's mailbox, or the transport, has taken the message. A peer that then drops it
    /// (because the actor is gone, or its mailbox full) counts it, see [`NodeHandle::faults`].
    ///
    /// # Errors
    /// [`Undelivered`] gives the message back: it was not, and will not be, delivered.
    pub fn tell(&self, message: M) -> Result<(), Undelivered<M>> {
        let sent = if self.is_local() {
            let from = self.node.local().clone();
            self.node.inner.tell_here(self.id.name, from, message)
        } else {
            let returns = self.returns.as_ref().map_or(0, |slot| slot.number);
            let header = Header::Tell { actor: self.id.name, kind: M::KIND, returns };
            self.send(&header, &message).map_err(|reason| (message, reason))
        };
        sent.map_err(|(message, reason)| Undelivered { to: self.id.clone(), message, reason })
    }
}

impl<M> ActorRef<M> {
    /// Encodes a message and hands it to the transport.
    pub(crate) fn send<T: serde::Serialize>(
        &self,
        header: &Header,
        message: &T,
    ) -> Result<(), UndeliveredReason> {
        let transport = self.node.inner.transport.borrow().clone();
        let transport = transport.ok_or(UndeliveredReason::NoSession)?;
        let body = encode(message).map_err(|error| UndeliveredReason::from(&error))?;
        if body.len() > Header::BODY_BYTES_MAX {
            return Err(UndeliveredReason::TooLarge);
        }
        let sent = transport.send(&self.id.node, self.conversation, frame(header, &body));
        sent.map_err(|error| error.reason.into())
    }
}

impl<M> Clone for ActorRef<M> {
    fn clone(&self) -> Self {
        Self {
            id: self.id.clone(),
            node: self.node.clone(),
            conversation: self.conversation,
            returns: self.returns.clone(),
            kind: std::marker::PhantomData,
        }
    }
}

impl<M> fmt::Debug for ActorRef<M> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ActorRef({})", self.id)
    }
}
