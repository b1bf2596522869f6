//! What the driver tells of itself and of those that stand by for it.

use serde::{Deserialize, Serialize};

/// How many drivers a node remembers.
pub const DRIVERS_MAX: usize = 16;

/// From the driver to agents and workers: where a driver may be found, this one first. What they were told before
/// is forgotten.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct KnownDrivers {
    /// `HOST:PORT` each; of more than [`DRIVERS_MAX`] the first count.
    pub addresses: Vec<String>,
}

/// A driver, for whoever asks how the job stands.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct DriverStatus {
    /// Where it is reached, as `HOST:PORT`.
    pub address: String,
    /// The version of its program.
    pub version: String,
}
