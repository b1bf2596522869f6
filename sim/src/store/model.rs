//! [`StoreModel`]: required behaviour of one life of the store: its clients, the waits that it ends, its answers, and the
//! clients that it disconnects. Part of `world`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use elastic_protocol::Stamp;
use elastic_store::messages::CloseCause;
use elastic_store::wire::Request;

use super::namespace::{ModelAnswer, ModelNamespace};

/// Longest answer that a failure shows.
const SHOWN_BYTES: usize = 24;

/// A client: its host, and its connection there.
pub(super) type ModelKey = (u32, u64);

#[derive(Debug, Default)]
struct ModelClient {
    stamp: Stamp,
    /// Requests without an answer, the oldest first.
    requests: VecDeque<Request>,
    /// Keys that its wait lacks.
    missing: Option<BTreeSet<Vec<u8>>>,
}

/// One life of the store.
#[derive(Debug, Default)]
pub(super) struct StoreModel {
    /// Whether a process that belongs to no generation has asked: all of this generation and later ones, and of none, ask in one
    /// namespace.
    is_in_process: bool,
    current: Stamp,
    namespace: ModelNamespace,
    clients: BTreeMap<ModelKey, ModelClient>,
    barriers: BTreeMap<Vec<u8>, Vec<ModelKey>>,
    /// Clients that must be told of the end of their wait before the store comes to rest.
    released: BTreeSet<ModelKey>,
    /// Clients that were told so, and the keys that had not been set then.
    claims: Vec<(ModelKey, BTreeSet<Vec<u8>>)>,
    /// Clients that must be disconnected before the store comes to rest.
    over: BTreeSet<ModelKey>,
}

impl StoreModel {
    /// Number of clients.
    pub(super) fn clients(&self) -> usize {
        self.clients.len()
    }

    /// The clients of a host.
    pub(super) fn clients_of(&self, host: u32) -> Vec<ModelKey> {
        self.clients.range((host, 0)..=(host, u64::MAX)).map(|(key, _)| *key).collect()
    }

    /// A request reaches the store.
    pub(super) fn asked(&mut self, key: ModelKey, stamp: Stamp, request: Request) {
        self.clients.entry(key).or_insert_with(|| ModelClient { stamp, ..ModelClient::default() });
        self.is_in_process |= stamp == Stamp::default();
        if stamp > self.current && !self.is_in_process {
            self.current = stamp;
            self.namespace = ModelNamespace::default();
            self.barriers.clear();
            let is_older = |it: &ModelClient| it.stamp < stamp;
            for (key, client) in self.clients.iter_mut().filter(|(_, it)| is_older(it)) {
                client.missing = None;
                self.released.remove(key);
                self.over.insert(*key);
            }
        }
        if stamp != Stamp::default() && stamp < self.current {
            self.over.insert(key);
            return;
        }
        match &request {
            Request::Wait { keys } => {
                let namespace = &self.namespace;
                let missing: BTreeSet<_> =
                    keys.iter().filter(|key| !namespace.has(key)).cloned().collect();
                if missing.is_empty() {
                    self.released.insert(key);
                }
                if let Some(client) = self.clients.get_mut(&key) {
                    client.missing = Some(missing);
                }
            }
            Request::Barrier { key: name, world_size } => {
                let there = self.barriers.entry(name.clone()).or_default();
                there.push(key);
                if there.len() as i64 >= *world_size {
                    self.released.extend(there.drain(..));
                }
            }
            _ => {}
        }
        if let Some(client) = self.clients.get_mut(&key) {
            client.requests.push_back(request);
        }
    }

    /// The store answers a client.
    ///
    /// # Errors
    /// The mistake in the answer.
    pub(super) fn answered(&mut self, key: ModelKey, bytes: &[u8]) -> Result<(), String> {
        let client = self.clients.get_mut(&key).ok_or("an answer to a client that is not known")?;
        let request = client.requests.pop_front().ok_or("an answer without a request")?;
        let is_wait = matches!(request, Request::Wait { .. } | Request::Barrier { .. });
        if is_wait && bytes.is_empty() {
            // A wait that was given up.
            let cancels = matches!(client.requests.front(), Some(Request::CancelWait));
            client.missing = None;
            return cancels.then_some(()).ok_or("a wait ends that nobody has cancelled".to_owned());
        }
        let mut set = Vec::new();
        let expected = self.namespace.apply(&request, &mut set);
        if expected != ModelAnswer::Bytes(bytes.to_vec()) {
            let (got, wanted) = (shown(bytes), expected.shown());
            return Err(format!("{} is answered with {got} in place of {wanted}", name(&request)));
        }
        match &request {
            Request::Wait { .. } => {
                let missing = self.clients.get_mut(&key).and_then(|it| it.missing.take());
                self.released.remove(&key);
                self.claims.push((key, missing.unwrap_or_default()));
            }
            Request::Barrier { .. } if !self.released.remove(&key) => {
                return Err("a barrier opens before all have come".to_owned());
            }
            _ => {}
        }
        self.note_set(&set);
        Ok(())
    }

    /// Notes keys that are there now.
    fn note_set(&mut self, set: &[Vec<u8>]) {
        for (key, client) in &mut self.clients {
            let Some(missing) = &mut client.missing else { continue };
            set.iter().for_each(|it| {
                missing.remove(it);
            });
            if missing.is_empty() {
                self.released.insert(*key);
            }
        }
        for (_, missing) in &mut self.claims {
            set.iter().for_each(|it| {
                missing.remove(it);
            });
        }
    }

    /// The store disconnects a client.
    ///
    /// # Errors
    /// There is no reason for it.
    pub(super) fn closed(&mut self, key: ModelKey, cause: &CloseCause) -> Result<(), String> {
        let is_over = self.over.remove(&key);
        let client = self.clients.get(&key).ok_or("a client is disconnected that is not known")?;
        let request = client.requests.front().cloned();
        let is_of_request = matches!(cause, CloseCause::Refused(_));
        let is_refused = request.as_ref().filter(|_| is_of_request).is_some_and(|request| {
            self.namespace.apply(request, &mut Vec::new()) == ModelAnswer::Refusal
        });
        self.forget(key);
        match cause {
            CloseCause::GenerationOver if is_over => Ok(()),
            CloseCause::Refused(_) if is_refused => Ok(()),
            _ => Err(format!("a client is disconnected without a reason ({cause}) at {}", {
                request.as_ref().map_or("no request", |it| name(it))
            })),
        }
    }

    /// A client has gone.
    pub(super) fn forget(&mut self, key: ModelKey) {
        self.clients.remove(&key);
        self.released.remove(&key);
        self.over.remove(&key);
        self.barriers.values_mut().for_each(|there| there.retain(|other| *other != key));
    }

    /// The store has come to rest.
    ///
    /// # Errors
    /// A duty that the store has not done.
    pub(super) fn settle(&mut self) -> Result<(), String> {
        if let Some((key, missing)) = self.claims.drain(..).find(|(_, missing)| !missing.is_empty())
        {
            return Err(format!(
                "the wait of client {key:?} ends without {} of its keys",
                missing.len()
            ));
        }
        if let Some(key) = self.released.first() {
            return Err(format!("client {key:?} waits for what is there"));
        }
        match self.over.first() {
            Some(key) => Err(format!("client {key:?} of a former generation is not disconnected")),
            None => Ok(()),
        }
    }
}

/// An answer for a person.
pub(super) fn shown(bytes: &[u8]) -> String {
    if bytes.len() <= SHOWN_BYTES { format!("{bytes:?}") } else { format!("{} bytes", bytes.len()) }
}

/// The kind of a request.
pub(super) const fn name(request: &Request) -> &'static str {
    match request {
        Request::Set { .. } => "set",
        Request::CompareSet { .. } => "compare_set",
        Request::Get { .. } => "get",
        Request::Add { .. } => "add",
        Request::Check { .. } => "check",
        Request::Wait { .. } => "wait",
        Request::CountKeys => "num_keys",
        Request::Delete { .. } => "delete_key",
        Request::Append { .. } => "append",
        Request::MultiGet { .. } => "multi_get",
        Request::MultiSet { .. } => "multi_set",
        Request::CancelWait => "cancel_wait",
        Request::Ping { .. } => "ping",
        Request::QueuePush { .. } => "queue_push",
        Request::QueuePop { .. } => "queue_pop",
        Request::QueueLength { .. } => "queue_len",
        Request::ListKeys => "list_keys",
        Request::Barrier { .. } => "barrier",
    }
}
