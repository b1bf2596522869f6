//! Memory beside the live state, such as a GPU's, that is committed, restored and synced with it as one unit. The
//! Rust API implements it (`src/api/device.rs`); [`State`](super::State) calls it.

use std::error::Error as StdError;

/// The error of a device.
pub type DeviceError = Box<dyn StdError + Send + Sync>;

/// Memory beside the live state. A commit of it is *begun* with the commit of the state and copied beside the
/// next step. It is then *finished*, and *kept* only together with the rest of the same step (H-22). Until then
/// the previous commit remains valid.
pub trait DeviceMemory {
    /// The length in bytes: the same on every rank, and constant.
    fn length_bytes(&self) -> usize;

    /// Waits until the previous step is done, then begins to copy. Begins nothing if `stop` gives a reason,
    /// also after the wait: aborted work may have finished with wrong results (G-4).
    ///
    /// # Errors
    /// The device refused, or `stop` gave a reason.
    fn begin_commit(&mut self, stop: &dyn Fn() -> Option<String>) -> Result<(), DeviceError>;

    /// Waits for the copy.
    ///
    /// # Errors
    /// The device refused.
    fn finish_commit(&mut self) -> Result<(), DeviceError>;

    /// Makes the finished copy the last commit.
    fn keep_commit(&mut self);

    /// Discards a commit that was begun and not kept.
    fn give_up_commit(&mut self);

    /// Passes the bytes of the last commit to `read`.
    fn read_commit(&self, read: &mut dyn FnMut(&[u8]));

    /// Replaces the last commit by another rank's, of the same length.
    ///
    /// # Errors
    /// The device refused.
    fn replace_commit(&mut self, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Replaces the content of the memory by the last commit.
    ///
    /// # Errors
    /// The device refused.
    fn restore(&mut self) -> Result<(), DeviceError>;

    /// Whether the content may differ from the last commit, or from the one that is being copied.
    fn is_changed(&self) -> bool;
}
