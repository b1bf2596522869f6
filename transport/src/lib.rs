//! The transport trait over QUIC: quinn and rustls, mutual TLS 1.3, one connection for each pair of nodes.
//!
//! The driver has an [`Authority`] for its job and listens with it ([`QuicTransport::listen`]). Every other
//! node is given a [`JoinToken`], which pins the authority and holds a secret. The node connects without a
//! certificate, and checks that the driver's chain leads to the pinned authority. It shows the secret, gets a
//! certificate for its [`NodeId`](elastic_protocol::NodeId), and connects with the certificate from then on
//! ([`QuicTransport::connect`]). Sessions outlive connections: [`elastic_runtime::session`].
//!
//! `peers` decides without I/O, `quic` has the sockets and connections, `identity` the credentials, `network` this
//! host's addresses, `passing_want` the wait for what this host lacks for a moment.

mod identity;
pub mod network;
mod passing_want;
pub mod peers;
mod quic;

pub use identity::enrol;
pub use identity::sealed;
pub use quic::wire;

pub use identity::authority::{Authority, AuthorityError, Validity};
pub use identity::bearer::{Bearer, NoBearer, NodeIdentity};
pub use identity::credentials::Credentials;
pub use identity::enrol::{EnrolClaim, EnrolRefusal, EnrolRequest};
pub use identity::job_secrets::{JobSecrets, StoredSecretsError};
pub use identity::secret::{NoRandomness, TokenSecret};
pub use identity::shared::SharedSecret;
pub use identity::token::{Fingerprint, InvalidToken, JoinToken, TokenKind};
pub use identity::token_file::{
    TOKEN_FILE, TokenFileError, is_token_draft, read_token, write_token,
};
pub use passing_want::PassingWant;
pub use peers::addresses::{DriverAddresses, FoundDrivers, each_once};
pub use quic::connect_error::ConnectError;
pub use quic::greeting::Greeting;
pub use quic::join::{JoinedNode, join};
pub use quic::listener::Admit;
pub use quic::process_identity::ProcessIdentity;
pub use quic::reserved::ReservedAddress;
pub use quic::tls::{PROTOCOL_VERSION, TlsError, alpn};
pub use quic::transport::{ConnectOptions, ListenError, ListenOptions, QuicTransport};
