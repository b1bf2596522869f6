//! The data plane of a generation: chosen by `--data-plane`, told to its members, followed by the collectives.

use serde::{Deserialize, Serialize};

/// The paths that carry the data of collectives.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum DataPlane {
    /// Shared memory within a host, TCP between hosts.
    #[default]
    Auto,
    /// TCP between all ranks.
    Tcp,
    /// QUIC between all ranks: always encrypted.
    Quic,
    /// Shared memory within a host, QUIC between hosts.
    ShmQuic,
}

impl DataPlane {
    /// Whether ranks of one host share memory.
    pub const fn shares_memory(self) -> bool {
        matches!(self, Self::Auto | Self::ShmQuic)
    }

    /// Whether ranks that do not share memory are connected by QUIC; by TCP otherwise.
    pub const fn is_quic(self) -> bool {
        matches!(self, Self::Quic | Self::ShmQuic)
    }
}
