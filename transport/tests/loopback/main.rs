//! The transport over real sockets on loopback: sessions, security, abuse.

mod abuse;
mod harness;
mod security;
mod sessions;
