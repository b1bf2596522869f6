//! A client's side: finds the driver, enrols, and keeps a connection with it for as long as the node
//! wants one.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use elastic_protocol::{Deadlines, Incarnation, NodeId, NodeName};
use elastic_runtime::session::{HELLO_BYTES_MAX, SessionId, Welcome};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use quinn::{Connection, ConnectionError};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::AlertDescription;
use rustls::pki_types::CertificateDer;
use tokio::time::{Instant, timeout, timeout_at};

use crate::authority::DRIVER_SERVER_NAME;
use crate::backoff::Backoff;
use crate::closing::{CloseCode, Ending, close};
use crate::connect_error::{ConnectError, Failure};
use crate::enrol::{Claim, ENROL_BYTES_MAX, EnrolAnswer, EnrolRequest, Refusal};
use crate::identity::{Bearer, Identity};
use crate::known_drivers::DriverAddresses;
use crate::links::Links;
use crate::log_limit::LogLimit;
use crate::secret::random_bytes;
use crate::settings::{self, HANDSHAKE_DEADLINE};
use crate::sockets::{SocketError, Sockets};
use crate::tls::{self, Finding};
use crate::token::{Fingerprint, Token, TokenKind};

/// Finds the driver and connects with it.
pub(crate) struct Dialer {
    /// Where it is looked for.
    pub(crate) drivers: Rc<DriverAddresses>,
    /// Of the driver that was met last.
    pub(crate) term: Incarnation,
    pub(crate) authority: Fingerprint,
    pub(crate) deadlines: Deadlines,
    pub(crate) version: u32,
    pub(crate) backoff: Backoff,
    pub(crate) sockets: Rc<Sockets>,
}

/// A connection whose other end is proved to be the driver.
struct Driver {
    connection: Connection,
    bearer: Bearer,
    /// The authority's certificate, as the driver showed it.
    authority: CertificateDer<'static>,
}

/// A connection with a driver, for a session.
pub(crate) struct Reached {
    pub(crate) connection: Connection,
    /// The driver.
    pub(crate) node: NodeId,
}

/// What a token lets a node of this name claim.
pub(crate) fn claim(token: &Token, name: &NodeName) -> Result<Claim, ConnectError> {
    match (&token.kind, name) {
        (TokenKind::Join, NodeName::Agent(host)) => Ok(Claim::Agent(host.clone())),
        (TokenKind::Join | TokenKind::Client, NodeName::Client) => Ok(Claim::Client),
        (TokenKind::Worker(worker), NodeName::Worker(host, slot))
            if worker.host == *host && worker.slot == *slot =>
        {
            Ok(Claim::Worker(worker.clone()))
        }
        _ => Err(ConnectError::TokenNotFor(name.clone())),
    }
}

impl Dialer {
    /// Gets a certificate from the driver, and a connection that can carry a session. Tries until it succeeds, or
    /// cannot, or `until` has come.
    pub(crate) async fn enrol(
        &mut self,
        token: &Token,
        claim: &Claim,
        until: Instant,
    ) -> Result<(Identity, Reached), ConnectError> {
        // One key for all attempts: the driver knows by it a worker whose answer was lost.
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(ConnectError::Key)?;
        let mut patience = Patience::new(until);
        loop {
            let failure = match timeout_at(until, self.try_enrol(token, claim, &key)).await {
                Ok(Ok(enrolled)) => return Ok(enrolled),
                Ok(Err(failure)) => Some(failure),
                Err(_) => None,
            };
            patience.wait(self, failure).await?;
        }
    }

    async fn try_enrol(
        &mut self,
        token: &Token,
        claim: &Claim,
        key: &KeyPair,
    ) -> Result<(Identity, Reached), Failure> {
        let driver = self.reach(None).await?;
        let request = EnrolRequest {
            claim: claim.clone(),
            secret: token.secret.clone(),
            public_key: key.public_key_raw().to_vec(),
        };
        let bytes = request.encode().map_err(|error| Failure::Passing(error.to_string()))?;
        let answer = self.ask(&driver.connection, &bytes, ENROL_BYTES_MAX).await?;
        let answer = EnrolAnswer::decode(&answer);
        if !matches!(answer, Ok(EnrolAnswer::Issued { .. })) {
            close(&driver.connection, CloseCode::Done, "the answer was read");
        }
        match answer {
            Ok(EnrolAnswer::Issued { node, certificate }) => {
                let identity = Identity {
                    bearer: Bearer { job: driver.bearer.job, node },
                    certificate: CertificateDer::from(certificate),
                    authority: driver.authority,
                    key: key.serialize_der(),
                };
                Ok((identity, Reached { connection: driver.connection, node: driver.bearer.node }))
            }
            Ok(EnrolAnswer::Refused(Refusal::Other(reason))) => {
                Err(ConnectError::Refused { reason }.into())
            }
            Ok(EnrolAnswer::Refused(refusal)) => Err(ConnectError::WrongSecret(refusal).into()),
            Err(error) => Err(Failure::Passing(error.to_string())),
        }
    }

    /// Begins the first session: over the connection that enrolled, or if that has broken over another.
    pub(crate) async fn begin(
        &mut self,
        links: &Rc<Links>,
        identity: &Identity,
        enrolled: Reached,
        until: Instant,
    ) -> Result<Reached, ConnectError> {
        let Reached { connection, node: mut peer } = enrolled;
        let mut patience = Patience::new(until);
        let mut greeted = timeout_at(until, self.greet(links, connection, &peer)).await;
        loop {
            let failure = match greeted {
                Ok(Ok(connection)) => return Ok(Reached { connection, node: peer }),
                Ok(Err(failure)) => Some(failure),
                Err(_) => None,
            };
            patience.wait(self, failure).await?;
            greeted = timeout_at(until, self.try_dial(links, identity, &mut peer)).await;
        }
    }

    /// Replaces the connection whenever it ends, until the node closes the session.
    pub(crate) async fn keep(mut self, links: Rc<Links>, identity: Identity, reached: Reached) {
        let Reached { mut connection, node: mut peer } = reached;
        let mut log = LogLimit::default();
        loop {
            connection.closed().await;
            connection = loop {
                if !links.is_dialled(&peer) {
                    return;
                }
                let reason = match self.try_dial(&links, &identity, &mut peer).await {
                    Ok(connection) => break connection,
                    Err(Failure::Passing(reason)) => reason,
                    Err(Failure::Lasting(error)) => error.to_string(),
                };
                if let Some(withheld) = log.pass(links.now(), "dial") {
                    tracing::warn!(%peer, reason, withheld, "could not connect again yet");
                }
                tokio::time::sleep(self.backoff.next_wait()).await;
            };
        }
    }

    async fn try_dial(
        &mut self,
        links: &Rc<Links>,
        identity: &Identity,
        peer: &mut NodeId,
    ) -> Result<Connection, Failure> {
        let Driver { connection, bearer, .. } = self.reach(Some(identity)).await?;
        if bearer.node != *peer {
            // The driver was started again: another node, with which there is no session.
            links.replace_dialled(peer, &bearer.node);
            links.pump();
            *peer = bearer.node;
        }
        self.greet(links, connection, peer).await
    }

    /// Has a connection carry the session.
    async fn greet(
        &mut self,
        links: &Rc<Links>,
        connection: Connection,
        peer: &NodeId,
    ) -> Result<Connection, Failure> {
        let fresh = SessionId(u64::from_le_bytes(random_bytes()?));
        let hello = links.hello(peer, fresh).ok_or_else(given_up)?;
        settings::welcome(&connection);
        let bytes = hello.encode().map_err(|error| Failure::Passing(error.to_string()))?;
        let answer = self.ask(&connection, &bytes, HELLO_BYTES_MAX).await?;
        let greeted =
            Welcome::decode(&answer).map_err(|error| error.to_string()).and_then(|welcome| {
                let greeted = links.handle_welcome(peer, &connection, &welcome);
                greeted.map_err(|error| error.to_string())
            });
        links.pump();
        if let Err(reason) = greeted {
            let wanted = links.is_dialled(peer);
            let code = if wanted { CloseCode::Broken } else { CloseCode::Closed };
            close(&connection, code, &reason);
            return Err(Failure::Passing(reason));
        }
        self.backoff.reset();
        Ok(connection)
    }

    /// A connection with whoever proves first to be the driver, of all addresses that are known, and is of no
    /// earlier term than the one that was met last: a driver that was succeeded is not gone back to (G-2).
    async fn reach(&mut self, identity: Option<&Identity>) -> Result<Driver, Failure> {
        let (mut passing, mut lasting) = ("the name has no address".to_owned(), None);
        let mut addresses = Vec::new();
        for name in self.drivers.all() {
            match tokio::net::lookup_host(&name).await {
                Ok(found) => addresses.extend(found.take(ADDRESSES_MAX)),
                Err(error) => passing = format!("name not resolved: {error}"),
            }
        }
        // At once: one that is gone without a word is found out by its silence only.
        let mut under_way = vec![1_u32; addresses.len()];
        let this = &*self;
        let dial = |index: usize| {
            let address = addresses[index];
            async move { (index, this.reach_at(address, identity).await) }
        };
        let mut attempts: FuturesUnordered<_> = (0..addresses.len()).map(dial).collect();
        let (mut ticks, mut next_tick) = (0_u32, Instant::now() + AGAIN_EVERY);
        loop {
            let Ok(attempt) = timeout_at(next_tick, attempts.next()).await else {
                next_tick += AGAIN_EVERY;
                ticks += 1;
                let still_tries = AGAIN_EVERY * ticks < HANDSHAKE_DEADLINE;
                for (index, under_way) in under_way.iter_mut().enumerate() {
                    // One that has answered, as a driver does that stands by, may act by now. A driver that comes
                    // up now has not seen the first packets of those under way, and the next ones come later and
                    // later.
                    if still_tries && (*under_way == 0 || ticks.is_power_of_two()) {
                        *under_way += 1;
                        attempts.push(dial(index));
                    }
                }
                continue;
            };
            let Some((index, attempt)) = attempt else { break };
            under_way[index] -= 1;
            match attempt {
                Ok(driver) if driver.bearer.node.incarnation < self.term => {
                    let theirs = driver.bearer.node.incarnation;
                    passing = format!("a driver of term {theirs} answers, which was succeeded");
                    close(&driver.connection, CloseCode::Closed, "a later term is known");
                }
                Ok(driver) => {
                    drop(attempts);
                    self.term = driver.bearer.node.incarnation;
                    return Ok(driver);
                }
                Err(Failure::Lasting(error)) => lasting = Some(error),
                Err(Failure::Passing(reason)) => passing = reason,
            }
            if under_way.iter().all(|under_way| *under_way == 0) {
                break;
            }
        }
        match lasting {
            Some(error) if addresses.len() == 1 => Err(Failure::Lasting(error)),
            // At another address a driver may still come up.
            Some(error) => Err(Failure::Passing(error.to_string())),
            None => Err(Failure::Passing(passing)),
        }
    }

    async fn reach_at(
        &self,
        address: SocketAddr,
        identity: Option<&Identity>,
    ) -> Result<Driver, Failure> {
        let reached = timeout(HANDSHAKE_DEADLINE, self.prove(address, identity)).await;
        reached.unwrap_or_else(|_| Err(Failure::Passing(format!("{address}: no answer"))))
    }

    async fn prove(
        &self,
        address: SocketAddr,
        identity: Option<&Identity>,
    ) -> Result<Driver, Failure> {
        let (crypto, verifier) = tls::client(self.authority, identity, self.version)?;
        let config = settings::client(crypto, &self.deadlines);
        let connecting = match self.sockets.connect(config, address, DRIVER_SERVER_NAME) {
            Ok(connecting) => connecting,
            Err(SocketError::Socket(error)) => return Err(ConnectError::Socket(error).into()),
            Err(SocketError::Connect(error)) => return Err(Failure::Passing(error.to_string())),
        };
        let connection = match connecting.await {
            Ok(connection) => connection,
            Err(error) => return Err(self.explain(address, &error, verifier.finding())),
        };
        if !tls::is_same_version(&connection, self.version) {
            let error = connection.closed().await;
            return Err(self.explain(address, &error, Finding::Good));
        }
        let not_a_driver = |reason: &str| {
            close(&connection, CloseCode::Refused, reason);
            let reason = reason.to_owned();
            let address = address.to_string();
            Failure::from(ConnectError::NotADriver { address, reason })
        };
        let (bearer, authority) = match (tls::bearer(&connection), verifier.authority()) {
            (Some(Ok(bearer)), Some(authority)) => (bearer, authority),
            _ => return Err(not_a_driver("its certificate names no node")),
        };
        if bearer.node.name != NodeName::Driver {
            return Err(not_a_driver("its certificate is not a driver's"));
        }
        Ok(Driver { connection, bearer, authority })
    }

    /// One question and its answer, on a stream of their own.
    async fn ask(
        &self,
        connection: &Connection,
        question: &[u8],
        most: usize,
    ) -> Result<Vec<u8>, Failure> {
        let asked = timeout(HANDSHAKE_DEADLINE, async {
            let (mut send, mut receive) =
                connection.open_bi().await.map_err(|it| it.to_string())?;
            send.write_all(question).await.map_err(|it| it.to_string())?;
            send.finish().map_err(|it| it.to_string())?;
            receive.read_to_end(most).await.map_err(|it| it.to_string())
        });
        let reason = match asked.await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(reason)) => reason,
            Err(_) => "no answer in time".to_owned(),
        };
        match connection.close_reason() {
            Some(error) => Err(explain(&error, self.version)),
            None => {
                close(connection, CloseCode::Broken, &reason);
                Err(Failure::Passing(reason))
            }
        }
    }

    fn explain(&self, address: SocketAddr, error: &ConnectionError, finding: Finding) -> Failure {
        let address = address.to_string();
        match finding {
            Finding::WrongAuthority => {
                ConnectError::WrongAuthority { address, expected: self.authority }.into()
            }
            Finding::Expired => ConnectError::Expired { whose: "the driver's" }.into(),
            Finding::Invalid => {
                let reason = error.to_string();
                ConnectError::NotADriver { address, reason }.into()
            }
            Finding::Good => explain(error, self.version),
        }
    }
}

/// How often, while others do not answer, those that have are asked again; how long the first of those that do not
/// may take before a second attempt is begun beside it.
const AGAIN_EVERY: Duration = Duration::from_millis(500);

/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 8;

/// What the end of a connection, or of its handshake, means for somebody who wants in.
fn explain(error: &ConnectionError, ours: u32) -> Failure {
    match Ending::from(error) {
        Ending::Version(theirs) => ConnectError::Version { theirs: Some(theirs), ours }.into(),
        Ending::Refused(reason) => ConnectError::Refused { reason }.into(),
        Ending::Alert(AlertDescription::NoApplicationProtocol) => {
            ConnectError::Version { theirs: None, ours }.into()
        }
        Ending::Alert(AlertDescription::CertificateExpired) => {
            ConnectError::Expired { whose: "this node's" }.into()
        }
        Ending::Alert(
            alert @ (AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateRevoked
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::DecryptError
            | AlertDescription::AccessDenied),
        ) => {
            let reason = format!("it does not accept this node's certificate ({alert:?})");
            ConnectError::Refused { reason }.into()
        }
        _ => Failure::Passing(error.to_string()),
    }
}

fn given_up() -> Failure {
    Failure::Passing("the session was closed here".to_owned())
}

/// Waits between attempts, until it is too late.
struct Patience {
    started: Instant,
    until: Instant,
    last: String,
}

impl Patience {
    fn new(until: Instant) -> Self {
        Self { started: Instant::now(), until, last: "no answer".to_owned() }
    }

    async fn wait(
        &mut self,
        dialer: &mut Dialer,
        failure: Option<Failure>,
    ) -> Result<(), ConnectError> {
        match failure {
            Some(Failure::Lasting(error)) => return Err(error),
            Some(Failure::Passing(reason)) => self.last = reason,
            None => {}
        }
        let wait = dialer.backoff.next_wait();
        if Instant::now() + wait >= self.until {
            return Err(ConnectError::Unreachable {
                address: dialer.drivers.all().join(","),
                waited_ms: self.started.elapsed().as_millis(),
                last: std::mem::take(&mut self.last),
            });
        }
        tokio::time::sleep(wait).await;
        Ok(())
    }
}
