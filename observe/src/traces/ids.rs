//! Ids of traces and spans. A trace's id is derived from the job and the reset, a span's from its trace and its place
//! there. Used by `traces`.

use elastic_protocol::{GenerationId, Time};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// The id of a reset's trace: 16 bytes, never zero.
pub(super) fn trace_id(job: &str, from: GenerationId, decided_at: Time) -> u128 {
    xxh3_128(format!("{job}\n{from}\n{}", decided_at.0).as_bytes()).max(1)
}

/// The id of a trace's span by its place: 8 bytes, never zero.
pub(super) fn span_id(trace_id: u128, place: usize) -> u64 {
    let place = (place as u64).to_be_bytes();
    xxh3_64(&[trace_id.to_be_bytes().as_slice(), &place].concat()).max(1)
}
