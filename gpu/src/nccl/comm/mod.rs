//! A communicator. Its calls never block for others (it is "non-blocking" in NCCL's words), and any thread may end
//! it. NCCL demands that no thread is inside another call of it at that moment, so calls and ends take turns.
//!
//! Waits go by [`GpuPatience`], so that an abort word or a deadline ends each of them (G-9).

#![expect(unsafe_code, reason = "NCCL is a C library")]

mod derive;

use std::ffi::{c_int, c_uint};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use super::api::{IN_PROGRESS, Nccl, NcclError, SUCCESS, UniqueId};
use super::bounded::{Bounded, Stuck};
use super::operations::Operations;
use super::patience::{CommError, EAGER_POLLS, GpuPatience, POLL_EVERY};
use crate::cuda::{Device, Stream};
use cudarc::nccl::sys::{ncclComm, ncclComm_t};

/// Time for which a call waits for another thread's call. NCCL's calls return at once. One that does not is only
/// freed by an abort, which waits just as long for it, and then no more.
const CALL_PATIENCE: Duration = Duration::from_millis(150);
/// Time after which the thread of an abort is left behind: with [`CALL_PATIENCE`] less than a second.
const ABORT_PATIENCE: Duration = Duration::from_millis(800);

/// Most time for NCCL's threads to end after a revoke: they look every 500 ms.
const REVOKE_PATIENCE: Duration = Duration::from_secs(1);

/// The way to end a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommEnding {
    /// In good order: every rank takes part.
    Finish,
    /// At once, even during an operation.
    Abort,
}

/// Makes communicators: it has the library, a GPU, and the thread that ends communicators.
#[derive(Clone, Debug)]
pub struct Maker {
    /// The library.
    pub nccl: Arc<Nccl>,
    /// The GPU.
    pub device: Arc<Device>,
    /// Runs calls that may never return.
    pub reaper: Arc<Bounded>,
    /// Ends communicators for which nobody waits.
    pub endings: Arc<Bounded>,
}

/// The ranks of one communicator, as one of them sees the others.
#[derive(Debug)]
pub struct Comm {
    shared: Arc<CommShared>,
    rank: u32,
    world: u32,
}

#[derive(Debug)]
struct CommShared {
    maker: Maker,
    /// Null once it was ended.
    raw: AtomicPtr<ncclComm>,
    /// Held during each call, none of which blocks.
    calls: Mutex<()>,
    /// No call begins any more.
    ending: AtomicBool,
    /// It was revoked: NCCL's threads end.
    revoked: AtomicBool,
}

impl Maker {
    /// Forms a communicator of `world` ranks that meet by `id`; this one is `rank`.
    ///
    /// # Errors
    ///
    /// Any [`CommError`]. Nothing is left of it then.
    pub fn init(
        &self,
        id: &UniqueId,
        world: u32,
        rank: u32,
        patience: &GpuPatience<'_>,
    ) -> Result<Comm, CommError> {
        self.device.bind()?;
        let mut raw = ptr::null_mut();
        let mut config = Nccl::non_blocking();
        let (count, number) = (as_int(world), as_int(rank));
        let init = self.nccl.functions().init;
        // SAFETY: communicator and configuration are live variables.
        let begun = unsafe { init(&mut raw, count, id.raw(), number, &mut config) };
        let comm = self.comm(raw, rank, world);
        self.nccl.check("ncclCommInitRankConfig", begun, ptr::null_mut())?;
        comm.settle("ncclCommInitRankConfig", patience)?;
        Ok(comm)
    }

    /// Joins a communicator that grows to `world` ranks; this one becomes `rank`.
    ///
    /// # Errors
    ///
    /// Any [`CommError`]. Nothing is left of it then.
    pub fn join(
        &self,
        id: &UniqueId,
        world: u32,
        rank: u32,
        patience: &GpuPatience<'_>,
    ) -> Result<Comm, CommError> {
        const CALL: &str = "ncclCommGrow";
        let grow = self.nccl.functions().grow.ok_or_else(|| self.missing(CALL))?;
        self.device.bind()?;
        let mut raw = ptr::null_mut();
        let mut config = Nccl::non_blocking();
        let (id, none) = (id.raw(), ptr::null_mut());
        // SAFETY: all are live variables; a newcomer has no communicator to give.
        let begun = unsafe { grow(none, as_int(world), &id, as_int(rank), &mut raw, &mut config) };
        let comm = self.comm(raw, rank, world);
        self.nccl.check(CALL, begun, ptr::null_mut())?;
        comm.settle(CALL, patience)?;
        Ok(comm)
    }

    fn comm(&self, raw: ncclComm_t, rank: u32, world: u32) -> Comm {
        let shared = CommShared {
            maker: self.clone(),
            raw: AtomicPtr::new(raw),
            calls: Mutex::new(()),
            ending: AtomicBool::new(false),
            revoked: AtomicBool::new(false),
        };
        Comm { shared: Arc::new(shared), rank, world }
    }

    fn missing(&self, call: &'static str) -> CommError {
        CommError::Missing { call, version: self.nccl.version().to_string() }
    }
}

impl Comm {
    /// This process's rank in it. NCCL's, which may differ from that in the generation.
    pub const fn rank(&self) -> u32 {
        self.rank
    }

    /// The number of ranks.
    pub const fn world(&self) -> u32 {
        self.world
    }

    /// Its maker.
    pub fn maker(&self) -> &Maker {
        &self.shared.maker
    }

    /// Queues operations on a stream, together. Returns once they are queued.
    ///
    /// # Errors
    ///
    /// Any [`CommError`].
    pub fn enqueue(
        &self,
        stream: &Stream,
        patience: &GpuPatience<'_>,
        queue: impl FnOnce(&Operations<'_>) -> Result<(), NcclError>,
    ) -> Result<(), CommError> {
        {
            let turn = self.shared.enter()?;
            let nccl = &self.shared.maker.nccl;
            let functions = nccl.functions();
            let operations = Operations::new(nccl, turn.raw, stream);
            // SAFETY: groups belong to the thread, and this one is ended in any case.
            let started = unsafe { (functions.group_start)() };
            nccl.check("ncclGroupStart", started, turn.raw)?;
            let queued = queue(&operations);
            // SAFETY: as above.
            let ended = unsafe { (functions.group_end)() };
            queued?;
            nccl.check("ncclGroupEnd", ended, turn.raw)?;
        }
        // The first operations connect ranks, which goes on behind the call.
        self.settle("ncclGroupEnd", patience)
    }

    /// An error that came after its call returned, if there is one. Never waits: while another thread is in a
    /// call, nothing is known.
    ///
    /// # Errors
    ///
    /// The communicator was ended.
    pub fn peek_error(&self) -> Result<Option<NcclError>, CommError> {
        let held = match self.shared.calls.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(held)) => held.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(None),
        };
        let turn = self.shared.turn(held)?;
        match turn.state()? {
            SUCCESS | IN_PROGRESS => Ok(None),
            code => {
                let nccl = &self.shared.maker.nccl;
                Ok(nccl.check("ncclCommGetAsyncError", code, turn.raw).err())
            }
        }
    }

    /// Waits for the end of a call that was begun.
    fn settle(&self, call: &'static str, patience: &GpuPatience<'_>) -> Result<(), CommError> {
        patience.wait(call, || {
            let turn = self.shared.enter()?;
            match turn.state()? {
                SUCCESS => Ok(true),
                IN_PROGRESS => Ok(false),
                code => {
                    self.shared.maker.nccl.check(call, code, turn.raw)?;
                    Ok(true)
                }
            }
        })
    }

    /// Ends the operations under way, here and on the other ranks that do the same, and keeps the communicator for
    /// [`Comm::shrink`]. Does not wait for NCCL's own threads, which end later.
    ///
    /// # Errors
    ///
    /// Any [`CommError`].
    pub fn revoke(&self) -> Result<(), CommError> {
        const CALL: &str = "ncclCommRevoke";
        let maker = &self.shared.maker;
        let revoke = maker.nccl.functions().revoke.ok_or_else(|| maker.missing(CALL))?;
        let turn = self.shared.enter()?;
        self.shared.revoked.store(true, Ordering::Release);
        // SAFETY: it is the communicator's turn.
        let begun = unsafe { revoke(turn.raw, 0) };
        Ok(maker.nccl.check(CALL, begun, turn.raw)?)
    }

    /// Waits until NCCL's threads have ended, if it was revoked.
    ///
    /// # Errors
    ///
    /// Any [`CommError`].
    pub(super) fn settle_revoked(&self, patience: &GpuPatience<'_>) -> Result<(), CommError> {
        match self.shared.revoked.load(Ordering::Acquire) {
            true => self.settle("ncclCommRevoke", patience),
            false => Ok(()),
        }
    }

    /// Whether it was ended.
    pub fn is_ended(&self) -> bool {
        self.shared.ending.load(Ordering::Acquire)
    }

    /// Ends it, from any thread: an operation under way returns an error or is never done. Ends it once: further
    /// calls do nothing. Takes less than a second, or leaves a thread behind ([`Stuck`]). To finish is a collective
    /// call of all its ranks; if that fails or takes too long, it is aborted.
    ///
    /// # Errors
    ///
    /// CUDA or NCCL refused, or the call is stuck. The communicator is gone all the same.
    #[expect(clippy::disallowed_methods, reason = "this is outside of the deterministic world")]
    pub fn end(&self, ending: CommEnding) -> Result<(), CommError> {
        // The abort would wait for NCCL's threads, longer than it may take. It follows whether or not this wait
        // succeeds.
        let patience = GpuPatience { due: Instant::now() + REVOKE_PATIENCE, stop: &|| None };
        let _ = self.settle_revoked(&patience);
        if ending == CommEnding::Finish && self.finish().is_ok() {
            return Ok(());
        }
        let Some(end) = self.shared.take(CommEnding::Abort) else { return Ok(()) };
        self.shared.maker.reaper.run("ncclCommAbort", ABORT_PATIENCE, end)?
    }

    /// Aborts it, on a thread of its own: NCCL's threads take up to half a second to end.
    pub fn end_beside(self: &Arc<Comm>) {
        let comm = Arc::clone(self);
        // The result has no reader: the communicator is given up in any case.
        self.shared.maker.endings.post(move || drop(comm.end(CommEnding::Abort)));
    }

    #[expect(clippy::disallowed_methods, reason = "this is outside of the deterministic world")]
    fn finish(&self) -> Result<(), CommError> {
        const CALL: &str = "ncclCommFinalize";
        let patience = GpuPatience { due: Instant::now() + ABORT_PATIENCE, stop: &|| None };
        {
            let turn = self.shared.enter()?;
            let nccl = &self.shared.maker.nccl;
            // SAFETY: it is the communicator's turn.
            let begun = unsafe { (nccl.functions().finalize)(turn.raw) };
            nccl.check(CALL, begun, turn.raw)?;
        }
        self.settle(CALL, &patience)?;
        let Some(end) = self.shared.take(CommEnding::Finish) else { return Ok(()) };
        self.shared.maker.reaper.run("ncclCommDestroy", ABORT_PATIENCE, end)?
    }
}

impl Drop for Comm {
    /// Neither waits nor panics.
    fn drop(&mut self) {
        if let Some(end) = self.shared.take(CommEnding::Abort) {
            self.shared.maker.reaper.post(move || drop(end()));
        }
    }
}

impl CommShared {
    /// The communicator's turn, for one call.
    fn enter(&self) -> Result<Turn<'_>, CommError> {
        let patience = CALL_PATIENCE;
        let held = self.wait_for_turn().ok_or(Stuck { call: "an earlier call", patience })?;
        self.turn(held)
    }

    fn turn<'a>(&'a self, held: MutexGuard<'a, ()>) -> Result<Turn<'a>, CommError> {
        let raw = self.raw.load(Ordering::Acquire);
        if self.ending.load(Ordering::Acquire) || raw.is_null() {
            return Err(CommError::Ended);
        }
        self.maker.device.bind()?;
        Ok(Turn { shared: self, raw, _held: held })
    }

    /// Takes the communicator away from all threads; the returned function ends it. `None`: another thread has taken
    /// it.
    fn take(
        self: &Arc<Self>,
        ending: CommEnding,
    ) -> Option<impl FnOnce() -> Result<(), CommError> + Send + use<>> {
        self.ending.store(true, Ordering::Release);
        let raw = Owned(self.raw.swap(ptr::null_mut(), Ordering::AcqRel));
        if raw.0.is_null() {
            return None;
        }
        let shared = Arc::clone(self);
        Some(move || {
            let raw = raw;
            let _turn = shared.wait_for_turn();
            shared.maker.device.bind()?;
            let functions = shared.maker.nccl.functions();
            let (call, end) = match ending {
                CommEnding::Finish => ("ncclCommDestroy", functions.destroy),
                CommEnding::Abort => ("ncclCommAbort", functions.abort),
            };
            // SAFETY: this is the only reference to the communicator, and no call begins any more; one that has
            // been under way for longer than any should be returns by this very abort.
            let ended = unsafe { end(raw.0) };
            Ok(shared.maker.nccl.check(call, ended, ptr::null_mut())?)
        })
    }

    /// Waits a while for a call that is under way. `None`: it does not return.
    #[expect(clippy::disallowed_methods, reason = "this is outside of the deterministic world")]
    fn wait_for_turn(&self) -> Option<MutexGuard<'_, ()>> {
        let due = Instant::now() + CALL_PATIENCE;
        let mut polls = 0;
        loop {
            match self.calls.try_lock() {
                Ok(turn) => return Some(turn),
                Err(TryLockError::Poisoned(turn)) => return Some(turn.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() >= due => return None,
                Err(TryLockError::WouldBlock) if polls < EAGER_POLLS => std::hint::spin_loop(),
                Err(TryLockError::WouldBlock) => std::thread::sleep(POLL_EVERY),
            }
            polls += 1;
        }
    }
}

/// A communicator that has been taken away from everybody else.
struct Owned(ncclComm_t);

// SAFETY: NCCL lets any thread end a communicator.
unsafe impl Send for Owned {}

/// The communicator, for one call.
struct Turn<'a> {
    shared: &'a CommShared,
    raw: ncclComm_t,
    _held: MutexGuard<'a, ()>,
}

impl Turn<'_> {
    /// NCCL's code for the state of the last operation.
    fn state(&self) -> Result<c_uint, CommError> {
        let nccl = &self.shared.maker.nccl;
        let mut state = SUCCESS;
        // SAFETY: it is the communicator's turn; the state is a live variable.
        let told = unsafe { (nccl.functions().async_error)(self.raw, &mut state) };
        nccl.check("ncclCommGetAsyncError", told, self.raw)?;
        Ok(state)
    }
}

/// NCCL counts in C's `int`; no world has that many ranks.
fn as_int(number: u32) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}
