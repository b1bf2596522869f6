//! Jobs of the GPU's thread: the calls that may block, each with a reason to stop. Made by the shell.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use elastic_collectives::AbortHandle;
use elastic_protocol::Stamp;

use crate::nccl::{Comm, CommEnding, CommError, GpuPatience, Maker, UniqueId};
use crate::offer::How;

/// Conditions under which a job stops.
pub(super) struct WaitLimits {
    pub(super) patience: Duration,
    /// The abort word, and the generation whose abort ends the job.
    pub(super) abort: Option<(AbortHandle, Stamp)>,
    pub(super) cancelled: Arc<AtomicBool>,
}

impl WaitLimits {
    #[expect(
        clippy::disallowed_methods,
        reason = "the GPU's thread is outside of the deterministic world"
    )]
    fn wait<T>(&self, call: impl FnOnce(&GpuPatience<'_>) -> T) -> T {
        let stop = || {
            if self.cancelled.load(Ordering::Relaxed) {
                return Some("something else is more urgent".to_owned());
            }
            let (abort, stamp) = self.abort.as_ref()?;
            let abort = abort.aborted(stamp.term.0, stamp.generation.0)?;
            Some(format!("the generation was aborted: {}", abort.reason))
        };
        call(&GpuPatience { due: Instant::now() + self.patience, stop: &stop })
    }
}

/// Makes a meeting point.
pub(super) fn identify(maker: &Maker, parent: Option<&Comm>) -> Result<UniqueId, CommError> {
    match parent {
        Some(parent) => parent.grow_id(),
        None => Ok(maker.nccl.unique_id()?),
    }
}

/// A communicator to form.
pub(super) struct Form {
    pub(super) how: How,
    pub(super) parent: Option<Arc<Comm>>,
    pub(super) id: Option<UniqueId>,
    /// Whether this rank has made the meeting point.
    pub(super) hosts_id: bool,
    pub(super) rank: u32,
    pub(super) world: u32,
}

/// Forms it.
pub(super) fn form(maker: &Maker, form: Form, limits: &WaitLimits) -> Result<Comm, String> {
    let Form { how, parent, id, hosts_id, rank, world } = form;
    limits
        .wait(|patience| match (how, parent, id) {
            (How::Shrink { excluded }, Some(parent), _) => Ok(parent.shrink(&excluded, patience)),
            (How::Grow, Some(parent), Some(id)) => {
                Ok(parent.grow(world, hosts_id.then_some(&id), patience))
            }
            (How::Grow, None, Some(id)) => Ok(maker.join(&id, world, rank, patience)),
            (How::Init, _, Some(id)) => Ok(maker.init(&id, world, rank, patience)),
            (how, ..) => Err(format!("{how:?} lacks what it comes of")),
        })?
        .map_err(|error| error.to_string())
}

/// Ends the operation under way in a communicator. A communicator that cannot be revoked is ended.
pub(super) fn revoke(comm: &Comm) -> Result<(), String> {
    comm.revoke().map_err(|error| {
        let ended = comm.end(CommEnding::Abort).err();
        ended.map_or_else(|| error.to_string(), |ended| ended.to_string())
    })
}
