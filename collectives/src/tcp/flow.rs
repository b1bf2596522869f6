//! [`Flow`]: the plan of one operation, with the bytes to send to and to receive from each peer; the engine moves
//! them. Flows do no I/O.

use std::ops::Range;

use super::stripes::{STREAMS_MOST, stream_count, stripe};

/// One of the streams between this rank and another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StreamLane {
    pub(crate) rank: u32,
    /// The number of the stream, from 0. Undivided data goes on stream 0.
    pub(crate) stream: u32,
}

/// The next bytes that a link may send.
pub(crate) enum OutgoingBytes<'a> {
    /// These bytes may be sent.
    Ready(&'a [u8]),
    /// No bytes until other data has come in.
    Blocked,
    /// No more bytes in this operation.
    Done,
}

/// The place of the next bytes that come in on a link.
pub(crate) enum IncomingBytes<'a> {
    /// The bytes belong here.
    Ready(&'a mut [u8]),
    /// No place until other data has come in.
    Blocked,
    /// No more bytes are due in this operation.
    Done,
}

/// The plan of one operation. `moved` is the number of payload bytes that a lane has carried so far in
/// that direction.
pub(crate) trait Flow {
    /// The most streams of a pair that the operation uses; the engine leaves the others alone.
    fn streams(&self) -> u32 {
        1
    }
    /// Whether a header, and perhaps payload, is sent on this lane.
    fn sends_to(&self, lane: StreamLane) -> bool;
    /// Whether a header, and perhaps payload, is due on this lane.
    fn receives_from(&self, lane: StreamLane) -> bool;
    /// The next bytes to send on this lane.
    fn outgoing(&self, lane: StreamLane, moved: usize) -> OutgoingBytes<'_>;
    /// The place of the next bytes that come in on this lane.
    fn incoming(&mut self, lane: StreamLane, moved: usize) -> IncomingBytes<'_>;
    /// Called after bytes have come in on this lane: `moved` in all.
    fn received(&mut self, _lane: StreamLane, _moved: usize) {}
    /// Whether a rank may have to wait for data before it has any to send.
    fn may_defer(&self) -> bool {
        false
    }
    /// The number of bytes due on this lane that its peer has when it enters: they follow its header without a wait for
    /// other data.
    fn ready_from(&self, _lane: StreamLane) -> usize {
        0
    }
    /// The length of all payload sent on this lane, in bytes.
    fn length_to(&self, lane: StreamLane) -> u64;
    /// The length of all payload sent to `rank`, in bytes. Headers announce it where lengths differ by pair.
    fn announced_to(&self, rank: u32) -> u64 {
        self.length_to(StreamLane { rank, stream: 0 })
    }
    /// The length of the payload from `rank`, in bytes, where lengths differ by pair.
    fn announced_from(&self, _rank: u32) -> u64 {
        0
    }
}

/// Every pair of ranks exchanges one region each way, independently of all others. `to` and `from` give the region
/// of a rank, or `None` where the pair does not communicate in that direction.
pub(crate) struct Exchange<'a, To, From> {
    pub(crate) input: &'a [u8],
    pub(crate) output: &'a mut [u8],
    pub(crate) to: To,
    pub(crate) from: From,
    /// The number of streams of a pair. A region uses as many as its length justifies.
    pub(crate) streams: u32,
}

impl<To, From> Exchange<'_, To, From> {
    /// The part of a pair's region that is sent over one of its streams.
    fn part(&self, region: Option<Range<usize>>, stream: u32) -> Option<Range<usize>> {
        let region = region?;
        let count = stream_count(region.len(), self.streams);
        (stream < count).then(|| stripe(region, stream, count, 1))
    }
}

impl<To, From> Flow for Exchange<'_, To, From>
where
    To: Fn(u32) -> Option<Range<usize>>,
    From: Fn(u32) -> Option<Range<usize>>,
{
    fn streams(&self) -> u32 {
        self.streams
    }

    fn sends_to(&self, lane: StreamLane) -> bool {
        self.part((self.to)(lane.rank), lane.stream).is_some()
    }

    fn receives_from(&self, lane: StreamLane) -> bool {
        self.part((self.from)(lane.rank), lane.stream).is_some()
    }

    fn outgoing(&self, lane: StreamLane, moved: usize) -> OutgoingBytes<'_> {
        match self.part((self.to)(lane.rank), lane.stream) {
            Some(part) if moved < part.len() => {
                OutgoingBytes::Ready(&self.input[part.start + moved..part.end])
            }
            _ => OutgoingBytes::Done,
        }
    }

    fn incoming(&mut self, lane: StreamLane, moved: usize) -> IncomingBytes<'_> {
        match self.part((self.from)(lane.rank), lane.stream) {
            Some(part) if moved < part.len() => {
                IncomingBytes::Ready(&mut self.output[part.start + moved..part.end])
            }
            _ => IncomingBytes::Done,
        }
    }

    fn ready_from(&self, lane: StreamLane) -> usize {
        self.part((self.from)(lane.rank), lane.stream).map_or(0, |part| part.len())
    }

    fn length_to(&self, lane: StreamLane) -> u64 {
        self.part((self.to)(lane.rank), lane.stream).map_or(0, |part| part.len() as u64)
    }

    fn announced_to(&self, rank: u32) -> u64 {
        (self.to)(rank).map_or(0, |region| region.len() as u64)
    }

    fn announced_from(&self, rank: u32) -> u64 {
        (self.from)(rank).map_or(0, |region| region.len() as u64)
    }
}

/// A pipelined chain: each rank passes on what it has received so far, byte by byte. So the caller's buffer is the
/// only memory, and the time hardly depends on the length of the chain.
pub(crate) struct Chain<'a> {
    data: &'a mut [u8],
    previous: Option<u32>,
    next: Option<u32>,
    streams: u32,
    /// The number of valid bytes of each stream's part of `data`.
    valid: [usize; STREAMS_MOST as usize],
}

impl<'a> Chain<'a> {
    /// The chain root, root + 1, … around the world, over up to `streams` streams.
    pub(crate) fn new(
        data: &'a mut [u8],
        own: u32,
        world: u32,
        root: u32,
        streams: u32,
    ) -> Chain<'a> {
        let after = |rank: u32| if rank + 1 == world { 0 } else { rank + 1 };
        let before = |rank: u32| if rank == 0 { world - 1 } else { rank - 1 };
        let previous = (own != root).then(|| before(own));
        let next = Some(after(own)).filter(|next| *next != root);
        Chain::linked(data, previous, next, streams)
    }

    /// One rank's part of a chain; the rank without a predecessor holds the data.
    pub(crate) fn linked(
        data: &'a mut [u8],
        previous: Option<u32>,
        next: Option<u32>,
        streams: u32,
    ) -> Chain<'a> {
        let streams = stream_count(data.len(), streams);
        let valid = [if previous.is_none() { data.len() } else { 0 }; STREAMS_MOST as usize];
        Chain { data, previous, next, streams, valid }
    }

    fn part(&self, stream: u32) -> Range<usize> {
        stripe(0..self.data.len(), stream, self.streams, 1)
    }
}

impl Flow for Chain<'_> {
    fn streams(&self) -> u32 {
        self.streams
    }

    fn sends_to(&self, lane: StreamLane) -> bool {
        self.next == Some(lane.rank)
    }

    fn receives_from(&self, lane: StreamLane) -> bool {
        self.previous == Some(lane.rank)
    }

    fn outgoing(&self, lane: StreamLane, moved: usize) -> OutgoingBytes<'_> {
        let part = self.part(lane.stream);
        let valid = self.valid[lane.stream as usize].min(part.len());
        if moved == part.len() {
            OutgoingBytes::Done
        } else if moved < valid {
            OutgoingBytes::Ready(&self.data[part.start + moved..part.start + valid])
        } else {
            OutgoingBytes::Blocked
        }
    }

    fn incoming(&mut self, lane: StreamLane, moved: usize) -> IncomingBytes<'_> {
        let part = self.part(lane.stream);
        if moved == part.len() {
            IncomingBytes::Done
        } else {
            IncomingBytes::Ready(&mut self.data[part.start + moved..part.end])
        }
    }

    fn received(&mut self, lane: StreamLane, moved: usize) {
        self.valid[lane.stream as usize] = moved;
    }

    fn length_to(&self, lane: StreamLane) -> u64 {
        self.part(lane.stream).len() as u64
    }

    fn announced_to(&self, _rank: u32) -> u64 {
        self.data.len() as u64
    }

    fn may_defer(&self) -> bool {
        true
    }
}
