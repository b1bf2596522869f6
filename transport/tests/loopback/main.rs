//! The transport over real sockets on loopback: sessions, security, abuse.

mod abuse;
mod harness;
mod raw;
mod security;
mod sessions;
