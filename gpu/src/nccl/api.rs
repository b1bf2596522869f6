//! NCCL's functions, version, features and errors.

#![expect(unsafe_code, reason = "NCCL is a C library")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr;

use cudarc::driver::sys::CUstream;
use cudarc::nccl::sys::{ncclComm_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclUniqueId};
use serde::Serialize;
use thiserror::Error;

use crate::load::{LibrarySearch, LoadError, WantedLibrary, table};

table! {
    /// The functions of `libnccl`. Results are read as numbers, since a newer version may have codes that an
    /// enumeration of today lacks. Functions newer than NCCL 2.18 are optional.
    Functions {
        required {
            version = "ncclGetVersion": fn(*mut c_int) -> c_uint;
            unique_id = "ncclGetUniqueId": fn(*mut ncclUniqueId) -> c_uint;
            init = "ncclCommInitRankConfig": fn(*mut ncclComm_t, c_int, ncclUniqueId, c_int, *mut ncclConfig_t) -> c_uint;
            finalize = "ncclCommFinalize": fn(ncclComm_t) -> c_uint;
            destroy = "ncclCommDestroy": fn(ncclComm_t) -> c_uint;
            abort = "ncclCommAbort": fn(ncclComm_t) -> c_uint;
            async_error = "ncclCommGetAsyncError": fn(ncclComm_t, *mut c_uint) -> c_uint;
            error_text = "ncclGetErrorString": fn(c_uint) -> *const c_char;
            last_error = "ncclGetLastError": fn(ncclComm_t) -> *const c_char;
            group_start = "ncclGroupStart": fn() -> c_uint;
            group_end = "ncclGroupEnd": fn() -> c_uint;
            all_reduce = "ncclAllReduce": fn(*const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, ncclComm_t, CUstream) -> c_uint;
            reduce = "ncclReduce": fn(*const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, c_int, ncclComm_t, CUstream) -> c_uint;
            broadcast = "ncclBroadcast": fn(*const c_void, *mut c_void, usize, ncclDataType_t, c_int, ncclComm_t, CUstream) -> c_uint;
            all_gather = "ncclAllGather": fn(*const c_void, *mut c_void, usize, ncclDataType_t, ncclComm_t, CUstream) -> c_uint;
            reduce_scatter = "ncclReduceScatter": fn(*const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, ncclComm_t, CUstream) -> c_uint;
            send = "ncclSend": fn(*const c_void, usize, ncclDataType_t, c_int, ncclComm_t, CUstream) -> c_uint;
            receive = "ncclRecv": fn(*mut c_void, usize, ncclDataType_t, c_int, ncclComm_t, CUstream) -> c_uint;
        }
        optional {
            split = "ncclCommSplit": fn(ncclComm_t, c_int, c_int, *mut ncclComm_t, *mut ncclConfig_t) -> c_uint;
            shrink = "ncclCommShrink": fn(ncclComm_t, *mut c_int, c_int, *mut ncclComm_t, *mut ncclConfig_t, c_int) -> c_uint;
            revoke = "ncclCommRevoke": fn(ncclComm_t, c_int) -> c_uint;
            grow_id = "ncclCommGetUniqueId": fn(ncclComm_t, *mut ncclUniqueId) -> c_uint;
            grow = "ncclCommGrow": fn(ncclComm_t, c_int, *const ncclUniqueId, c_int, *mut ncclComm_t, *mut ncclConfig_t) -> c_uint;
        }
    }
}

/// `ncclSuccess`.
pub(super) const SUCCESS: c_uint = 0;
/// `ncclInProgress`: a call of a non-blocking communicator goes on by itself.
pub(super) const IN_PROGRESS: c_uint = 7;
/// `NCCL_API_MAGIC`, which marks a configuration.
const MAGIC: c_uint = 0xcafe_beef;
/// `NCCL_CONFIG_UNDEF_INT`: leave it to the library.
const UNSET: c_int = c_int::MIN;
/// The version whose configuration cudarc declares. A newer library knows that the rest is missing, and an older
/// one reads as much as it knows.
const CONFIG_VERSION: c_uint = 23_000;

/// The id by which the ranks of a new communicator meet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId(pub [u8; UniqueId::BYTES]);

impl UniqueId {
    /// Its length, in bytes.
    pub const BYTES: usize = 128;

    pub(super) fn raw(&self) -> ncclUniqueId {
        ncclUniqueId { internal: self.0.map(|byte| byte as c_char) }
    }

    pub(super) fn of_raw(raw: &ncclUniqueId) -> UniqueId {
        UniqueId(raw.internal.map(|character| character as u8))
    }
}

impl fmt::Debug for UniqueId {
    /// The id admits to the communicator, so it is not printed.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("UniqueId(..)")
    }
}

/// NCCL's version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// As in `2.30.3`.
    pub major: u32,
    /// As in `2.30.3`.
    pub minor: u32,
    /// As in `2.30.3`.
    pub patch: u32,
}

impl Version {
    /// From the library's code: `major * 10000 + minor * 100 + patch` since 2.9.
    pub const fn of_code(code: u32) -> Version {
        let unit = if code < 10_000 { 1_000 } else { 10_000 };
        Version { major: code / unit, minor: code % unit / 100, patch: code % 100 }
    }

    /// The library's code of it.
    pub const fn code(self) -> u32 {
        let Version { major, minor, patch } = self;
        if major <= 2 && minor <= 8 {
            return major * 1_000 + minor * 100 + patch;
        }
        major * 10_000 + minor * 100 + patch
    }

    const fn new(major: u32, minor: u32, patch: u32) -> Version {
        Version { major, minor, patch }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Capabilities of a version that matter when the world changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Features {
    /// Sub-communicators.
    pub split: bool,
    /// A communicator of the survivors out of that of all.
    pub shrink: bool,
    /// To end the operation under way and keep the communicator for a shrink.
    pub revoke: bool,
    /// A communicator with newcomers out of that of the others.
    pub grow: bool,
    /// Several ranks on one GPU, if `NCCL_MULTI_RANK_GPU_ENABLE=1`.
    pub several_ranks_per_gpu: bool,
}

impl Features {
    /// Capabilities of a version, provided that its symbols are present.
    pub fn of(version: Version) -> Features {
        Features {
            split: version >= Version::new(2, 18, 1),
            shrink: version >= Version::new(2, 27, 3),
            revoke: version >= Version::new(2, 28, 7),
            grow: version >= Version::new(2, 29, 2),
            several_ranks_per_gpu: version >= Version::new(2, 30, 3),
        }
    }
}

/// An error of NCCL.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("NCCL's {call} failed: {text} ({code}){}", if detail.is_empty() { String::new() } else { format!(": {detail}") })]
pub struct NcclError {
    /// The call that failed.
    pub call: &'static str,
    /// NCCL's code.
    pub code: u32,
    /// The meaning of the code.
    pub text: String,
    /// NCCL's text about the last error in this process.
    pub detail: String,
}

/// NCCL, opened.
pub struct Nccl {
    functions: Functions,
    file: PathBuf,
    how: &'static str,
    version: Version,
}

impl Nccl {
    /// Finds and opens NCCL. `None`: this machine has none.
    ///
    /// # Errors
    ///
    /// It is there and cannot be used; the error names its file.
    pub fn open(search: &LibrarySearch) -> Result<Option<Nccl>, LoadError> {
        let Some(found) = search.open(WantedLibrary::Nccl)? else { return Ok(None) };
        let functions = Functions::read(&found.library)?;
        let file = found.library.file_of("ncclGetVersion");
        let mut code = 0;
        // SAFETY: the version is written to a live variable.
        let told = unsafe { (functions.version)(&mut code) };
        let version = Version::of_code(code.unsigned_abs());
        let nccl = Nccl { functions, file, how: found.how, version };
        match nccl.check("ncclGetVersion", told, ptr::null_mut()) {
            Ok(()) => Ok(Some(nccl)),
            Err(error) => Err(LoadError::Unusable { file: nccl.file, reason: error.to_string() }),
        }
    }

    /// Its file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The way in which it was found, in words for the user.
    pub const fn how(&self) -> &'static str {
        self.how
    }

    /// Its version.
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Capabilities of this library: those of its version whose symbol is present.
    pub fn features(&self) -> Features {
        let Functions { split, shrink, revoke, grow_id, grow, .. } = &self.functions;
        let of_version = Features::of(self.version);
        Features {
            split: of_version.split && split.is_some(),
            shrink: of_version.shrink && shrink.is_some(),
            revoke: of_version.revoke && revoke.is_some(),
            grow: of_version.grow && grow.is_some() && grow_id.is_some(),
            ..of_version
        }
    }

    /// Known faults of this version, for people.
    pub fn known_fault(&self) -> Option<&'static str> {
        let faulty = Version::new(2, 28, 3)..=Version::new(2, 28, 8);
        faulty.contains(&self.version).then_some(
            "NCCL 2.28.3 to 2.28.8 cannot always form a communicator again in a process that aborted one",
        )
    }

    /// A new meeting point, which this process serves. It waits until every rank has come: ask for one
    /// only if it will be used.
    ///
    /// # Errors
    ///
    /// NCCL's error: most often there is no network interface that it may use.
    pub fn unique_id(&self) -> Result<UniqueId, NcclError> {
        let mut raw = ncclUniqueId { internal: [0; UniqueId::BYTES] };
        // SAFETY: the id is written to a live variable.
        let made = unsafe { (self.functions.unique_id)(&mut raw) };
        self.check("ncclGetUniqueId", made, ptr::null_mut())?;
        Ok(UniqueId::of_raw(&raw))
    }

    pub(super) const fn functions(&self) -> &Functions {
        &self.functions
    }

    /// A configuration that leaves everything to the library, but that calls do not block.
    pub(super) fn non_blocking() -> ncclConfig_t {
        ncclConfig_t {
            size: size_of::<ncclConfig_t>(),
            magic: MAGIC,
            version: CONFIG_VERSION,
            blocking: 0,
            cgaClusterSize: UNSET,
            minCTAs: UNSET,
            maxCTAs: UNSET,
            netName: ptr::null(),
            splitShare: UNSET,
            trafficClass: UNSET,
            commName: ptr::null(),
            collnetEnable: UNSET,
            CTAPolicy: UNSET,
            shrinkShare: UNSET,
            nvlsCTAs: UNSET,
            nChannelsPerNetPeer: UNSET,
            nvlinkCentricSched: UNSET,
            graphUsageMode: UNSET,
            numRmaCtx: UNSET,
            maxP2pPeers: UNSET,
        }
    }

    /// Turns a code into an error. "In progress" is an answer, not an error.
    pub(super) fn check(
        &self,
        call: &'static str,
        code: c_uint,
        comm: ncclComm_t,
    ) -> Result<(), NcclError> {
        if code == SUCCESS || code == IN_PROGRESS {
            return Ok(());
        }
        // SAFETY: both return a string of the library's, or null; the last error is the process's, and takes
        // any communicator.
        let (text, detail) =
            unsafe { ((self.functions.error_text)(code), (self.functions.last_error)(comm)) };
        let (text, detail) = (owned(text), owned(detail));
        Err(NcclError { call, code, text, detail })
    }
}

/// A copy of a string of the library's.
fn owned(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: it is not null, and ends with a zero; it is copied before anything else is called.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned()
}

impl fmt::Debug for Nccl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Nccl({} of {})", self.version, self.file.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_from_its_code() {
        assert_eq!(Version::of_code(23_003).to_string(), "2.30.3");
        assert_eq!([2_804, 22_703].map(|code| Version::of_code(code).code()), [2_804, 22_703]);
        assert_eq!(Version::of_code(22_703), Version::new(2, 27, 3));
        assert_eq!(Version::of_code(2_804).to_string(), "2.8.4", "the older way of counting");
    }

    #[test]
    fn features_come_with_their_versions() {
        let of = |code| Features::of(Version::of_code(code));
        assert_eq!(of(21_700), Features::default());
        assert!(of(22_703).shrink && !of(22_703).revoke);
        assert!(of(22_807).revoke && !of(22_807).grow);
        assert!(of(22_902).grow && !of(22_902).several_ranks_per_gpu);
        assert!(of(23_003).several_ranks_per_gpu);
    }
}
