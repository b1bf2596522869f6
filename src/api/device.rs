//! State on this worker's GPU: arrays that a `State` commits, restores and passes to newcomers with the rest.
//! Called by training functions; `elastic_gpu` does the copying.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use elastic_collectives::CollectiveError;
use elastic_collectives::wire::OperationKind;
use elastic_gpu::cuda::{DeviceBuffer, Stream};
use elastic_gpu::nccl::GpuPatience;
use elastic_gpu::{CommitCost, DeviceState, Gpu, NcclGroup};
use elastic_worker::state::environment::WorkerEnvironment;
use elastic_worker::state::training::{DeviceError, DeviceMemory, Error, Group, Result};

use super::gpu::opened;

/// Limit for GPU operations that need no peer. A GPU that takes longer is lost (G-9).
const GPU_MAX: Duration = Duration::from_secs(60);

/// This worker's GPU, with the stream of its training.
#[derive(Clone, Debug)]
pub struct LocalGpu {
    gpu: Arc<Gpu>,
    stream: Rc<Stream>,
}

/// Opens this worker's GPU, as `run` does: the GPU of its slot, or the first one without a driver. `None` if
/// the collectives are the CPU's.
///
/// # Errors
/// A library is broken, or NCCL is demanded and missing.
pub fn local_gpu() -> Result<Option<LocalGpu>> {
    let environment = WorkerEnvironment::parse(|name| std::env::var(name).ok())?;
    let slot = environment.map_or(0, |environment| environment.worker.slot);
    let (_, gpu) = opened(slot)?;
    let Ok(gpu) = gpu else { return Ok(None) };
    let stream = Stream::new(gpu.device()).map_err(|source| Error::Start {
        what: "making a stream on the GPU".to_owned(),
        source: source.into(),
    })?;
    Ok(Some(LocalGpu { gpu, stream: Rc::new(stream) }))
}

/// Calls NCCL on data on the GPU, if this generation's collectives are NCCL's in all of the world.
///
/// # Errors
/// As [`Group::all_reduce`]; [`Error::Collective`] if the collectives are the CPU's.
pub fn with_nccl<T>(
    group: &Group,
    operation: impl FnOnce(&mut NcclGroup) -> Result<T, CollectiveError>,
) -> Result<T> {
    group.call(|group| match group.as_any_mut().downcast_mut::<NcclGroup>() {
        Some(nccl) => operation(nccl),
        None => Err(CollectiveError::InvalidArgument {
            operation: OperationKind::AllReduce,
            reason: "data on the GPU needs NCCL in all of the world, and it is not used".to_owned(),
        }),
    })
}

impl LocalGpu {
    /// The stream of training: commits follow the work that is queued there, and restores precede the work that
    /// is queued later.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The GPU and its libraries.
    pub const fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// An array of zeroes. Give a clone of it to [`State::add_device_memory`](crate::State::add_device_memory).
    ///
    /// # Errors
    /// [`Error::Device`]: the GPU lacks memory for the array, or the host for two commits of it.
    pub fn array(&self, bytes: usize) -> Result<DeviceArray> {
        let made = DeviceState::new(self.gpu.device(), bytes)
            .map_err(|source| Error::Device { action: "allocated", source: source.into() })?;
        let inner =
            DeviceArrayInner { state: made, stream: Rc::clone(&self.stream), is_changed: true };
        let array = DeviceArray(Rc::new(RefCell::new(inner)));
        array.write(&vec![0; bytes])?;
        Ok(array)
    }
}

/// Bytes on the GPU. Clones are the same array.
#[derive(Clone, Debug)]
pub struct DeviceArray(Rc<RefCell<DeviceArrayInner>>);

#[derive(Debug)]
struct DeviceArrayInner {
    state: DeviceState,
    stream: Rc<Stream>,
    is_changed: bool,
}

impl DeviceArray {
    /// Lends the array to work that only reads it.
    pub fn read_by<T>(&self, work: impl FnOnce(&DeviceBuffer) -> T) -> T {
        work(self.0.borrow().state.buffer())
    }

    /// Lends the array to work that changes it and is queued on `stream`. Work that is queued there from here
    /// on comes after the copy of a commit that is still in progress.
    ///
    /// # Errors
    /// [`Error::Device`]: CUDA refused.
    pub fn change_by<T>(
        &self,
        stream: &Stream,
        work: impl FnOnce(&DeviceBuffer) -> T,
    ) -> Result<T> {
        let mut inner = self.0.borrow_mut();
        inner.is_changed = true;
        inner.state.before_update(stream).map_err(|source| failed("changed", source))?;
        Ok(work(inner.state.buffer()))
    }

    /// Replaces the array's content, after all work that is queued on the GPU's stream.
    ///
    /// # Errors
    /// [`Error::Device`]: CUDA refused, or took too long.
    ///
    /// # Panics
    /// If the number of bytes differs from the array's.
    pub fn write(&self, bytes: &[u8]) -> Result<()> {
        let mut inner = self.0.borrow_mut();
        inner.is_changed = true;
        let DeviceArrayInner { state, stream, .. } = &*inner;
        patiently(&|| None, |patience| state.write(bytes, stream, patience))
            .map_err(|source| failed("written", source))
    }

    /// The array's content, after all work that is queued on the GPU's stream.
    ///
    /// # Errors
    /// [`Error::Device`]: CUDA refused, or took too long.
    pub fn read(&self) -> Result<Vec<u8>> {
        let DeviceArrayInner { state, stream, .. } = &*self.0.borrow();
        patiently(&|| None, |patience| state.read(stream, patience))
            .map_err(|source| failed("read", source))
    }

    /// The cost of its commits so far.
    pub fn commit_cost(&self) -> CommitCost {
        self.0.borrow().state.cost()
    }
}

impl DeviceMemory for DeviceArray {
    fn length_bytes(&self) -> usize {
        self.0.borrow().state.buffer().len()
    }

    fn begin_commit(&mut self, stop: &dyn Fn() -> Option<String>) -> Result<(), DeviceError> {
        let DeviceArrayInner { state, stream, is_changed } = &mut *self.0.borrow_mut();
        patiently(stop, |patience| state.begin_commit(stream, patience))?;
        *is_changed = false;
        Ok(())
    }

    fn finish_commit(&mut self) -> Result<(), DeviceError> {
        let state = &mut self.0.borrow_mut().state;
        Ok(patiently(&|| None, |patience| state.finish_commit(patience))?)
    }

    fn keep_commit(&mut self) {
        self.0.borrow_mut().state.keep_commit();
    }

    fn give_up_commit(&mut self) {
        let DeviceArrayInner { state, is_changed, .. } = &mut *self.0.borrow_mut();
        *is_changed = true;
        // If the GPU hangs in the copy, the next use of the GPU reports that.
        let _ = patiently(&|| None, |patience| state.give_up_commit(patience));
    }

    fn read_commit(&self, read: &mut dyn FnMut(&[u8])) {
        if let Some(bytes) = self.0.borrow().state.committed() {
            read(bytes);
        }
    }

    fn replace_commit(&mut self, bytes: &[u8]) -> Result<(), DeviceError> {
        let state = &mut self.0.borrow_mut().state;
        Ok(patiently(&|| None, |patience| state.replace_commit(bytes, patience))?)
    }

    fn restore(&mut self) -> Result<(), DeviceError> {
        let DeviceArrayInner { state, stream, is_changed } = &mut *self.0.borrow_mut();
        patiently(&|| None, |patience| state.restore(stream, patience))?;
        *is_changed = false;
        Ok(())
    }

    fn is_changed(&self) -> bool {
        self.0.borrow().is_changed
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the training thread is outside of the deterministic world"
)]
fn patiently<T>(stop: &dyn Fn() -> Option<String>, call: impl FnOnce(&GpuPatience<'_>) -> T) -> T {
    call(&GpuPatience { due: Instant::now() + GPU_MAX, stop })
}

fn failed(action: &'static str, source: impl Into<DeviceError>) -> Error {
    Error::Device { action, source: source.into() }
}
