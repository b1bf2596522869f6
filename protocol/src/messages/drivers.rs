//! Messages about drivers: the addresses of the acting driver and its standbys, and the drivers as `status` shows them.

use serde::{Deserialize, Serialize};

/// Most driver addresses that a node remembers.
pub const DRIVERS_MAX: usize = 16;

/// Addresses of the drivers, the acting one first. Sent by the driver to agents and workers, which try earlier known
/// addresses after these.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct KnownDrivers {
    /// `HOST:PORT` each; of more than [`DRIVERS_MAX`] only the first are kept.
    pub addresses: Vec<String>,
}

/// One driver, as `status` shows it.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct DriverStatus {
    /// Its address, as `HOST:PORT`.
    pub address: String,
    /// The version of its program.
    pub version: String,
}
