//! State on this worker's GPU: arrays that a `State` commits, restores and gives to newcomers with the rest. Called by
//! training functions; `elastic_gpu` does the copying.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use elastic_collectives::CollectiveError;
use elastic_collectives::wire::OperationKind;
use elastic_gpu::cuda::{DeviceBuffer, Stream};
use elastic_gpu::nccl::Patience;
use elastic_gpu::{CommitCost, DeviceState, Gpu, NcclGroup};
use elastic_worker::state::environment::WorkerEnvironment;
use elastic_worker::state::training::{DeviceError, DeviceMemory, Error, Group, Result};

use super::gpu::opened;

/// How long the GPU may take for what nobody else has a part in. A GPU that takes longer is lost (G-9).
const GPU_MAX: Duration = Duration::from_secs(60);

/// This worker's GPU, with the stream of its training.
#[derive(Clone, Debug)]
pub struct LocalGpu {
    gpu: Arc<Gpu>,
    stream: Rc<Stream>,
}

/// Opens this worker's GPU, as `run` does: that of its slot, or the first one without a driver. `None` where the
/// collectives are the CPU's.
///
/// # Errors
/// A library is broken, or NCCL was demanded and is not there.
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

/// Calls NCCL on data that is on the GPU, where this generation's collectives are NCCL's in all of the world.
///
/// # Errors
/// As [`Group::all_reduce`]; [`Error::Collective`] where they are the CPU's.
pub fn with_nccl<T>(
    group: &Group,
    operation: impl FnOnce(&mut NcclGroup) -> Result<T, CollectiveError>,
) -> Result<T> {
    group.call(|group| {
        match group.as_any_mut().and_then(|group| group.downcast_mut::<NcclGroup>()) {
            Some(nccl) => operation(nccl),
            None => Err(CollectiveError::InvalidArgument {
                operation: OperationKind::AllReduce,
                reason: "data on the GPU needs NCCL in all of the world, and it is not used"
                    .to_owned(),
            }),
        }
    })
}

impl LocalGpu {
    /// Its stream: commits follow what is queued there, and restores come before what is queued later.
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
    /// [`Error::Device`]: memory of the GPU, or of the host for two commits of it, is short.
    pub fn array(&self, bytes: usize) -> Result<DeviceArray> {
        let made = DeviceState::new(self.gpu.device(), bytes)
            .map_err(|source| Error::Device { action: "allocated", source: source.into() })?;
        let inner = Inner { state: made, stream: Rc::clone(&self.stream), is_changed: true };
        let array = DeviceArray(Rc::new(RefCell::new(inner)));
        array.write(&vec![0; bytes])?;
        Ok(array)
    }
}

/// Bytes on the GPU. Clones are the same array.
#[derive(Clone, Debug)]
pub struct DeviceArray(Rc<RefCell<Inner>>);

#[derive(Debug)]
struct Inner {
    state: DeviceState,
    stream: Rc<Stream>,
    is_changed: bool,
}

impl DeviceArray {
    /// Lends it to work that only reads it.
    pub fn read_by<T>(&self, work: impl FnOnce(&DeviceBuffer) -> T) -> T {
        work(self.0.borrow().state.buffer())
    }

    /// Lends it to work that changes it and is queued on `stream`: what is queued there from here on comes after the
    /// copy of a commit that is still under way.
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

    /// Replaces its content, after all that is queued on the GPU's stream.
    ///
    /// # Errors
    /// [`Error::Device`]: CUDA refused, or took too long.
    ///
    /// # Panics
    /// If there are more or fewer bytes.
    pub fn write(&self, bytes: &[u8]) -> Result<()> {
        let mut inner = self.0.borrow_mut();
        inner.is_changed = true;
        let Inner { state, stream, .. } = &*inner;
        patiently(&|| None, |patience| state.write(bytes, stream, patience))
            .map_err(|source| failed("written", source))
    }

    /// Its content, after all that is queued on the GPU's stream.
    ///
    /// # Errors
    /// [`Error::Device`]: CUDA refused, or took too long.
    pub fn read(&self) -> Result<Vec<u8>> {
        let Inner { state, stream, .. } = &*self.0.borrow();
        patiently(&|| None, |patience| state.read(stream, patience))
            .map_err(|source| failed("read", source))
    }

    /// What its commits have cost so far.
    pub fn commit_cost(&self) -> CommitCost {
        self.0.borrow().state.cost()
    }
}

impl DeviceMemory for DeviceArray {
    fn length_bytes(&self) -> usize {
        self.0.borrow().state.buffer().len()
    }

    fn begin_commit(&mut self, stop: &dyn Fn() -> Option<String>) -> Result<(), DeviceError> {
        let Inner { state, stream, is_changed } = &mut *self.0.borrow_mut();
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
        let Inner { state, is_changed, .. } = &mut *self.0.borrow_mut();
        *is_changed = true;
        // Where the GPU does not come back from the copy, whatever is done with it next says so.
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
        let Inner { state, stream, is_changed } = &mut *self.0.borrow_mut();
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
fn patiently<T>(stop: &dyn Fn() -> Option<String>, call: impl FnOnce(&Patience<'_>) -> T) -> T {
    call(&Patience { due: Instant::now() + GPU_MAX, stop })
}

fn failed(action: &'static str, source: impl Into<DeviceError>) -> Error {
    Error::Device { action, source: source.into() }
}
