//! How a large message is divided among the connections of a pair of ranks. Both ends come to the same result by
//! themselves: from the size of the world, and from the length of the message.

use std::ops::Range;

/// How many connections a pair of ranks has where the caller does not say: 4. A network that gives each connection a
/// share, or bounds what may be on its way in it, gives four of them more than one.
pub const DEFAULT_STREAMS: u32 = 4;
/// The most that a pair has.
pub(crate) const STREAMS_MOST: u32 = 16;
/// The most connections that a rank has where pairs have several: worlds in which that is less than two for each pair
/// have one, and streams enough by the number of peers.
const CONNECTIONS_MOST: u32 = 64;
/// The least that a connection carries of a message, in bytes: one is as good for what the sockets' buffers hold at once.
pub(crate) const STRIPE_LEAST: usize = 256 * 1024;

/// The number of connections of each pair in a world of this size, of which so many are wanted.
pub(crate) fn streams_of_world(world: u32, wanted: u32) -> u32 {
    let most = CONNECTIONS_MOST / world.saturating_sub(1).max(1);
    wanted.min(most).clamp(1, STREAMS_MOST)
}

/// How many of `streams` connections a message of this length takes.
pub(crate) fn stream_count(length: usize, streams: u32) -> u32 {
    u32::try_from(length / STRIPE_LEAST).unwrap_or(u32::MAX).clamp(1, streams)
}

/// The part of a message that goes over connection `stream` of `count`: near-equal parts of whole `unit`s, in bytes.
pub(crate) fn stripe(message: Range<usize>, stream: u32, count: u32, unit: usize) -> Range<usize> {
    let units = message.len() / unit;
    let until = |stream: u32| match stream {
        all if all == count => message.len(),
        stream => units * stream as usize / count as usize * unit,
    };
    message.start + until(stream)..message.start + until(stream + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_cover_a_message_once_in_whole_units() {
        for (length, unit) in [(0, 1), (7, 1), (8, 8), (24, 8), (1 << 20, 4), ((1 << 20) + 12, 4)] {
            for count in 1..=STREAMS_MOST {
                let mut end = 5;
                for stream in 0..count {
                    let part = stripe(5..5 + length, stream, count, unit);
                    assert_eq!((part.start, part.len() % unit), (end, 0));
                    end = part.end;
                }
                assert_eq!(end, 5 + length);
            }
        }
    }

    #[test]
    fn small_messages_and_large_worlds_have_one_stream() {
        assert_eq!(
            [2, 17, 18, 33, 34, 1000].map(|world| streams_of_world(world, 4)),
            [4, 4, 3, 2, 1, 1]
        );
        assert_eq!([0, 1, 16, 17].map(|wanted| streams_of_world(2, wanted)), [1, 1, 16, 16]);
        assert_eq!(
            [0, STRIPE_LEAST, 3 * STRIPE_LEAST, 1 << 30].map(|l| stream_count(l, 4)),
            [1, 1, 3, 4]
        );
    }
}
