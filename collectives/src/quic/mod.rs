//! QUIC between hosts, for networks where only UDP passes ([`crate::DataPlane`]): streams of quinn's connections,
//! which the forming of groups and their links use as they use TCP's.
//!
//! A training thread that computes acknowledges nothing and repeats nothing, as the kernel does for TCP. So one thread of
//! the process, started when a group first forms over QUIC, drives all connections, and hands each stream to the training
//! thread as one end of a socket pair: one copy more each way, and every algorithm, farewell and handshake as it is.

mod endpoint;
mod relay;
mod session;
mod thread;
mod tls;

pub(crate) use endpoint::{Endpoint, Stream};
pub(crate) use session::Session;
