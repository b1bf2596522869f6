//! [`TransferWatch`]: times the arrival of the bytes that a peer has ready when it enters an operation, from its
//! header to the last of them. Kept by each link, driven by the engine, which passes the times to
//! [`LinkRates`](crate::LinkRates).
//!
//! The rate of the link is kept apart from the lateness of ranks. The time begins with the peer's header, behind
//! which these bytes follow, and only counts if this rank waited for that header. So a rank that comes late makes no
//! link slow: as a sender its header comes late, as a receiver it finds the header there. Data that a peer sends only
//! after it has received other data is not timed.

use std::time::{Duration, Instant};

/// The least length, in bytes, of a timed transfer: the time of a shorter one is that of a few wake-ups.
pub(super) const TIMED_LEAST: usize = 64 * 1024;

/// The transfer on one link in the present operation.
#[derive(Debug, Default)]
pub(super) struct TransferWatch {
    /// The length in bytes of the timed transfer; zero if nothing is timed.
    length: usize,
    /// Whether this rank has waited for the peer's header.
    is_awaited: bool,
    began: Option<Instant>,
    ended: Option<Instant>,
}

impl TransferWatch {
    /// An operation begins, in which the peer sends at least `ready` bytes behind its header. Returns whether they are timed.
    pub(super) fn begin(&mut self, ready: usize) -> bool {
        let length = if ready < TIMED_LEAST { 0 } else { ready };
        *self = Self { length, ..Self::default() };
        length > 0
    }

    /// This rank waits for the peer's header.
    pub(super) const fn wait(&mut self) {
        self.is_awaited = true;
    }

    /// The peer's header has come in.
    pub(super) fn enter(&mut self, now: impl FnOnce() -> Instant) {
        if self.length > 0 && self.is_awaited {
            self.began = Some(now());
        }
    }

    /// So many bytes have come in behind the header.
    pub(super) fn receive(&mut self, bytes: usize, now: impl FnOnce() -> Instant) {
        if self.began.is_some() && self.ended.is_none() && bytes >= self.length {
            self.ended = Some(now());
        }
    }
}

/// Total length, in bytes, of the timed transfers over the links from one host, and the time that they took together;
/// none if nothing is timed, or this rank did not wait for each of them.
pub(super) fn timed<'a>(links: impl Iterator<Item = &'a TransferWatch>) -> Option<(u64, Duration)> {
    let mut whole: Option<(u64, Instant, Instant)> = None;
    for link in links.filter(|link| link.length > 0) {
        let (began, ended, length) = (link.began?, link.ended?, link.length as u64);
        let (bytes, first, last) = whole.unwrap_or((0, began, ended));
        whole = Some((bytes + length, first.min(began), last.max(ended)));
    }
    whole.map(|(bytes, first, last)| (bytes, last.saturating_duration_since(first)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    const LENGTH: usize = 256 * 1024;

    #[test]
    fn the_time_begins_with_the_header_that_was_waited_for_and_ends_with_the_bytes_behind_it() {
        let start = clock::now();
        let after = |ms| move || start + Duration::from_millis(ms);
        let mut watch = TransferWatch::default();
        assert!(watch.begin(LENGTH));
        watch.wait();
        watch.enter(after(500));
        watch.receive(LENGTH - 1, after(505));
        assert_eq!(timed([&watch].into_iter()), None, "not all of it");
        watch.receive(LENGTH, after(510));
        watch.receive(2 * LENGTH, after(900));
        let told = Some((LENGTH as u64, Duration::from_millis(10)));
        assert_eq!(timed([&watch].into_iter()), told, "the sender was late by 500 ms");
    }

    #[test]
    fn a_rank_that_finds_the_header_there_times_nothing() {
        let mut watch = TransferWatch::default();
        watch.begin(LENGTH);
        watch.enter(|| panic!("no clock is read"));
        watch.receive(LENGTH, || panic!("no clock is read"));
        assert_eq!(timed([&watch].into_iter()), None);
    }

    #[test]
    fn short_messages_are_not_timed() {
        let mut watch = TransferWatch::default();
        assert!(!watch.begin(TIMED_LEAST - 1));
        watch.wait();
        watch.enter(|| panic!("no clock is read"));
        watch.receive(TIMED_LEAST, || panic!("no clock is read"));
        assert_eq!(timed([&watch].into_iter()), None);
    }

    #[test]
    fn several_streams_are_one_transfer_from_the_first_header_to_the_last_byte() {
        let start = clock::now();
        let after = |ms| move || start + Duration::from_millis(ms);
        let mut watches = [TransferWatch::default(), TransferWatch::default()];
        for (number, watch) in (0..).zip(&mut watches) {
            watch.begin(LENGTH);
            watch.wait();
            watch.enter(after(10 + number));
            watch.receive(LENGTH, after(20 + 10 * number));
        }
        let told = Some((2 * LENGTH as u64, Duration::from_millis(20)));
        assert_eq!(timed(watches.iter()), told);
        watches[1].begin(LENGTH);
        assert_eq!(timed(watches.iter()), None, "of one stream too little is known");
        watches[1].begin(0);
        assert_eq!(timed(watches.iter()), Some((LENGTH as u64, Duration::from_millis(10))));
    }
}
