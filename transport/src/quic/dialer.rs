//! The connecting side: finds the driver, enrols, and keeps a connection with the driver for as long as the
//! node wants one.

use std::net::SocketAddr;
use std::rc::Rc;

use elastic_protocol::{Deadlines, Incarnation, NodeId, NodeName, Time};
use elastic_runtime::session::{HELLO_BYTES_MAX, SessionId, SessionWelcome};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use quinn::{Connection, ConnectionError};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::AlertDescription;
use rustls::pki_types::CertificateDer;
use tokio::time::{Instant, timeout, timeout_at};

use crate::identity::authority::DRIVER_SERVER_NAME;
use crate::identity::bearer::{Bearer, NodeIdentity};
use crate::identity::enrol::{
    ENROL_BYTES_MAX, EnrolAnswer, EnrolClaim, EnrolRefusal, EnrolRequest,
};
use crate::identity::secret::random_bytes;
use crate::identity::token::{Fingerprint, JoinToken, TokenKind};
use crate::passing_want::PassingWant;
use crate::peers::CloseCode;
use crate::peers::addresses::DriverAddresses;
use crate::peers::backoff::DialBackoff;
use crate::peers::search::{Attempt, Choice, DriverSearch, Failed};
use crate::quic::closing::{ConnectionClose, close};
use crate::quic::connect_error::{AttemptFailure, ConnectError};
use crate::quic::greeting::Greeting;
use crate::quic::links::QuicLinks;
use crate::quic::log_limit::LogLimit;
use crate::quic::lookups::Lookups;
use crate::quic::settings::{self, HANDSHAKE_DEADLINE};
use crate::quic::sockets::{SocketError, Sockets};
use crate::quic::tls::{self, CertificateFinding};

/// The search for the driver, and the connection with it.
pub(crate) struct Dialer {
    /// The addresses that are tried.
    pub(crate) drivers: Rc<DriverAddresses>,
    /// The addresses behind their names.
    pub(crate) lookups: Lookups,
    /// Term of the last driver that was met.
    pub(crate) term: Incarnation,
    pub(crate) authority: Fingerprint,
    pub(crate) deadlines: Deadlines,
    pub(crate) version: u32,
    pub(crate) backoff: DialBackoff,
    pub(crate) sockets: Rc<Sockets>,
}

/// A connection whose other end has proved to be the driver.
struct ProvenDriver {
    connection: Connection,
    bearer: Bearer,
    /// The authority's certificate, as shown by the driver.
    authority: CertificateDer<'static>,
}

/// A connection with a driver, for a session.
pub(crate) struct Reached {
    pub(crate) connection: Connection,
    /// The driver.
    pub(crate) node: NodeId,
}

/// The claim of a node of this name, if its token allows it.
pub(crate) fn claim(token: &JoinToken, name: &NodeName) -> Result<EnrolClaim, ConnectError> {
    match (&token.kind, name) {
        (TokenKind::Join, NodeName::Agent(host)) => Ok(EnrolClaim::Agent(host.clone())),
        (TokenKind::Join | TokenKind::Client, NodeName::Client) => Ok(EnrolClaim::Client),
        (TokenKind::Worker(worker), NodeName::Worker(host, slot))
            if worker.host == *host && worker.slot == *slot =>
        {
            Ok(EnrolClaim::Worker(worker.clone()))
        }
        _ => Err(ConnectError::TokenNotFor(name.clone())),
    }
}

impl Dialer {
    /// Gets a certificate from the driver, and a connection that can carry a session. Tries until it succeeds,
    /// or cannot succeed, or `until` has passed.
    pub(crate) async fn enrol(
        &mut self,
        token: &JoinToken,
        claim: &EnrolClaim,
        until: Instant,
    ) -> Result<(NodeIdentity, Reached), ConnectError> {
        // One key for all attempts: by the key, the driver recognises a worker whose answer was lost.
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(ConnectError::Key)?;
        let mut patience = DialPatience::new(until);
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
        token: &JoinToken,
        claim: &EnrolClaim,
        key: &KeyPair,
    ) -> Result<(NodeIdentity, Reached), AttemptFailure> {
        let driver = self.reach(None).await?;
        let request = EnrolRequest {
            claim: claim.clone(),
            secret: token.secret.clone(),
            public_key: key.public_key_raw().to_vec(),
        };
        let bytes = request.encode().map_err(|error| AttemptFailure::Passing(error.to_string()))?;
        let answer = self.ask(&driver.connection, &bytes, ENROL_BYTES_MAX).await?;
        let answer = EnrolAnswer::decode(&answer);
        if !matches!(answer, Ok(EnrolAnswer::Issued { .. })) {
            close(&driver.connection, CloseCode::Done, "the answer was read");
        }
        match answer {
            Ok(EnrolAnswer::Issued { node, certificate }) => {
                let identity = NodeIdentity {
                    bearer: Bearer { job: driver.bearer.job, node },
                    certificate: CertificateDer::from(certificate),
                    authority: driver.authority,
                    key: key.serialize_der(),
                };
                Ok((identity, Reached { connection: driver.connection, node: driver.bearer.node }))
            }
            Ok(EnrolAnswer::Refused(EnrolRefusal::Other(reason))) => {
                Err(ConnectError::Refused { reason }.into())
            }
            Ok(EnrolAnswer::Refused(refusal)) => Err(ConnectError::WrongSecret(refusal).into()),
            Err(error) => Err(AttemptFailure::Passing(error.to_string())),
        }
    }

    /// Begins the first session: over the connection that enrolled, or over another one if that has broken.
    pub(crate) async fn begin(
        &mut self,
        links: &Rc<QuicLinks>,
        identity: &NodeIdentity,
        enrolled: Reached,
        until: Instant,
    ) -> Result<Reached, ConnectError> {
        let Reached { connection, node: mut peer } = enrolled;
        let mut patience = DialPatience::new(until);
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
    pub(crate) async fn keep(
        mut self,
        links: Rc<QuicLinks>,
        identity: NodeIdentity,
        reached: Reached,
    ) {
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
                    Err(AttemptFailure::Passing(reason)) => reason,
                    Err(AttemptFailure::Lasting(error)) => error.to_string(),
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
        links: &Rc<QuicLinks>,
        identity: &NodeIdentity,
        peer: &mut NodeId,
    ) -> Result<Connection, AttemptFailure> {
        let ProvenDriver { connection, bearer, .. } = self.reach(Some(identity)).await?;
        if bearer.node != *peer {
            // The driver was restarted: it is another node, with which there is no session.
            links.replace_dialled(peer, &bearer.node);
            links.pump();
            *peer = bearer.node;
        }
        self.greet(links, connection, peer).await
    }

    /// Greets the driver over a connection, which then carries the session.
    async fn greet(
        &mut self,
        links: &Rc<QuicLinks>,
        connection: Connection,
        peer: &NodeId,
    ) -> Result<Connection, AttemptFailure> {
        let fresh = SessionId(u64::from_le_bytes(random_bytes()?));
        let session = links.hello(peer, fresh).ok_or_else(given_up)?;
        settings::welcome(&connection);
        let greeting = Greeting { session, process: links.own_process() };
        let bytes =
            greeting.encode().map_err(|error| AttemptFailure::Passing(error.to_string()))?;
        let answer = self.ask(&connection, &bytes, HELLO_BYTES_MAX).await?;
        let greeted = SessionWelcome::decode(&answer).map_err(|error| error.to_string()).and_then(
            |welcome| {
                let greeted = links.handle_welcome(peer, &connection, &welcome);
                greeted.map_err(|error| error.to_string())
            },
        );
        links.pump();
        if let Err(reason) = greeted {
            let wanted = links.is_dialled(peer);
            let code = if wanted { CloseCode::Broken } else { CloseCode::Closed };
            close(&connection, code, &reason);
            return Err(AttemptFailure::Passing(reason));
        }
        self.backoff.reset();
        Ok(connection)
    }

    /// Makes a connection with the driver, trying all known addresses ([`DriverSearch`]).
    async fn reach(
        &mut self,
        identity: Option<&NodeIdentity>,
    ) -> Result<ProvenDriver, AttemptFailure> {
        let (addresses, why_none) =
            self.lookups.addresses(&self.drivers.all(), self.drivers.met()).await;
        let why_none = why_none.unwrap_or_else(|| "the name has no address".to_owned());
        let this = &*self;
        let dial = |index: usize| {
            let address = addresses[index];
            async move { (index, this.reach_at(address, identity).await) }
        };
        let origin = Instant::now();
        let within = HANDSHAKE_DEADLINE;
        let mut search =
            DriverSearch::new(Time::ZERO, addresses.len(), why_none, this.term, within);
        let mut attempts = FuturesUnordered::new();
        let driver = loop {
            while let Some(index) = search.poll_attempt() {
                attempts.push(dial(index));
            }
            if search.is_over() {
                break None;
            }
            let tick = origin + search.poll_timeout().since(Time::ZERO);
            let Ok(Some((index, attempt))) = timeout_at(tick, attempts.next()).await else {
                search.handle_timeout(Time::ZERO + origin.elapsed());
                continue;
            };
            let (attempt, driver) = match attempt {
                Ok(driver) => (Attempt::Reached(driver.bearer.node.incarnation), Some(driver)),
                Err(AttemptFailure::Lasting(error)) => (Attempt::Lasting(error), None),
                Err(AttemptFailure::Passing(reason)) => (Attempt::Passing(reason), None),
            };
            match (search.handle_attempt(index, attempt), driver) {
                (Choice::Take, driver) => break driver.map(|driver| (driver, addresses[index])),
                (Choice::Succeeded, Some(driver)) => {
                    close(&driver.connection, CloseCode::Closed, "a later term is known");
                }
                (Choice::Succeeded, None) => {}
            }
        };
        drop(attempts);
        match driver {
            Some((driver, address)) => {
                self.term = driver.bearer.node.incarnation;
                self.drivers.handle_met(address);
                Ok(driver)
            }
            None => Err(match search.into_failure() {
                Failed::Lasting(error) => AttemptFailure::Lasting(error),
                Failed::Passing(reason) => AttemptFailure::Passing(reason),
            }),
        }
    }

    async fn reach_at(
        &self,
        address: SocketAddr,
        identity: Option<&NodeIdentity>,
    ) -> Result<ProvenDriver, AttemptFailure> {
        let reached = timeout(HANDSHAKE_DEADLINE, self.prove(address, identity)).await;
        reached.unwrap_or_else(|_| Err(AttemptFailure::Passing(format!("{address}: no answer"))))
    }

    async fn prove(
        &self,
        address: SocketAddr,
        identity: Option<&NodeIdentity>,
    ) -> Result<ProvenDriver, AttemptFailure> {
        let (crypto, verifier) = tls::client(self.authority, identity, self.version)?;
        let config = settings::client(crypto, &self.deadlines);
        let connecting = match self.sockets.connect(config, address, DRIVER_SERVER_NAME) {
            Ok(connecting) => connecting,
            Err(SocketError::Socket(error)) if PassingWant::tells_of(&error) => {
                return Err(AttemptFailure::Passing(format!("no UDP socket: {error}")));
            }
            Err(SocketError::Socket(error)) => return Err(ConnectError::Socket(error).into()),
            Err(SocketError::Connect(error)) => {
                return Err(AttemptFailure::Passing(error.to_string()));
            }
        };
        let connection = match connecting.await {
            Ok(connection) => connection,
            Err(error) => return Err(self.explain(address, &error, verifier.finding())),
        };
        if !tls::is_same_version(&connection, self.version) {
            self.say_release(&connection).await;
            let error = connection.closed().await;
            return Err(self.explain(address, &error, CertificateFinding::Good));
        }
        let not_a_driver = |reason: &str| {
            close(&connection, CloseCode::Refused, reason);
            let reason = reason.to_owned();
            let address = address.to_string();
            AttemptFailure::from(ConnectError::NotADriver { address, reason })
        };
        let (bearer, authority) = match (tls::bearer(&connection), verifier.authority()) {
            (Some(Ok(bearer)), Some(authority)) => (bearer, authority),
            _ => return Err(not_a_driver("its certificate names no node")),
        };
        if bearer.node.name != NodeName::Driver {
            return Err(not_a_driver("its certificate is not a driver's"));
        }
        Ok(ProvenDriver { connection, bearer, authority })
    }

    /// Tells a driver of another version what this program is, for its log. The driver's own words follow in any case.
    async fn say_release(&self, connection: &Connection) {
        if let Ok((mut send, _)) = connection.open_bi().await {
            let said = send.write_all(tls::release(self.version).as_bytes()).await;
            drop(said.map(|()| send.finish()));
        }
    }

    /// Sends one question and reads its answer, on a stream of their own.
    async fn ask(
        &self,
        connection: &Connection,
        question: &[u8],
        most: usize,
    ) -> Result<Vec<u8>, AttemptFailure> {
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
                Err(AttemptFailure::Passing(reason))
            }
        }
    }

    fn explain(
        &self,
        address: SocketAddr,
        error: &ConnectionError,
        finding: CertificateFinding,
    ) -> AttemptFailure {
        let address = address.to_string();
        match finding {
            CertificateFinding::WrongAuthority => {
                ConnectError::WrongAuthority { address, expected: self.authority }.into()
            }
            CertificateFinding::Expired => ConnectError::Expired { whose: "the driver's" }.into(),
            CertificateFinding::Invalid => {
                let reason = error.to_string();
                ConnectError::NotADriver { address, reason }.into()
            }
            CertificateFinding::Good => explain(error, self.version),
        }
    }
}

/// The meaning of the end of a connection, or of its handshake, to a node that wants in.
fn explain(error: &ConnectionError, ours: u32) -> AttemptFailure {
    match ConnectionClose::from(error) {
        ConnectionClose::Version(theirs) => {
            // Releases before protocol 2 send their number alone.
            let is_number = theirs.parse::<u32>().is_ok();
            let theirs = if is_number { format!("protocol {theirs}") } else { theirs };
            ConnectError::Version { theirs, ours: tls::release(ours) }.into()
        }
        ConnectionClose::Refused(reason) => ConnectError::Refused { reason }.into(),
        ConnectionClose::Alert(AlertDescription::NoApplicationProtocol) => {
            let theirs = "a program of another protocol".to_owned();
            ConnectError::Version { theirs, ours: tls::release(ours) }.into()
        }
        ConnectionClose::Alert(AlertDescription::CertificateExpired) => {
            ConnectError::Expired { whose: "this node's" }.into()
        }
        ConnectionClose::Alert(
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
        _ => AttemptFailure::Passing(error.to_string()),
    }
}

fn given_up() -> AttemptFailure {
    AttemptFailure::Passing("the session was closed here".to_owned())
}

/// The waits between attempts, with a time limit.
struct DialPatience {
    started: Instant,
    until: Instant,
    last: String,
}

impl DialPatience {
    fn new(until: Instant) -> Self {
        Self { started: Instant::now(), until, last: "no answer".to_owned() }
    }

    async fn wait(
        &mut self,
        dialer: &mut Dialer,
        failure: Option<AttemptFailure>,
    ) -> Result<(), ConnectError> {
        match failure {
            Some(AttemptFailure::Lasting(error)) => return Err(error),
            Some(AttemptFailure::Passing(reason)) => self.last = reason,
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
