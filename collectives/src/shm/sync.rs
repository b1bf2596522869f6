//! The atomics of the shared words: those of the machine, and under `cfg(model_checked)` those of the model checker.

#[cfg(model_checked)]
pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(model_checked))]
pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
