//! The division of a large message among the connections of a pair of ranks. Both ends derive the same result, from
//! the world size and the length of the message. Called by the flows.

use std::ops::Range;

/// Default number of connections of a pair of ranks: 4. A network may give each connection a share of its
/// bandwidth, or bound the bytes in flight in it; then four carry more than one.
pub const DEFAULT_STREAMS: u32 = 4;
/// The most connections of a pair.
pub(crate) const STREAMS_MOST: u32 = 16;
/// The most connections of a rank where pairs have several. In worlds where that allows less than two for each
/// pair, each pair has one, and the number of peers gives enough streams.
const CONNECTIONS_MOST: u32 = 64;
/// The least length of a connection's part of a message, in bytes. A message that fits into the sockets' buffers at
/// once goes as fast by one connection.
pub(crate) const STRIPE_LEAST: usize = 256 * 1024;

/// The number of connections of each pair in a world of this size, at most `wanted`.
pub(crate) fn streams_of_world(world: u32, wanted: u32) -> u32 {
    let most = CONNECTIONS_MOST / world.saturating_sub(1).max(1);
    wanted.min(most).clamp(1, STREAMS_MOST)
}

/// The number of connections, of `streams`, that a message of this length uses.
pub(crate) fn stream_count(length: usize, streams: u32) -> u32 {
    u32::try_from(length / STRIPE_LEAST).unwrap_or(u32::MAX).clamp(1, streams)
}

/// The part of a message for connection `stream` of `count`, in bytes: the parts are near-equal, of whole `unit`s.
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
