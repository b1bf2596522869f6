//! [`StoreClient`]: a worker's process that speaks torch's protocol to its agent's relay. It holds the requests sent, the
//! answers read, and the requests that may be sent next. Part of `world`.

use std::collections::VecDeque;

use elastic_protocol::{Stamp, Time, WorkerId};
use elastic_store::wire::Request;

use super::model::name;
use super::script;

/// Misbehaviour of a client.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ClientFault {
    /// It sends bytes that are no request after so many requests.
    Nonsense(usize),
    /// It sends a part of its first long request, and then nothing.
    StandsStill,
}

/// A client.
#[derive(Debug)]
pub(super) struct StoreClient {
    pub(super) worker: WorkerId,
    pub(super) stamp: Stamp,
    script: Vec<Request>,
    fault: Option<ClientFault>,
    /// Requests that it has sent.
    sent: usize,
    /// Requests that the relay has passed on to this life of the store.
    pub(super) passed_on: usize,
    /// Requests that the relay has got an answer to.
    pub(super) done: usize,
    /// Requests whose answer it has read, or that have none.
    read: usize,
    /// Bytes that the relay has not read.
    pub(super) socket: VecDeque<u8>,
    /// Whether the relay reads.
    pub(super) is_read: bool,
    /// Time since which it has sent nothing in the middle of a request.
    pub(super) stands_still_since: Option<Time>,
    /// Answers that the relay must write next.
    pub(super) due: VecDeque<Vec<u8>>,
    /// Answers that the relay has written, and the client has not taken.
    pub(super) unread: VecDeque<Vec<u8>>,
    /// Whether the store has said that it is to be disconnected.
    pub(super) is_refused: bool,
}

impl StoreClient {
    pub(super) fn new(
        worker: WorkerId,
        stamp: Stamp,
        script: Vec<Request>,
        fault: Option<ClientFault>,
    ) -> Self {
        Self {
            worker,
            stamp,
            script,
            fault,
            sent: 0,
            passed_on: 0,
            done: 0,
            read: 0,
            socket: script::hello().into(),
            is_read: true,
            stands_still_since: None,
            due: VecDeque::new(),
            unread: VecDeque::new(),
            is_refused: false,
        }
    }

    /// Whether all was asked and answered.
    pub(super) fn is_done(&self) -> bool {
        self.read == self.script.len() && self.unread.is_empty()
    }

    /// Whether the client does its part.
    pub(super) const fn is_sound(&self) -> bool {
        self.fault.is_none()
    }

    /// The request that the relay must pass on next.
    pub(super) fn next_passed_on(&self) -> Option<&Request> {
        self.script.get(self.passed_on)
    }

    /// Whether it may send its next request: no more than a wait's cancellation while it waits, and a wait when all answers are there.
    pub(super) fn may_send(&self) -> bool {
        let Some(next) = self.script.get(self.sent) else { return false };
        if self.stands_still_since.is_some() || self.has_sent_nonsense() {
            return false;
        }
        let unread = &self.script[self.read..self.sent];
        let waits = unread.iter().any(Request::is_wait);
        match next {
            Request::CancelWait => true,
            _ if waits || unread.contains(&Request::CancelWait) => false,
            next if next.is_wait() => unread.is_empty(),
            _ => true,
        }
    }

    /// Whether it has sent bytes that are no request.
    pub(super) const fn has_sent_nonsense(&self) -> bool {
        matches!(self.fault, Some(ClientFault::Nonsense(after)) if self.sent > after)
    }

    /// Sends the next request, or the faulty bytes in its place.
    pub(super) fn send(&mut self, now: Time) {
        let bytes = script::encode(&self.script[self.sent]);
        match self.fault {
            Some(ClientFault::Nonsense(after)) if self.sent == after => {
                self.sent += 1;
                self.socket.extend([99, 1, 2, 3]);
                return;
            }
            Some(ClientFault::StandsStill) if bytes.len() > 100_000 => {
                self.socket.extend(&bytes[..bytes.len() - 1]);
                self.stands_still_since = Some(now);
                return;
            }
            _ => {}
        }
        self.socket.extend(bytes);
        self.sent += 1;
        self.skip_unanswered();
    }

    /// Passes over requests that have no answer.
    fn skip_unanswered(&mut self) {
        while self.read < self.sent
            && self.script.get(self.read).is_some_and(|it| !script::is_answered(it))
        {
            self.read += 1;
        }
    }

    /// Takes the oldest answer.
    ///
    /// # Errors
    /// It is not an answer to the oldest request.
    pub(super) fn take(&mut self) -> Result<(), String> {
        let Some(answer) = self.unread.pop_front() else { return Ok(()) };
        let request = self.script.get(self.read).filter(|_| self.read < self.sent);
        let request = request.ok_or("a client reads an answer without a question")?;
        let is_given_up = request.is_wait() && answer == [1];
        if is_given_up && self.script.get(self.read + 1) == Some(&Request::CancelWait) {
            self.read += 1;
        } else if !has_form(request, &answer) {
            return Err(format!("{} bytes are no answer to {}", answer.len(), name(request)));
        }
        self.read += 1;
        self.skip_unanswered();
        Ok(())
    }

    /// The request whose answer it waits for, and its progress, in words.
    pub(super) fn waits(&self) -> String {
        let next = self.script.get(self.read).map_or("nothing", |it| name(it));
        format!(
            "{next} (sent {}, passed on {}, answered {}, read {} of {}; {} bytes in its socket)",
            self.sent,
            self.passed_on,
            self.done,
            self.read,
            self.script.len(),
            self.socket.len()
        )
    }
}

/// Whether bytes have the form of an answer to a request.
fn has_form(request: &Request, answer: &[u8]) -> bool {
    let blobs = |mut rest: &[u8], count: usize| {
        for _ in 0..count {
            let Some((length, behind)) = rest.split_first_chunk::<8>() else { return false };
            let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
            let Some(behind) = behind.get(length..) else { return false };
            rest = behind;
        }
        rest.is_empty()
    };
    match request {
        Request::Get { .. } | Request::CompareSet { .. } => blobs(answer, 1),
        Request::MultiGet { keys } => blobs(answer, keys.len()),
        Request::Check { .. } => matches!(answer, [0 | 1]),
        Request::Wait { .. } | Request::Barrier { .. } => answer == [0],
        Request::CancelWait => answer == [1],
        Request::Ping { nonce } => answer == nonce.to_le_bytes(),
        Request::QueuePop { .. } => {
            answer.len() == 8 || answer.get(8..).is_some_and(|it| blobs(it, 1))
        }
        Request::ListKeys => answer.len() >= 8,
        Request::Add { .. }
        | Request::CountKeys
        | Request::Delete { .. }
        | Request::QueueLength { .. } => answer.len() == 8,
        Request::Set { .. }
        | Request::MultiSet { .. }
        | Request::Append { .. }
        | Request::QueuePush { .. } => false,
    }
}
