//! A check that the disk has room for the outputs of a task. Called by `ci`.

use std::io::Write as _;

use nix::sys::statvfs::statvfs;

use crate::steps::root;

/// Size of the files that all checks write below `target/` on a fresh checkout, in GiB: 7 of them are Python
/// packages, above all torch and TensorFlow.
const CI_GIB: u64 = 15;

/// Warns if the disk has less room than all checks of a fresh checkout take: a full disk fails a late step, with
/// words of the compiler's.
///
/// # Errors
/// The disk of the workspace cannot be asked, or stderr is closed.
pub(crate) fn warn_if_short() -> anyhow::Result<()> {
    let disk = statvfs(&root()?)?;
    let free_gib = (disk.blocks_available() * disk.fragment_size()) >> 30;
    if free_gib < CI_GIB {
        writeln!(
            std::io::stderr(),
            "warning: {free_gib} GiB are free on this disk; all checks of a fresh checkout take {CI_GIB}"
        )?;
    }
    Ok(())
}
