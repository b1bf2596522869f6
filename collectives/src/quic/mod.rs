//! QUIC between hosts, for networks where only UDP passes ([`crate::DataPlane`]): streams of quinn's connections,
//! which the forming of groups and their links use as they use TCP's.
//!
//! A thread, and not the kernel as for TCP, has to acknowledge and retransmit, and the training thread does neither
//! while it computes. So one thread of the process, started when a group first forms over QUIC, drives all
//! connections. It hands each stream to the training thread as one end of a socket pair. That costs one more copy
//! each way, and leaves every algorithm, farewell and handshake unchanged.

mod endpoint;
mod handshakes;
mod relay;
mod session;
mod stream_delivery;
mod thread;
mod tls;

pub(crate) use endpoint::{Endpoint, Stream};
pub(crate) use session::{QuicSession, SessionTraffic};
