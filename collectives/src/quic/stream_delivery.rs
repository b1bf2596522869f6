//! [`StreamDelivery`]: whether the bytes of a connection's streams arrive. Made with each connection by the endpoint; the relay
//! counts, the session asks.
//!
//! A path may pass the small packets of keep-alives and acknowledgements while it drops those that carry data: a firewall
//! or a tunnel with a smaller limit than QUIC's least packet of 1,200 bytes, or one that drops what the sender's interface
//! has yet to cut into packets. QUIC retransmits for ever then, and quinn tells neither its acknowledged bytes nor its
//! losses by stream. So each end reports every so often, in a small datagram, how many bytes of each stream have arrived.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join;
use quinn::{Connection, SendDatagramError};
use tokio::time::{MissedTickBehavior, interval};

/// Reports within the time for which a stream may stand still.
const REPORTS: u32 = 10;
/// Least interval between two reports.
const REPORTS_APART: Duration = Duration::from_millis(1);
/// Most streams of one report, the newest ones, so that it fits into the least packet.
const REPORTED_MOST: usize = 64;
/// Length of a stream's part of a report: its number, its bytes, and whether it is full.
const ENTRY_LENGTH: usize = 17;

/// The delivery over one connection.
#[derive(Debug)]
pub(super) struct StreamDelivery {
    streams: Mutex<StreamLedger>,
    /// Interval between two reports.
    every: Duration,
    /// Intervals for which a stream has stood still, the longest of all.
    still: AtomicU32,
}

impl StreamDelivery {
    /// Of a connection whose streams may stand still for `deadline`.
    pub(super) fn new(deadline: Duration) -> Arc<StreamDelivery> {
        let every = (deadline / REPORTS).max(REPORTS_APART);
        Arc::new(StreamDelivery { streams: Mutex::default(), every, still: AtomicU32::new(0) })
    }

    /// Time for which bytes of a stream have been on their way and none has arrived, in whole intervals. A pause of this
    /// process counts as one.
    pub(super) fn still_for(&self) -> Duration {
        self.every * self.still.load(Ordering::Relaxed)
    }

    /// Counts the bytes of a stream of the connection, by its number.
    pub(super) fn count(&self, stream: u64) -> CountedStream<'_> {
        self.streams().open(stream);
        CountedStream { delivery: self, stream }
    }

    fn streams(&self) -> MutexGuard<'_, StreamLedger> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Exchanges reports with the peer until the connection ends.
    pub(super) async fn exchange(self: Arc<StreamDelivery>, connection: Connection) {
        join(self.read_reports(&connection), self.send_reports(&connection)).await;
    }

    async fn read_reports(&self, connection: &Connection) {
        while let Ok(report) = connection.read_datagram().await {
            self.streams().handle_report(&report);
        }
    }

    async fn send_reports(&self, connection: &Connection) {
        let mut ticks = interval(self.every);
        // A pause of the process must not look like several intervals.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let (report, still) = {
                let mut streams = self.streams();
                (streams.report(), streams.handle_tick())
            };
            self.still.store(still, Ordering::Relaxed);
            match connection.send_datagram(report.into()) {
                // A report that is too large, or that the peer does not take, is not sent.
                Ok(()) | Err(SendDatagramError::TooLarge) => {}
                Err(_) => return,
            }
        }
    }
}

/// A stream whose bytes are counted until this is dropped.
pub(super) struct CountedStream<'a> {
    delivery: &'a StreamDelivery,
    stream: u64,
}

impl CountedStream<'_> {
    /// Counts bytes that are written, or about to be.
    pub(super) fn wrote(&self, bytes: usize) {
        self.delivery.streams().wrote(self.stream, bytes);
    }

    /// Counts bytes that have arrived. The reader has yet to take them: until it has, the stream is full.
    pub(super) fn arrived(&self, bytes: usize) {
        self.delivery.streams().arrived(self.stream, bytes);
    }

    /// The reader has taken all bytes that have arrived.
    pub(super) fn taken(&self) {
        self.delivery.streams().taken(self.stream);
    }
}

impl Drop for CountedStream<'_> {
    fn drop(&mut self) {
        self.delivery.streams().close(self.stream);
    }
}

/// The bytes of each stream, by the stream's number, which is the same at both ends. Without I/O.
#[derive(Debug, Default)]
struct StreamLedger {
    streams: BTreeMap<u64, StreamCount>,
}

/// The bytes of one stream.
#[derive(Debug, Default)]
struct StreamCount {
    /// Bytes that this end has written.
    written: u64,
    /// Bytes that have arrived here.
    arrived: u64,
    /// Whether the reader here takes no more for now.
    is_full: bool,
    /// The peer's last report; none before the first one.
    peer: Option<PeerCount>,
    /// The peer's arrived bytes at the last tick.
    seen: u64,
    /// Ticks in a row without a further byte arrived.
    still: u32,
}

/// A peer's report of one stream.
#[derive(Clone, Copy, Debug)]
struct PeerCount {
    arrived: u64,
    is_full: bool,
}

impl StreamLedger {
    fn open(&mut self, stream: u64) {
        self.streams.insert(stream, StreamCount::default());
    }

    fn close(&mut self, stream: u64) {
        self.streams.remove(&stream);
    }

    fn wrote(&mut self, stream: u64, bytes: usize) {
        if let Some(count) = self.streams.get_mut(&stream) {
            count.written += bytes as u64;
        }
    }

    fn arrived(&mut self, stream: u64, bytes: usize) {
        if let Some(count) = self.streams.get_mut(&stream) {
            count.arrived += bytes as u64;
            count.is_full = true;
        }
    }

    fn taken(&mut self, stream: u64) {
        if let Some(count) = self.streams.get_mut(&stream) {
            count.is_full = false;
        }
    }

    /// This end's report.
    fn report(&self) -> Vec<u8> {
        let mut report = Vec::new();
        for (stream, count) in self.streams.iter().rev().take(REPORTED_MOST) {
            report.extend_from_slice(&stream.to_le_bytes());
            report.extend_from_slice(&count.arrived.to_le_bytes());
            report.push(count.is_full.into());
        }
        report
    }

    /// Takes the peer's report. A stream that it does not name has ended there, or has not begun.
    fn handle_report(&mut self, report: &[u8]) {
        let mut told = BTreeMap::new();
        let (entries, _) = report.as_chunks::<ENTRY_LENGTH>();
        for entry in entries {
            let number = |at: usize| {
                let mut bytes = [0; size_of::<u64>()];
                bytes.copy_from_slice(&entry[at..at + size_of::<u64>()]);
                u64::from_le_bytes(bytes)
            };
            told.insert(number(0), PeerCount { arrived: number(8), is_full: entry[16] != 0 });
        }
        for (stream, count) in &mut self.streams {
            count.peer = told.get(stream).copied();
        }
    }

    /// Counts an interval. Returns for how many in a row a stream has stood still, the longest of all.
    fn handle_tick(&mut self) -> u32 {
        for count in self.streams.values_mut() {
            let waits = |peer: &PeerCount| count.written > peer.arrived && !peer.is_full;
            match count.peer.filter(waits) {
                Some(peer) if peer.arrived == count.seen => count.still += 1,
                Some(peer) => (count.seen, count.still) = (peer.arrived, 0),
                None => count.still = 0,
            }
        }
        self.streams.values().map(|count| count.still).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two ends of one connection with stream 4 between them.
    fn two_ends() -> (StreamLedger, StreamLedger) {
        let (mut here, mut there) = (StreamLedger::default(), StreamLedger::default());
        here.open(4);
        there.open(4);
        (here, there)
    }

    /// An interval at `here`, after a report of `there`.
    fn pass(here: &mut StreamLedger, there: &StreamLedger) -> u32 {
        here.handle_report(&there.report());
        here.handle_tick()
    }

    #[test]
    fn s_3_a_stream_stands_still_if_bytes_are_on_their_way_and_none_arrives() {
        let (mut here, mut there) = two_ends();
        assert_eq!(pass(&mut here, &there), 0, "nothing is on its way");
        here.wrote(4, 100);
        assert_eq!((pass(&mut here, &there), pass(&mut here, &there)), (1, 2));
        there.arrived(4, 60);
        there.taken(4);
        assert_eq!((pass(&mut here, &there), pass(&mut here, &there)), (0, 1), "some have arrived");
        there.arrived(4, 40);
        there.taken(4);
        assert_eq!(pass(&mut here, &there), 0, "all have arrived");
    }

    #[test]
    fn a_reader_that_takes_no_more_is_no_broken_path() {
        let (mut here, mut there) = two_ends();
        here.wrote(4, 100);
        there.arrived(4, 60);
        assert_eq!((pass(&mut here, &there), pass(&mut here, &there)), (0, 0));
        there.taken(4);
        pass(&mut here, &there);
        assert_eq!(pass(&mut here, &there), 1, "it takes more, and nothing comes");
    }

    #[test]
    fn a_stream_that_has_ended_at_the_peer_is_not_waited_for() {
        let (mut here, mut there) = two_ends();
        here.wrote(4, 100);
        pass(&mut here, &there);
        there.close(4);
        assert_eq!(pass(&mut here, &there), 0);
    }

    #[test]
    fn one_stream_that_moves_does_not_hide_another_one_that_stands_still() {
        let (mut here, mut there) = two_ends();
        here.open(8);
        there.open(8);
        for ticks in 1..=3 {
            here.wrote(4, 10);
            here.wrote(8, 10);
            there.arrived(8, 10);
            there.taken(8);
            assert_eq!(pass(&mut here, &there), ticks);
        }
    }

    #[test]
    fn garbage_in_a_report_is_harmless() {
        let (mut here, _) = two_ends();
        here.wrote(4, 1);
        for length in 0..40 {
            here.handle_report(&vec![0xff; length]);
            assert_eq!(here.handle_tick(), 0);
        }
    }

    #[test]
    fn a_report_of_many_streams_fits_into_the_least_packet() {
        let mut here = StreamLedger::default();
        (0..1000).for_each(|stream| here.open(stream));
        assert_eq!(here.report().len(), REPORTED_MOST * ENTRY_LENGTH);
        assert!(here.report().len() <= 1100);
    }
}
