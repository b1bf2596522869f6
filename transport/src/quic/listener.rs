//! The driver's side: accepts connections, enrols new nodes, and greets the nodes of its job.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use elastic_protocol::NodeId;
use quinn::{Connecting, Connection, Endpoint, Incoming};
use tokio::task::AbortHandle;

use crate::identity::authority::Authority;
use crate::identity::enrol::{ENROL_BYTES_MAX, EnrolAnswer, EnrolRefusal, EnrolRequest};
use crate::peers::{CloseCode, HelloRefusal};
use crate::quic::closing::close;
use crate::quic::greeting::{GREETING_BYTES_MAX, Greeting};
use crate::quic::links::QuicLinks;
use crate::quic::log_limit::LogLimit;
use crate::quic::settings::{self, HANDSHAKE_DEADLINE, HANDSHAKES_MAX, HANDSHAKES_RETRY};
use crate::quic::tls;

/// The driver's decision on who may enrol, and as what. [`crate::identity::credentials::Credentials`] keeps the
/// usual table.
pub type Admit = Rc<dyn Fn(&EnrolRequest) -> Result<NodeId, EnrolRefusal>>;

pub(crate) struct Listener {
    pub(crate) links: Rc<QuicLinks>,
    pub(crate) authority: Rc<Authority>,
    pub(crate) admit: Admit,
    pub(crate) version: u32,
    pub(crate) handshakes: RefCell<Handshakes>,
    pub(crate) log: RefCell<LogLimit>,
}

/// Handshakes in progress, oldest first.
#[derive(Default)]
pub(crate) struct Handshakes {
    next: u64,
    open: BTreeMap<u64, Option<AbortHandle>>,
}

impl Drop for Handshakes {
    fn drop(&mut self) {
        self.open.values().flatten().for_each(AbortHandle::abort);
    }
}

/// Time limit for a node of another version to name its release.
const RELEASE_WITHIN: Duration = Duration::from_millis(500);

/// Most bytes of that.
const RELEASE_BYTES_MAX: usize = 128;

/// The place of a handshake, freed when the handshake ends in any way.
struct HandshakePermit {
    listener: Rc<Listener>,
    number: u64,
}

impl Drop for HandshakePermit {
    fn drop(&mut self) {
        self.listener.handshakes.borrow_mut().open.remove(&self.number);
    }
}

/// Refusal of a connection: its kind, for the bound on the log, and its reason.
struct RefusedConnection {
    kind: &'static str,
    reason: String,
}

fn refused(kind: &'static str) -> impl Fn(&dyn std::fmt::Display) -> RefusedConnection {
    move |reason| RefusedConnection { kind, reason: reason.to_string() }
}

/// The release of a node of another version, if it says so: releases before protocol 2 do not.
async fn release_of(connection: &Connection) -> Option<String> {
    let said = tokio::time::timeout(RELEASE_WITHIN, async {
        let (_, mut receive) = connection.accept_bi().await.ok()?;
        receive.read_to_end(RELEASE_BYTES_MAX).await.ok()
    });
    let said = String::from_utf8(said.await.ok()??).ok()?;
    Some(said.chars().filter(|it| !it.is_control()).collect())
}

impl Listener {
    pub(crate) async fn run(self: Rc<Self>, endpoint: Endpoint) {
        while let Some(incoming) = endpoint.accept().await {
            self.take(incoming);
            // Each handshake costs the time of a signature. Connected peers have their turn in between.
            tokio::task::yield_now().await;
        }
    }

    fn take(self: &Rc<Self>, incoming: Incoming) {
        let address = incoming.remote_address();
        let open = self.handshakes.borrow().open.len();
        if open >= HANDSHAKES_RETRY && !incoming.remote_address_validated() {
            // A retry costs nothing here: the address must answer before anything is stored for it.
            if let Err(error) = incoming.retry() {
                error.into_incoming().refuse();
            }
            self.log(
                "handshake",
                address,
                "many handshakes in progress: its address is to be proved first",
            );
            return;
        }
        if open >= HANDSHAKES_MAX {
            let oldest = self.handshakes.borrow_mut().open.pop_first();
            oldest.and_then(|(_, task)| task).inspect(AbortHandle::abort);
            self.log(
                "handshake",
                address,
                "too many handshakes in progress: the oldest is dropped",
            );
        }
        match incoming.accept() {
            Ok(connecting) => self.start(connecting, address),
            Err(error) => self.log("packet", address, &error.to_string()),
        }
    }

    fn start(self: &Rc<Self>, connecting: Connecting, address: SocketAddr) {
        let number = {
            let mut handshakes = self.handshakes.borrow_mut();
            let number = handshakes.next;
            handshakes.next += 1;
            handshakes.open.insert(number, None);
            number
        };
        let place = HandshakePermit { listener: Rc::clone(self), number };
        let task = tokio::task::spawn_local(async move {
            let listener = &place.listener;
            if let Err(RefusedConnection { kind, reason }) = listener.shake_hands(connecting).await
            {
                listener.log(kind, address, &reason);
            }
        });
        self.handshakes.borrow_mut().open.insert(number, Some(task.abort_handle()));
    }

    fn log(&self, kind: &'static str, address: SocketAddr, reason: &str) {
        if let Some(withheld) = self.log.borrow_mut().pass(self.links.now(), kind) {
            tracing::warn!(%address, reason, withheld, "connection refused");
        }
    }

    async fn shake_hands(self: &Rc<Self>, connecting: Connecting) -> Result<(), RefusedConnection> {
        let deadline = tokio::time::Instant::now() + HANDSHAKE_DEADLINE;
        let failed = refused("handshake");
        let connection = tokio::time::timeout_at(deadline, connecting)
            .await
            .map_err(|_| failed(&"the handshake was not finished in time"))?
            .map_err(|error| failed(&error))?;
        let served = tokio::time::timeout_at(deadline, self.serve(&connection)).await;
        served.unwrap_or_else(|_| Err(failed(&"nothing valid was said in time"))).inspect_err(
            |refused| {
                let code = match refused.kind {
                    "version" => CloseCode::Version,
                    // The next driver at this address may take the node.
                    "draining" => CloseCode::Broken,
                    _ => CloseCode::Refused,
                };
                let said = match code {
                    // The other end reads this program's release.
                    CloseCode::Version => &tls::release(self.version),
                    _ => &refused.reason,
                };
                close(&connection, code, said);
            },
        )
    }

    async fn serve(self: &Rc<Self>, connection: &Connection) -> Result<(), RefusedConnection> {
        if !tls::is_same_version(connection, self.version) {
            let theirs = release_of(connection).await;
            let theirs = theirs.unwrap_or_else(|| "of another protocol".to_owned());
            let reason = format!("this is {}; the node is {theirs}", tls::release(self.version));
            return Err(RefusedConnection { kind: "version", reason });
        }
        match tls::bearer(connection) {
            // Enrolling continues over the same connection. That saves a handshake at each start, and the node
            // has shown as much as it will over later connections.
            None => {
                let node = self.enrol(connection).await?;
                self.greet(connection, node).await
            }
            Some(Ok(bearer)) if bearer.job == self.authority.job() => {
                self.greet(connection, bearer.node).await
            }
            Some(_) => Err(refused("bearer")(&"the certificate names no node of this job")),
        }
    }

    /// Enrols the node at the other end: the only action that a connection without a certificate allows.
    /// Returns the node to which the connection belongs from then on.
    async fn enrol(&self, connection: &Connection) -> Result<NodeId, RefusedConnection> {
        let wrong = refused("enrol");
        let (mut answer, mut question) = connection.accept_bi().await.map_err(|it| wrong(&it))?;
        let bytes = question.read_to_end(ENROL_BYTES_MAX).await.map_err(|it| wrong(&it))?;
        let request = EnrolRequest::decode(&bytes).map_err(|it| wrong(&it))?;
        let admitted = (self.admit)(&request).and_then(|node| {
            let issued = self.authority.issue(&node, &request.public_key);
            let certificate = issued.map_err(|error| EnrolRefusal::Other(error.to_string()))?;
            tracing::debug!(%node, address = %connection.remote_address(), "enrolled");
            Ok((node, certificate.to_vec()))
        });
        let (said, outcome) = match admitted {
            Ok((node, certificate)) => {
                (EnrolAnswer::Issued { node: node.clone(), certificate }, Ok(node))
            }
            Err(refusal) => {
                let outcome = Err(refused("admission")(&refusal));
                (EnrolAnswer::Refused(refusal), outcome)
            }
        };
        let bytes = said.encode().map_err(|it| wrong(&it))?;
        answer.write_all(&bytes).await.map_err(|it| wrong(&it))?;
        answer.finish().map_err(|it| wrong(&it))?;
        if outcome.is_err() {
            // The other end closes the connection once it has read the answer.
            connection.closed().await;
        }
        outcome
    }

    async fn greet(&self, connection: &Connection, node: NodeId) -> Result<(), RefusedConnection> {
        let wrong = refused("greeting");
        let (mut answer, mut question) = connection.accept_bi().await.map_err(|it| wrong(&it))?;
        let bytes = question.read_to_end(GREETING_BYTES_MAX).await.map_err(|it| wrong(&it))?;
        let greeting = Greeting::decode(&bytes).map_err(|it| wrong(&it))?;
        settings::welcome(connection);
        let welcome = self.links.handle_hello(&node, connection, &greeting);
        let welcome = welcome.map_err(|refusal| match refusal {
            HelloRefusal::Draining => refused("draining")(&refusal),
            HelloRefusal::TooManyPeers { .. } => wrong(&refusal),
        })?;
        self.links.pump();
        let bytes = welcome.encode().map_err(|it| wrong(&it))?;
        answer.write_all(&bytes).await.map_err(|it| wrong(&it))?;
        answer.finish().map_err(|it| wrong(&it))
    }
}
