//! NCCL: communicators over segments, non-blocking ones as NCCL has them.

pub mod queue;

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::faults::{self, Fault, setting};
use crate::segment::{RANKS_MAX, Segment, wait};

const SUCCESS: c_uint = 0;
const SYSTEM_ERROR: c_uint = 2;
const INVALID_ARGUMENT: c_uint = 4;
const INVALID_USAGE: c_uint = 5;
const IN_PROGRESS: c_uint = 7;
const ID_BYTES: usize = 128;

/// `ncclUniqueId`: a path.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId([u8; ID_BYTES]);

impl UniqueId {
    fn of(path: &Path) -> UniqueId {
        let mut id = UniqueId([0; ID_BYTES]);
        let bytes = path.as_os_str().as_bytes();
        id.0[..bytes.len()].copy_from_slice(bytes);
        id
    }

    fn path(&self) -> Option<PathBuf> {
        let text = CStr::from_bytes_until_nul(&self.0).ok()?;
        text.to_str().ok().map(PathBuf::from)
    }
}

/// The part of `ncclConfig_t` that is looked at.
#[repr(C)]
pub struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

/// A communicator.
pub struct Comm {
    core: Arc<Core>,
    finalized: AtomicBool,
    derived: AtomicU64,
    calls: Mutex<BTreeMap<&'static str, u64>>,
}

struct Core {
    segment: Segment,
    rank: u32,
    world: u32,
    abort: AtomicBool,
    revoked: AtomicBool,
    /// Time at which the threads of a revoked one have ended; NCCL's look every 500 ms.
    settles: Mutex<Option<Instant>>,
    error: AtomicU32,
    under_way: AtomicU32,
}

/// Communicators that live: tests look for leaks with it.
static LIVING: AtomicU32 = AtomicU32::new(0);

#[unsafe(no_mangle)]
pub extern "C" fn stand_in_communicators() -> u32 {
    LIVING.load(Ordering::SeqCst)
}

impl Comm {
    fn new(path: &Path, world: u32, rank: u32) -> Option<Comm> {
        if world == 0 || world as usize > RANKS_MAX || rank >= world {
            return None;
        }
        let segment = Segment::open(path, world).ok()?;
        LIVING.fetch_add(1, Ordering::SeqCst);
        let core = Core {
            segment,
            rank,
            world,
            abort: AtomicBool::new(false),
            revoked: AtomicBool::new(false),
            settles: Mutex::default(),
            error: AtomicU32::new(SUCCESS),
            under_way: AtomicU32::new(0),
        };
        Some(Comm {
            core: Arc::new(core),
            finalized: AtomicBool::new(false),
            derived: AtomicU64::new(0),
            calls: Mutex::default(),
        })
    }

    /// The fault planted for this call.
    fn fault(&self, call: &'static str) -> Option<Fault> {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let count = calls.entry(call).or_default();
        *count += 1;
        faults::of(call, Some(self.core.rank), *count)
    }

    /// A call that may fail, be late, or not return.
    fn enter(&self, call: &'static str) -> Result<Option<Fault>, c_uint> {
        let fault = self.fault(call);
        match fault {
            Some(Fault::Fail(code)) => return Err(code),
            Some(Fault::Block) => {
                // The abort frees the communicator under this call, which touches it no more.
                let core = Arc::clone(&self.core);
                let _ = wait(&core.abort, || false);
                return Err(INVALID_USAGE);
            }
            Some(Fault::Stick) => stick(),
            _ => {}
        }
        Ok(fault)
    }

    /// The path of the next communicator that comes of this one; all its ranks count alike.
    fn next_path(&self, kind: &str) -> PathBuf {
        let number = self.derived.fetch_add(1, Ordering::SeqCst);
        let parent = self.core.segment.path().to_string_lossy().into_owned();
        PathBuf::from(format!("{parent}{kind}{number}"))
    }

    fn is_settled(&self) -> bool {
        let settles = self.core.settles.lock().unwrap_or_else(PoisonError::into_inner);
        settles.is_none_or(|settles| settles <= Instant::now())
    }

    fn abort(&self) {
        self.core.abort.store(true, Ordering::SeqCst);
        let due = Instant::now() + Duration::from_secs(5);
        while self.core.under_way.load(Ordering::SeqCst) > 0 && Instant::now() < due {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        LIVING.fetch_sub(1, Ordering::SeqCst);
    }
}

fn stick() -> ! {
    loop {
        std::thread::park();
    }
}

fn result(outcome: Result<(), c_uint>) -> c_uint {
    outcome.err().unwrap_or(SUCCESS)
}

/// A new child, or an error, or one that never joins.
fn form(fault: Option<Fault>, path: &Path, world: u32, rank: u32, out: *mut *mut Comm) -> c_uint {
    let Some(comm) = Comm::new(path, world, rank) else { return SYSTEM_ERROR };
    match fault {
        Some(Fault::Hang) => {}
        Some(Fault::Late(code)) => comm.core.error.store(code, Ordering::SeqCst),
        Some(Fault::Slow(time)) => {
            std::thread::sleep(time);
            comm.core.segment.join();
        }
        _ => comm.core.segment.join(),
    }
    unsafe { *out = Box::into_raw(Box::new(comm)) };
    IN_PROGRESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> c_uint {
    unsafe { *version = setting("version", 23_003) as c_int };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> c_uint {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    if let Some(Fault::Fail(code)) = faults::of("ncclGetUniqueId", None, 0) {
        return code;
    }
    let number = NUMBER.fetch_add(1, Ordering::SeqCst);
    let path = format!("/dev/shm/elastic-stand-in-{}-{number}-", std::process::id());
    unsafe { *id = UniqueId::of(Path::new(&path)) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankConfig(
    out: *mut *mut Comm,
    world: c_int,
    id: UniqueId,
    rank: c_int,
    config: *const Config,
) -> c_uint {
    // SAFETY: the caller gives a configuration.
    let config = unsafe { &*config };
    if config.magic != 0xcafe_beef || config.blocking != 0 {
        return INVALID_ARGUMENT;
    }
    let Some(path) = id.path() else { return INVALID_ARGUMENT };
    let fault = faults::of("ncclCommInitRankConfig", Some(rank as u32), 0);
    match fault {
        Some(Fault::Fail(code)) => return code,
        Some(Fault::Stick) => stick(),
        _ => {}
    }
    form(fault, &path, world as u32, rank as u32, out)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(comm: *mut Comm, state: *mut c_uint) -> c_uint {
    let comm = unsafe { &*comm };
    let core = &comm.core;
    let error = core.error.load(Ordering::SeqCst);
    let waits_for_others = comm.finalized.load(Ordering::SeqCst) && !core.segment.all_left()
        || !core.segment.is_complete()
        || !comm.is_settled();
    unsafe {
        *state = match error {
            SUCCESS if waits_for_others => IN_PROGRESS,
            error => error,
        }
    };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommFinalize(comm: *mut Comm) -> c_uint {
    let comm = unsafe { &*comm };
    if comm.core.revoked.load(Ordering::SeqCst) {
        return INVALID_USAGE;
    }
    match comm.enter("ncclCommFinalize") {
        Err(code) => return code,
        Ok(Some(Fault::Hang)) => {}
        Ok(_) => comm.core.segment.leave(),
    }
    comm.finalized.store(true, Ordering::SeqCst);
    IN_PROGRESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommDestroy(comm: *mut Comm) -> c_uint {
    end(comm, "ncclCommDestroy")
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommAbort(comm: *mut Comm) -> c_uint {
    end(comm, "ncclCommAbort")
}

fn end(comm: *mut Comm, call: &'static str) -> c_uint {
    // SAFETY: the caller gives a communicator, and does not use it again.
    let comm = unsafe { Box::from_raw(comm) };
    if comm.fault(call) == Some(Fault::Stick) {
        stick();
    }
    while !comm.is_settled() {
        std::thread::sleep(Duration::from_millis(1));
    }
    comm.abort();
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommRevoke(comm: *mut Comm, _flags: c_int) -> c_uint {
    let comm = unsafe { &*comm };
    result(comm.enter("ncclCommRevoke").map(|fault| {
        comm.core.revoked.store(true, Ordering::SeqCst);
        if let Some(Fault::Slow(time)) = fault {
            let mut settles = comm.core.settles.lock().unwrap_or_else(PoisonError::into_inner);
            *settles = Some(Instant::now() + time);
        }
        comm.abort();
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommShrink(
    comm: *mut Comm,
    excluded: *const c_int,
    count: c_int,
    out: *mut *mut Comm,
    _config: *const Config,
    flags: c_int,
) -> c_uint {
    let (comm, excluded) =
        unsafe { (&*comm, std::slice::from_raw_parts(excluded, count as usize)) };
    if !comm.is_settled() {
        return INVALID_USAGE;
    }
    if flags == 1 {
        comm.abort();
    }
    let fault = match comm.enter("ncclCommShrink") {
        Ok(fault) => fault,
        Err(code) => return code,
    };
    let before = excluded.iter().filter(|rank| (**rank as u32) < comm.core.rank).count() as u32;
    let world = comm.core.world - excluded.len() as u32;
    form(fault, &comm.next_path("s"), world, comm.core.rank - before, out)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetUniqueId(comm: *mut Comm, id: *mut UniqueId) -> c_uint {
    let comm = unsafe { &*comm };
    let number = comm.derived.load(Ordering::SeqCst);
    let parent = comm.core.segment.path().to_string_lossy().into_owned();
    unsafe { *id = UniqueId::of(Path::new(&format!("{parent}g{number}"))) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGrow(
    comm: *mut Comm,
    world: c_int,
    id: *const UniqueId,
    rank: c_int,
    out: *mut *mut Comm,
    _config: *const Config,
) -> c_uint {
    if comm.is_null() {
        let Some(path) = unsafe { id.as_ref() }.and_then(UniqueId::path) else {
            return INVALID_ARGUMENT;
        };
        let fault = faults::of("ncclCommGrow", Some(rank as u32), 0);
        if let Some(Fault::Fail(code)) = fault {
            return code;
        }
        return form(fault, &path, world as u32, rank as u32, out);
    }
    let comm = unsafe { &*comm };
    if rank != -1 || comm.core.abort.load(Ordering::SeqCst) {
        return INVALID_USAGE;
    }
    let fault = match comm.enter("ncclCommGrow") {
        Ok(fault) => fault,
        Err(code) => return code,
    };
    form(fault, &comm.next_path("g"), world as u32, comm.core.rank, out)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommSplit(
    comm: *mut Comm,
    colour: c_int,
    key: c_int,
    out: *mut *mut Comm,
    _config: *const Config,
) -> c_uint {
    let comm = unsafe { &*comm };
    let fault = match comm.enter("ncclCommSplit") {
        Ok(fault) => fault,
        Err(code) => return code,
    };
    let core = &comm.core;
    let own = u64::from(colour.cast_unsigned()) << 32 | u64::from(key.cast_unsigned());
    let Ok(told) = core.segment.exchange(core.rank, own, &core.abort) else { return SYSTEM_ERROR };
    let path = comm.next_path("c");
    if colour < 0 {
        unsafe { *out = std::ptr::null_mut() };
        return SUCCESS;
    }
    let mut members: Vec<(u64, u32)> = (0..core.world)
        .filter(|rank| told[*rank as usize] >> 32 == own >> 32)
        .map(|rank| (told[rank as usize] & 0xffff_ffff, rank))
        .collect();
    members.sort_unstable();
    let rank = members.iter().position(|(_, rank)| *rank == core.rank).unwrap_or(0) as u32;
    let path = PathBuf::from(format!("{}-{colour}", path.display()));
    form(fault, &path, members.len() as u32, rank, out)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(code: c_uint) -> *const c_char {
    let text = match code {
        1 => c"unhandled cuda error",
        2 => c"unhandled system error",
        3 => c"internal error",
        6 => c"remote process exited or there was a network error",
        _ => c"error of the stand-in",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(_comm: *mut Comm) -> *const c_char {
    c"told to by the stand-in's faults".as_ptr()
}
