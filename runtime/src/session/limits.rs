//! The bounds of a session's queues (TR-6), and the arithmetic behind them.

use elastic_protocol::codec::FRAME_BYTES_MAX;

/// Bounds of one session; constant for its whole life.
///
/// An end holds at most `control_bytes` + `bulk_bytes` + `conversations` × `reserve_bytes`
/// = 16 + 32 + 256 × 1/16 = 64 MiB of frames that are not yet acknowledged.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SessionLimits {
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
    /// Bytes that a bulk conversation may queue even when others have used up the shared bound, so that no
    /// conversation shuts the others out. Default 64 KiB.
    pub reserve_bytes: usize,
    /// Bytes of bulk in flight at a time, give or take one frame. Further bulk waits in the session, where
    /// control overtakes it. Default 4 MiB: 100 MB/s at a round trip of 40 ms.
    pub flight_bytes: usize,
    /// Conversations of a session, in each direction. Default 256.
    pub conversations: usize,
    /// Frames of a conversation after which an acknowledgement is due at once. Default 64.
    pub ack_frames: u64,
    /// Bytes of a conversation after which an acknowledgement is due at once. Default 256 KiB, a 16th of
    /// `flight_bytes`, so that the sender never stalls for want of an acknowledgement.
    pub ack_bytes: usize,
}

impl SessionLimits {
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

impl Default for SessionLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}
