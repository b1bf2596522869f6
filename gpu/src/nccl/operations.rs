//! The operations that can be queued: NCCL's collectives on memory of a GPU. Called by groups.

#![expect(unsafe_code, reason = "NCCL is a C library")]

use std::ffi::{c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::ops::Range;

use cudarc::nccl::sys::{ncclComm_t, ncclDataType_t, ncclRedOp_t};
use elastic_collectives::{DataType, ReduceOp};

use super::api::{Functions, Nccl, NcclError};
use crate::cuda::{DeviceBuffer, Stream};

/// Memory of a GPU, in bytes. It must outlive what is queued on it; [`DeviceBuffer`]'s end waits for the GPU.
#[derive(Clone, Copy, Debug)]
pub struct Region<'a> {
    address: u64,
    bytes: usize,
    of: PhantomData<&'a DeviceBuffer>,
}

impl<'a> Region<'a> {
    /// These bytes of `buffer`.
    ///
    /// # Panics
    ///
    /// If the buffer is shorter.
    pub fn new(buffer: &'a DeviceBuffer, range: Range<usize>) -> Region<'a> {
        Region::all(buffer).part(range)
    }

    /// The whole of `buffer`.
    pub const fn all(buffer: &'a DeviceBuffer) -> Region<'a> {
        Region { address: buffer.address(), bytes: buffer.len(), of: PhantomData }
    }

    /// Memory on the GPU that was allocated elsewhere, such as a tensor's.
    ///
    /// # Safety
    ///
    /// The bytes exist on the GPU of the group that is given them, for as long as `'a` lasts and until the work
    /// queued on them is done; meanwhile they are not written elsewhere, and not read where they are written here.
    pub const unsafe fn of_others(address: u64, bytes: usize) -> Region<'a> {
        Region { address, bytes, of: PhantomData }
    }

    /// These bytes of it.
    ///
    /// # Panics
    ///
    /// If it is shorter.
    pub fn part(&self, range: Range<usize>) -> Region<'a> {
        assert!(range.start <= range.end && range.end <= self.bytes, "a region is in its memory");
        Region { address: self.address + range.start as u64, bytes: range.len(), of: PhantomData }
    }

    /// Its length, in bytes.
    pub const fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    pub(crate) const fn start_address(&self) -> usize {
        self.address as usize
    }

    fn address(&self) -> *mut c_void {
        self.address as *mut c_void
    }

    fn count(&self, data_type: DataType) -> usize {
        self.bytes / data_type.size_bytes()
    }
}

/// Queues operations; made by [`super::Comm::enqueue`]. Ranks are NCCL's.
pub struct Operations<'a> {
    nccl: &'a Nccl,
    comm: ncclComm_t,
    stream: &'a Stream,
}

type NcclResult = Result<(), NcclError>;

impl<'a> Operations<'a> {
    pub(super) fn new(nccl: &'a Nccl, comm: ncclComm_t, stream: &'a Stream) -> Operations<'a> {
        Operations { nccl, comm, stream }
    }

    fn queue(&self, call: &'static str, queue: impl FnOnce(&Functions) -> c_uint) -> NcclResult {
        let queued = queue(self.nccl.functions());
        self.nccl.check(call, queued, self.comm)
    }

    /// Reduces all ranks' `from` into everybody's `to`, which may be the same.
    pub fn all_reduce(
        &self,
        from: &Region<'_>,
        to: &Region<'_>,
        of: DataType,
        op: ReduceOp,
    ) -> NcclResult {
        let count = same(from, to, 1, of);
        let (source, target, stream) = (from.address(), to.address(), self.stream.raw());
        self.queue("ncclAllReduce", |functions| {
            // SAFETY: both regions live, and are as long.
            unsafe {
                let (of, op) = (data_type(of), reduce_op(op));
                (functions.all_reduce)(source, target, count, of, op, self.comm, stream)
            }
        })
    }

    /// Reduces all ranks' `from` into `root`'s `to`.
    pub fn reduce(
        &self,
        from: &Region<'_>,
        to: &Region<'_>,
        of: DataType,
        op: ReduceOp,
        root: u32,
    ) -> NcclResult {
        let count = same(from, to, 1, of);
        let (source, target, stream) = (from.address(), to.address(), self.stream.raw());
        self.queue("ncclReduce", |functions| {
            // SAFETY: as above.
            unsafe {
                let (of, op, root) = (data_type(of), reduce_op(op), root as c_int);
                (functions.reduce)(source, target, count, of, op, root, self.comm, stream)
            }
        })
    }

    /// Copies `root`'s `from` into everybody's `to`.
    pub fn broadcast(
        &self,
        from: &Region<'_>,
        to: &Region<'_>,
        of: DataType,
        root: u32,
    ) -> NcclResult {
        let count = same(from, to, 1, of);
        let (source, target, stream) = (from.address(), to.address(), self.stream.raw());
        self.queue("ncclBroadcast", |functions| {
            // SAFETY: as above.
            unsafe {
                let (of, root) = (data_type(of), root as c_int);
                (functions.broadcast)(source, target, count, of, root, self.comm, stream)
            }
        })
    }

    /// Puts every rank's `from` into everybody's `to`, by NCCL's rank; `to` is `world` times as long.
    pub fn all_gather(
        &self,
        from: &Region<'_>,
        to: &Region<'_>,
        of: DataType,
        world: u32,
    ) -> NcclResult {
        let count = same(from, to, world, of);
        let (source, target, stream) = (from.address(), to.address(), self.stream.raw());
        self.queue("ncclAllGather", |functions| {
            // SAFETY: as above, and the target is as long as all sources.
            unsafe {
                (functions.all_gather)(source, target, count, data_type(of), self.comm, stream)
            }
        })
    }

    /// Reduces all ranks' `from`, and puts this rank's part, by NCCL's rank, into `to`; `from` is `world` times as
    /// long.
    pub fn reduce_scatter(
        &self,
        from: &Region<'_>,
        to: &Region<'_>,
        of: DataType,
        op: ReduceOp,
        world: u32,
    ) -> NcclResult {
        let count = same(to, from, world, of);
        let (source, target, stream) = (from.address(), to.address(), self.stream.raw());
        self.queue("ncclReduceScatter", |functions| {
            // SAFETY: as above.
            unsafe {
                let (of, op) = (data_type(of), reduce_op(op));
                (functions.reduce_scatter)(source, target, count, of, op, self.comm, stream)
            }
        })
    }

    /// Sends to one rank.
    pub fn send(&self, from: &Region<'_>, of: DataType, to: u32) -> NcclResult {
        let (source, count) = (from.address(), from.count(of));
        let stream = self.stream.raw();
        self.queue("ncclSend", |functions| {
            // SAFETY: the region lives.
            unsafe {
                (functions.send)(source, count, data_type(of), to as c_int, self.comm, stream)
            }
        })
    }

    /// Receives from one rank.
    pub fn recv(&self, to: &Region<'_>, of: DataType, from: u32) -> NcclResult {
        let (target, count) = (to.address(), to.count(of));
        let stream = self.stream.raw();
        self.queue("ncclRecv", |functions| {
            // SAFETY: as above.
            unsafe {
                (functions.receive)(target, count, data_type(of), from as c_int, self.comm, stream)
            }
        })
    }
}

/// The elements of `part`, of which `whole` has `times` as many.
fn same(part: &Region<'_>, whole: &Region<'_>, times: u32, of: DataType) -> usize {
    assert_eq!(part.len() * times as usize, whole.len(), "the lengths fit");
    part.count(of)
}

fn data_type(of: DataType) -> ncclDataType_t {
    match of {
        DataType::F32 => ncclDataType_t::ncclFloat32,
        DataType::F64 => ncclDataType_t::ncclFloat64,
        DataType::F16 => ncclDataType_t::ncclFloat16,
        DataType::Bf16 => ncclDataType_t::ncclBfloat16,
        DataType::U8 => ncclDataType_t::ncclUint8,
        DataType::I32 => ncclDataType_t::ncclInt32,
        DataType::I64 => ncclDataType_t::ncclInt64,
        DataType::U32 => ncclDataType_t::ncclUint32,
        DataType::U64 => ncclDataType_t::ncclUint64,
    }
}

fn reduce_op(op: ReduceOp) -> ncclRedOp_t {
    match op {
        ReduceOp::Sum => ncclRedOp_t::ncclSum,
        ReduceOp::Mean => ncclRedOp_t::ncclAvg,
        ReduceOp::Min => ncclRedOp_t::ncclMin,
        ReduceOp::Max => ncclRedOp_t::ncclMax,
        ReduceOp::Prod => ncclRedOp_t::ncclProd,
    }
}
