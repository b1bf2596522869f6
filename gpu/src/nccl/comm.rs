//! A communicator. Its calls never block for others (it is "non-blocking" in NCCL's words), and any thread may
//! end it: NCCL wants that no thread is inside another call of it then, so calls and ends take turns.
//!
//! Waits go by [`Patience`], so that an abort word or a deadline ends each of them (G-9).

#![expect(unsafe_code, reason = "NCCL is a C library")]

use std::ffi::{c_int, c_uint};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use cudarc::nccl::sys::{ncclComm, ncclComm_t};
use thiserror::Error;

use super::api::{IN_PROGRESS, Nccl, NcclError, SUCCESS, UniqueId};
use super::bounded::{Bounded, Stuck};
use super::operations::Operations;
use crate::cuda::{CudaError, Device, Stream};

/// How long a call waits for one that another thread is in. NCCL's calls return at once; one that does not is
/// only freed by an abort, which waits as long, and then no more.
const CALL_PATIENCE: Duration = Duration::from_millis(150);
/// How long an abort may take before its thread is left behind: with [`CALL_PATIENCE`] less than a second.
const ABORT_PATIENCE: Duration = Duration::from_millis(800);
/// Polls without a pause, for what is done in microseconds.
const EAGER_POLLS: u32 = 64;
/// The pause between later polls.
const POLL_EVERY: Duration = Duration::from_micros(50);
/// `NCCL_SHRINK_ABORT`: end what the parent has under way first.
const SHRINK_ABORT: c_int = 1;
/// `NCCL_SPLIT_NOCOLOR`.
const NO_COLOUR: c_int = -1;

/// Why a call of a communicator failed.
#[derive(Clone, Debug, Error)]
pub enum CommError {
    /// CUDA refused.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// NCCL refused, or told of an error that came later.
    #[error(transparent)]
    Nccl(#[from] NcclError),
    /// The communicator was ended, by this thread or another one.
    #[error("the communicator was ended")]
    Ended,
    /// Something else ended the wait.
    #[error("{call} was given up: {reason}")]
    GivenUp {
        /// What was waited for.
        call: &'static str,
        /// Why.
        reason: String,
    },
    /// The deadline passed (G-9).
    #[error("{call} passed its deadline")]
    DeadlinePassed {
        /// What was waited for.
        call: &'static str,
    },
    /// A call does not return.
    #[error(transparent)]
    Stuck(#[from] Stuck),
    /// The version that was loaded cannot do this.
    #[error("NCCL {version} has no {call}")]
    Missing {
        /// What is missing.
        call: &'static str,
        /// The version.
        version: String,
    },
}

/// How long a wait may last.
pub struct Patience<'a> {
    /// Until when.
    pub due: Instant,
    /// Asked again and again: a reason to stop earlier.
    pub stop: &'a dyn Fn() -> Option<String>,
}

impl Patience<'_> {
    /// Waits until `done` says so. What was aborted counts as done for the GPU, whatever its buffers hold: so a
    /// reason to stop is asked for after it, too (G-4).
    #[expect(clippy::disallowed_methods, reason = "this is outside of the deterministic world")]
    pub(crate) fn wait(
        &self,
        call: &'static str,
        mut done: impl FnMut() -> Result<bool, CommError>,
    ) -> Result<(), CommError> {
        let mut polls = 0;
        loop {
            let is_done = done()?;
            if let Some(reason) = (self.stop)() {
                return Err(CommError::GivenUp { call, reason });
            }
            if is_done {
                return Ok(());
            }
            polls += 1;
            if polls <= EAGER_POLLS {
                std::hint::spin_loop();
                continue;
            }
            if Instant::now() >= self.due {
                return Err(CommError::DeadlinePassed { call });
            }
            std::thread::sleep(POLL_EVERY);
        }
    }
}

/// How a communicator is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// All ranks leave it in good order.
    Finish,
    /// At once, whatever is under way.
    Abort,
}

/// What a communicator is made with: the library, a GPU, and the thread that ends communicators.
#[derive(Clone, Debug)]
pub struct Maker {
    /// The library.
    pub nccl: Arc<Nccl>,
    /// The GPU.
    pub device: Arc<Device>,
    /// Where calls go that may not return.
    pub reaper: Arc<Bounded>,
}

/// The ranks of one communicator, as one of them sees the others.
#[derive(Debug)]
pub struct Comm {
    shared: Arc<Shared>,
    rank: u32,
    world: u32,
}

#[derive(Debug)]
struct Shared {
    maker: Maker,
    /// Null once it was ended.
    raw: AtomicPtr<ncclComm>,
    /// Held during each call, none of which blocks.
    calls: Mutex<()>,
    /// No call begins any more.
    ending: AtomicBool,
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
        patience: &Patience<'_>,
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
        patience: &Patience<'_>,
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
        let shared = Shared {
            maker: self.clone(),
            raw: AtomicPtr::new(raw),
            calls: Mutex::new(()),
            ending: AtomicBool::new(false),
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

    /// What it was made with.
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
        patience: &Patience<'_>,
        queue: impl FnOnce(&Operations<'_>) -> Result<(), NcclError>,
    ) -> Result<(), CommError> {
        {
            let turn = self.shared.enter()?;
            let nccl = &self.shared.maker.nccl;
            let functions = nccl.functions();
            let operations = Operations::new(nccl, turn.raw, stream);
            // SAFETY: groups are the thread's own, and this one is ended whatever comes.
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

    /// Waits for what a call began.
    fn settle(&self, call: &'static str, patience: &Patience<'_>) -> Result<(), CommError> {
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

    /// Makes sub-communicators: one for each colour, whose ranks go by `key`. A rank without a colour takes part
    /// in the call only. `place` is this rank's, and the number of ranks, in its own.
    ///
    /// # Errors
    ///
    /// Any [`CommError`].
    pub fn split(
        &self,
        colour: Option<u32>,
        key: u32,
        place: (u32, u32),
        patience: &Patience<'_>,
    ) -> Result<Option<Comm>, CommError> {
        const CALL: &str = "ncclCommSplit";
        let split = self.shared.maker.nccl.functions().split;
        let split = split.ok_or_else(|| self.shared.maker.missing(CALL))?;
        let (number, key) = (colour.map_or(NO_COLOUR, as_int), as_int(key));
        let raw = self.derive(CALL, patience, |parent, child| {
            let mut config = Nccl::non_blocking();
            // SAFETY: it is the communicator's turn; child and configuration are live.
            unsafe { split(parent, number, key, child, &mut config) }
        })?;
        let Some(_) = colour else { return Ok(None) };
        let comm = self.shared.maker.comm(raw, place.0, place.1);
        comm.settle(CALL, patience)?;
        Ok(Some(comm))
    }

    /// Makes a communicator of the others: called by those who are not in `excluded`. Ranks close up. `abort`
    /// ends what is under way first; the parent can only be aborted then.
    ///
    /// # Errors
    ///
    /// Any [`CommError`].
    pub fn shrink(
        &self,
        excluded: &[u32],
        abort: bool,
        patience: &Patience<'_>,
    ) -> Result<Comm, CommError> {
        const CALL: &str = "ncclCommShrink";
        let shrink = self.shared.maker.nccl.functions().shrink;
        let shrink = shrink.ok_or_else(|| self.shared.maker.missing(CALL))?;
        let mut list: Vec<c_int> = excluded.iter().map(|rank| as_int(*rank)).collect();
        let flags = if abort { SHRINK_ABORT } else { 0 };
        let raw = self.derive(CALL, patience, |parent, child| {
            let mut config = Nccl::non_blocking();
            let count = c_int::try_from(list.len()).unwrap_or(c_int::MAX);
            // SAFETY: it is the communicator's turn; list, child and configuration are live.
            unsafe { shrink(parent, list.as_mut_ptr(), count, child, &mut config, flags) }
        })?;
        let before = excluded.iter().filter(|rank| **rank < self.rank).count() as u32;
        let world = self.world - excluded.len() as u32;
        let comm = self.shared.maker.comm(raw, self.rank - before, world);
        comm.settle(CALL, patience)?;
        Ok(comm)
    }

    /// What newcomers join by. Asked for by one rank, which then gives it to [`Comm::grow`].
    ///
    /// # Errors
    ///
    /// Any [`CommError`].
    pub fn grow_id(&self) -> Result<UniqueId, CommError> {
        const CALL: &str = "ncclCommGetUniqueId";
        let maker = &self.shared.maker;
        let grow_id = maker.nccl.functions().grow_id.ok_or_else(|| maker.missing(CALL))?;
        let turn = self.shared.enter()?;
        let mut raw = UniqueId([0; UniqueId::BYTES]).raw();
        // SAFETY: it is the communicator's turn; the id is a live variable.
        let made = unsafe { grow_id(turn.raw, &mut raw) };
        maker.nccl.check(CALL, made, turn.raw)?;
        Ok(UniqueId::of_raw(&raw))
    }

    /// Makes a communicator of `world` ranks, in which all of this one keep their rank and newcomers follow. Only
    /// the rank that asked for the id gives it. Nothing may be under way.
    ///
    /// # Errors
    ///
    /// Any [`CommError`].
    pub fn grow(
        &self,
        world: u32,
        id: Option<&UniqueId>,
        patience: &Patience<'_>,
    ) -> Result<Comm, CommError> {
        const CALL: &str = "ncclCommGrow";
        let grow = self.shared.maker.nccl.functions().grow;
        let grow = grow.ok_or_else(|| self.shared.maker.missing(CALL))?;
        let id = id.map(UniqueId::raw);
        let raw = self.derive(CALL, patience, |parent, child| {
            let mut config = Nccl::non_blocking();
            let id = id.as_ref().map_or(ptr::null(), ptr::from_ref);
            // SAFETY: it is the communicator's turn; id, child and configuration are live.
            unsafe { grow(parent, as_int(world), id, -1, child, &mut config) }
        })?;
        let comm = self.shared.maker.comm(raw, self.rank, world);
        comm.settle(CALL, patience)?;
        Ok(comm)
    }

    /// Ends what is under way, here and at the others that do the same, and keeps the communicator for
    /// [`Comm::shrink`].
    ///
    /// # Errors
    ///
    /// Any [`CommError`].
    pub fn revoke(&self, patience: &Patience<'_>) -> Result<(), CommError> {
        const CALL: &str = "ncclCommRevoke";
        let maker = &self.shared.maker;
        let revoke = maker.nccl.functions().revoke.ok_or_else(|| maker.missing(CALL))?;
        {
            let turn = self.shared.enter()?;
            // SAFETY: it is the communicator's turn.
            let begun = unsafe { revoke(turn.raw, 0) };
            maker.nccl.check(CALL, begun, turn.raw)?;
        }
        self.settle(CALL, patience)
    }

    /// Calls what makes a communicator out of this one, and waits until the parent is at rest.
    fn derive(
        &self,
        call: &'static str,
        patience: &Patience<'_>,
        make: impl FnOnce(ncclComm_t, *mut ncclComm_t) -> c_uint,
    ) -> Result<ncclComm_t, CommError> {
        // The library writes to it until the parent has settled, which may be after this call has given up.
        let child = Box::into_raw(Box::new(ptr::null_mut::<ncclComm>()));
        let begun = self.shared.enter().and_then(|turn| {
            let begun = make(turn.raw, child);
            Ok(self.shared.maker.nccl.check(call, begun, turn.raw)?)
        });
        let settled = begun.and_then(|()| self.settle(call, patience));
        let ended = match &settled {
            Ok(()) => Ok(()),
            Err(_) => self.end(Ending::Abort),
        };
        if ended.is_err() {
            // The parent could not be ended, and may write still: the few bytes are given up.
            return settled.map(|()| ptr::null_mut());
        }
        // SAFETY: made above; the library has stopped using it.
        let raw = *unsafe { Box::from_raw(child) };
        if let Err(error) = settled {
            drop(self.shared.maker.comm(raw, 0, 0));
            return Err(error);
        }
        Ok(raw)
    }

    /// Whether it was ended.
    pub fn is_ended(&self) -> bool {
        self.shared.ending.load(Ordering::Acquire)
    }

    /// Ends it, from any thread; what is under way returns an error or is never done. Ends it once: further
    /// calls do nothing. Takes less than a second, or leaves a thread behind ([`Stuck`]). To finish is a
    /// collective call of all its ranks; where that fails or takes too long, it is aborted.
    ///
    /// # Errors
    ///
    /// CUDA or NCCL refused, or the call is stuck. The communicator is gone all the same.
    pub fn end(&self, ending: Ending) -> Result<(), CommError> {
        if ending == Ending::Finish && self.finish().is_ok() {
            return Ok(());
        }
        let Some(end) = self.shared.take(Ending::Abort) else { return Ok(()) };
        self.shared.maker.reaper.run("ncclCommAbort", ABORT_PATIENCE, end)?
    }

    #[expect(clippy::disallowed_methods, reason = "this is outside of the deterministic world")]
    fn finish(&self) -> Result<(), CommError> {
        const CALL: &str = "ncclCommFinalize";
        let patience = Patience { due: Instant::now() + ABORT_PATIENCE, stop: &|| None };
        {
            let turn = self.shared.enter()?;
            let nccl = &self.shared.maker.nccl;
            // SAFETY: it is the communicator's turn.
            let begun = unsafe { (nccl.functions().finalize)(turn.raw) };
            nccl.check(CALL, begun, turn.raw)?;
        }
        self.settle(CALL, &patience)?;
        let Some(end) = self.shared.take(Ending::Finish) else { return Ok(()) };
        self.shared.maker.reaper.run("ncclCommDestroy", ABORT_PATIENCE, end)?
    }
}

impl Drop for Comm {
    /// Neither waits nor panics.
    fn drop(&mut self) {
        if let Some(end) = self.shared.take(Ending::Abort) {
            self.shared.maker.reaper.post(move || drop(end()));
        }
    }
}

impl Shared {
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

    /// Takes the communicator away from everybody; what is returned ends it. `None`: somebody else has.
    fn take(
        self: &Arc<Self>,
        ending: Ending,
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
                Ending::Finish => ("ncclCommDestroy", functions.destroy),
                Ending::Abort => ("ncclCommAbort", functions.abort),
            };
            // SAFETY: nobody else has the communicator, and no call begins any more; one that has been under
            // way for longer than any should be returns by this very abort.
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
    shared: &'a Shared,
    raw: ncclComm_t,
    _held: MutexGuard<'a, ()>,
}

impl Turn<'_> {
    /// What has become of what was begun: NCCL's code.
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
