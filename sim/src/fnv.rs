//! [`Fnv`]: the hash of committed decisions and states. Used by `decisions` and `states`.

/// FNV-1a with 64 bits: the same on every machine and in every release of a library.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fnv(u64);

impl Fnv {
    pub(crate) const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    #[inline]
    pub(crate) const fn take(&mut self, byte: u8) {
        self.0 = (self.0 ^ byte as u64).wrapping_mul(0x0100_0000_01b3);
    }

    pub(crate) const fn value(self) -> u64 {
        self.0
    }
}

/// The four hexadecimal digits that stand for a hash where many are kept.
pub(crate) fn short(hash: u64) -> String {
    format!("{:04x}", (hash ^ hash >> 16 ^ hash >> 32 ^ hash >> 48) & 0xffff)
}
