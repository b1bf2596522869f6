//! The transport trait over QUIC: quinn and rustls, mutual TLS 1.3, one connection a pair of nodes.
//!
//! The driver has an [`Authority`] for its job and listens with it ([`QuicTransport::listen`]). Another
//! node is given a [`Token`], which pins the authority and holds a secret. It connects without a
//! certificate, sees that the driver's chain leads to the pinned authority, shows the secret, gets a
//! certificate for its [`NodeId`](elastic_protocol::NodeId), and connects again with it
//! ([`QuicTransport::connect`]). Sessions outlive connections: [`elastic_runtime::session`].

mod authority;
mod backoff;
mod closing;
mod connect_error;
mod credentials;
mod dialer;
pub mod enrol;
mod identity;
mod job_secrets;
mod join;
mod known_drivers;
mod link;
mod links;
mod listener;
mod liveness;
mod log_limit;
mod reserved;
mod secret;
mod settings;
mod sockets;
mod tls;
mod token;
mod token_file;
mod transport;
pub mod wire;

pub use authority::{Authority, AuthorityError, Validity};
pub use connect_error::ConnectError;
pub use credentials::Credentials;
pub use enrol::{Claim, EnrolRequest, Refusal};
pub use identity::{Bearer, Identity, NoBearer};
pub use job_secrets::{JobSecrets, StoredSecretsError};
pub use join::{JoinedNode, join};
pub use listener::Admit;
pub use reserved::ReservedAddress;
pub use secret::{NoRandomness, Secret};
pub use tls::{PROTOCOL_VERSION, TlsError};
pub use token::{Fingerprint, InvalidToken, Token, TokenKind};
pub use token_file::{TOKEN_FILE, TokenFileError, read_token, write_token};
pub use transport::{ConnectOptions, ListenError, ListenOptions, QuicTransport};
