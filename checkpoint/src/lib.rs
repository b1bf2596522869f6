//! Durable checkpoints: a directory for each step, written part by part by several writers, sealed by one of them, and
//! verified by its readers. Workers write and read them; `elastic-node checkpoint` lists, verifies and exports them.
//!
//! This crate knows the format and the order in which data becomes durable, not what the state means. The state is a
//! sequence of bytes in which ranges are arrays with a name ([`Snapshot`]). docs/checkpoints.md describes the format.
//!
//! A checkpoint is whole once its `manifest.json` exists. The manifest gets its name only when all data that it names is
//! safe (`seal`), and loses it before any data is removed (`retain`). So a loss of power at any moment leaves the former
//! checkpoint or the new one. What a save that fails leaves behind is removed (`remains`).
//!
//! Everything goes through one trait, [`FileSystem`]: another kind of store is another implementation of it.

mod error;
mod export;
mod file_system;
#[cfg(test)]
mod interrupted;
mod layout;
mod manifest;
mod memory_files;
#[cfg(test)]
mod objects;
mod part;
mod part_file;
mod read;
mod remains;
mod retain;
mod seal;
mod set_aside;
mod snapshot;
mod stored;
#[cfg(test)]
mod tests;

pub use self::error::{CheckpointLoadError, Damage, SaveError};
pub use self::export::export;
pub use self::file_system::{FileSystem, LocalFiles, SeekableRead, SyncedWrite, store_of};
pub use self::layout::CommitLayout;
pub use self::manifest::{FileRecord, MANIFEST, Manifest, TensorRecord};
pub use self::memory_files::MemoryFiles;
pub use self::part::{PartSummary, part_bytes, write_part};
pub use self::read::{
    CheckpointCandidate, CheckpointSearch, CheckpointTrace, LoadedCheckpoint, is_removed, list,
    load, newest, verify,
};
pub use self::retain::{Retention, clear_partial};
pub use self::seal::{SealSummary, seal};
pub use self::set_aside::{set_aside_after, set_aside_all_after};
pub use self::snapshot::{CheckpointTensor, SaveAttempt, Snapshot, StateFields};
pub use self::stored::{OpenedCommit, StoredCommit};
pub use safetensors::Dtype;

/// Name of a step's directory.
pub fn step_directory(step: u64) -> String {
    format!("step-{step:010}")
}

/// The step that a directory's name means; none if it is no step's directory.
fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    (step_directory(step) == name).then_some(step)
}

/// Checksum of bytes, as it stands in manifests: XXH3-64, in hexadecimal digits.
///
/// The checksums are against damage, not against forgers: anybody who can write to the directory can also write a
/// manifest.
/// XXH3 is faster than memory is read, so it costs a save nothing, and the digest of a commit is XXH3 already.
fn checksum(bytes: &[u8]) -> String {
    hex(xxhash_rust::xxh3::xxh3_64(bytes))
}

fn hex(number: u64) -> String {
    format!("{number:016x}")
}
