//! Finding and opening the libraries of a GPU host at run time. Called by [`crate::Gpu::open`] and by
//! `elastic-node doctor`. Nothing is linked: on a machine without them this says so, and that is all.

mod library;
mod search;
mod table;

pub use library::{LoadError, LoadedLibrary};
pub use search::{CUDA_LIBRARY, Found, LibrarySearch, NCCL_LIBRARY, WantedLibrary};
pub(crate) use table::table;
