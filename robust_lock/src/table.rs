//! The shared memory of an agent and its workers: a header, and a seat for each lock. A memfd, which the agent makes and
//! each of its workers inherits. Used by both sides.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use elastic_shm_protocol::owner::Seat;
use nix::fcntl::{FcntlArg, FdFlag, SealFlag, fcntl};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::futex;

/// The name of the memfd, for people and for the check of a process that inherits it.
const NAME: &CStr = c"elastic-locks";
const LINK: &[u8] = b"/memfd:elastic-locks";

/// The number of seats: the most words that one call can wait for, less the word by which the watcher itself is called.
pub(crate) const SEATS: u32 = futex::WORDS_MAX as u32 - 1;

/// Words that a lock of the C library may need: `pthread_mutex_t` has 40 to 48 bytes.
pub(crate) const LOCK_WORDS: usize = 28;

/// Words of a note, and the most bytes of it that are kept.
const NOTE_WORDS: usize = 31;
const NOTE_BYTES_MAX: usize = NOTE_WORDS * size_of::<u32>();

/// Random words that tell this table from another file with the same number.
pub(crate) type TableToken = [u64; 2];

/// The table's first bytes.
#[repr(C, align(128))]
struct TableHeader {
    token: [AtomicU64; 2],
    /// Changes when the watcher has something to do other than a lock's.
    bell: AtomicU32,
    /// Changes when the watcher has seen a death. Workers wait for it: of the threads that wait for a lock's word, the
    /// kernel wakes only one.
    deaths: AtomicU32,
}

/// One lock's place.
#[repr(C, align(128))]
pub(crate) struct TableSeat {
    /// Zero until a process has begun to use the seat.
    pub(crate) taken: AtomicU32,
    claim: AtomicU32,
    reserved: AtomicU64,
    /// The lock of the C library, with the word that the kernel changes somewhere in it.
    pub(crate) lock: [AtomicU32; LOCK_WORDS],
    /// The number of bytes of the owner's note; written after them.
    note_length: AtomicU32,
    /// The text that the owner has left for its agent. Releases read each other's: neither the place of the note nor the table's
    /// header and length may change.
    note: [AtomicU32; NOTE_WORDS],
}

impl Seat for TableSeat {
    type Word = AtomicU32;

    fn claim(&self) -> &AtomicU32 {
        &self.claim
    }

    fn lock(&self, place: u32) -> Option<&AtomicU32> {
        self.lock.get(place as usize)
    }
}

impl TableSeat {
    /// Makes the seat one that nobody has used.
    pub(crate) fn clear(&self) {
        for word in self.lock.iter().chain([&self.claim, &self.taken, &self.note_length]) {
            word.store(0, Ordering::Release);
        }
    }

    /// Leaves a note, cut if it is too long.
    pub(crate) fn set_note(&self, text: &str) {
        let mut end = text.len().min(NOTE_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let text = &text.as_bytes()[..end];
        for (word, bytes) in self.note.iter().zip(text.chunks(size_of::<u32>())) {
            let mut whole = [0; size_of::<u32>()];
            whole[..bytes.len()].copy_from_slice(bytes);
            word.store(u32::from_le_bytes(whole), Ordering::Relaxed);
        }
        self.note_length.store(text.len() as u32, Ordering::Release);
    }

    /// The note, if one was left. The owner may have written anything there.
    pub(crate) fn note(&self) -> Option<String> {
        let length = self.note_length.load(Ordering::Acquire) as usize;
        let bytes = self.note.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes());
        let bytes: Vec<u8> = bytes.take(length).collect();
        let text = String::from_utf8_lossy(&bytes);
        let text: String = text.chars().filter(|it| !it.is_control()).collect();
        (!text.is_empty()).then_some(text)
    }
}

const LENGTH: usize = size_of::<TableHeader>() + SEATS as usize * size_of::<TableSeat>();

/// The mapped table. Dropping it unmaps it.
#[derive(Debug)]
pub(crate) struct LockTable {
    base: NonNull<u8>,
    /// The descriptor that workers inherit; a worker closes its own.
    descriptor: Option<OwnedFd>,
}

#[expect(unsafe_code, reason = "a mapping is not bound to a thread")]
// SAFETY: the mapping belongs to the process, and only its owner gives access to it.
unsafe impl Send for LockTable {}

#[expect(unsafe_code, reason = "all that is shared is atomic")]
// SAFETY: the table is reached as atomic words alone.
unsafe impl Sync for LockTable {}

fn length_seals() -> SealFlag {
    SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW
}

impl LockTable {
    /// Makes a table with free seats.
    ///
    /// # Errors
    /// The system has no memfd, no memory or no descriptor.
    pub(crate) fn create(token: TableToken) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create(NAME, flags)?);
        file.set_len(LENGTH as u64)?;
        fcntl(&file, FcntlArg::F_ADD_SEALS(length_seals() | SealFlag::F_SEAL_SEAL))?;
        let base = Self::map(&file)?;
        let table = Self { base, descriptor: Some(file.into()) };
        for (word, value) in table.header().token.iter().zip(token) {
            word.store(value, Ordering::Release);
        }
        Ok(table)
    }

    /// Takes the table behind a descriptor that this process has inherited. The descriptor is closed if it is that of
    /// the table, and left alone if not.
    ///
    /// # Errors
    /// There is no such descriptor, or it is another file: programs between the agent and this process may have closed
    /// it, and used its number again.
    pub(crate) fn inherit(number: RawFd, token: TableToken) -> io::Result<Self> {
        let path = format!("/proc/self/fd/{number}");
        if !fs::read_link(&path)?.as_os_str().as_bytes().starts_with(LINK) {
            return Err(io::Error::other("its number belongs to another file"));
        }
        let file = File::options().read(true).write(true).open(&path)?;
        let seals = SealFlag::from_bits_truncate(fcntl(&file, FcntlArg::F_GET_SEALS)?);
        if !seals.contains(length_seals()) || file.metadata()?.len() != LENGTH as u64 {
            return Err(io::Error::other("it has another length"));
        }
        let table = Self { base: Self::map(&file)?, descriptor: None };
        let words = table.header().token.iter().map(|word| word.load(Ordering::Acquire));
        if words.ne(token) {
            return Err(io::Error::other("it is another agent's"));
        }
        close_inherited(number);
        Ok(table)
    }

    #[expect(unsafe_code, reason = "mmap(2)")]
    fn map(file: &File) -> io::Result<NonNull<u8>> {
        let length = const { NonZeroUsize::new(LENGTH).unwrap() };
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice, of a file whose length is sealed.
        let base = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, file, 0)? };
        // SAFETY: the range is the mapping just made. Children of fork(2) do not get it: they hold no lock.
        unsafe { madvise(base, LENGTH, MmapAdvise::MADV_DONTFORK)? };
        Ok(base.cast())
    }

    /// The descriptor that a worker inherits; `None` in a worker.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(AsFd::as_fd)
    }

    /// The word by which the watcher is called.
    pub(crate) fn bell(&self) -> &AtomicU32 {
        &self.header().bell
    }

    /// The word that changes with each death that the watcher has seen.
    pub(crate) fn deaths(&self) -> &AtomicU32 {
        &self.header().deaths
    }

    /// A number that tells this table from those of other agents on this machine, as far as so few bits can.
    pub(crate) fn tag(&self) -> u64 {
        self.header().token[0].load(Ordering::Relaxed)
    }

    #[expect(unsafe_code, reason = "shared memory is reached by address")]
    fn header(&self) -> &TableHeader {
        // SAFETY: the mapping starts, page-aligned, with the header, which has atomics only, for which every bit pattern
        // is valid; it lives as long as `self`.
        unsafe { self.base.cast::<TableHeader>().as_ref() }
    }

    /// A seat; `None` past the last one.
    #[expect(unsafe_code, reason = "shared memory is reached by address")]
    pub(crate) fn seat(&self, number: u32) -> Option<&TableSeat> {
        if number >= SEATS {
            return None;
        }
        let offset = size_of::<TableHeader>() + number as usize * size_of::<TableSeat>();
        // SAFETY: as for the header; the seat is inside the mapping, and aligned as the header's size is.
        Some(unsafe { self.base.byte_add(offset).cast::<TableSeat>().as_ref() })
    }
}

impl Drop for LockTable {
    #[expect(unsafe_code, reason = "munmap(2)")]
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's own, and nothing borrowed from it is left.
        let unmapped = unsafe { munmap(self.base.cast(), LENGTH) };
        if let Err(error) = unmapped {
            tracing::warn!(%error, "the table of locks cannot be unmapped");
        }
    }
}

#[expect(unsafe_code, reason = "an inherited descriptor is known by its number only")]
fn close_inherited(number: RawFd) {
    // SAFETY: the descriptor was found to be that of the table; the agent passed it on for this process to take.
    drop(unsafe { OwnedFd::from_raw_fd(number) });
}

/// Lets a descriptor of the table survive exec(2). Makes one system call, and may run between fork and exec.
pub(crate) fn pass_on(descriptor: BorrowedFd<'_>) -> io::Result<()> {
    fcntl(descriptor, FcntlArg::F_SETFD(FdFlag::empty())).map(drop).map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn only_the_table_of_the_token_is_taken() {
        let table = LockTable::create([1, 2]).unwrap();
        let number = table.descriptor().unwrap().as_raw_fd();
        let other = File::open("/dev/null").unwrap();
        assert!(LockTable::inherit(other.as_raw_fd(), [1, 2]).is_err());
        assert!(LockTable::inherit(i32::MAX, [1, 2]).is_err());
        assert!(LockTable::inherit(number, [1, 3]).is_err());
        let copy = table.descriptor().unwrap().try_clone_to_owned().unwrap();
        let number = std::os::fd::IntoRawFd::into_raw_fd(copy);
        let same = LockTable::inherit(number, [1, 2]).unwrap();
        table.seat(SEATS - 1).unwrap().claim.store(9, Ordering::Release);
        assert_eq!(same.seat(SEATS - 1).unwrap().claim.load(Ordering::Acquire), 9);
        assert!(same.seat(SEATS).is_none());
        assert!(fs::read_link(format!("/proc/self/fd/{number}")).is_err(), "it is closed");
    }

    #[test]
    fn a_note_is_bounded_and_read_without_control_characters() {
        let table = LockTable::create([1, 2]).unwrap();
        let seat = table.seat(3).unwrap();
        assert_eq!(seat.note(), None);
        seat.set_note("elastic-node 0.2.0\u{1b}[2J");
        assert_eq!(seat.note().as_deref(), Some("elastic-node 0.2.0[2J"));
        seat.set_note(&"ä".repeat(NOTE_BYTES_MAX));
        assert_eq!(seat.note(), Some("ä".repeat(NOTE_BYTES_MAX / 2)));
        seat.note_length.store(u32::MAX, Ordering::Release);
        assert!(seat.note().is_some_and(|note| note.len() <= NOTE_BYTES_MAX), "a length that lies");
        seat.clear();
        assert_eq!(seat.note(), None, "the next process has left none");
        assert_eq!(table.seat(4).unwrap().note(), None);
    }
}
