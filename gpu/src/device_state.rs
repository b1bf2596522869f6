//! Training state on the GPU: a commit is copied to the host in parallel with the next step, not before it.
//!
//! A commit's copy begins once the step before it is done, so an abort cannot spoil it. The copy goes on a stream of
//! its own into page-locked memory. The next step may read the state meanwhile. Before it *changes* the state it
//! waits, on the GPU and not on the host, for the copy ([`DeviceState::before_update`]). Two host copies take turns,
//! so that the last commit is whole while the next one is being copied (G-5). Several parts of one state first finish
//! their copies and only then keep them, so that all are of one step (H-22).
//!
//! Called by the Rust API (`src/api/device.rs`) for a `State`, and by measurements.

#![expect(unsafe_code, reason = "copies to and from a GPU go on behind the call that queues them")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cuda::{CudaError, CudaEvent, Device, DeviceBuffer, PinnedBuffer, Stream};
use crate::nccl::{CommError, GpuPatience};

/// State on a GPU with its commits on the host.
#[derive(Debug)]
pub struct DeviceState {
    buffer: DeviceBuffer,
    side: Stream,
    /// Behind the step that a commit follows.
    stepped: CudaEvent,
    /// Behind the copy.
    copied: CudaEvent,
    /// The last commit, and the one that is being copied.
    hosts: [PinnedBuffer; 2],
    newest: usize,
    committed: bool,
    copying: Option<Copying>,
    cost: CommitCost,
}

/// A commit that is not one yet.
#[derive(Clone, Copy, Debug)]
enum Copying {
    UnderWay(Instant),
    Finished,
}

/// Cost of commits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitCost {
    /// Commits that were kept.
    pub commits: u64,
    /// Time for which the training thread waited for copies: the part of the step that they took.
    pub waited: Duration,
    /// Time from the beginning of each copy to where its end was seen, which overlaps with the next step.
    pub copied: Duration,
}

impl DeviceState {
    /// State of so many bytes; its content is unspecified.
    ///
    /// # Errors
    ///
    /// Memory of the GPU, or of the host, is short.
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<DeviceState, CudaError> {
        Ok(DeviceState {
            buffer: DeviceBuffer::new(device, bytes)?,
            side: Stream::new(device)?,
            stepped: CudaEvent::new(device)?,
            copied: CudaEvent::new(device)?,
            hosts: [PinnedBuffer::new(device, bytes)?, PinnedBuffer::new(device, bytes)?],
            newest: 0,
            committed: false,
            copying: None,
            cost: CommitCost::default(),
        })
    }

    /// The state.
    pub const fn buffer(&self) -> &DeviceBuffer {
        &self.buffer
    }

    /// The last commit, if there is one.
    pub fn committed(&self) -> Option<&[u8]> {
        self.committed.then(|| self.hosts[self.newest].as_slice())
    }

    /// Cost of the commits so far.
    pub const fn cost(&self) -> CommitCost {
        self.cost
    }

    /// Waits until the work queued on `compute` is done, and begins to copy the state. An earlier copy that was not
    /// kept yet is kept first.
    ///
    /// # Errors
    ///
    /// CUDA's error; or a wait was given up, even if the awaited work is done by then: it may have
    /// been aborted. The copy was not begun.
    pub fn begin_commit(
        &mut self,
        compute: &Stream,
        patience: &GpuPatience<'_>,
    ) -> Result<(), CommError> {
        self.finish_commit(patience)?;
        self.keep_commit();
        self.stepped.record(compute)?;
        patience.wait("the step before a commit", || Ok(self.stepped.is_passed()?))?;
        let host = &self.hosts[1 - self.newest];
        // SAFETY: this object keeps both; `host` is read only once the copy is finished, and the drop waits for it.
        unsafe { self.side.copy_to_host(&self.buffer, 0, host, self.buffer.len()) }?;
        self.copied.record(&self.side)?;
        self.copying = Some(Copying::UnderWay(now()));
        Ok(())
    }

    /// Makes later work on `stream`, which may change the state, wait for the copy; the host does not wait.
    ///
    /// # Errors
    ///
    /// CUDA's error.
    pub fn before_update(&self, stream: &Stream) -> Result<(), CudaError> {
        match self.copying {
            Some(Copying::UnderWay(_)) => stream.wait_for(&self.copied),
            Some(Copying::Finished) | None => Ok(()),
        }
    }

    /// Waits for the copy that is under way, if one is. It is the last commit once it is kept.
    ///
    /// # Errors
    ///
    /// An error of CUDA. Also if the wait was given up: then it may be resumed.
    pub fn finish_commit(&mut self, patience: &GpuPatience<'_>) -> Result<(), CommError> {
        let Some(Copying::UnderWay(begun)) = self.copying else { return Ok(()) };
        let started = now();
        patience.wait("a commit", || Ok(self.copied.is_passed()?))?;
        self.copying = Some(Copying::Finished);
        self.cost.waited += started.elapsed();
        self.cost.copied += begun.elapsed();
        Ok(())
    }

    /// The copy that was finished takes the last commit's place.
    pub fn keep_commit(&mut self) {
        if let Some(Copying::Finished) = self.copying {
            self.copying = None;
            self.newest = 1 - self.newest;
            self.committed = true;
            self.cost.commits += 1;
        }
    }

    /// Discards a commit that was begun and not kept.
    ///
    /// # Errors
    ///
    /// CUDA's error; or the wait for the end of its copy was given up.
    pub fn give_up_commit(&mut self, patience: &GpuPatience<'_>) -> Result<(), CommError> {
        patience.wait("a commit", || Ok(self.copied.is_passed()?))?;
        self.copying = None;
        Ok(())
    }

    /// Takes the last commit back, behind the work queued on `compute`. A copy under way is given up.
    ///
    /// # Errors
    ///
    /// An error of CUDA, or the wait for the copy was given up.
    pub fn restore(
        &mut self,
        compute: &Stream,
        patience: &GpuPatience<'_>,
    ) -> Result<(), CommError> {
        self.give_up_commit(patience)?;
        if !self.committed {
            return Ok(());
        }
        let host = &self.hosts[self.newest];
        // SAFETY: this object keeps both, and waits for the end of the copy.
        unsafe { compute.copy_to_device(host, self.buffer.len(), &self.buffer, 0) }?;
        self.copied.record(compute)?;
        patience.wait("a restore", || Ok(self.copied.is_passed()?))
    }

    /// Replaces the last commit by these bytes, which are another member's; [`DeviceState::restore`] takes them to the
    /// GPU.
    ///
    /// # Errors
    ///
    /// As [`DeviceState::give_up_commit`].
    ///
    /// # Panics
    ///
    /// If there are more or fewer bytes.
    pub fn replace_commit(
        &mut self,
        bytes: &[u8],
        patience: &GpuPatience<'_>,
    ) -> Result<(), CommError> {
        self.give_up_commit(patience)?;
        self.hosts[self.newest].as_mut_slice().copy_from_slice(bytes);
        self.committed = true;
        Ok(())
    }

    /// Replaces the state, not its commit, by these bytes, behind the work queued on `compute`.
    ///
    /// # Errors
    ///
    /// An error of CUDA, or the wait was given up.
    ///
    /// # Panics
    ///
    /// If there are more or fewer bytes.
    pub fn write(
        &self,
        bytes: &[u8],
        compute: &Stream,
        patience: &GpuPatience<'_>,
    ) -> Result<(), CommError> {
        self.before_update(compute)?;
        let mut host = PinnedBuffer::new(self.buffer.device(), bytes.len())?;
        host.as_mut_slice().copy_from_slice(bytes);
        assert_eq!(bytes.len(), self.buffer.len(), "the state keeps its length");
        self.pass(host, compute, patience, |host| {
            // SAFETY: `pass` keeps the host's side, and this object the GPU's, until the copy is done.
            unsafe { compute.copy_to_device(host, host.len(), &self.buffer, 0) }
        })
        .map(drop)
    }

    /// The state as the work that is queued on `compute` leaves it.
    ///
    /// # Errors
    ///
    /// As [`DeviceState::write`].
    pub fn read(&self, compute: &Stream, patience: &GpuPatience<'_>) -> Result<Vec<u8>, CommError> {
        let host = PinnedBuffer::new(self.buffer.device(), self.buffer.len())?;
        let host = self.pass(host, compute, patience, |host| {
            // SAFETY: as in `write`.
            unsafe { compute.copy_to_host(&self.buffer, 0, host, host.len()) }
        })?;
        Ok(host.as_slice().to_vec())
    }

    /// Queues a copy and waits for it. If the wait is given up, the host buffer is leaked with it.
    fn pass(
        &self,
        host: PinnedBuffer,
        compute: &Stream,
        patience: &GpuPatience<'_>,
        queue: impl FnOnce(&PinnedBuffer) -> Result<(), CudaError>,
    ) -> Result<PinnedBuffer, CommError> {
        let passed = CudaEvent::new(self.buffer.device())?;
        queue(&host)?;
        passed.record(compute)?;
        match patience.wait("a copy", || Ok(passed.is_passed()?)) {
            Ok(()) => Ok(host),
            Err(error) => {
                std::mem::forget(host);
                Err(error)
            }
        }
    }
}

impl Drop for DeviceState {
    /// Memory that is being copied into must not be given back. Waits for a copy a while, and gives its memory up if
    /// it does not end.
    fn drop(&mut self) {
        const COPY_MAX: Duration = Duration::from_secs(5);
        let patience = GpuPatience { due: now() + COPY_MAX, stop: &|| None };
        if self.give_up_commit(&patience).is_err() {
            let device = self.buffer.device();
            for host in &mut self.hosts {
                if let Ok(empty) = PinnedBuffer::new(device, 0) {
                    std::mem::forget(std::mem::replace(host, empty));
                }
            }
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the training thread is outside of the deterministic world"
)]
fn now() -> Instant {
    Instant::now()
}
