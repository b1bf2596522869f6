//! The bound on the messages that may wait for one actor, and counters of its mailbox. Nodes and references use
//! it.
//!
//! actix bounds `try_send` through one clone of an address only: each clone has a slot of its own, and
//! `do_send` knows no bound at all. So the node keeps one recipient per actor and kind of message, every
//! reference goes through it, and a mailbox holds at most its capacity plus one message for each kind that
//! its actor takes beside the first.

/// Most messages that may wait for an actor that sets no capacity of its own.
///
/// 4,096 nodes that each have 4 messages on the way to the driver (join, vote, exit, drain) at once, as
/// when a generation of that size forms, are 16,384 messages; at about 256 bytes each that is 4 MiB.
/// An actor that needs another bound calls `ctx.set_mailbox_capacity` in the closure that makes it.
pub const MAILBOX_MESSAGES_MAX: usize = 4096 * 4;

/// Counters of the mailbox of a published name since it was first published, over all lives of its
/// actor. Only messages that came through references and frames are counted.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct MailboxGauge {
    /// Messages and questions that the mailbox took.
    pub taken: u64,
    /// Messages and questions that the mailbox refused because it was full.
    pub full: u64,
}

impl MailboxGauge {
    pub(crate) const fn count(&mut self, full: bool) {
        let count = if full { &mut self.full } else { &mut self.taken };
        *count = count.saturating_add(1);
    }
}
