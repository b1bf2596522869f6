//! `elastic_node._native`: what the Python package has in Rust. Its Python side, `elastic_node/`, is the only
//! caller; what users see is there.
//!
//! Collectives and the life of generations are those of the Rust API: this crate brings arrays, exceptions and
//! the interpreter's lock together with them.

mod array;
mod buffer;
mod communicator;
mod content;
mod dlpack;
mod errors;
mod handle;
mod meeting;
mod on_gpu;
mod operation;
mod sampler;
mod session;
mod unlocked;

use pyo3::prelude::*;

#[pymodule]
#[pyo3(name = "_native")]
mod native {
    #[pymodule_export]
    use crate::communicator::Group;
    #[pymodule_export]
    use crate::errors::{CollectiveError, ElasticError, HostsUpdatedInterrupt};
    #[pymodule_export]
    use crate::handle::Handle;
    #[pymodule_export]
    use crate::meeting::Meeting;
    #[pymodule_export]
    use crate::sampler::{permutation, share};
    #[pymodule_export]
    use crate::session::Session;
}
