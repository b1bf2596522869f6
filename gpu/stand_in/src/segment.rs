//! The memory that the ranks of a communicator share: a file below `/dev/shm` with counters, a slot for each rank, and a
//! mailbox for each pair.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Ranks at most.
pub const RANKS_MAX: usize = 32;
/// Bytes of a rank's slot.
pub const SLOT: usize = 1 << 20;
/// Bytes of a mailbox.
pub const MAIL: usize = 16 << 10;
const POLL: Duration = Duration::from_micros(20);

#[repr(C)]
struct Shared {
    joined: AtomicU32,
    left: AtomicU32,
    arrived: AtomicU32,
    turn: AtomicU32,
    described: [AtomicU64; RANKS_MAX],
    /// By sender and receiver: messages written, messages read.
    mail: [[(AtomicU64, AtomicU64); RANKS_MAX]; RANKS_MAX],
}

const SLOTS_AT: usize = size_of::<Shared>().next_multiple_of(4096);
const MAIL_AT: usize = SLOTS_AT + RANKS_MAX * SLOT;
const LENGTH: usize = MAIL_AT + RANKS_MAX * RANKS_MAX * MAIL;

/// The end of a wait that was aborted.
#[derive(Clone, Copy, Debug)]
pub struct Aborted;

/// A mapped segment.
pub struct Segment {
    start: *mut u8,
    path: PathBuf,
    world: u32,
}

// SAFETY: what is shared is atomic, and slots are written by one side at a time.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// Opens the segment of a path, and makes it if it does not exist.
    pub fn open(path: &Path, world: u32) -> io::Result<Segment> {
        let file: File =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        file.set_len(LENGTH as u64)?;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping of a file of this length.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), LENGTH, protection, flags, file.as_raw_fd(), 0)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Segment { start: start.cast(), path: path.to_path_buf(), world })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    fn shared(&self) -> &Shared {
        // SAFETY: the mapping is long enough, and zeroes are a valid start.
        unsafe { &*self.start.cast::<Shared>() }
    }

    pub fn join(&self) {
        self.shared().joined.fetch_add(1, Ordering::SeqCst);
    }

    pub fn is_complete(&self) -> bool {
        let complete = self.shared().joined.load(Ordering::SeqCst) >= self.world;
        if complete {
            self.unlink();
        }
        complete
    }

    pub fn leave(&self) {
        self.shared().left.fetch_add(1, Ordering::SeqCst);
    }

    pub fn all_left(&self) -> bool {
        self.shared().left.load(Ordering::SeqCst) >= self.world
    }

    fn unlink(&self) {
        // Somebody else may have been first.
        let _ = std::fs::remove_file(&self.path);
    }

    /// Waits until every rank has come here.
    pub fn barrier(&self, abort: &AtomicBool) -> Result<(), Aborted> {
        let shared = self.shared();
        let turn = shared.turn.load(Ordering::SeqCst);
        if shared.arrived.fetch_add(1, Ordering::SeqCst) + 1 == self.world {
            shared.arrived.store(0, Ordering::SeqCst);
            shared.turn.fetch_add(1, Ordering::SeqCst);
            return Ok(());
        }
        wait(abort, || shared.turn.load(Ordering::SeqCst) != turn)
    }

    /// Tells the others this rank's next operation, and returns whether all have the same.
    pub fn agree(&self, rank: u32, description: u64, abort: &AtomicBool) -> Result<bool, Aborted> {
        let described = &self.shared().described;
        described[rank as usize].store(description, Ordering::SeqCst);
        self.barrier(abort)?;
        let of = |rank: u32| described[rank as usize].load(Ordering::SeqCst);
        let agreed = (0..self.world).all(|other| of(other) == description);
        self.barrier(abort)?;
        Ok(agreed)
    }

    /// The values told by each rank; like `agree`, without a demand to be equal.
    pub fn exchange(&self, rank: u32, value: u64, abort: &AtomicBool) -> Result<Vec<u64>, Aborted> {
        let described = &self.shared().described;
        described[rank as usize].store(value, Ordering::SeqCst);
        self.barrier(abort)?;
        let values = (0..self.world).map(|of| described[of as usize].load(Ordering::SeqCst));
        let values = values.collect();
        self.barrier(abort)?;
        Ok(values)
    }

    /// The slot of a rank.
    ///
    /// # Safety
    /// It is written by its rank before a barrier, and read by others after it.
    #[expect(clippy::mut_from_ref, reason = "ranks take turns by barriers")]
    pub unsafe fn slot(&self, rank: u32) -> &mut [u8] {
        let start = unsafe { self.start.add(SLOTS_AT + rank as usize * SLOT) };
        unsafe { std::slice::from_raw_parts_mut(start, SLOT) }
    }

    /// Puts a piece into a mailbox that is empty. Returns whether it was.
    pub fn post(&self, from: u32, to: u32, piece: &[u8]) -> bool {
        let (written, read) = &self.shared().mail[from as usize][to as usize];
        if written.load(Ordering::SeqCst) != read.load(Ordering::SeqCst) {
            return false;
        }
        // SAFETY: the mailbox is empty, so its reader does not look.
        unsafe { std::slice::from_raw_parts_mut(self.mailbox(from, to), piece.len()) }
            .copy_from_slice(piece);
        written.fetch_add(1, Ordering::SeqCst);
        true
    }

    /// Takes a piece out of a mailbox that is full. Returns whether it was.
    pub fn take(&self, from: u32, to: u32, piece: &mut [u8]) -> bool {
        let (written, read) = &self.shared().mail[from as usize][to as usize];
        if written.load(Ordering::SeqCst) == read.load(Ordering::SeqCst) {
            return false;
        }
        // SAFETY: the mailbox is full, so its writer waits.
        piece.copy_from_slice(unsafe {
            std::slice::from_raw_parts(self.mailbox(from, to), piece.len())
        });
        read.fetch_add(1, Ordering::SeqCst);
        true
    }

    fn mailbox(&self, from: u32, to: u32) -> *mut u8 {
        let index = from as usize * RANKS_MAX + to as usize;
        // SAFETY: within the mapping.
        unsafe { self.start.add(MAIL_AT + index * MAIL) }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        self.unlink();
        // SAFETY: mapped by `open`, and there is no other reference any more.
        unsafe { libc::munmap(self.start.cast(), LENGTH) };
    }
}

/// Waits until `done`, unless aborted.
pub fn wait(abort: &AtomicBool, mut done: impl FnMut() -> bool) -> Result<(), Aborted> {
    let mut polls = 0_u32;
    while !done() {
        if abort.load(Ordering::SeqCst) {
            return Err(Aborted);
        }
        polls += 1;
        if polls > 50 {
            std::thread::sleep(POLL);
        } else {
            std::thread::yield_now();
        }
    }
    Ok(())
}
