//! Keys, values and queues of one generation, as the protocol defines them: the reference with which the product's answers are
//! compared. Part of `model`.

use std::collections::{BTreeMap, VecDeque};

use elastic_store::wire::Request;

use super::model::shown;

/// Required outcome of a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum ModelAnswer {
    /// These bytes for the client; none for a request without an answer.
    Bytes(Vec<u8>),
    /// The client is disconnected.
    Refusal,
}

impl ModelAnswer {
    /// For a person.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Bytes(bytes) => shown(bytes),
            Self::Refusal => "a refusal".to_owned(),
        }
    }
}

/// A generation's keys.
#[derive(Debug, Default)]
pub(super) struct ModelNamespace {
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    queues: BTreeMap<Vec<u8>, VecDeque<Vec<u8>>>,
}

impl ModelNamespace {
    /// Whether there is a value, or something in a queue.
    pub(super) fn has(&self, key: &[u8]) -> bool {
        self.values.contains_key(key) || self.queues.get(key).is_some_and(|queue| !queue.is_empty())
    }

    /// Carries a request out that is no wait. Keys that are there now are added to `set`.
    pub(super) fn apply(&mut self, request: &Request, set: &mut Vec<Vec<u8>>) -> ModelAnswer {
        let bytes = match request {
            Request::Set { key, value } => {
                self.put(key, value.clone(), set);
                Vec::new()
            }
            Request::MultiSet { entries } => {
                entries.iter().for_each(|(key, value)| self.put(key, value.clone(), set));
                Vec::new()
            }
            Request::Append { key, value } => {
                let whole = [self.value(key), value].concat();
                self.put(key, whole, set);
                Vec::new()
            }
            Request::QueuePush { key, value } => {
                self.queues.entry(key.clone()).or_default().push_back(value.clone());
                set.push(key.clone());
                Vec::new()
            }
            Request::CompareSet { key, expected, desired } => {
                let is_as_expected =
                    self.values.get(key).map_or(expected.is_empty(), |value| value == expected);
                if is_as_expected {
                    self.put(key, desired.clone(), set);
                }
                blob(self.values.get(key).unwrap_or(expected))
            }
            Request::Get { key } => blob(self.value(key)),
            Request::MultiGet { keys } => {
                keys.iter().flat_map(|key| blob(self.value(key))).collect()
            }
            Request::Add { key, amount } => {
                let text = self.values.get(key).map_or(&b"0"[..], Vec::as_slice);
                let number = std::str::from_utf8(text).ok().and_then(|it| it.parse::<i64>().ok());
                let Some(number) = number else { return ModelAnswer::Refusal };
                self.put(key, (number + amount).to_string().into_bytes(), set);
                (number + amount).to_le_bytes().to_vec()
            }
            Request::Check { keys } => vec![u8::from(!keys.iter().all(|key| self.has(key)))],
            Request::CountKeys => count(self.values.len()),
            Request::Delete { key } => count(usize::from(self.values.remove(key).is_some())),
            Request::Ping { nonce } => nonce.to_le_bytes().to_vec(),
            Request::QueueLength { key } => count(self.queues.get(key).map_or(0, VecDeque::len)),
            Request::QueuePop { key } => {
                match self.queues.get_mut(key).and_then(VecDeque::pop_front) {
                    Some(value) => [count(1), blob(&value)].concat(),
                    None => count(0),
                }
            }
            Request::ListKeys => {
                let keys = self.values.keys().flat_map(|key| blob(key));
                count(self.values.len()).into_iter().chain(keys).collect()
            }
            Request::CancelWait => vec![1],
            Request::Wait { .. } | Request::Barrier { .. } => vec![0],
        };
        ModelAnswer::Bytes(bytes)
    }

    fn value(&self, key: &[u8]) -> &[u8] {
        self.values.get(key).map_or(&[], Vec::as_slice)
    }

    fn put(&mut self, key: &[u8], value: Vec<u8>, set: &mut Vec<Vec<u8>>) {
        self.values.insert(key.to_vec(), value);
        set.push(key.to_vec());
    }
}

fn blob(value: &[u8]) -> Vec<u8> {
    [&(value.len() as u64).to_le_bytes()[..], value].concat()
}

fn count(number: usize) -> Vec<u8> {
    (number as u64).to_le_bytes().to_vec()
}
