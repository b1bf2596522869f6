//! Memory beside the live state, such as a GPU's, that is committed, restored and synced with it as one unit. The
//! Rust API implements it (`src/api/device.rs`); [`State`](super::State) calls it.

use std::error::Error as StdError;

/// Why a device refused.
pub type DeviceError = Box<dyn StdError + Send + Sync>;

/// Memory beside the live state. A commit of it is *begun* with the commit of the state, goes on beside the next step,
/// is *finished*, and is *kept* only together with all else of the same step (H-22); until then the last one stands.
pub trait DeviceMemory {
    /// Its length in bytes: the same on every rank, and for good.
    fn length_bytes(&self) -> usize;

    /// Waits until the step before is done, then begins to copy. Begins nothing where `stop` gives a reason, also
    /// after the wait: what was aborted may be done all the same, and wrong (G-4).
    ///
    /// # Errors
    /// The device refused, or `stop` gave a reason.
    fn begin_commit(&mut self, stop: &dyn Fn() -> Option<String>) -> Result<(), DeviceError>;

    /// Waits for the copy.
    ///
    /// # Errors
    /// The device refused.
    fn finish_commit(&mut self) -> Result<(), DeviceError>;

    /// The finished copy is the last commit from here on.
    fn keep_commit(&mut self);

    /// What was begun and not kept does not count.
    fn give_up_commit(&mut self);

    /// Shows the last commit.
    fn read_commit(&self, read: &mut dyn FnMut(&[u8]));

    /// Replaces the last commit by another rank's, of the same length.
    ///
    /// # Errors
    /// The device refused.
    fn replace_commit(&mut self, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Replaces its content by the last commit.
    ///
    /// # Errors
    /// The device refused.
    fn restore(&mut self) -> Result<(), DeviceError>;

    /// Whether its content may differ from the last commit, or from the one that is being copied.
    fn is_changed(&self) -> bool;
}
