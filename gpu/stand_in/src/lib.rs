//! **A test fixture. It never ships, and nothing but tests loads it.** It has the C interfaces of CUDA's driver and of
//! NCCL as far as this project calls them, on host memory: device memory is the heap's, a stream is a thread, and
//! the ranks of a communicator meet in a file below `/dev/shm`, whichever processes they are in.
//!
//! A file that `STAND_IN_FAULTS` names sets the faults to commit, the version of NCCL to report, and the number of
//! GPUs ([`faults`]).
//!
//! [`collective`] does the work, [`comm`] and [`cuda`] are the two interfaces.

#![allow(unsafe_code, reason = "it implements two C interfaces")]
#![allow(non_snake_case, reason = "the names are CUDA's and NCCL's")]
#![allow(missing_docs, clippy::missing_safety_doc, reason = "the interfaces are CUDA's and NCCL's")]
#![allow(
    clippy::disallowed_methods,
    reason = "a fixture with threads, outside of the deterministic world"
)]

pub mod collective;
pub mod comm;
pub mod cuda;
pub mod faults;
pub mod reduce;
pub mod segment;
pub mod stream;
