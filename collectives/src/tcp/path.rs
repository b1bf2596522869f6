//! Detects a connection whose path no longer carries data. Called by the engine while it waits.
//!
//! TCP: the kernel retransmits unacknowledged data for a quarter of an hour before it gives a connection up. Its own
//! remedy, TCP_USER_TIMEOUT, also ends a connection whose peer is alive and only does not read (a window that stays
//! closed, tcp(7), since Linux 5.11). A rank that computes for long while others have sent it their part looks like
//! that. So this module checks the acknowledgements itself, and counts only the time with an open window.
//!
//! QUIC: the connection's own timeout ends a silent one. It tells nothing before, and the end of a generation needs to
//! know which paths are about to end so. Each end's thread answers whatever its training thread does, so any packet is
//! a sign of life. A path that passes small packets alone shows by the peer's reports of the bytes that have arrived.

use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use socket2::{SockRef, Socket, TcpKeepalive};

use crate::quic::{QuicSession, SessionTraffic};

/// Unanswered probes of a handshake's connection before the kernel gives it up.
const PROBES: u32 = 3;
/// Probes of an idle connection within its deadline, the silence before the first one among them.
const IDLE_PROBES: u32 = 10;
/// Silence of a handshake's connection before it is probed, and between two probes: the least that the kernel knows.
const HANDSHAKE_PROBED: Duration = Duration::from_secs(1);
/// The unit of the kernel's keepalive settings.
const SECOND: Duration = Duration::from_secs(1);

/// Enables the kernel's probes on an idle connection, so that it ends within the deadline. They begin early, and follow each other
/// soon, since a middlebox may forget a connection that is idle while a step computes: also where a probe was answered, the
/// next one comes after the interval.
pub(super) fn keep_alive(socket: &Socket, deadline: Duration) -> io::Result<()> {
    let interval = (deadline / IDLE_PROBES).max(SECOND);
    let probes = (deadline.as_millis() / interval.as_millis()).saturating_sub(1).max(1);
    let keepalive = TcpKeepalive::new()
        .with_time(interval)
        .with_interval(interval)
        .with_retries(u32::try_from(probes).unwrap_or(IDLE_PROBES));
    SockRef::from(socket).set_tcp_keepalive(&keepalive)
}

/// Enables the kernel's probes on a connection on which a handshake waits for its peer. The peer's kernel answers them
/// for a peer that is late, and ends a connection whose other end is gone, for example by a reset that has reached that
/// end alone.
pub(super) fn probe_handshake(socket: &Socket) -> io::Result<()> {
    let keepalive = TcpKeepalive::new()
        .with_time(HANDSHAKE_PROBED)
        .with_interval(HANDSHAKE_PROBED)
        .with_retries(PROBES);
    SockRef::from(socket).set_tcp_keepalive(&keepalive)
}

/// The error of a path on which nothing was acknowledged for so long, to a tenth of a second.
pub(super) fn silent(silence: Duration) -> io::Error {
    let seconds = (silence.as_secs_f64() * 10.0).round() / 10.0;
    let why = format!("the path to it is silent: nothing was acknowledged for {seconds} s");
    io::Error::new(io::ErrorKind::TimedOut, why)
}

/// A socket's error. The kernel's own end of a silent connection, after [`keep_alive`]'s probes, has the same bound as
/// [`PathWatch`] and may be first: it is told in the same words.
pub(super) fn told_alike(error: io::Error, deadline: Duration) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ETIMEDOUT) => silent(deadline),
        _ => error,
    }
}

/// Progress of the peer's acknowledgements on one connection.
#[derive(Debug, Default)]
pub(super) struct PathWatch {
    /// Acknowledged bytes; received packets of a QUIC connection.
    acknowledged: u64,
    /// Frames that a QUIC connection had sent when it last received a packet.
    sent: u64,
    /// The time since which data is due and nothing more is acknowledged.
    since: Option<Instant>,
}

impl PathWatch {
    /// Whether data has been due for at least `deadline` while the peer acknowledged nothing.
    pub(super) fn is_dead(&mut self, socket: &Socket, now: Instant, deadline: Duration) -> bool {
        // Without an answer from the kernel the path counts as alive.
        UnackedBytes::of(socket).is_some_and(|flight| self.judge(flight, now, deadline))
    }

    /// The same for a QUIC connection: whether it has ended by its own timeout, has sent data that the peer must answer
    /// and received nothing for at least `deadline`, or has a stream of which nothing has arrived for as long.
    pub(super) fn is_session_dead(
        &mut self,
        session: &QuicSession,
        now: Instant,
        deadline: Duration,
    ) -> bool {
        let is_overdue =
            session.traffic().is_some_and(|traffic| self.judge_session(traffic, now, deadline));
        is_overdue || session.still_for() >= deadline || session.is_timed_out()
    }

    /// Time for which data has been due and the peer has acknowledged nothing, as of the last look. A connection that has
    /// ended can be looked at no more.
    pub(super) fn silent_for(&self, now: Instant) -> Duration {
        self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    fn judge_session(&mut self, traffic: SessionTraffic, now: Instant, deadline: Duration) -> bool {
        let SessionTraffic { received, sent } = traffic;
        if received != self.acknowledged {
            (self.acknowledged, self.sent, self.since) = (received, sent, None);
        } else if sent != self.sent && self.since.is_none() {
            self.since = Some(now);
        }
        self.since.is_some_and(|since| now.saturating_duration_since(since) >= deadline)
    }

    fn judge(&mut self, flight: UnackedBytes, now: Instant, deadline: Duration) -> bool {
        let UnackedBytes { unacknowledged, acknowledged, window_is_closed } = flight;
        if unacknowledged == 0 || window_is_closed {
            self.since = None;
            return false;
        }
        if self.since.is_none() || acknowledged != self.acknowledged {
            (self.acknowledged, self.since) = (acknowledged, Some(now));
        }
        self.since.is_some_and(|since| now.saturating_duration_since(since) >= deadline)
    }
}

/// The kernel's counts of a connection's data in flight.
#[derive(Clone, Copy, Debug)]
struct UnackedBytes {
    /// Unacknowledged segments.
    unacknowledged: u32,
    /// Acknowledged bytes, since the connection began.
    acknowledged: u64,
    window_is_closed: bool,
}

/// Offsets of these fields in `struct tcp_info` of `linux/tcp.h`; the kernel only ever appends to it.
const UNACKED_AT: usize = 24;
const BYTES_ACKED_AT: usize = 120;
const SND_WND_AT: usize = 228;
const INFO_LENGTH: usize = 232;

impl UnackedBytes {
    #[expect(unsafe_code, reason = "TCP_INFO has no safe wrapper")]
    fn of(socket: &Socket) -> Option<UnackedBytes> {
        let mut info = [0_u8; INFO_LENGTH];
        let mut length = INFO_LENGTH as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes to `info`, and how many there are to `length`.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                info.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let length = length as usize;
        if result != 0 || length < BYTES_ACKED_AT + 8 {
            return None;
        }
        let u32_at =
            |at: usize| u32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
        let low_and_high = [u32_at(BYTES_ACKED_AT), u32_at(BYTES_ACKED_AT + 4)];
        let acknowledged: u64 = bytemuck::cast(low_and_high);
        // A kernel that does not report the window (before 5.4) is assumed to have it open.
        let window_is_closed = length >= INFO_LENGTH && u32_at(SND_WND_AT) == 0;
        Some(UnackedBytes { unacknowledged: u32_at(UNACKED_AT), acknowledged, window_is_closed })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::clock;

    const DEADLINE: Duration = Duration::from_secs(10);

    fn flight(unacknowledged: u32, acknowledged: u64) -> UnackedBytes {
        UnackedBytes { unacknowledged, acknowledged, window_is_closed: false }
    }

    #[test]
    fn s_3_an_idle_connection_is_probed_every_second_and_ends_within_its_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = Socket::from(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        keep_alive(&socket, DEADLINE).unwrap();
        let (idle, interval) =
            (socket.tcp_keepalive_time().unwrap(), socket.tcp_keepalive_interval().unwrap());
        assert_eq!((idle, interval), (SECOND, SECOND), "no middlebox forgets it in a long step");
        assert_eq!(idle + interval * socket.tcp_keepalive_retries().unwrap(), DEADLINE);
    }

    #[test]
    fn a_path_is_dead_when_nothing_is_acknowledged_for_the_deadline() {
        let (mut watch, start) = (PathWatch::default(), clock::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        assert!(!watch.judge(flight(3, 100), start, DEADLINE));
        assert!(!watch.judge(flight(3, 100), after(9), DEADLINE));
        assert!(!watch.judge(flight(2, 101), after(9), DEADLINE), "a byte got through");
        assert!(!watch.judge(flight(2, 101), after(18), DEADLINE));
        assert_eq!(watch.silent_for(after(18)), Duration::from_secs(9));
        assert!(watch.judge(flight(2, 101), after(19), DEADLINE));
    }

    #[test]
    fn s_3_a_quic_path_is_dead_when_nothing_answers_for_the_deadline() {
        let (mut watch, start) = (PathWatch::default(), clock::now());
        let mut judge = |received, sent, seconds| {
            let now = start + Duration::from_secs(seconds);
            watch.judge_session(SessionTraffic { received, sent }, now, DEADLINE)
        };
        assert!(!judge(7, 5, 0));
        assert!(!judge(7, 5, 60), "nothing was sent that needs an answer");
        assert!(!judge(7, 6, 61));
        assert!(!judge(7, 9, 70));
        assert!(!judge(8, 9, 71), "an answer came");
        assert!(!judge(8, 10, 80));
        assert!(!judge(8, 12, 89));
        assert!(judge(8, 12, 90));
    }

    #[test]
    fn s_3_the_kernel_s_end_of_a_silent_path_is_told_in_the_same_words() {
        let of_kernel = io::Error::from_raw_os_error(libc::ETIMEDOUT);
        let told = told_alike(of_kernel, DEADLINE).to_string();
        assert_eq!(told, "the path to it is silent: nothing was acknowledged for 10 s");
        assert_eq!(told, silent(DEADLINE).to_string());
        assert!(silent(Duration::from_millis(9_849)).to_string().ends_with("for 9.8 s"));
        let reset = io::Error::from_raw_os_error(libc::ECONNRESET);
        assert_eq!(told_alike(reset, DEADLINE).kind(), io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn nothing_on_its_way_and_a_closed_window_are_no_silence() {
        let (mut watch, start) = (PathWatch::default(), clock::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        watch.judge(flight(1, 5), start, DEADLINE);
        assert!(!watch.judge(flight(0, 6), after(60), DEADLINE));
        assert!(!watch.judge(flight(1, 6), after(61), DEADLINE));
        let closed = UnackedBytes { window_is_closed: true, ..flight(1, 6) };
        assert!(!watch.judge(closed, after(100), DEADLINE));
        assert!(!watch.judge(flight(1, 6), after(101), DEADLINE));
    }

    #[test]
    fn the_kernel_tells_what_is_acknowledged_and_when_the_window_closes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        sender.write_all(&[1; 1000]).unwrap();
        receiver.read_exact(&mut [0; 1000]).unwrap();
        sender.set_nonblocking(true).unwrap();
        let socket = Socket::from(sender.try_clone().unwrap());
        let flight = UnackedBytes::of(&socket).unwrap();
        assert!((1000..=1001).contains(&flight.acknowledged), "{flight:?}");
        assert!(!flight.window_is_closed);
        while sender.write(&[1; 65536]).is_ok() {}
        let deadline = clock::now() + DEADLINE;
        while UnackedBytes::of(&socket).unwrap().unacknowledged > 0 && clock::now() < deadline {
            std::thread::park_timeout(Duration::from_millis(10));
        }
        // The reader does not read, but its kernel answers: TCP_USER_TIMEOUT would end the connection.
        assert!(!PathWatch::default().is_dead(&socket, clock::now(), Duration::ZERO));
    }
}
