//! Admission of connections to a forming group: bounds on unauthenticated connections, and pauses while the system
//! has no free descriptor. Part of [`Forming`], which calls it.

use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::sys::epoll::{EpollEvent, EpollFlags};

use super::connection::PendingConnection;
use super::form::{Forming, HANDSHAKE_DEADLINE, LISTENER_TOKEN, system};
use crate::clock;
use crate::error::FormError;

/// Most connections without a valid hello at a time; the oldest gives way. It is also the most that are accepted in
/// one go, so that a flood does not keep the forming from its deadlines.
const STRANGERS_MAX: usize = 128;
/// Connections of one forming that ended without a valid hello: above this number the fabric warns, once in its
/// life.
const STRANGERS_WARNED: u64 = 256;
/// Pause of accepting after the system has refused a descriptor.
const REFUSED_PAUSE: Duration = Duration::from_millis(10);

/// State of the admission of incoming connections.
#[derive(Debug, Default)]
pub(super) struct HandshakeAdmission {
    /// Connections that ended without a valid hello.
    pub(super) strangers: u64,
    /// End of the pause during which the listener is not watched.
    pub(super) closed_until: Option<Instant>,
    /// The time of the first of the system's refusals in a row, and its last error; none after a success.
    refused: Option<(Instant, io::Error)>,
}

impl HandshakeAdmission {
    /// Records that the system has granted a descriptor.
    pub(super) fn given(&mut self) {
        self.refused = None;
    }

    /// The system's error, if it has refused for at least `patience`.
    pub(super) fn refused_for(&mut self, now: Instant, patience: Duration) -> Option<io::Error> {
        let (since, _) = self.refused.as_ref()?;
        if now.saturating_duration_since(*since) < patience {
            return None;
        }
        self.refused.take().map(|(_, error)| error)
    }
}

/// Whether the error is a shortage of descriptors or memory, which may pass.
pub(super) fn is_shortage(error: &io::Error) -> bool {
    let shortages =
        [nix::Error::EMFILE, nix::Error::ENFILE, nix::Error::ENOBUFS, nix::Error::ENOMEM];
    error.raw_os_error().is_some_and(|code| shortages.iter().any(|it| *it as i32 == code))
}

impl Forming<'_> {
    /// Continues the handshakes of connections parked by the generation's last group. Those of other generations are
    /// refused.
    pub(super) fn start_parked(&mut self) -> Result<(), FormError> {
        for mut connection in std::mem::take(&mut self.fabric.parked) {
            connection.deadline = Some(clock::now() + HANDSHAKE_DEADLINE);
            self.start(connection)?;
        }
        Ok(())
    }

    /// Parks a connection whose peer holds the key, and already forms a later group of this generation. A world has
    /// no more links than this group, so additional ones are replays; the oldest gives way.
    pub(super) fn park(&mut self, connection: PendingConnection) -> Result<(), FormError> {
        self.epoll.delete(connection.socket.as_fd()).map_err(system)?;
        let links = self.others().count();
        let parked = &mut self.fabric.parked;
        parked.retain(|connection| !connection.is_closed());
        if parked.len() >= links {
            parked.pop_front();
        }
        parked.push_back(connection);
        Ok(())
    }

    pub(super) fn accept(&mut self) -> Result<(), FormError> {
        for _ in 0..STRANGERS_MAX {
            let socket = match self.fabric.listener.accept() {
                Ok((socket, _)) => socket,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                // The connection ended before it was accepted, or a signal came.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::ConnectionAborted | ErrorKind::Interrupted
                    ) =>
                {
                    continue;
                }
                Err(error) if is_shortage(&error) => {
                    let now = clock::now();
                    self.refused(now, error);
                    // A level-triggered listener would end the next wait at once.
                    self.watch_listener(false)?;
                    self.admission.closed_until = Some(now + REFUSED_PAUSE);
                    return Ok(());
                }
                Err(error) => return Err(system(error)),
            };
            self.admission.given();
            self.make_room();
            match PendingConnection::inbound(socket, clock::now() + HANDSHAKE_DEADLINE) {
                Ok(connection) => self.start(connection)?,
                Err(error) => tracing::debug!(%error, "an accepted connection failed"),
            }
        }
        Ok(())
    }

    pub(super) fn accept_streams(&mut self) -> Result<(), FormError> {
        for _ in 0..STRANGERS_MAX {
            let Some(quic) = &self.quic else { return Ok(()) };
            let stream = match quic.accept() {
                Ok(stream) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(system(error)),
            };
            self.make_room();
            self.start(PendingConnection::inbound_quic(stream, clock::now() + HANDSHAKE_DEADLINE))?;
        }
        Ok(())
    }

    /// Resumes accepting once the pause after a refusal is over.
    pub(super) fn reopen(&mut self, now: Instant) -> Result<(), FormError> {
        if self.admission.closed_until.is_some_and(|until| until <= now) {
            self.admission.closed_until = None;
            self.watch_listener(true)?;
        }
        Ok(())
    }

    fn watch_listener(&self, watched: bool) -> Result<(), FormError> {
        let flags = if watched { EpollFlags::EPOLLIN } else { EpollFlags::empty() };
        let mut event = EpollEvent::new(flags, LISTENER_TOKEN);
        self.epoll.modify(self.fabric.listener.as_fd(), &mut event).map_err(system)
    }

    /// Handles the system's refusal of a descriptor: closes connections that are not authenticated, and parked ones,
    /// whose peers dial again.
    pub(super) fn refused(&mut self, now: Instant, error: io::Error) {
        let before = self.handshakes.len() + self.fabric.parked.len();
        self.handshakes.retain(|_, connection| connection.lane().is_some());
        self.fabric.parked.clear();
        let shed = before - self.handshakes.len();
        tracing::debug!(%error, shed, "the system refuses what forming needs");
        self.admission.refused.get_or_insert((now, error));
    }

    /// Ends the oldest connection without a valid hello where there are too many. Likewise ends the oldest of those
    /// with a valid hello, and without the proof that ends the handshake.
    fn make_room(&mut self) {
        let links = self.others().count();
        let inbound = || self.handshakes.iter().filter(|(_, it)| it.target.is_none());
        let (strangers, known): (Vec<_>, Vec<_>) =
            inbound().map(|(token, it)| (*token, it.lane())).partition(|(_, lane)| lane.is_none());
        let too_many = strangers.len() >= STRANGERS_MAX;
        if too_many && let Some((oldest, _)) = strangers.first() {
            self.handshakes.remove(oldest);
            self.admission.strangers += 1;
        }
        if known.len() >= links * 2
            && let Some((oldest, _)) = known.first()
        {
            self.handshakes.remove(oldest);
        }
    }

    /// Warns once in the life of a fabric that many connections come from processes that are no members.
    pub(super) fn warn_of_strangers(&mut self) {
        let unfinished = self.quic.as_ref().map_or(0, |quic| quic.take_unfinished());
        let strangers = self.admission.strangers + unfinished;
        if strangers < STRANGERS_WARNED || self.fabric.has_warned_of_strangers {
            return;
        }
        self.fabric.has_warned_of_strangers = true;
        let port = self.fabric.local_address();
        self.fabric.warning = Some(format!(
            "{strangers} connections to {port}, where other workers' data arrives, came from no member of the job, and \
             were ended"
        ));
    }
}
