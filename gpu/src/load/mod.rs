//! Finding and opening the libraries of a GPU host at run time. Called by [`crate::Gpu::open`] and by
//! `elastic-node doctor`. Nothing is linked: on a machine without them this says so, and that is all.

mod library;
mod search;
mod table;

pub use library::{LoadError, Loaded};
pub use search::{CUDA_LIBRARY, Found, NCCL_LIBRARY, Search, Wanted};
pub(crate) use table::table;
