//! Credentials: the job's authority, tokens, certificates, and the exchange in which a node gets its own.

pub(crate) mod authority;
pub(crate) mod bearer;
pub(crate) mod credentials;
pub mod enrol;
pub(crate) mod job_secrets;
pub mod sealed;
pub(crate) mod secret;
pub(crate) mod shared;
pub(crate) mod token;
pub(crate) mod token_file;
