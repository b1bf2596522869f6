//! [`SharedSegment`]: memory that the ranks of one host share, and all `unsafe` access to it.
//!
//! The segment is a memfd. It has no name, so nothing is left when its ranks are gone, however they ended. Its
//! length is sealed before any rank maps it, so no peer can make an access fault. Ranks of one generation trust
//! each other with its content: they hold the generation's key, and run as one user.

use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

use elastic_shm_protocol::Board;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};
use rustix::fs::{MemfdFlags, memfd_create};

use super::futex;
use super::layout::{Area, ControlLine, RankLine, SegmentLayout, Slot};
use super::stores::Stores;

/// The name of a segment's memfd, for people and for the check of a process that opens it.
const NAME: &CStr = c"elastic-collectives";
const LINK: &[u8] = b"/memfd:elastic-collectives";

/// The secret words at a segment's start.
pub(super) type Token = [u64; 4];

/// A mapped segment. Dropping it unmaps it.
#[derive(Debug)]
pub(crate) struct SharedSegment {
    base: NonNull<u8>,
    layout: SegmentLayout,
    /// The stores that all ranks write with.
    stores: Stores,
}

#[expect(unsafe_code, reason = "a mapping is not bound to a thread")]
// SAFETY: the mapping belongs to the process, and only its owner gives access to it.
unsafe impl Send for SharedSegment {}

#[expect(unsafe_code, reason = "all that is shared without `unsafe` is atomic")]
// SAFETY: buffers are reached by `read` and `write` alone, whose callers keep readers and writers apart.
unsafe impl Sync for SharedSegment {}

fn length_seals() -> SealFlag {
    SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW
}

impl SharedSegment {
    /// Creates a segment, and the descriptor by which the others open it.
    ///
    /// # Errors
    ///
    /// The system has no memfd, no memory or no descriptor.
    pub(super) fn create(
        layout: SegmentLayout,
        token: Token,
    ) -> io::Result<(SharedSegment, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create(NAME, flags)?);
        file.set_len(layout.length() as u64)?;
        fcntl(&file, FcntlArg::F_ADD_SEALS(length_seals() | SealFlag::F_SEAL_SEAL))?;
        let segment = SharedSegment::map(&file, layout)?;
        for (word, value) in segment.control().token.0.iter().zip(token) {
            word.store(value, Ordering::Release);
        }
        Ok((segment, file.into()))
    }

    /// Opens the segment behind another process's descriptor.
    ///
    /// # Errors
    ///
    /// There is no such descriptor, this process may not open it, or it is not the segment of this token, as where
    /// the process number belongs to another machine or namespace.
    pub(super) fn open(
        layout: SegmentLayout,
        pid: u32,
        fd: RawFd,
        token: Token,
    ) -> io::Result<SharedSegment> {
        let path = format!("/proc/{pid}/fd/{fd}");
        let wrong = || io::Error::other("it is another file than the segment");
        // In another namespace the number may belong to any process: only a segment is opened.
        if !std::fs::read_link(&path)?.as_os_str().as_bytes().starts_with(LINK) {
            return Err(wrong());
        }
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        let seals = SealFlag::from_bits_truncate(fcntl(&file, FcntlArg::F_GET_SEALS)?);
        if !seals.contains(length_seals()) || file.metadata()?.len() != layout.length() as u64 {
            return Err(wrong());
        }
        let segment = SharedSegment::map(&file, layout)?;
        let words = segment.control().token.0.iter().map(|word| word.load(Ordering::Acquire));
        if words.ne(token) {
            return Err(wrong());
        }
        Ok(segment)
    }

    #[expect(unsafe_code, reason = "mmap(2)")]
    fn map(file: &File, layout: SegmentLayout) -> io::Result<SharedSegment> {
        let length = NonZeroUsize::new(layout.length())
            .ok_or_else(|| io::Error::other("a segment has control words"))?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice, of a file whose length is sealed.
        let base = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, file, 0)? };
        let segment = SharedSegment { base: base.cast(), layout, stores: Stores::Cached };
        // SAFETY: the range is the mapping just made; children of fork(2) do not get it.
        unsafe { madvise(base, length.get(), MmapAdvise::MADV_DONTFORK)? };
        Ok(segment)
    }

    pub(super) fn layout(&self) -> SegmentLayout {
        self.layout
    }

    /// The stores that all ranks write with, [`Stores::Cached`] until they have agreed.
    pub(super) fn stores(&self) -> Stores {
        self.stores
    }

    /// The segment, written with these stores from now on. All ranks must do so.
    pub(super) fn written_with(self, stores: Stores) -> SharedSegment {
        let mut segment = self;
        segment.stores = stores;
        segment
    }

    #[expect(unsafe_code, reason = "shared memory is reached by address")]
    pub(super) fn control(&self) -> &ControlLine {
        // SAFETY: the mapping starts, page-aligned, with `ControlLine`, which has atomics only, for which
        // every bit pattern is valid; it lives as long as `self`.
        unsafe { self.base.cast::<ControlLine>().as_ref() }
    }

    /// The words that `rank` publishes with steps of this parity.
    #[expect(unsafe_code, reason = "shared memory is reached by address")]
    pub(super) fn line(&self, rank: u32, parity: usize) -> &RankLine {
        // SAFETY: as for `control`; the layout keeps slots inside the mapping, and aligned.
        let slot = unsafe { self.base.byte_add(self.layout.slot(rank)).cast::<Slot>().as_ref() };
        &slot[parity].0
    }

    /// The bytes `within` a rank's buffer.
    ///
    /// # Safety
    ///
    /// No rank writes there while the result lives: see [`super::session`].
    #[expect(unsafe_code, reason = "shared memory is reached by address")]
    pub(super) unsafe fn read(
        &self,
        rank: u32,
        area: Area,
        parity: usize,
        within: Range<usize>,
    ) -> &[u8] {
        let place = self.layout.area(rank, area, parity, within);
        // SAFETY: the layout keeps the place inside the mapping; the caller keeps writers away.
        unsafe {
            NonNull::slice_from_raw_parts(self.base.byte_add(place.start), place.len()).as_ref()
        }
    }

    /// Copies `bytes` to a rank's buffer, at `offset`.
    ///
    /// # Safety
    ///
    /// No rank reads or writes there during the call: see [`super::session`].
    #[expect(unsafe_code, reason = "shared memory is reached by address")]
    pub(super) unsafe fn write(
        &self,
        rank: u32,
        area: Area,
        parity: usize,
        offset: usize,
        bytes: &[u8],
    ) {
        let place = self.layout.area(rank, area, parity, offset..offset + bytes.len());
        // SAFETY: the layout keeps the place inside the mapping; `bytes` is borrowed by the caller from
        // elsewhere, or from a buffer that is only read, so the two do not overlap.
        unsafe {
            let target = self.base.byte_add(place.start).as_ptr();
            self.stores.copy(bytes.as_ptr(), target, bytes.len());
        }
    }
}

impl Board for SharedSegment {
    type Word = AtomicU32;

    fn world(&self) -> u32 {
        self.layout.world()
    }

    fn step(&self, rank: u32, parity: usize) -> &AtomicU32 {
        &self.line(rank, parity).step
    }

    fn bell(&self) -> &AtomicU32 {
        &self.control().bell.0
    }

    fn sleepers(&self) -> &AtomicU32 {
        &self.control().sleepers.0
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn wait(&self, seen: u32, timeout: Duration) {
        futex::wait(self.bell(), seen, timeout);
    }

    fn wake_all(&self) {
        futex::wake_all(self.bell());
    }
}

impl Drop for SharedSegment {
    #[expect(unsafe_code, reason = "munmap(2)")]
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's own, and nothing borrowed from it is left.
        let unmapped = unsafe { munmap(self.base.cast(), self.layout.length()) };
        if let Err(error) = unmapped {
            tracing::warn!(%error, "a shared segment cannot be unmapped");
        }
    }
}
