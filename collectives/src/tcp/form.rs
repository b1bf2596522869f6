//! The forming of a group: dials the lower ranks, accepts the higher ones, and refuses everyone else.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use ring::hmac;

use super::connection::{Connection, Outcome};
use super::engine::{ABORT_TOKEN, Engine, epoll_timeout, token_of};
use super::fabric::{GroupSpec, TcpFabric};
use super::flow::Lane;
use super::handshake::Identity;
use super::link::Link;
use super::seal::{Seal, Secret};
use crate::abort::AbortHandle;
use crate::clock;
use crate::error::{FormError, MissingPeer};
use crate::quic::Endpoint;
use crate::split::Origin;

const LISTENER_TOKEN: u64 = ABORT_TOKEN - 1;
const QUIC_TOKEN: u64 = ABORT_TOKEN - 2;
/// Handshakes have tokens from here on; below are the links that stand.
const FIRST_HANDSHAKE_TOKEN: u64 = 1 << 40;
/// How long a peer that dialed may take for its handshake.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(2);
/// The part of the forming's deadline that the answer over a connection of the last generation may take. A peer that
/// ended it shows at once, and one that is late would be late on a new one too: so this is for a network that has
/// forgotten the connection, and leaves time to dial anew.
const STANDING_SHARE: u32 = 2;
/// Unfinished handshakes of peers that dialed, beside one for each link; the oldest gives way.
const PENDING_BOUND: usize = 128;
/// Connections kept for a newer generation; the oldest gives way, and dials again.
const PARKED_BOUND: usize = 1024;
/// The pause before a lower rank is dialed again: doubles from the first to the last.
const REDIAL_FIRST: Duration = Duration::from_millis(2);
const REDIAL_LAST: Duration = Duration::from_millis(100);
const EVENTS: usize = 64;

/// A link to a lower rank without a connection or a handshake in progress.
#[derive(Clone, Copy)]
struct Redial {
    at: Instant,
    pause: Duration,
}

pub(crate) struct Forming<'a> {
    fabric: &'a mut TcpFabric,
    group: &'a GroupSpec,
    identity: Identity,
    abort: &'a AbortHandle,
    epoll: Epoll,
    /// Where the group has links of QUIC.
    quic: Option<Arc<Endpoint>>,
    deadline: Instant,
    handshakes: BTreeMap<u64, Connection>,
    next_token: u64,
    links: BTreeMap<Lane, Link>,
    redials: BTreeMap<Lane, Redial>,
    pauses: BTreeMap<Lane, Duration>,
    last_seen: BTreeMap<u32, String>,
}

fn edges() -> EpollFlags {
    EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET
}

fn system(error: impl Into<io::Error>) -> FormError {
    FormError::System(error.into())
}

/// The links to these ranks.
fn lanes(ranks: std::ops::Range<u32>, streams: u32) -> impl Iterator<Item = Lane> {
    ranks.flat_map(move |rank| (0..streams).map(move |stream| Lane { rank, stream }))
}

impl<'a> Forming<'a> {
    pub(crate) fn new(
        fabric: &'a mut TcpFabric,
        group: &'a GroupSpec,
        world: u32,
        part: u32,
        abort: &'a AbortHandle,
    ) -> Result<Forming<'a>, FormError> {
        let now = clock::now();
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(system)?;
        let abort_event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, ABORT_TOKEN);
        epoll.add(abort.event(), abort_event).map_err(system)?;
        let listener_event = EpollEvent::new(EpollFlags::EPOLLIN, LISTENER_TOKEN);
        epoll.add(fabric.listener.as_fd(), listener_event).map_err(system)?;
        let quic = group.uses_quic().then(|| fabric.quic()).transpose().map_err(system)?;
        if let Some(quic) = &quic {
            let event = EpollEvent::new(EpollFlags::EPOLLIN, QUIC_TOKEN);
            epoll.add(quic.event(), event).map_err(system)?;
        }
        let identity = Identity {
            term: group.term,
            generation: group.generation,
            rank: group.rank,
            world,
            part,
            streams: group.streams_in(world),
            key: hmac::Key::new(hmac::HMAC_SHA256, &group.key),
        };
        let redial = Redial { at: now, pause: REDIAL_FIRST };
        let redials = lanes(0..group.rank, identity.streams).map(|lane| (lane, redial)).collect();
        Ok(Forming {
            fabric,
            group,
            identity,
            abort,
            epoll,
            quic,
            deadline: now + group.form_deadline,
            handshakes: BTreeMap::new(),
            next_token: FIRST_HANDSHAKE_TOKEN,
            links: BTreeMap::new(),
            redials,
            pauses: BTreeMap::new(),
            last_seen: BTreeMap::new(),
        })
    }

    pub(crate) fn run(mut self) -> Result<Engine, FormError> {
        self.check_abort()?;
        for mut connection in std::mem::take(&mut self.fabric.parked) {
            connection.deadline = Some(clock::now() + HANDSHAKE_DEADLINE);
            self.start(connection)?;
        }
        self.start_standing()?;
        loop {
            self.check_abort()?;
            let now = clock::now();
            self.expire(now);
            self.dial(now)?;
            if self.links.len() == self.others().count() {
                return self.finish();
            }
            if now >= self.deadline {
                return Err(FormError::DeadlinePassed { missing: self.missing() });
            }
            self.wait(now)?;
        }
    }

    /// Begins with the connections that the last generation has left.
    fn start_standing(&mut self) -> Result<(), FormError> {
        let mut standing = self.fabric.standing.take(self.identity.part);
        let others: Vec<Lane> = self.others().collect();
        for lane in others {
            let peer = (self.group.peers[lane.rank as usize], lane.stream);
            let Some(left) = standing.remove(&peer) else { continue };
            let dials = (lane.rank < self.group.rank).then_some(lane);
            // A peer that is still in the old generation, or has left the connection, is dialed anew.
            let due = clock::now() + self.group.form_deadline / STANDING_SHARE;
            let deadline = dials.map(|_| due);
            let random = &self.fabric.random;
            match Connection::again(&self.identity, dials, left, deadline, random) {
                Ok(connection) => {
                    self.redials.remove(&lane);
                    self.start(connection)?;
                }
                Err(error) => tracing::debug!(%error, ?lane, "a standing connection failed"),
            }
        }
        Ok(())
    }

    fn check_abort(&self) -> Result<(), FormError> {
        match self.abort.aborted(self.group.term, self.group.generation) {
            None => Ok(()),
            Some(abort) => Err(FormError::Aborted {
                term: abort.term,
                generation: abort.generation,
                reason: abort.reason,
            }),
        }
    }

    /// All links that the group is to have here.
    fn others(&self) -> impl Iterator<Item = Lane> + use<> {
        let own = self.group.rank;
        lanes(0..self.identity.world, self.identity.streams).filter(move |lane| lane.rank != own)
    }

    fn missing(&self) -> Vec<MissingPeer> {
        let lanes = self.others().filter(|lane| !self.links.contains_key(lane));
        let ranks: BTreeSet<u32> = lanes.map(|lane| lane.rank).collect();
        let describe = |rank: u32| {
            let silent =
                if rank < self.group.rank { "it has not answered" } else { "it has not dialed" };
            let last_seen = self.last_seen.get(&rank).map_or(silent, String::as_str).to_owned();
            MissingPeer { rank, last_seen }
        };
        ranks.into_iter().map(describe).collect()
    }

    /// Gives up the handshakes whose deadline has passed.
    fn expire(&mut self, now: Instant) {
        let is_late = |connection: &Connection| connection.deadline.is_some_and(|at| at <= now);
        let late: Vec<u64> = self
            .handshakes
            .iter()
            .filter(|(_, connection)| is_late(connection))
            .map(|(token, _)| *token)
            .collect();
        for token in late {
            let connection = self.handshakes.remove(&token);
            if let Some(lane) = connection.and_then(|connection| connection.target) {
                self.lost(lane, "it has not answered".to_owned());
            }
        }
    }

    fn dial(&mut self, now: Instant) -> Result<(), FormError> {
        let due: Vec<_> = self
            .redials
            .iter()
            .filter(|(_, redial)| redial.at <= now)
            .map(|(r, d)| (*r, *d))
            .collect();
        for (lane, redial) in due {
            self.redials.remove(&lane);
            self.pauses.insert(lane, (redial.pause * 2).min(REDIAL_LAST));
            let address = self.group.peers[lane.rank as usize];
            let random = &self.fabric.random;
            let quic = self.quic.as_ref().filter(|_| self.group.is_quic_to(lane.rank));
            let connection = match quic {
                Some(quic) => quic.dial(address).and_then(|stream| {
                    Connection::outbound_quic(&self.identity, lane, stream, random)
                }),
                None => Connection::outbound(&self.identity, lane, address, random),
            };
            match connection {
                Ok(connection) => self.start(connection)?,
                Err(error) => self.lost(lane, format!("dialing {address} failed: {error}")),
            }
        }
        Ok(())
    }

    /// Notes why a rank is not connected, and dials it again after a pause where that is this side's part.
    fn lost(&mut self, lane: Lane, why: String) {
        tracing::debug!(?lane, why, "not connected yet");
        self.last_seen.insert(lane.rank, why);
        if lane.rank < self.group.rank && !self.links.contains_key(&lane) {
            let pause = self.pauses.get(&lane).copied().unwrap_or(REDIAL_FIRST);
            self.redials.insert(lane, Redial { at: clock::now() + pause, pause });
        }
    }

    fn start(&mut self, connection: Connection) -> Result<(), FormError> {
        let token = self.next_token;
        self.next_token += 1;
        let event = EpollEvent::new(edges(), token);
        self.epoll.add(connection.socket.as_fd(), event).map_err(system)?;
        self.handshakes.insert(token, connection);
        self.advance(token)
    }

    fn advance(&mut self, token: u64) -> Result<(), FormError> {
        let Some(connection) = self.handshakes.get_mut(&token) else { return Ok(()) };
        let outcome = connection.advance(&self.identity, &self.fabric.random);
        if matches!(outcome, Outcome::Pending) {
            return Ok(());
        }
        let Some(connection) = self.handshakes.remove(&token) else { return Ok(()) };
        match outcome {
            Outcome::Pending => {}
            Outcome::Established(lane, secret) => {
                let dialed = connection.target.is_some();
                self.establish(lane, connection, &secret, dialed)?;
            }
            Outcome::Park => {
                self.epoll.delete(connection.socket.as_fd()).map_err(system)?;
                if self.fabric.parked.len() == PARKED_BOUND {
                    self.fabric.parked.pop_front();
                }
                self.fabric.parked.push_back(connection);
            }
            Outcome::Failed(why) => match connection.lane() {
                Some(lane) => self.lost(lane, why),
                None => tracing::debug!(why, "refused a connection"),
            },
        }
        Ok(())
    }

    /// A peer that dials again has lost the connection before, so the new one counts.
    fn establish(
        &mut self,
        lane: Lane,
        connection: Connection,
        secret: &Secret,
        dialed: bool,
    ) -> Result<(), FormError> {
        let Connection { socket, session, .. } = connection;
        if let Some(session) = &session {
            session.welcome();
        }
        let mut event = EpollEvent::new(edges(), token_of(lane));
        self.epoll.modify(socket.as_fd(), &mut event).map_err(system)?;
        let seal = self.group.seals_to(lane.rank).then(|| Seal::new(secret, dialed)).transpose();
        let seal = seal.map_err(system)?.map(Box::new);
        self.links.insert(lane, Link::new(lane, socket, session, seal));
        Ok(())
    }

    fn wait(&mut self, now: Instant) -> Result<(), FormError> {
        let handshakes = self.handshakes.values().filter_map(|connection| connection.deadline);
        let redials = self.redials.values().map(|redial| redial.at);
        let next = handshakes.chain(redials).min().unwrap_or(self.deadline).min(self.deadline);
        let timeout = epoll_timeout(next.saturating_duration_since(now));
        let mut events = [EpollEvent::empty(); EVENTS];
        let count = match self.epoll.wait(&mut events, timeout) {
            Ok(count) => count,
            Err(nix::Error::EINTR) => 0,
            Err(error) => return Err(system(error)),
        };
        for event in &events[..count] {
            match event.data() {
                ABORT_TOKEN => {}
                LISTENER_TOKEN => self.accept()?,
                QUIC_TOKEN => self.accept_streams()?,
                token if token >= FIRST_HANDSHAKE_TOKEN => self.advance(token)?,
                link => self.watch(link, event.events()),
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> Result<(), FormError> {
        // As many at a time as may be pending, so that a flood does not keep the loop from its deadline.
        for _ in 0..PENDING_BOUND {
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
                Err(error) => return Err(system(error)),
            };
            self.make_room();
            match Connection::inbound(socket, clock::now() + HANDSHAKE_DEADLINE) {
                Ok(connection) => self.start(connection)?,
                Err(error) => tracing::debug!(%error, "an accepted connection failed"),
            }
        }
        Ok(())
    }

    fn accept_streams(&mut self) -> Result<(), FormError> {
        for _ in 0..PENDING_BOUND {
            let Some(quic) = &self.quic else { return Ok(()) };
            let stream = match quic.accept() {
                Ok(stream) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(system(error)),
            };
            self.make_room();
            self.start(Connection::inbound_quic(stream, clock::now() + HANDSHAKE_DEADLINE))?;
        }
        Ok(())
    }

    /// Gives up the oldest handshake of a peer that dialed, where there are too many.
    fn make_room(&mut self) {
        let inbound = self.handshakes.iter().filter(|(_, other)| other.target.is_none());
        if inbound.clone().count() >= PENDING_BOUND + self.others().count()
            && let Some(oldest) = inbound.map(|(token, _)| *token).next()
        {
            self.handshakes.remove(&oldest);
        }
    }

    /// A link that ended while others are still forming: its peer gave up, and may come again.
    fn watch(&mut self, token: u64, flags: EpollFlags) {
        let gone = EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR;
        let mut links = self.links.iter_mut();
        let Some((&lane, link)) = links.find(|(lane, _)| token_of(**lane) == token) else { return };
        if !flags.intersects(gone) {
            return;
        }
        if link.probe().is_err() {
            self.links.remove(&lane);
            self.lost(lane, "it connected, and closed the connection again".to_owned());
        } else {
            link.hangup = Some(0);
        }
    }

    fn finish(self) -> Result<Engine, FormError> {
        self.epoll.delete(self.fabric.listener.as_fd()).map_err(system)?;
        if let Some(quic) = &self.quic {
            self.epoll.delete(quic.event()).map_err(system)?;
        }
        let links: Vec<Link> = self.links.into_values().collect();
        Ok(Engine {
            term: self.group.term,
            generation: self.group.generation,
            rank: self.group.rank,
            streams: self.identity.streams,
            origin: Arc::new(Origin {
                group: self.group.clone(),
                abort: self.abort.clone(),
                address: self.fabric.local_address().ip(),
                part: self.identity.part,
                standing: self.fabric.standing.clone(),
                _quic: self.quic,
            }),
            hangups: 1,
            links,
            epoll: self.epoll,
            abort: self.abort.clone(),
            abort_seen: None,
            operation_deadline: self.group.operation_deadline,
            sequence: 0,
            agreeing: false,
            failure: None,
        })
    }
}
