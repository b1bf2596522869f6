//! A [`Flow`] says which bytes go where in one operation; the engine moves them. Flows do no I/O.

use std::ops::Range;

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

/// The plan of one operation. `moved` is the number of payload bytes that a link has carried so far in
/// that direction.
pub(crate) trait Flow {
    /// Whether a header, and perhaps payload, goes to `rank`.
    fn sends_to(&self, rank: u32) -> bool;
    /// Whether a header, and perhaps payload, is due from `rank`.
    fn receives_from(&self, rank: u32) -> bool;
    /// What goes to `rank` next.
    fn outgoing(&self, rank: u32, moved: usize) -> Outgoing<'_>;
    /// Where the next bytes of `rank` belong.
    fn incoming(&mut self, rank: u32, moved: usize) -> Incoming<'_>;
    /// `rank` has now delivered `moved` bytes.
    fn received(&mut self, _rank: u32, _moved: usize) {}
    /// Whether a rank may have to wait for data before it has any to send.
    fn may_defer(&self) -> bool {
        false
    }
    /// The length of all that goes to `rank`, in bytes. Its header announces it where lengths differ by pair.
    fn length_to(&self, rank: u32) -> u64;
    /// The length of what `rank` sends here, where lengths differ by pair.
    fn length_from(&self, _rank: u32) -> u64 {
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
}

impl<To, From> Flow for Exchange<'_, To, From>
where
    To: Fn(u32) -> Option<Range<usize>>,
    From: Fn(u32) -> Option<Range<usize>>,
{
    fn sends_to(&self, rank: u32) -> bool {
        (self.to)(rank).is_some()
    }

    fn receives_from(&self, rank: u32) -> bool {
        (self.from)(rank).is_some()
    }

    fn outgoing(&self, rank: u32, moved: usize) -> Outgoing<'_> {
        match (self.to)(rank) {
            Some(region) if moved < region.len() => {
                Outgoing::Ready(&self.input[region.start + moved..region.end])
            }
            _ => Outgoing::Done,
        }
    }

    fn incoming(&mut self, rank: u32, moved: usize) -> Incoming<'_> {
        match (self.from)(rank) {
            Some(region) if moved < region.len() => {
                Incoming::Ready(&mut self.output[region.start + moved..region.end])
            }
            _ => Incoming::Done,
        }
    }

    fn length_to(&self, rank: u32) -> u64 {
        (self.to)(rank).map_or(0, |region| region.len() as u64)
    }

    fn length_from(&self, rank: u32) -> u64 {
        (self.from)(rank).map_or(0, |region| region.len() as u64)
    }
}

/// A pipelined chain: each rank hands on what it has received so far, byte by byte, so that memory is
/// the caller's buffer alone and the time hardly depends on the length of the chain.
pub(crate) struct Chain<'a> {
    data: &'a mut [u8],
    previous: Option<u32>,
    next: Option<u32>,
    /// How much of `data` is right by now.
    valid: usize,
}

impl<'a> Chain<'a> {
    /// The chain root, root + 1, … around the world.
    pub(crate) fn new(data: &'a mut [u8], own: u32, world: u32, root: u32) -> Chain<'a> {
        let after = |rank: u32| if rank + 1 == world { 0 } else { rank + 1 };
        let before = |rank: u32| if rank == 0 { world - 1 } else { rank - 1 };
        let previous = (own != root).then(|| before(own));
        let next = Some(after(own)).filter(|next| *next != root);
        Chain::linked(data, previous, next)
    }

    /// The part of one rank in a chain; who has nobody before it holds the data.
    pub(crate) fn linked(
        data: &'a mut [u8],
        previous: Option<u32>,
        next: Option<u32>,
    ) -> Chain<'a> {
        let valid = if previous.is_none() { data.len() } else { 0 };
        Chain { data, previous, next, valid }
    }
}

impl Flow for Chain<'_> {
    fn sends_to(&self, rank: u32) -> bool {
        self.next == Some(rank)
    }

    fn receives_from(&self, rank: u32) -> bool {
        self.previous == Some(rank)
    }

    fn outgoing(&self, _rank: u32, moved: usize) -> Outgoing<'_> {
        if moved == self.data.len() {
            Outgoing::Done
        } else if moved < self.valid {
            Outgoing::Ready(&self.data[moved..self.valid])
        } else {
            Outgoing::Blocked
        }
    }

    fn incoming(&mut self, _rank: u32, moved: usize) -> Incoming<'_> {
        if moved == self.data.len() {
            Incoming::Done
        } else {
            Incoming::Ready(&mut self.data[moved..])
        }
    }

    fn received(&mut self, _rank: u32, moved: usize) {
        self.valid = moved;
    }

    fn length_to(&self, _rank: u32) -> u64 {
        self.data.len() as u64
    }

    fn may_defer(&self) -> bool {
        true
    }
}
