//! Forms a group: dials the lower ranks, accepts the higher ones, and refuses all other connections. Called by the
//! fabric. Accepting and parking are in `admission`.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use ring::hmac;

use super::admission::{HandshakeAdmission, is_shortage};
use super::connection::{HandshakeOutcome, PendingConnection};
use super::engine::{ABORT_TOKEN, DOUBT_SHARE, Engine, PATH_LOOKS, epoll_timeout, token_of};
use super::fabric::{GroupSpec, TcpFabric};
use super::flow::StreamLane;
use super::handshake::RankIdentity;
use super::link::StreamLink;
use super::path::keep_alive;
use super::seal::{Seal, SealSecret};
use crate::abort::AbortHandle;
use crate::clock;
use crate::error::{FormError, MissingPeer};
use crate::quic::Endpoint;
use crate::split::Origin;

pub(super) const LISTENER_TOKEN: u64 = ABORT_TOKEN - 1;
const QUIC_TOKEN: u64 = ABORT_TOKEN - 2;
/// The first token of handshakes; those below are of established links.
const FIRST_HANDSHAKE_TOKEN: u64 = 1 << 40;
/// Time limit of the handshake of a peer that dialed.
pub(super) const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(2);
/// The divisor of the forming's deadline that limits the wait for an answer over a connection of the last
/// generation. A closed connection shows at once, and a peer that is late would be late on a new connection too. So
/// the limit is for a network that has forgotten the connection, and leaves time to dial anew.
const STANDING_SHARE: u32 = 2;
/// Back-off before a lower rank is dialed again: doubles from the first value to the last.
const REDIAL_FIRST: Duration = Duration::from_millis(2);
const REDIAL_LAST: Duration = Duration::from_millis(100);
/// Time limit of the first attempt to connect to a lower rank; it doubles with each attempt. A listener whose queue
/// is full drops attempts without an answer, and the kernel repeats one only after a second.
const CONNECT_FIRST: Duration = Duration::from_millis(250);
/// Longest time limit of one attempt to connect: the doubled limits must not leave a clock's range.
const CONNECT_LAST: Duration = Duration::from_secs(16);
/// Longest time for which the system may refuse resources such as descriptors before forming fails.
const REFUSED_PATIENCE: Duration = Duration::from_secs(2);
const EVENTS: usize = 64;

/// A link to a lower rank without a connection or a handshake in progress.
#[derive(Clone, Copy)]
struct Redial {
    at: Instant,
    pause: Duration,
}

pub(crate) struct Forming<'a> {
    pub(super) fabric: &'a mut TcpFabric,
    group: &'a GroupSpec,
    identity: RankIdentity,
    abort: &'a AbortHandle,
    pub(super) epoll: Epoll,
    /// The QUIC endpoint, where the group has QUIC links.
    pub(super) quic: Option<Arc<Endpoint>>,
    deadline: Instant,
    /// Deadline for the connection of a peer to which the path was silent in the last generation.
    doubt_deadline: Instant,
    pub(super) handshakes: BTreeMap<u64, PendingConnection>,
    pub(super) admission: HandshakeAdmission,
    next_token: u64,
    links: BTreeMap<StreamLane, StreamLink>,
    redials: BTreeMap<StreamLane, Redial>,
    pauses: BTreeMap<StreamLane, Duration>,
    patience: BTreeMap<StreamLane, Duration>,
    last_seen: BTreeMap<u32, String>,
}

fn edges() -> EpollFlags {
    EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET
}

pub(super) fn system(error: impl Into<io::Error>) -> FormError {
    FormError::System(error.into())
}

/// The links to these ranks.
fn lanes(ranks: std::ops::Range<u32>, streams: u32) -> impl Iterator<Item = StreamLane> {
    ranks.flat_map(move |rank| (0..streams).map(move |stream| StreamLane { rank, stream }))
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
        let quic = group
            .uses_quic()
            .then(|| fabric.quic(group.path_deadline))
            .transpose()
            .map_err(system)?;
        if let Some(quic) = &quic {
            let event = EpollEvent::new(EpollFlags::EPOLLIN, QUIC_TOKEN);
            epoll.add(quic.event(), event).map_err(system)?;
        }
        let identity = RankIdentity {
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
            doubt_deadline: now + group.path_deadline / DOUBT_SHARE,
            handshakes: BTreeMap::new(),
            next_token: FIRST_HANDSHAKE_TOKEN,
            links: BTreeMap::new(),
            redials,
            pauses: BTreeMap::new(),
            patience: BTreeMap::new(),
            admission: HandshakeAdmission::default(),
            last_seen: BTreeMap::new(),
        })
    }

    pub(crate) fn run(mut self) -> Result<Engine, FormError> {
        self.check_abort()?;
        self.start_parked()?;
        self.start_standing()?;
        loop {
            self.check_abort()?;
            let now = clock::now();
            self.expire(now);
            self.dial(now)?;
            self.reopen(now)?;
            if self.links.len() == self.others().count() {
                return self.finish();
            }
            let is_late = now >= self.deadline;
            let patience = if is_late { Duration::ZERO } else { REFUSED_PATIENCE };
            if let Some(error) = self.admission.refused_for(now, patience) {
                return Err(FormError::System(error));
            }
            if is_late {
                return Err(FormError::DeadlinePassed { missing: self.missing() });
            }
            if now >= self.doubt_deadline && self.waits_in_doubt() {
                let mut missing = self.missing();
                missing.retain(|peer| self.is_doubted(peer.rank));
                return Err(FormError::DeadlinePassed { missing });
            }
            self.wait(now)?;
        }
    }

    /// Starts handshakes over the connections that the last generation has left.
    fn start_standing(&mut self) -> Result<(), FormError> {
        let mut standing = self.fabric.standing.take(self.identity.part);
        let others: Vec<StreamLane> = self.others().collect();
        for lane in others {
            let peer = (self.group.peers[lane.rank as usize], lane.stream);
            let Some(left) = standing.remove(&peer) else { continue };
            let dials = (lane.rank < self.group.rank).then_some(lane);
            // A peer that is still in the old generation, or has left the connection, is dialed anew after the
            // deadline.
            let due = clock::now() + self.group.form_deadline / STANDING_SHARE;
            let deadline = dials.map(|_| due);
            let random = &self.fabric.random;
            match PendingConnection::again(&self.identity, dials, left, deadline, random) {
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

    /// All links that this rank needs in the group.
    pub(super) fn others(&self) -> impl Iterator<Item = StreamLane> + use<> {
        let own = self.group.rank;
        lanes(0..self.identity.world, self.identity.streams).filter(move |lane| lane.rank != own)
    }

    /// Whether the path to this rank was silent in the last generation.
    fn is_doubted(&self, rank: u32) -> bool {
        self.fabric.standing.is_doubted(self.group.peers[rank as usize])
    }

    /// Whether a rank behind such a path is missing.
    fn waits_in_doubt(&self) -> bool {
        self.others().any(|lane| !self.links.contains_key(&lane) && self.is_doubted(lane.rank))
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

    /// Ends the handshakes whose deadline has passed.
    fn expire(&mut self, now: Instant) {
        let is_late =
            |connection: &PendingConnection| connection.deadline.is_some_and(|at| at <= now);
        let late: Vec<u64> = self
            .handshakes
            .iter()
            .filter(|(_, connection)| is_late(connection))
            .map(|(token, _)| *token)
            .collect();
        for token in late {
            match self.handshakes.remove(&token).and_then(|connection| connection.target) {
                Some(lane) => self.lost(lane, "it has not answered".to_owned()),
                None => self.admission.strangers += 1,
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
            let patience = self.patience.entry(lane).or_insert(CONNECT_FIRST);
            let connected_by = now + *patience;
            *patience = (*patience * 2).min(CONNECT_LAST);
            let connection = match quic {
                Some(quic) => quic.dial(address).and_then(|stream| {
                    PendingConnection::outbound_quic(&self.identity, lane, stream, random)
                }),
                None => {
                    PendingConnection::outbound(&self.identity, lane, address, connected_by, random)
                }
            };
            match connection {
                Ok(connection) => {
                    self.admission.given();
                    self.start(connection)?;
                }
                Err(error) => {
                    self.lost(lane, format!("dialing {address} failed: {error}"));
                    if is_shortage(&error) {
                        self.refused(now, error);
                    }
                }
            }
        }
        Ok(())
    }

    /// Records the reason why a rank is not connected. If this side dials, it dials again after a pause.
    fn lost(&mut self, lane: StreamLane, why: String) {
        tracing::debug!(?lane, why, "not connected yet");
        self.last_seen.insert(lane.rank, why);
        if lane.rank < self.group.rank && !self.links.contains_key(&lane) {
            let pause = self.pauses.get(&lane).copied().unwrap_or(REDIAL_FIRST);
            self.redials.insert(lane, Redial { at: clock::now() + pause, pause });
        }
    }

    pub(super) fn start(&mut self, connection: PendingConnection) -> Result<(), FormError> {
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
        if matches!(outcome, HandshakeOutcome::Pending) {
            return Ok(());
        }
        let Some(connection) = self.handshakes.remove(&token) else { return Ok(()) };
        match outcome {
            HandshakeOutcome::Pending => {}
            HandshakeOutcome::Established(lane, secret) => {
                let dialed = connection.target.is_some();
                self.establish(lane, connection, &secret, dialed)?;
            }
            HandshakeOutcome::Park => self.park(connection)?,
            HandshakeOutcome::Failed(why) => match connection.lane() {
                Some(lane) => {
                    // A peer of another host that listens on its loopback is reached by nobody there.
                    let address = self.group.peers[lane.rank as usize];
                    let is_own = connection.target.is_some() && address.ip().is_loopback();
                    let at = if is_own {
                        format!(" at {address}, this host's loopback")
                    } else {
                        String::new()
                    };
                    self.lost(lane, format!("{why}{at}"));
                }
                None => {
                    self.admission.strangers += 1;
                    tracing::debug!(why, "refused a connection");
                }
            },
        }
        Ok(())
    }

    /// Establishes a link. A peer that dials again has lost the earlier connection, so the new one replaces it.
    fn establish(
        &mut self,
        lane: StreamLane,
        connection: PendingConnection,
        secret: &SealSecret,
        dialed: bool,
    ) -> Result<(), FormError> {
        let PendingConnection { socket, session, .. } = connection;
        if let Some(session) = &session {
            session.welcome();
        }
        let mut event = EpollEvent::new(edges(), token_of(lane));
        self.epoll.modify(socket.as_fd(), &mut event).map_err(system)?;
        let seal = self.group.seals_to(lane.rank).then(|| Seal::new(secret, dialed)).transpose();
        let seal = seal.map_err(system)?.map(Box::new);
        if session.is_none() {
            keep_alive(&socket, self.group.path_deadline).map_err(system)?;
        }
        self.links.insert(lane, StreamLink::new(lane, socket, session, seal));
        Ok(())
    }

    fn wait(&mut self, now: Instant) -> Result<(), FormError> {
        let handshakes = self.handshakes.values().filter_map(|connection| connection.deadline);
        let redials = self.redials.values().map(|redial| redial.at);
        let doubt = self.waits_in_doubt().then_some(self.doubt_deadline);
        let own = self.admission.closed_until.into_iter().chain([self.deadline]).chain(doubt);
        let next = handshakes.chain(redials).chain(own).min().unwrap_or(self.deadline);
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

    /// Handles an event of an established link. If it ended while others are still forming, its peer gave up, and may
    /// come again.
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

    fn finish(mut self) -> Result<Engine, FormError> {
        self.warn_of_strangers();
        self.fabric.standing.trust();
        self.epoll.delete(self.fabric.listener.as_fd()).map_err(system)?;
        if let Some(quic) = &self.quic {
            self.epoll.delete(quic.event()).map_err(system)?;
        }
        let links: Vec<StreamLink> = self.links.into_values().collect();
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
                rates: self.fabric.rates.clone(),
                _quic: self.quic,
            }),
            hangups: 1,
            links,
            epoll: self.epoll,
            abort: self.abort.clone(),
            abort_seen: None,
            operation_deadline: self.group.operation_deadline,
            path_deadline: self.group.path_deadline,
            paths_due: clock::now() + self.group.path_deadline / PATH_LOOKS,
            sequence: 0,
            agreeing: false,
            failure: None,
            times_transfers: false,
        })
    }
}
