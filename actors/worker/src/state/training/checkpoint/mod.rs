//! Durable checkpoints at the worker. The training thread gives a commit away when it is due (`desk`), and a thread
//! beside it writes this rank's part (`writer`). At the start of a job one rank finds the newest checkpoint (`search`).
//! All ranks then read it together (`resume`, `shares`), or check it and leave its arrays in the files (`in_files`).
//! `tensors` finds the arrays in a commit, and their names.

mod desk;
mod in_files;
mod jobs;
mod resume;
mod search;
mod shares;
pub mod tensors;
#[cfg(test)]
mod tests;
mod writer;

pub use desk::CheckpointDesk;
pub(super) use desk::{SaveOrder, SavedCommit};
pub(super) use resume::{LoadedCommit, ResumePorts, resume};
pub(super) use search::begin_anew;
