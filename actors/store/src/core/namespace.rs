//! One generation's keys, queues, waits and barriers. Used by the store's core.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use elastic_protocol::planted::{Bug, is_planted};

use super::ClientKey;
use crate::limits::{ENTRY_BYTES, NAMESPACE_BYTES_MAX, REQUEST_BYTES_MAX, VALUE_BYTES_MAX};
use crate::wire::{Request, StoreReply};

/// Result of a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum StoreAnswer {
    /// The request was carried out: bytes for the client.
    Done(Vec<u8>),
    /// The request was refused: the client must be disconnected.
    Refused(String),
}

#[derive(Debug, Default)]
pub(super) struct Namespace {
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    queues: BTreeMap<Vec<u8>, VecDeque<Vec<u8>>>,
    /// Bytes of keys, values, and queued values.
    bytes: usize,
    /// Waiting clients, with the missing keys that each waits for.
    waits: BTreeMap<ClientKey, BTreeSet<Vec<u8>>>,
    /// Clients that wait for a key.
    waiters: BTreeMap<Vec<u8>, BTreeSet<ClientKey>>,
    /// Clients that have come to a barrier.
    barriers: BTreeMap<Vec<u8>, Vec<ClientKey>>,
    answers: VecDeque<(ClientKey, StoreAnswer)>,
}

/// Reason to refuse a request: it asks for too much, or for the impossible.
struct RequestRefusal(String);

impl Namespace {
    pub(super) fn poll_answer(&mut self) -> Option<(ClientKey, StoreAnswer)> {
        self.answers.pop_front()
    }

    pub(super) fn handle(&mut self, client: &ClientKey, request: Request) {
        let answer = match self.carry_out(client, request) {
            Ok(Some(reply)) => StoreAnswer::Done(reply.encode()),
            Ok(None) => return,
            Err(RequestRefusal(reason)) => StoreAnswer::Refused(reason),
        };
        self.answers.push_back((client.clone(), answer));
    }

    /// Forgets a client that has gone.
    pub(super) fn forget(&mut self, client: &ClientKey) {
        self.stop_waiting(client);
        self.barriers.retain(|_, there| {
            there.retain(|other| other != client);
            !there.is_empty()
        });
    }

    /// Carries a request out. Returns the answer; none if there is none, or not yet.
    fn carry_out(
        &mut self,
        client: &ClientKey,
        request: Request,
    ) -> Result<Option<StoreReply>, RequestRefusal> {
        Ok(Some(match request {
            Request::Set { key, value } => {
                self.set(key, value)?;
                return Ok(self.acknowledge(client));
            }
            Request::MultiSet { entries } => {
                for (key, value) in entries {
                    self.set(key, value)?;
                }
                return Ok(self.acknowledge(client));
            }
            Request::Append { key, value } => {
                let mut whole = self.values.get(&key).cloned().unwrap_or_default();
                whole.extend(value);
                self.set(key, whole)?;
                return Ok(self.acknowledge(client));
            }
            Request::QueuePush { key, value } => {
                self.grow(value.len() + key.len() + ENTRY_BYTES)?;
                self.queues.entry(key.clone()).or_default().push_back(value);
                if !is_planted(Bug::WaitersForgotten) {
                    self.release(&key);
                }
                return Ok(self.acknowledge(client));
            }
            Request::CompareSet { key, expected, desired } => {
                let current = self.values.get(&key);
                if current.map_or(expected.is_empty(), |current| *current == expected) {
                    self.set(key, desired.clone())?;
                    StoreReply::Value(desired)
                } else {
                    StoreReply::Value(current.cloned().unwrap_or(expected))
                }
            }
            Request::Get { key } => StoreReply::Value(self.value(&key)),
            Request::Add { key, amount } => StoreReply::Number(self.add(key, amount)?),
            Request::Check { keys } => StoreReply::Ready(keys.iter().all(|key| self.is_there(key))),
            Request::Wait { keys } => {
                let missing: BTreeSet<Vec<u8>> =
                    keys.into_iter().filter(|key| !self.is_there(key)).collect();
                if !missing.is_empty() {
                    self.wait(client, missing);
                    return Ok(None);
                }
                StoreReply::Released
            }
            Request::CancelWait => {
                if self.stop_waiting(client) {
                    // The wait is a request, too: it ends with this one.
                    self.answers.push_back((client.clone(), StoreAnswer::Done(Vec::new())));
                }
                StoreReply::Cancelled
            }
            Request::CountKeys => StoreReply::Number(count(self.values.len())),
            Request::Delete { key } => StoreReply::Number(self.delete(&key)),
            Request::MultiGet { keys } => {
                let values: Vec<Vec<u8>> = keys.iter().map(|key| self.value(key)).collect();
                fits(&values)?;
                StoreReply::Values(values)
            }
            Request::Ping { nonce } => StoreReply::Nonce(nonce),
            Request::QueuePop { key } => StoreReply::Popped(self.pop(&key)),
            Request::QueueLength { key } => {
                StoreReply::Number(count(self.queues.get(&key).map_or(0, VecDeque::len)))
            }
            Request::ListKeys => {
                let keys: Vec<Vec<u8>> = self.values.keys().cloned().collect();
                fits(&keys)?;
                StoreReply::Keys(keys)
            }
            Request::Barrier { key, world_size } => {
                self.meet(client, key, world_size);
                return Ok(None);
            }
        }))
    }

    /// Notes that a request without an answer was carried out: the relay hears of it, the client reads nothing.
    fn acknowledge(&mut self, client: &ClientKey) -> Option<StoreReply> {
        self.answers.push_back((client.clone(), StoreAnswer::Done(Vec::new())));
        None
    }

    fn value(&self, key: &[u8]) -> Vec<u8> {
        self.values.get(key).cloned().unwrap_or_default()
    }

    fn is_there(&self, key: &[u8]) -> bool {
        self.values.contains_key(key) || self.queues.contains_key(key)
    }

    fn set(&mut self, key: Vec<u8>, value: Vec<u8>) -> Result<(), RequestRefusal> {
        if value.len() > VALUE_BYTES_MAX {
            return Err(RequestRefusal(format!(
                "a value of {} bytes; at most {VALUE_BYTES_MAX} are allowed",
                value.len()
            )));
        }
        let before = self.values.get(&key).map_or(0, |old| cost(&key, old));
        let after = cost(&key, &value);
        self.bytes -= before;
        if let Err(refusal) = self.grow(after) {
            self.bytes += before;
            return Err(refusal);
        }
        self.values.insert(key.clone(), value);
        self.release(&key);
        Ok(())
    }

    fn grow(&mut self, bytes: usize) -> Result<(), RequestRefusal> {
        if self.bytes + bytes > NAMESPACE_BYTES_MAX {
            let reason = format!("its generation stores more than {NAMESPACE_BYTES_MAX} bytes");
            return Err(RequestRefusal(reason));
        }
        self.bytes += bytes;
        Ok(())
    }

    fn add(&mut self, key: Vec<u8>, amount: i64) -> Result<i64, RequestRefusal> {
        let number = match self.values.get(&key) {
            None => Some(0),
            Some(value) => {
                std::str::from_utf8(value).ok().and_then(|text| text.parse::<i64>().ok())
            }
        };
        let sum = number.and_then(|number| number.checked_add(amount)).ok_or_else(|| {
            RequestRefusal(format!("{:?} holds no number to add to", String::from_utf8_lossy(&key)))
        })?;
        self.set(key, sum.to_string().into_bytes())?;
        Ok(sum)
    }

    fn delete(&mut self, key: &[u8]) -> i64 {
        let value = self.values.remove(key);
        self.bytes -= value.as_ref().map_or(0, |value| cost(key, value));
        i64::from(value.is_some())
    }

    fn pop(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        let queue = self.queues.get_mut(key)?;
        let value = queue.pop_front()?;
        self.bytes -= cost(key, &value);
        if queue.is_empty() {
            self.queues.remove(key);
        }
        Some(value)
    }

    fn wait(&mut self, client: &ClientKey, missing: BTreeSet<Vec<u8>>) {
        // A client waits once at a time: a second wait takes the place of the first.
        if self.stop_waiting(client) {
            self.answers.push_back((client.clone(), StoreAnswer::Done(Vec::new())));
        }
        for key in &missing {
            self.waiters.entry(key.clone()).or_default().insert(client.clone());
        }
        self.waits.insert(client.clone(), missing);
    }

    /// Ends a client's wait; true if it waited.
    fn stop_waiting(&mut self, client: &ClientKey) -> bool {
        let Some(missing) = self.waits.remove(client) else { return false };
        for key in missing {
            if let Some(waiters) = self.waiters.get_mut(&key) {
                waiters.remove(client);
                if waiters.is_empty() {
                    self.waiters.remove(&key);
                }
            }
        }
        true
    }

    /// Releases clients that waited for this key, which is there now, and for no other.
    fn release(&mut self, key: &[u8]) {
        for client in self.waiters.remove(key).unwrap_or_default() {
            let Some(missing) = self.waits.get_mut(&client) else { continue };
            missing.remove(key);
            if missing.is_empty() {
                self.waits.remove(&client);
                self.answers.push_back((client, StoreAnswer::Done(StoreReply::Released.encode())));
            }
        }
    }

    fn meet(&mut self, client: &ClientKey, key: Vec<u8>, world_size: i64) {
        let there = self.barriers.entry(key.clone()).or_default();
        there.push(client.clone());
        if count(there.len()) < world_size {
            return;
        }
        for client in self.barriers.remove(&key).unwrap_or_default() {
            self.answers.push_back((client, StoreAnswer::Done(StoreReply::Released.encode())));
        }
    }
}

fn cost(key: &[u8], value: &[u8]) -> usize {
    key.len() + value.len() + ENTRY_BYTES
}

fn count(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}

fn fits(values: &[Vec<u8>]) -> Result<(), RequestRefusal> {
    let bytes = StoreReply::bytes_of(values);
    if bytes > REQUEST_BYTES_MAX {
        let reason = format!("an answer of {bytes} bytes; at most {REQUEST_BYTES_MAX} are allowed");
        return Err(RequestRefusal(reason));
    }
    Ok(())
}
