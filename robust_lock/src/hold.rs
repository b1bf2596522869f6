//! [`RobustLock`]: the lock of a worker. Its library takes it on the thread of the worker's actors, for that thread's
//! life.
//!
//! The lock is a robust mutex of the C library, not a bare futex. A thread has one list of robust locks, which the kernel
//! walks when the thread ends, and it belongs to the C library: a list of ours in its place would take its own robust
//! mutexes from it, and an entry of ours in its list would depend on how it links them. The offset of the word that the
//! kernel changes is read from the kernel (get_robust_list(2)), so nothing here knows how a mutex is laid out.

use std::io;
use std::marker::PhantomData;
use std::mem::{align_of, offset_of, size_of};
use std::num::ParseIntError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use elastic_shm_protocol::owner::{self, HOLDER, Seat as _, WAITED_FOR};

use crate::futex;
use crate::peers::PeerLocks;
use crate::table::{LOCK_WORDS, LockTable, TableSeat};

/// Errors of taking a lock. The worker then does without; its agent sees its end by the pidfd.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The agent's words do not name a seat.
    #[error("{text:?} does not name a seat")]
    Malformed {
        /// The words.
        text: String,
        /// The error of a number in it.
        #[source]
        source: Option<ParseIntError>,
    },
    /// The agent's table was not inherited.
    #[error("the table of locks was not inherited")]
    NotInherited(#[source] io::Error),
    /// Another process has taken the seat: one that started this one, or that this one has replaced.
    #[error("the seat is taken")]
    Taken,
    /// The C library or the kernel has no robust locks that work as they should.
    #[error("there are no robust locks here: {0}")]
    Unsupported(&'static str, #[source] io::Error),
}

/// A lock that this thread holds. Dropping it gives the lock back, which is no death.
#[derive(Debug)]
pub struct RobustLock {
    table: Arc<LockTable>,
    seat: u32,
    /// The thread that took the lock must give it back.
    bound_to_thread: PhantomData<*const ()>,
}

/// `struct robust_list_head`, as the kernel defines it.
#[repr(C)]
struct RobustListHead {
    newest: usize,
    word_offset: libc::c_long,
    pending: usize,
}

impl RobustLock {
    /// Takes the lock of the seat that the agent named, on this thread.
    ///
    /// # Errors
    /// [`LockError`]; no lock is held then.
    pub fn take(named: &str) -> Result<Self, LockError> {
        let (number, seat, token) = parse(named)?;
        let table = LockTable::inherit(number, token).map_err(LockError::NotInherited)?;
        let place = {
            let Some(entry) = table.seat(seat) else {
                return Err(LockError::Malformed { text: named.to_owned(), source: None });
            };
            if entry.taken.swap(1, Ordering::AcqRel) != 0 {
                return Err(LockError::Taken);
            }
            lock(entry)?;
            match place_of_word(entry) {
                Ok(place) => place,
                Err(error) => {
                    unlock(entry);
                    return Err(error);
                }
            }
        };
        let held = Self { table: Arc::new(table), seat, bound_to_thread: PhantomData };
        if let Some(word) = held.entry().and_then(|entry| entry.lock(place)) {
            // The kernel, and the C library when the lock is given back, then wake the agent.
            word.fetch_or(WAITED_FOR, Ordering::AcqRel);
        }
        if let Some(entry) = held.entry() {
            owner::claim(entry, place);
            futex::wake(entry.claim());
        }
        Ok(held)
    }

    /// The locks of this host's other workers, for any thread.
    pub fn peers(&self) -> PeerLocks {
        PeerLocks::new(Arc::clone(&self.table), self.seat)
    }

    /// Leaves a note for the agent, which reads it when this process has ended.
    pub fn leave_note(&self, text: &str) {
        if let Some(entry) = self.entry() {
            entry.set_note(text);
        }
    }

    fn entry(&self) -> Option<&TableSeat> {
        self.table.seat(self.seat)
    }
}

impl Drop for RobustLock {
    fn drop(&mut self) {
        if let Some(entry) = self.entry() {
            unlock(entry);
        }
    }
}

/// The mutex of a seat.
fn mutex(entry: &TableSeat) -> *mut libc::pthread_mutex_t {
    const {
        assert!(size_of::<libc::pthread_mutex_t>() <= size_of_val_of_lock());
        assert!(offset_of!(TableSeat, lock).is_multiple_of(align_of::<libc::pthread_mutex_t>()));
    }
    entry.lock.as_ptr().cast_mut().cast()
}

const fn size_of_val_of_lock() -> usize {
    LOCK_WORDS * size_of::<AtomicU32>()
}

fn refused(what: &'static str) -> impl Fn(i32) -> Result<(), LockError> {
    move |code| match code {
        0 => Ok(()),
        code => Err(LockError::Unsupported(what, io::Error::from_raw_os_error(code))),
    }
}

/// Makes the seat's mutex and locks it.
#[expect(unsafe_code, reason = "robust mutexes of the C library")]
fn lock(entry: &TableSeat) -> Result<(), LockError> {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
    // SAFETY: `attributes` is initialised by the first call and used by the others only if that succeeded. The mutex is in
    // the seat's own words, which are of its size and alignment and which nobody else uses: `taken` was set by this
    // process alone. The mutex is not moved, since the mapping stays where it is.
    unsafe {
        let attributes = attributes.as_mut_ptr();
        refused("pthread_mutexattr_init")(libc::pthread_mutexattr_init(attributes))?;
        let shared = libc::PTHREAD_PROCESS_SHARED;
        refused("process-shared mutexes")(libc::pthread_mutexattr_setpshared(attributes, shared))?;
        let robust = libc::PTHREAD_MUTEX_ROBUST;
        refused("robust mutexes")(libc::pthread_mutexattr_setrobust(attributes, robust))?;
        let made = libc::pthread_mutex_init(mutex(entry), attributes);
        libc::pthread_mutexattr_destroy(attributes);
        refused("pthread_mutex_init")(made)?;
        refused("pthread_mutex_trylock")(libc::pthread_mutex_trylock(mutex(entry)))
    }
}

#[expect(unsafe_code, reason = "robust mutexes of the C library")]
fn unlock(entry: &TableSeat) {
    // SAFETY: this thread has locked the mutex, and has not unlocked it.
    let unlocked = unsafe { libc::pthread_mutex_unlock(mutex(entry)) };
    if unlocked != 0 {
        let error = io::Error::from_raw_os_error(unlocked);
        tracing::warn!(%error, "the lock that shows this worker's life cannot be given back");
    }
}

/// The place in the seat of the word that the kernel will change when this thread ends: that of the newest lock in the
/// thread's list, which the caller has taken just now.
#[expect(unsafe_code, reason = "get_robust_list(2)")]
fn place_of_word(entry: &TableSeat) -> Result<u32, LockError> {
    let mut head = std::ptr::null::<RobustListHead>();
    let mut length = 0_usize;
    // SAFETY: the call writes an address and a length to the two places given.
    let told =
        unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut head, &raw mut length) };
    if told != 0 || head.is_null() || length != size_of::<RobustListHead>() {
        return Err(LockError::Unsupported("get_robust_list", io::Error::last_os_error()));
    }
    // SAFETY: the kernel was told by the C library that this thread's list begins there, and the length agrees.
    let head = unsafe { &*head };
    // The lowest bit marks locks with priority inheritance, which this is not.
    let word = head.newest.wrapping_add_signed(head.word_offset as isize);
    let first = entry.lock.as_ptr() as usize;
    let place = word.wrapping_sub(first) / size_of::<AtomicU32>();
    // SAFETY: gettid has no arguments, and cannot fail.
    let own = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    let wrong = || LockError::Unsupported("the lock's word", io::Error::other("it is elsewhere"));
    let place = u32::try_from(place).map_err(|_| wrong())?;
    match entry.lock(place) {
        Some(word) if word.load(Ordering::Acquire) & HOLDER == own => Ok(place),
        _ => Err(wrong()),
    }
}

/// Parses `DESCRIPTOR:SEAT:TOKEN`, as [`LockSeat::name`](crate::LockSeat::name) writes it.
fn parse(text: &str) -> Result<(i32, u32, [u64; 2]), LockError> {
    let wrong = |source| LockError::Malformed { text: text.to_owned(), source };
    let mut parts = text.split(':');
    let mut next = || parts.next().ok_or_else(|| wrong(None));
    let (descriptor, seat, token) = (next()?, next()?, next()?);
    if parts.next().is_some() {
        return Err(wrong(None));
    }
    let descriptor = descriptor.parse().map_err(|error| wrong(Some(error)))?;
    let seat = seat.parse().map_err(|error| wrong(Some(error)))?;
    let token = u128::from_str_radix(token, 16).map_err(|error| wrong(Some(error)))?;
    Ok((descriptor, seat, [(token >> 64) as u64, token as u64]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_name_a_seat_is_refused() {
        assert!(matches!(parse("3:4:1f"), Ok((3, 4, [0, 31]))));
        for wrong in ["", "3", "3:4", "3:4:5:6", "x:4:5", "3:x:5", "3:4:x", "3:-4:5"] {
            assert!(matches!(parse(wrong), Err(LockError::Malformed { .. })), "{wrong}");
        }
    }
}
