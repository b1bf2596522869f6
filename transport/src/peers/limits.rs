//! The bounds of the core of peers, each with its reason.

use std::time::Duration;

use elastic_protocol::Deadlines;

/// Most peers of a node.
pub const PEERS_MAX: usize = 4096;

/// Time that `close` waits for the acknowledgement of queued frames.
pub const CLOSE_GRACE: Duration = Duration::from_millis(250);

/// Time for which the end that makes the connections keeps a session with a silent peer. The peer may be a driver that
/// was stopped, swapped out or suspended: within this time the session continues as if nothing had happened. It is
/// twice the longest pause that must not cause a reset (S-7).
pub const RESUME_WITHIN: Duration = Duration::from_secs(120);

/// Silence up to which a peer on this machine is waited for while its process is starved. One that computes for ever is no better
/// than one that is gone.
pub const STARVED_MAX: Duration = Duration::from_secs(30);

/// Silence with which a peer is lost whose host has said that the peer's port is closed. A peer that is there sends
/// a sign of life each beat; of three, one arrives.
pub(crate) fn refused_silence(deadlines: &Deadlines) -> Duration {
    deadlines.beat * 3
}

/// Delay of a timer beyond which this process was paused, rather than busy for a moment.
pub(crate) fn pause_min(deadlines: &Deadlines) -> Duration {
    deadlines.suspect / 2
}
