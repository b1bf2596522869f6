//! The GPU of this worker with its libraries, opened once in a process, or one clear line with the reason for having
//! none. Opened by the Rust API.

use std::sync::Arc;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::cuda::{Cuda, CudaError, Device};
use crate::load::{LibrarySearch, LoadError};
use crate::nccl::{Bounded, CommError, Features, GpuPatience, Maker, Nccl};

/// The variable that lets several ranks use one GPU, from NCCL 2.30.3 on.
pub const SEVERAL_RANKS_PER_GPU: &str = "NCCL_MULTI_RANK_GPU_ENABLE";

/// Most time for loading NCCL's kernels beforehand. After it, the first generation loads them.
const WARM_UP_MAX: Duration = Duration::from_secs(10);

/// Reason for having no usable GPU.
#[derive(Debug, Error)]
pub enum NoGpu {
    /// The machine has no driver.
    #[error("no CUDA driver (libcuda.so.1) is installed")]
    NoDriver,
    /// The driver sees no GPU.
    #[error("the CUDA driver sees no GPU")]
    NoDevice,
    /// The worker's slot has no GPU of its own.
    #[error(
        "slot {slot} has no GPU of its own: {count} are there, and several ranks on one need NCCL 2.30.3 and \
         NCCL_MULTI_RANK_GPU_ENABLE=1"
    )]
    NoneLeft {
        /// The worker's slot.
        slot: u32,
        /// Number of GPUs of the machine.
        count: u32,
    },
    /// The machine has no NCCL.
    #[error("no NCCL (libnccl.so.2) is installed, on the system or in a Python environment")]
    NoNccl,
    /// A library is there and cannot be used.
    #[error(transparent)]
    Broken(#[from] LoadError),
    /// CUDA refused.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// A GPU, with its libraries and the maker of its communicators.
#[derive(Debug)]
pub struct Gpu {
    cuda: Arc<Cuda>,
    maker: Maker,
}

impl Gpu {
    /// Opens the libraries, and takes the GPU of a slot into use. With `may_share`, slots beyond the last GPU start
    /// from the first one again, where NCCL can do that.
    ///
    /// # Errors
    ///
    /// [`NoGpu`] says in one line why there is none.
    pub fn open(search: &LibrarySearch, slot: u32, may_share: bool) -> Result<Gpu, NoGpu> {
        let cuda = Arc::new(Cuda::open(search)?.ok_or(NoGpu::NoDriver)?);
        let count = Device::count(&cuda)?;
        if count == 0 {
            return Err(NoGpu::NoDevice);
        }
        let nccl = Arc::new(Nccl::open(search)?.ok_or(NoGpu::NoNccl)?);
        let shares = may_share && nccl.features().several_ranks_per_gpu;
        if slot >= count && !shares {
            return Err(NoGpu::NoneLeft { slot, count });
        }
        let device = Device::open(Arc::clone(&cuda), slot % count)?;
        let reaper = Arc::new(Bounded::new("gpu-reaper"));
        let endings = Arc::new(Bounded::new("gpu-endings"));
        Ok(Gpu { cuda, maker: Maker { nccl, device, reaper, endings } })
    }

    /// Has NCCL load its kernels, by a communicator of one rank. The first communicator of a process takes some 0.5 s longer for
    /// that (NCCL 2.31 on an H100), which the members of a running job would wait for.
    ///
    /// # Errors
    ///
    /// Any [`CommError`]; the first generation meets the same.
    #[expect(clippy::disallowed_methods, reason = "the worker has not arrived yet")]
    pub fn warm_up(&self) -> Result<(), CommError> {
        let patience = GpuPatience { due: Instant::now() + WARM_UP_MAX, stop: &|| None };
        let id = self.maker.nccl.unique_id()?;
        // Its end takes as long again, and goes on beside.
        self.maker.init(&id, 1, 0, &patience).map(drop)
    }

    /// The driver.
    pub fn cuda(&self) -> &Cuda {
        &self.cuda
    }

    /// The maker of communicators.
    pub const fn maker(&self) -> &Maker {
        &self.maker
    }

    /// The GPU.
    pub const fn device(&self) -> &Arc<Device> {
        &self.maker.device
    }

    /// Capabilities of this NCCL.
    pub fn features(&self) -> Features {
        self.maker.nccl.features()
    }

    /// The libraries in use, for people.
    pub fn describe(&self) -> String {
        let Maker { nccl, device, .. } = &self.maker;
        let facts = device.facts();
        format!(
            "{} ({}), CUDA driver {}, NCCL {} of {}, found {}",
            facts.name,
            facts.bus,
            self.cuda.version(),
            nccl.version(),
            nccl.file().display(),
            nccl.how()
        )
    }
}

/// An error with its causes, on one line.
pub fn describe_error(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
