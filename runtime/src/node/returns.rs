//! Returns undeliverable messages to their senders: each reference has a number, which goes out in each
//! frame's header and comes back with the frame.

use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use actix::Recipient;
use elastic_protocol::codec::decode;
use elastic_protocol::{ActorId, ActorName, NodeId, WireMessage};

use super::Node;
use crate::delivery::Returned;

type Hand = Rc<dyn Fn(ActorId, &[u8]) -> bool>;

/// The references that want their messages back.
#[derive(Default)]
pub(crate) struct Returns {
    hands: BTreeMap<u32, Hand>,
    last: u32,
}

/// A reference's place among them; free again when its last clone is dropped.
pub(crate) struct ReturnSlot {
    pub(crate) number: u32,
    node: Weak<Node>,
}

impl ReturnSlot {
    pub(crate) fn new<M: WireMessage>(node: &Rc<Node>, returns: Recipient<Returned<M>>) -> Self {
        let hand = move |to: ActorId, body: &[u8]| {
            decode(body).is_ok_and(|message| returns.try_send(Returned { to, message }).is_ok())
        };
        let number = node.returns.borrow_mut().insert(Rc::new(hand));
        Self { number, node: Rc::downgrade(node) }
    }
}

impl Drop for ReturnSlot {
    fn drop(&mut self) {
        if let Some(node) = self.node.upgrade() {
            node.returns.borrow_mut().hands.remove(&self.number);
        }
    }
}

impl Returns {
    fn insert(&mut self, hand: Hand) -> u32 {
        // 0 means nowhere; a number still in use after 2^32 others is skipped.
        loop {
            self.last = self.last.wrapping_add(1);
            if self.last != 0 && !self.hands.contains_key(&self.last) {
                break;
            }
        }
        self.hands.insert(self.last, hand);
        self.last
    }

    /// Hands a message back; whether someone took it.
    pub(super) fn hand_back(
        &self,
        number: u32,
        to: &NodeId,
        actor: ActorName,
        body: &[u8],
    ) -> bool {
        let Some(hand) = self.hands.get(&number) else { return false };
        hand(ActorId::new(to.clone(), actor), body)
    }
}
