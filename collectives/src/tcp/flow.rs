//! A [`Flow`] says which bytes go where in one operation; the engine moves them. Flows do no I/O.

use std::ops::Range;

use super::stripes::{STREAMS_MOST, stream_count, stripe};

/// One of the streams between this rank and another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Lane {
    pub(crate) rank: u32,
    /// From 0 on. The first one carries what is not divided.
    pub(crate) stream: u32,
}

/// What a link may send next.
pub(crate) enum Outgoing<'a> {
    /// These bytes.
    Ready(&'a [u8]),
    /// Nothing until other data has come in.
    Blocked,
    /// Nothing more in this operation.
    Done,
}

/// Where a link's next bytes belong.
pub(crate) enum Incoming<'a> {
    /// Here.
    Ready(&'a mut [u8]),
    /// Nowhere until other data has come in.
    Blocked,
    /// Nothing more is due in this operation.
    Done,
}

/// The plan of one operation. `moved` is the number of payload bytes that a lane has carried so far in
/// that direction.
pub(crate) trait Flow {
    /// How many streams of a pair it uses at most; the engine leaves the others alone.
    fn streams(&self) -> u32 {
        1
    }
    /// Whether a header, and perhaps payload, goes out here.
    fn sends_to(&self, lane: Lane) -> bool;
    /// Whether a header, and perhaps payload, is due here.
    fn receives_from(&self, lane: Lane) -> bool;
    /// What goes out here next.
    fn outgoing(&self, lane: Lane, moved: usize) -> Outgoing<'_>;
    /// Where the next bytes that come in here belong.
    fn incoming(&mut self, lane: Lane, moved: usize) -> Incoming<'_>;
    /// `moved` bytes have come in here by now.
    fn received(&mut self, _lane: Lane, _moved: usize) {}
    /// Whether a rank may have to wait for data before it has any to send.
    fn may_defer(&self) -> bool {
        false
    }
    /// The length of all that goes out here, in bytes.
    fn length_to(&self, lane: Lane) -> u64;
    /// The length of all that goes to `rank`, in bytes. Headers announce it where lengths differ by pair.
    fn announced_to(&self, rank: u32) -> u64 {
        self.length_to(Lane { rank, stream: 0 })
    }
    /// The length of what `rank` sends here, where lengths differ by pair.
    fn announced_from(&self, _rank: u32) -> u64 {
        0
    }
}

/// Every pair of ranks exchanges one region each way, independently of all others. `to` and `from` give
/// the region of a rank, or nothing where the pair does not talk in that direction.
pub(crate) struct Exchange<'a, To, From> {
    pub(crate) input: &'a [u8],
    pub(crate) output: &'a mut [u8],
    pub(crate) to: To,
    pub(crate) from: From,
    /// The streams of a pair. A region takes as many as its length is worth.
    pub(crate) streams: u32,
}

impl<To, From> Exchange<'_, To, From> {
    /// The part of a pair's region that goes over one of its streams.
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

    fn sends_to(&self, lane: Lane) -> bool {
        self.part((self.to)(lane.rank), lane.stream).is_some()
    }

    fn receives_from(&self, lane: Lane) -> bool {
        self.part((self.from)(lane.rank), lane.stream).is_some()
    }

    fn outgoing(&self, lane: Lane, moved: usize) -> Outgoing<'_> {
        match self.part((self.to)(lane.rank), lane.stream) {
            Some(part) if moved < part.len() => {
                Outgoing::Ready(&self.input[part.start + moved..part.end])
            }
            _ => Outgoing::Done,
        }
    }

    fn incoming(&mut self, lane: Lane, moved: usize) -> Incoming<'_> {
        match self.part((self.from)(lane.rank), lane.stream) {
            Some(part) if moved < part.len() => {
                Incoming::Ready(&mut self.output[part.start + moved..part.end])
            }
            _ => Incoming::Done,
        }
    }

    fn length_to(&self, lane: Lane) -> u64 {
        self.part((self.to)(lane.rank), lane.stream).map_or(0, |part| part.len() as u64)
    }

    fn announced_to(&self, rank: u32) -> u64 {
        (self.to)(rank).map_or(0, |region| region.len() as u64)
    }

    fn announced_from(&self, rank: u32) -> u64 {
        (self.from)(rank).map_or(0, |region| region.len() as u64)
    }
}

/// A pipelined chain: each rank hands on what it has received so far, byte by byte, so that memory is
/// the caller's buffer alone and the time hardly depends on the length of the chain.
pub(crate) struct Chain<'a> {
    data: &'a mut [u8],
    previous: Option<u32>,
    next: Option<u32>,
    streams: u32,
    /// How much of each stream's part of `data` is right by now.
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

    /// The part of one rank in a chain; who has nobody before it holds the data.
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

    fn sends_to(&self, lane: Lane) -> bool {
        self.next == Some(lane.rank)
    }

    fn receives_from(&self, lane: Lane) -> bool {
        self.previous == Some(lane.rank)
    }

    fn outgoing(&self, lane: Lane, moved: usize) -> Outgoing<'_> {
        let part = self.part(lane.stream);
        let valid = self.valid[lane.stream as usize].min(part.len());
        if moved == part.len() {
            Outgoing::Done
        } else if moved < valid {
            Outgoing::Ready(&self.data[part.start + moved..part.start + valid])
        } else {
            Outgoing::Blocked
        }
    }

    fn incoming(&mut self, lane: Lane, moved: usize) -> Incoming<'_> {
        let part = self.part(lane.stream);
        if moved == part.len() {
            Incoming::Done
        } else {
            Incoming::Ready(&mut self.data[part.start + moved..part.end])
        }
    }

    fn received(&mut self, lane: Lane, moved: usize) {
        self.valid[lane.stream as usize] = moved;
    }

    fn length_to(&self, lane: Lane) -> u64 {
        self.part(lane.stream).len() as u64
    }

    fn announced_to(&self, _rank: u32) -> u64 {
        self.data.len() as u64
    }

    fn may_defer(&self) -> bool {
        true
    }
}
