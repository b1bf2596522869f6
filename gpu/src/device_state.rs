//! Training state on the GPU: a commit is copied to the host beside the next step, not before it.
//!
//! A commit begins behind the step that is queued so far, on a stream of its own, and goes into page-locked
//! memory. The step after it may read the state meanwhile; before it *changes* the state it waits, on the GPU and not
//! on the host, for the copy ([`DeviceState::before_update`]). Two host copies take turns, so that the last
//! finished commit is whole while the next one is being copied (G-5).

#![expect(unsafe_code, reason = "copies to and from a GPU go on behind the call that queues them")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cuda::{CudaError, Device, DeviceBuffer, Event, PinnedBuffer, Stream};
use crate::nccl::{CommError, Patience};

/// State on a GPU with its commits on the host.
#[derive(Debug)]
pub struct DeviceState {
    buffer: DeviceBuffer,
    side: Stream,
    /// Behind the step that a commit follows.
    stepped: Event,
    /// Behind the copy.
    copied: Event,
    /// The last finished commit, and the one that is being copied.
    hosts: [PinnedBuffer; 2],
    newest: usize,
    committed: bool,
    copying: Option<Instant>,
    cost: CommitCost,
}

/// What commits have cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitCost {
    /// Commits that were finished.
    pub commits: u64,
    /// Time for which the training thread waited in them: the part of the step that they took.
    pub waited: Duration,
    /// Time from the beginning of each to its end, which overlaps with the next step.
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
            stepped: Event::new(device)?,
            copied: Event::new(device)?,
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

    /// The last finished commit, if there is one.
    pub fn committed(&self) -> Option<&[u8]> {
        self.committed.then(|| self.hosts[self.newest].as_slice())
    }

    /// What commits have cost so far.
    pub const fn cost(&self) -> CommitCost {
        self.cost
    }

    /// Begins to copy the state as `compute` leaves it with what is queued there so far. Returns at once, unless the
    /// copy of before is still under way: that is waited for first.
    ///
    /// # Errors
    ///
    /// What CUDA refused; or the wait for the copy of before was given up.
    pub fn begin_commit(
        &mut self,
        compute: &Stream,
        patience: &Patience<'_>,
    ) -> Result<(), CommError> {
        self.finish_commit(patience)?;
        self.stepped.record(compute)?;
        self.side.wait_for(&self.stepped)?;
        let host = &self.hosts[1 - self.newest];
        // SAFETY: this object keeps both; `host` is read only once the copy is finished, and the drop waits for it.
        unsafe { self.side.copy_to_host(&self.buffer, 0, host, self.buffer.len()) }?;
        self.copied.record(&self.side)?;
        self.copying = Some(now());
        Ok(())
    }

    /// What is queued on `compute` from here on may change the state: it waits for the copy, the host does not.
    ///
    /// # Errors
    ///
    /// What CUDA refused.
    pub fn before_update(&self, compute: &Stream) -> Result<(), CudaError> {
        match self.copying {
            Some(_) => compute.wait_for(&self.copied),
            None => Ok(()),
        }
    }

    /// Waits for the copy that is under way, if one is; then it is the last commit.
    ///
    /// # Errors
    ///
    /// What CUDA refused; or the wait was given up, and the commit of before stands.
    pub fn finish_commit(&mut self, patience: &Patience<'_>) -> Result<(), CommError> {
        let Some(begun) = self.copying else { return Ok(()) };
        let started = now();
        patience.wait("a commit", || Ok(self.copied.is_passed()?))?;
        self.copying = None;
        self.newest = 1 - self.newest;
        self.committed = true;
        self.cost.commits += 1;
        self.cost.waited += started.elapsed();
        self.cost.copied += begun.elapsed();
        Ok(())
    }

    /// Takes the last commit back, behind what is queued on `compute`. A copy under way is given up.
    ///
    /// # Errors
    ///
    /// What CUDA refused; or the wait for the copy was given up.
    pub fn restore(&mut self, compute: &Stream, patience: &Patience<'_>) -> Result<(), CommError> {
        self.settle(patience)?;
        if !self.committed {
            return Ok(());
        }
        self.upload(compute, patience)
    }

    /// Replaces the state, and its last commit, by these bytes: another member's commit.
    ///
    /// # Errors
    ///
    /// As [`DeviceState::restore`].
    ///
    /// # Panics
    ///
    /// If there are more or fewer bytes.
    pub fn replace(
        &mut self,
        bytes: &[u8],
        compute: &Stream,
        patience: &Patience<'_>,
    ) -> Result<(), CommError> {
        self.settle(patience)?;
        self.hosts[self.newest].as_mut_slice().copy_from_slice(bytes);
        self.committed = true;
        self.upload(compute, patience)
    }

    /// Waits until no copy is under way; what it copied does not count.
    fn settle(&mut self, patience: &Patience<'_>) -> Result<(), CommError> {
        patience.wait("a commit", || Ok(self.copied.is_passed()?))?;
        self.copying = None;
        Ok(())
    }

    fn upload(&mut self, compute: &Stream, patience: &Patience<'_>) -> Result<(), CommError> {
        let host = &self.hosts[self.newest];
        // SAFETY: this object keeps both, and waits for the end of the copy.
        unsafe { compute.copy_to_device(host, self.buffer.len(), &self.buffer, 0) }?;
        self.copied.record(compute)?;
        patience.wait("a restore", || Ok(self.copied.is_passed()?))
    }
}

impl Drop for DeviceState {
    /// Memory that is being copied into must not be given back. Waits for a copy a while, and gives its memory up if
    /// it does not end.
    fn drop(&mut self) {
        const COPY_MAX: Duration = Duration::from_secs(5);
        let patience = Patience { due: now() + COPY_MAX, stop: &|| None };
        if self.settle(&patience).is_err() {
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
