//! [`Stores`]: how a rank writes what others read, by way of its cache or past it. Chosen by the rendezvous, used by the segment.
//!
//! A rank that reads what another core has just written waits for that core's cache. On AMD's processors of several core complexes
//! this is slow between complexes: on an EPYC of the fourth generation 2 GB/s, where memory gives 12. Non-temporal stores go to
//! memory at once. Within a complex they take as long as others up to 256 KiB, and up to 1.7 times as long beyond that.

/// The stores with which a rank writes its buffers of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stores {
    /// The data stays in the writer's cache until it is read or displaced.
    Cached,
    /// The data goes to memory, from [`NON_TEMPORAL_LEAST`] bytes on.
    NonTemporal,
}

/// The least length, in bytes, that non-temporal stores write: shorter data is read sooner from the writer's cache.
const NON_TEMPORAL_LEAST: usize = 16 * 1024;

impl Stores {
    /// The stores for `world` ranks of this machine. Where ranks share a core, they share its cache, too.
    pub(super) fn of_machine(world: u32) -> Stores {
        let processors = std::thread::available_parallelism().map_or(1, |number| number.get());
        match has_slow_transfers() && world as usize <= processors {
            true => Stores::NonTemporal,
            false => Stores::Cached,
        }
    }

    /// Copies `length` bytes. After it, a release store publishes them.
    ///
    /// # Safety
    ///
    /// `source` can be read, `target` written, each for `length` bytes, and the two do not overlap.
    #[expect(unsafe_code, reason = "writes shared memory by address")]
    pub(super) unsafe fn copy(self, source: *const u8, target: *mut u8, length: usize) {
        // SAFETY: the caller's.
        unsafe {
            match self {
                Stores::NonTemporal if length >= NON_TEMPORAL_LEAST => {
                    copy_non_temporal(source, target, length);
                }
                _ => std::ptr::copy_nonoverlapping(source, target, length),
            }
        }
    }
}

/// Whether the processor's cores read each other's caches slowly.
#[cfg(target_arch = "x86_64")]
fn has_slow_transfers() -> bool {
    let vendor = std::arch::x86_64::__cpuid(0);
    let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat();
    name == b"AuthenticAMD" || name == b"HygonGenuine"
}

#[cfg(not(target_arch = "x86_64"))]
fn has_slow_transfers() -> bool {
    false
}

/// # Safety
///
/// As for [`Stores::copy`].
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "non-temporal stores take addresses")]
unsafe fn copy_non_temporal(source: *const u8, target: *mut u8, length: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    const LINE: usize = 64;
    const WORD: usize = size_of::<__m128i>();
    // Whole lines: of a part of one, the processor would read the rest from memory first.
    let head = target.align_offset(LINE).min(length);
    let lines = (length - head) / LINE * LINE;
    // SAFETY: all of it lies within `length` bytes; the lines are aligned; every x86-64 processor has SSE2.
    unsafe {
        std::ptr::copy_nonoverlapping(source, target, head);
        for at in (head..head + lines).step_by(LINE) {
            for word in (at..at + LINE).step_by(WORD) {
                let value = _mm_loadu_si128(source.add(word).cast());
                _mm_stream_si128(target.add(word).cast(), value);
            }
        }
        // Later stores, such as the one that publishes the data, stay behind.
        _mm_sfence();
        let tail = head + lines;
        std::ptr::copy_nonoverlapping(source.add(tail), target.add(tail), length - tail);
    }
}

/// # Safety
///
/// As for [`Stores::copy`].
#[cfg(not(target_arch = "x86_64"))]
#[expect(unsafe_code, reason = "writes shared memory by address")]
unsafe fn copy_non_temporal(source: *const u8, target: *mut u8, length: usize) {
    // SAFETY: the caller's.
    unsafe { std::ptr::copy_nonoverlapping(source, target, length) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(unsafe_code, reason = "copies by address")]
    fn a_copy_past_the_cache_has_the_same_bytes_at_any_offset() {
        let source: Vec<u8> =
            (0..NON_TEMPORAL_LEAST + 200).map(|at| (at * 7 % 251) as u8).collect();
        for (from, to) in [(0, 0), (1, 3), (4, 60), (17, 64), (63, 1)] {
            for length in [NON_TEMPORAL_LEAST - 1, NON_TEMPORAL_LEAST, NON_TEMPORAL_LEAST + 65] {
                let mut target = vec![0xaa; NON_TEMPORAL_LEAST + 200];
                let (read, written) = (source[from..].as_ptr(), target[to..].as_mut_ptr());
                // SAFETY: both have more than `length` bytes from there on.
                unsafe { Stores::NonTemporal.copy(read, written, length) };
                assert_eq!(target[to..to + length], source[from..from + length]);
                let around = target[..to].iter().chain(&target[to + length..]);
                assert!(around.into_iter().all(|byte| *byte == 0xaa));
            }
        }
    }
}
