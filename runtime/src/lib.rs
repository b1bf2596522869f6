//! The actor kit of Elastic Node over actix: the only crate that calls actix's lifecycle.

pub mod session;
pub mod transport;
