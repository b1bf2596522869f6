//! NCCL's operations: queued by a thread in a group, and done by a stream.

use std::cell::RefCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Comm, Core, INVALID_ARGUMENT, SUCCESS};
use crate::collective::{Kind, Operation, View};
use crate::faults::Fault;
use crate::reduce;
use crate::segment::wait;
use crate::stream::Stream;

/// Operations that a thread has queued since its group began.
#[derive(Default)]
struct Group {
    depth: u32,
    queued: Vec<(Arc<Core>, Option<Fault>, *mut Stream, Operation)>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupStart() -> c_uint {
    GROUP.with_borrow_mut(|group| group.depth += 1);
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGroupEnd() -> c_uint {
    let queued = GROUP.with_borrow_mut(|group| {
        group.depth = group.depth.saturating_sub(1);
        if group.depth == 0 { std::mem::take(&mut group.queued) } else { Vec::new() }
    });
    let Some((core, _, stream, _)) = queued.first() else { return SUCCESS };
    let (core, stream) = (Arc::clone(core), *stream);
    let faults: Vec<Fault> = queued.iter().filter_map(|(_, fault, ..)| *fault).collect();
    let operations: Vec<Operation> = queued.iter().map(|queued| queued.3).collect();
    core.under_way.fetch_add(1, Ordering::SeqCst);
    let work = move || {
        for fault in faults {
            match fault {
                Fault::Late(code) => {
                    core.error.store(code, Ordering::SeqCst);
                    let _ = wait(&core.abort, || false);
                }
                Fault::Hang => {
                    let _ = wait(&core.abort, || false);
                }
                Fault::Slow(time) => std::thread::sleep(time),
                Fault::Fail(_) | Fault::Block | Fault::Stick => {}
            }
        }
        let (rank, world) = (core.rank, core.world);
        let view = View { segment: &core.segment, rank, world, abort: &core.abort };
        // Aborted work leaves its buffers as they happen to be.
        let _ = view.run(&operations);
        core.under_way.fetch_sub(1, Ordering::SeqCst);
    };
    // SAFETY: the caller's stream lives.
    unsafe { (*stream).push(Box::new(work)) };
    SUCCESS
}

fn queue(
    call: &'static str,
    comm: *mut Comm,
    stream: *mut Stream,
    (kind, data_type, op): (Kind, c_uint, c_uint),
    (from, to, count): (*const c_void, *mut c_void, usize),
) -> c_uint {
    // SAFETY: the caller gives a communicator.
    let comm = unsafe { &*comm };
    let fault = match comm.enter(call) {
        Ok(fault) => fault,
        Err(code) => return code,
    };
    let Some(size) = reduce::size(data_type) else { return INVALID_ARGUMENT };
    let (from, to) = (from as usize, to as usize);
    let operation = Operation { kind, data_type, op, from, to, bytes: count * size };
    GROUP.with_borrow_mut(|group| {
        group.queued.push((Arc::clone(&comm.core), fault, stream, operation));
    });
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclAllReduce(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    data_type: c_uint,
    op: c_uint,
    comm: *mut Comm,
    stream: *mut Stream,
) -> c_uint {
    queue("ncclAllReduce", comm, stream, (Kind::AllReduce, data_type, op), (from, to, count))
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclReduce(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    data_type: c_uint,
    op: c_uint,
    root: c_int,
    comm: *mut Comm,
    stream: *mut Stream,
) -> c_uint {
    let kind = Kind::Reduce(root as u32);
    queue("ncclReduce", comm, stream, (kind, data_type, op), (from, to, count))
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclBroadcast(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    data_type: c_uint,
    root: c_int,
    comm: *mut Comm,
    stream: *mut Stream,
) -> c_uint {
    let kind = Kind::Broadcast(root as u32);
    queue("ncclBroadcast", comm, stream, (kind, data_type, 0), (from, to, count))
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclAllGather(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    data_type: c_uint,
    comm: *mut Comm,
    stream: *mut Stream,
) -> c_uint {
    queue("ncclAllGather", comm, stream, (Kind::AllGather, data_type, 0), (from, to, count))
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclReduceScatter(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    data_type: c_uint,
    op: c_uint,
    comm: *mut Comm,
    stream: *mut Stream,
) -> c_uint {
    queue(
        "ncclReduceScatter",
        comm,
        stream,
        (Kind::ReduceScatter, data_type, op),
        (from, to, count),
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclSend(
    from: *const c_void,
    count: usize,
    data_type: c_uint,
    to: c_int,
    comm: *mut Comm,
    stream: *mut Stream,
) -> c_uint {
    let buffers = (from, std::ptr::null_mut(), count);
    queue("ncclSend", comm, stream, (Kind::Send(to as u32), data_type, 0), buffers)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclRecv(
    to: *mut c_void,
    count: usize,
    data_type: c_uint,
    from: c_int,
    comm: *mut Comm,
    stream: *mut Stream,
) -> c_uint {
    let buffers = (std::ptr::null(), to, count);
    queue("ncclRecv", comm, stream, (Kind::Receive(from as u32), data_type, 0), buffers)
}
