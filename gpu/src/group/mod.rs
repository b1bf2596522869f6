//! NCCL as a [`Communicator`]. Data of the host passes through a [`StagingLane`] (`host`); data on the GPU goes by
//! [`NcclGroup::launch_operation`] (`device`). The CPU group of the same generation stays beside NCCL: over it the
//! members call the roll when one of them is missing.
//!
//! NCCL reduces in an order of its own: the bits may differ from those of the CPU's collectives, and between worlds.

mod device;
mod host;

pub use device::DeviceOperation;

use std::sync::Arc;
use std::time::{Duration, Instant};

use elastic_collectives::wire::OperationKind;
use elastic_collectives::{
    AbortHandle, CollectiveError, CollectiveResult, Communicator, CommunicatorExt, WaitDetails,
};

use crate::actor::core::Close;
use crate::actor::{GpuPort, GpuRequest};
use crate::cuda::Stream;
use crate::lane::{StagingLane, StagingLaneHome};
use crate::nccl::{CommError, GpuPatience, NcclError, Operations};
use crate::session::NcclSession;

/// Least time for which the members that hang in an operation wait for each other at the roll call.
const ROLL_CALL_MIN: Duration = Duration::from_secs(1);

/// Time for which the members that hang in an operation wait for each other at the roll call. Members that entered
/// the operation later than others also pass its deadline later.
pub fn roll_call_deadline(operation_deadline: Duration) -> Duration {
    ROLL_CALL_MIN.max(operation_deadline / 20)
}

/// The members of one generation, over NCCL.
pub struct NcclGroup {
    session: Arc<NcclSession>,
    /// The same members over CPU collectives.
    control: Box<dyn Communicator>,
    abort: AbortHandle,
    port: GpuPort,
    /// Lent by [`StagingLaneHome`]; taken out while an operation passes through it.
    lane: Option<StagingLane>,
    home: StagingLaneHome,
    operation_deadline: Duration,
    roll_call: Duration,
    failed: Option<CollectiveError>,
    is_closed: bool,
}

/// Parts of a group.
pub(crate) struct NcclGroupParts {
    pub(crate) session: Arc<NcclSession>,
    pub(crate) control: Box<dyn Communicator>,
    pub(crate) abort: AbortHandle,
    pub(crate) port: GpuPort,
    pub(crate) lane: StagingLane,
    pub(crate) home: StagingLaneHome,
    pub(crate) operation_deadline: Duration,
    pub(crate) roll_call: Duration,
}

impl NcclGroup {
    pub(crate) fn new(parts: NcclGroupParts) -> NcclGroup {
        let NcclGroupParts {
            session,
            control,
            abort,
            port,
            lane,
            home,
            operation_deadline,
            roll_call,
        } = parts;
        NcclGroup {
            session,
            control,
            abort,
            port,
            lane: Some(lane),
            home,
            operation_deadline,
            roll_call,
            failed: None,
            is_closed: false,
        }
    }

    /// Queues operations on memory of the GPU, and returns their number without waiting for them. The actor watches
    /// them; [`NcclGroup::wait`] waits. Ranks in `queue` are those of the generation, as [`NcclGroup::nccl_rank`]
    /// translates them.
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`].
    pub fn launch(
        &mut self,
        kind: OperationKind,
        queue: impl FnOnce(&Operations<'_>) -> Result<(), NcclError>,
    ) -> Result<u64, CollectiveError> {
        self.with_lane(|group, lane| group.launch_on(lane, kind, queue))
    }

    fn launch_on(
        &mut self,
        lane: &StagingLane,
        kind: OperationKind,
        queue: impl FnOnce(&Operations<'_>) -> Result<(), NcclError>,
    ) -> Result<u64, CollectiveError> {
        self.enter()?;
        let session = Arc::clone(&self.session);
        let queued = self.patiently(|patience| session.queue(kind, lane.stream(), patience, queue));
        queued.map_err(|error| self.fail(kind, error))
    }

    /// Lends the lane to `body`.
    fn with_lane<T>(
        &mut self,
        body: impl FnOnce(&mut Self, &mut StagingLane) -> Result<T, CollectiveError>,
    ) -> Result<T, CollectiveError> {
        let mut lane = self.lane.take().ok_or(CollectiveError::Closed)?;
        let result = body(self, &mut lane);
        self.lane = Some(lane);
        result
    }

    /// Waits for an operation that was launched, and for all before it.
    ///
    /// # Errors
    ///
    /// Any [`CollectiveError`].
    pub fn wait(&mut self, kind: OperationKind, sequence: u64) -> CollectiveResult {
        self.enter()?;
        let session = Arc::clone(&self.session);
        let waited = self
            .patiently(|patience| patience.wait("the GPU", || Ok(session.has_passed(sequence)?)));
        waited.map_err(|error| self.fail(kind, error))
    }

    /// The reason why the communicator cannot go on, if the actor has found one.
    pub fn verdict(&self) -> Option<&str> {
        self.session.verdict()
    }

    /// NCCL's rank of a member.
    pub fn nccl_rank(&self, rank: u32) -> u32 {
        self.session.nccl_rank(rank)
    }

    /// The stream that operations are queued on, for kernels that come before or after them.
    pub fn stream(&self) -> Option<&Stream> {
        self.lane.as_ref().map(StagingLane::stream)
    }

    fn enter(&self) -> CollectiveResult {
        if self.is_closed {
            return Err(CollectiveError::Closed);
        }
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        let stamp = self.session.stamp();
        match self.abort.aborted(stamp.term.0, stamp.generation.0) {
            Some(abort) => Err(abort.into()),
            None => Ok(()),
        }
    }

    /// A wait that ends with the generation, with the communicator, or at the deadline.
    #[expect(
        clippy::disallowed_methods,
        reason = "the training thread is outside of the deterministic world"
    )]
    fn patiently<T>(&self, call: impl FnOnce(&GpuPatience<'_>) -> T) -> T {
        let stamp = self.session.stamp();
        let stop = || {
            self.abort.attend(stamp.term.0, stamp.generation.0);
            let abort = self.abort.aborted(stamp.term.0, stamp.generation.0);
            let aborted = abort.map(|abort| abort.reason.to_string());
            aborted.or_else(|| self.session.verdict().map(str::to_owned))
        };
        call(&GpuPatience { due: Instant::now() + self.operation_deadline, stop: &stop })
    }

    /// The communicator has failed. Returns the error for the caller, and tells the actor, which ends the operation
    /// under way.
    fn fail(&mut self, kind: OperationKind, error: CommError) -> CollectiveError {
        let stamp = self.session.stamp();
        let aborted = self.abort.aborted(stamp.term.0, stamp.generation.0);
        let hung = self.session.oldest().filter(|(_, _, time)| *time >= self.operation_deadline);
        let is_late = matches!(error, CommError::DeadlinePassed { .. }) || hung.is_some();
        let (operation, sequence) = self.session.culprit(kind);
        let failed = match aborted {
            Some(abort) => abort.into(),
            None if is_late => self.roll_call(operation, sequence),
            None => {
                let source: Arc<dyn std::error::Error + Send + Sync> = Arc::new(error);
                CollectiveError::Device { operation, sequence, source }
            }
        };
        self.leave(Close::Broken);
        self.failed.insert(failed).clone()
    }

    /// Members that hang in the operation meet here; a member that does not come is missing.
    fn roll_call(&mut self, operation: OperationKind, sequence: u64) -> CollectiveError {
        self.control.set_operation_deadline(self.roll_call);
        match self.control.barrier() {
            Err(CollectiveError::DeadlinePassed { waiting_for, details, .. }) => {
                let details = Box::new(WaitDetails { entered: false, ..*details });
                CollectiveError::DeadlinePassed { operation, sequence, waiting_for, details }
            }
            Err(error) => error,
            // Everybody is in it: the hang is the network's, or NCCL's.
            Ok(()) => {
                let waiting_for = Vec::new();
                let others = self.control.world_size().saturating_sub(1);
                let details = Box::new(WaitDetails { hosts: Vec::new(), entered: true, others });
                CollectiveError::DeadlinePassed { operation, sequence, waiting_for, details }
            }
        }
    }

    fn leave(&mut self, close: Close) {
        if !self.is_closed && self.failed.is_none() {
            self.port.tell(GpuRequest::Close { stamp: self.session.stamp(), close });
        }
    }
}

impl Drop for NcclGroup {
    fn drop(&mut self) {
        self.leave(Close::InOrder);
        if let Some(lane) = self.lane.take() {
            self.home.give_back(lane);
        }
    }
}
