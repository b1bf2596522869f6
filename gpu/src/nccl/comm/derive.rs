//! Communicators that are derived from others: split, shrunk, grown. Called by the actor's jobs, and by groups.

#![expect(unsafe_code, reason = "NCCL is a C library")]

use std::ffi::{c_int, c_uint};
use std::ptr;

use cudarc::nccl::sys::{ncclComm, ncclComm_t};

use super::super::api::{Nccl, UniqueId};
use super::super::patience::{CommError, GpuPatience};
use super::{Comm, CommEnding, as_int};

/// `NCCL_SHRINK_DEFAULT`: nothing is under way in the parent.
const SHRINK_DEFAULT: c_int = 0;
/// `NCCL_SPLIT_NOCOLOR`.
const NO_COLOUR: c_int = -1;

impl Comm {
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
        patience: &GpuPatience<'_>,
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

    /// Makes a communicator of the ranks that are not in `excluded`; each of these calls it. Ranks close up. Nothing
    /// is under way in the parent, or it was revoked.
    ///
    /// # Errors
    ///
    /// Any [`CommError`].
    pub fn shrink(&self, excluded: &[u32], patience: &GpuPatience<'_>) -> Result<Comm, CommError> {
        const CALL: &str = "ncclCommShrink";
        let shrink = self.shared.maker.nccl.functions().shrink;
        let shrink = shrink.ok_or_else(|| self.shared.maker.missing(CALL))?;
        let mut list: Vec<c_int> = excluded.iter().map(|rank| as_int(*rank)).collect();
        self.settle_revoked(patience)?;
        let raw = self.derive(CALL, patience, |parent, child| {
            let mut config = Nccl::non_blocking();
            let count = c_int::try_from(list.len()).unwrap_or(c_int::MAX);
            // SAFETY: it is the communicator's turn; list, child and configuration are live.
            unsafe { shrink(parent, list.as_mut_ptr(), count, child, &mut config, SHRINK_DEFAULT) }
        })?;
        let before = excluded.iter().filter(|rank| **rank < self.rank).count() as u32;
        let world = self.world - excluded.len() as u32;
        let comm = self.shared.maker.comm(raw, self.rank - before, world);
        comm.settle(CALL, patience)?;
        Ok(comm)
    }

    /// The id by which newcomers join. Asked for by one rank, which then gives it to [`Comm::grow`].
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
        patience: &GpuPatience<'_>,
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

    /// Calls NCCL to make a communicator out of this one, and waits until the parent is at rest.
    fn derive(
        &self,
        call: &'static str,
        patience: &GpuPatience<'_>,
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
            Err(_) => self.end(CommEnding::Abort),
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
}
