//! `elastic_node._native`: the Rust part of the Python package. Its Python side, `elastic_node/`, is the only
//! caller, and has all that users see.
//!
//! Collectives and the life of generations are those of the Rust API: this crate adapts them to Python's
//! arrays, exceptions and interpreter lock.

mod array;
mod buffer;
mod call;
mod callback;
mod commit_block;
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
mod shards;
mod unlocked;

use pyo3::prelude::*;

#[pymodule]
#[pyo3(name = "_native")]
mod native {
    #[pymodule_export]
    use crate::call::PyCall;
    #[pymodule_export]
    use crate::callback::end_callbacks;
    #[pymodule_export]
    use crate::commit_block::CommitBlock;
    #[pymodule_export]
    use crate::communicator::PyGroup;
    #[pymodule_export]
    use crate::errors::{CollectiveError, ElasticError, HostsUpdatedInterrupt};
    #[pymodule_export]
    use crate::handle::PyHandle;
    #[pymodule_export]
    use crate::meeting::Meeting;
    #[pymodule_export]
    use crate::sampler::{permutation, share};
    #[pymodule_export]
    use crate::session::{PySection, PySession};
    #[pymodule_export]
    use crate::shards::{PyShardDeal, are_shard_siblings, plan_shards, shard_share, shard_stream};
}
