//! The bounds of a session's queues (TR-6), and the sums behind them.

use elastic_protocol::messages::FRAME_BYTES_MAX;

/// Bounds of one session, the same for all its life.
///
/// An end holds at most `control_bytes` + `bulk_bytes` + `conversations` × `reserve_bytes`
/// = 16 + 32 + 256 × 1/16 = 64 MiB of frames that are not yet acknowledged.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Largest frame, in bytes. Default: the largest message, 8 MiB.
    pub frame_bytes: usize,
    /// Unacknowledged frames of the control conversation. Default 4,096.
    pub control_frames: usize,
    /// Unacknowledged bytes of the control conversation. Default 16 MiB: two of the largest frames.
    pub control_bytes: usize,
    /// Unacknowledged frames of all bulk conversations together. Default 4,096.
    pub bulk_frames: usize,
    /// Unacknowledged bytes of all bulk conversations together. Default 32 MiB: four of the largest.
    pub bulk_bytes: usize,
    /// What a bulk conversation may queue even when others have used up the shared bound, so that one
    /// does not shut the others out. Default 64 KiB.
    pub reserve_bytes: usize,
    /// Bytes of bulk that are on the way at a time, give or take one frame; the rest waits here, where
    /// control overtakes it. Default 4 MiB: 100 MB/s at 40 ms of round trip.
    pub flight_bytes: usize,
    /// Conversations of a session, in each direction. Default 256.
    pub conversations: usize,
    /// An acknowledgement is due at once after so many frames of a conversation. Default 64.
    pub ack_frames: u64,
    /// An acknowledgement is due at once after so many bytes of a conversation. Default 256 KiB, a 16th
    /// of `flight_bytes`, so that the way never runs dry for want of one.
    pub ack_bytes: usize,
}

impl Limits {
    /// The defaults.
    pub const DEFAULT: Self = Self {
        frame_bytes: FRAME_BYTES_MAX,
        control_frames: 4096,
        control_bytes: 2 * FRAME_BYTES_MAX,
        bulk_frames: 4096,
        bulk_bytes: 4 * FRAME_BYTES_MAX,
        reserve_bytes: 64 << 10,
        flight_bytes: 4 << 20,
        conversations: 256,
        ack_frames: 64,
        ack_bytes: 256 << 10,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}
