//! The driver's side: takes connections in, lets strangers enrol, and greets the nodes of its job.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::SystemTime;

use elastic_protocol::NodeId;
use elastic_runtime::session::{HELLO_BYTES_MAX, Hello};
use quinn::{Connecting, Connection, Endpoint, Incoming};
use tokio::task::AbortHandle;

use crate::authority::Authority;
use crate::closing::{CloseCode, close};
use crate::enrol::{ENROL_BYTES_MAX, EnrolAnswer, EnrolRequest, Refusal};
use crate::links::Links;
use crate::log_limit::LogLimit;
use crate::settings::{self, HANDSHAKE_DEADLINE, HANDSHAKES_MAX, HANDSHAKES_RETRY};
use crate::tls;

/// The driver's word on who may enrol, and as what. [`crate::credentials::Credentials`] keeps the usual
/// table.
pub type Admit = Rc<dyn Fn(&EnrolRequest) -> Result<NodeId, Refusal>>;

pub(crate) struct Listener {
    pub(crate) links: Rc<Links>,
    pub(crate) authority: Rc<Authority>,
    pub(crate) admit: Admit,
    pub(crate) wall_clock: fn() -> SystemTime,
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

/// Gives its place back when the handshake is over, however that comes about.
struct Place {
    listener: Rc<Listener>,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.listener.handshakes.borrow_mut().open.remove(&self.number);
    }
}

/// Why a connection came to nothing: a kind for the bound on the log, and the reason.
struct Refused {
    kind: &'static str,
    reason: String,
}

fn refused(kind: &'static str) -> impl Fn(&dyn std::fmt::Display) -> Refused {
    move |reason| Refused { kind, reason: reason.to_string() }
}

impl Listener {
    pub(crate) async fn run(self: Rc<Self>, endpoint: Endpoint) {
        while let Some(incoming) = endpoint.accept().await {
            self.take(incoming);
        }
    }

    fn take(self: &Rc<Self>, incoming: Incoming) {
        let address = incoming.remote_address();
        let open = self.handshakes.borrow().open.len();
        if open >= HANDSHAKES_RETRY && !incoming.remote_address_validated() {
            // Costs nothing here: the address must answer before anything is kept for it.
            if let Err(error) = incoming.retry() {
                error.into_incoming().refuse();
                self.log("crowd", address, "too many handshakes in progress");
            }
            return;
        }
        if open >= HANDSHAKES_MAX {
            let oldest = self.handshakes.borrow_mut().open.pop_first();
            oldest.and_then(|(_, task)| task).inspect(AbortHandle::abort);
            self.log("crowd", address, "too many handshakes in progress: the oldest is dropped");
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
        let place = Place { listener: Rc::clone(self), number };
        let task = tokio::task::spawn_local(async move {
            let listener = &place.listener;
            if let Err(Refused { kind, reason }) = listener.shake_hands(connecting).await {
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

    async fn shake_hands(self: &Rc<Self>, connecting: Connecting) -> Result<(), Refused> {
        let deadline = tokio::time::Instant::now() + HANDSHAKE_DEADLINE;
        let late = refused("late");
        let connection = tokio::time::timeout_at(deadline, connecting)
            .await
            .map_err(|_| late(&"the handshake was not finished in time"))?
            .map_err(|error| refused("handshake")(&error))?;
        let served = tokio::time::timeout_at(deadline, self.serve(&connection)).await;
        served.unwrap_or_else(|_| Err(late(&"nothing valid was said in time"))).inspect_err(
            |refused| {
                let code =
                    if refused.kind == "version" { CloseCode::Version } else { CloseCode::Refused };
                close(&connection, code, &refused.reason);
            },
        )
    }

    async fn serve(self: &Rc<Self>, connection: &Connection) -> Result<(), Refused> {
        if !tls::is_same_version(connection, self.version) {
            // The reason is what the other end reads the version from.
            return Err(Refused { kind: "version", reason: self.version.to_string() });
        }
        match tls::bearer(connection) {
            // Over the same connection: it takes a handshake less to start a node, and the node has shown as much
            // as it will over later ones.
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

    /// The only thing that a connection without a certificate can do: it says whose the connection is from then on.
    async fn enrol(&self, connection: &Connection) -> Result<NodeId, Refused> {
        let wrong = refused("enrol");
        let (mut answer, mut question) = connection.accept_bi().await.map_err(|it| wrong(&it))?;
        let bytes = question.read_to_end(ENROL_BYTES_MAX).await.map_err(|it| wrong(&it))?;
        let request = EnrolRequest::decode(&bytes).map_err(|it| wrong(&it))?;
        let admitted = (self.admit)(&request).and_then(|node| {
            let issued = self.authority.issue(&node, &request.public_key, (self.wall_clock)());
            let certificate = issued.map_err(|error| Refusal::Other(error.to_string()))?;
            tracing::info!(%node, address = %connection.remote_address(), "enrolled");
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
            // The other end closes when it has read the answer.
            connection.closed().await;
        }
        outcome
    }

    async fn greet(&self, connection: &Connection, node: NodeId) -> Result<(), Refused> {
        let wrong = refused("greeting");
        let (mut answer, mut question) = connection.accept_bi().await.map_err(|it| wrong(&it))?;
        let bytes = question.read_to_end(HELLO_BYTES_MAX).await.map_err(|it| wrong(&it))?;
        let hello = Hello::decode(&bytes).map_err(|it| wrong(&it))?;
        settings::welcome(connection);
        let welcome =
            self.links.handle_hello(&node, connection, &hello).map_err(|it| wrong(&it))?;
        self.links.pump();
        let bytes = welcome.encode().map_err(|it| wrong(&it))?;
        answer.write_all(&bytes).await.map_err(|it| wrong(&it))?;
        answer.finish().map_err(|it| wrong(&it))
    }
}
