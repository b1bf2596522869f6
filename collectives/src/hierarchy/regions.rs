//! [`Regions`]: the flow in which each leader sends its host's region of a buffer to all other leaders. Used by the
//! hierarchical communicator.

use std::ops::Range;

use super::hosts::Hosts;
use crate::tcp::{Flow, IncomingBytes, OutgoingBytes, StreamLane, stream_count, stripe};

/// Regions of one buffer: each leader sends its host's and receives the others'.
pub(super) struct Regions<'a> {
    pub(super) data: &'a mut [u8],
    pub(super) hosts: &'a Hosts,
    pub(super) places: &'a dyn Fn(usize) -> Range<usize>,
    pub(super) streams: u32,
}

impl Regions<'_> {
    /// The part of a host's region that is sent over a stream, if there is one.
    fn part(&self, host: usize, stream: u32) -> Option<Range<usize>> {
        let region = (self.places)(host);
        let count = stream_count(region.len(), self.streams);
        (stream < count).then(|| stripe(region, stream, count, 1))
    }
}

impl Flow for Regions<'_> {
    fn streams(&self) -> u32 {
        self.streams
    }

    fn sends_to(&self, lane: StreamLane) -> bool {
        let leads = self.hosts.led_by(lane.rank).is_some();
        leads && self.part(self.hosts.own(), lane.stream).is_some()
    }

    fn receives_from(&self, lane: StreamLane) -> bool {
        let host = self.hosts.led_by(lane.rank);
        host.is_some_and(|host| self.part(host, lane.stream).is_some())
    }

    fn outgoing(&self, lane: StreamLane, moved: usize) -> OutgoingBytes<'_> {
        match self.part(self.hosts.own(), lane.stream) {
            Some(part) if moved < part.len() => {
                OutgoingBytes::Ready(&self.data[part.start + moved..part.end])
            }
            _ => OutgoingBytes::Done,
        }
    }

    fn incoming(&mut self, lane: StreamLane, moved: usize) -> IncomingBytes<'_> {
        match self.part(self.hosts.of(lane.rank), lane.stream) {
            Some(part) if moved < part.len() => {
                IncomingBytes::Ready(&mut self.data[part.start + moved..part.end])
            }
            _ => IncomingBytes::Done,
        }
    }

    fn ready_from(&self, lane: StreamLane) -> usize {
        let part = self.hosts.led_by(lane.rank).and_then(|host| self.part(host, lane.stream));
        part.map_or(0, |part| part.len())
    }

    fn length_to(&self, lane: StreamLane) -> u64 {
        self.part(self.hosts.own(), lane.stream).map_or(0, |part| part.len() as u64)
    }

    fn announced_to(&self, _rank: u32) -> u64 {
        (self.places)(self.hosts.own()).len() as u64
    }

    fn announced_from(&self, rank: u32) -> u64 {
        (self.places)(self.hosts.of(rank)).len() as u64
    }
}
