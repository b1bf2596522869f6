//! A connection that is still in its handshake, and the non-blocking I/O that drives it.

use std::io::{self, ErrorKind, Read};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use nix::sys::socket::MsgFlags;
use ring::rand::{SecureRandom, SystemRandom};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::flow::Lane;
use super::handshake::{Identity, LONGEST, Stage, Step, prefix};
use super::seal::{Seal, Secret};
use super::standing::Left;
use crate::quic::{Session, Stream};
use crate::wire::{FRAME_LENGTH, Frame, MAGIC_LENGTH};

const CLOSED: &str = "it closed the handshake's connection";
const LATE_DATA: &str = "data of an older generation is left in its connection";

/// How far an attempt to go on came.
pub(crate) enum Outcome {
    /// It waits for the peer.
    Pending,
    /// This link stands, and its ends share a secret.
    Established(Lane, Secret),
    /// The peer is in a newer generation: keep the connection with its hello.
    Park,
    /// It is over.
    Failed(String),
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) socket: Socket,
    /// Its QUIC connection, if it is a stream of one.
    pub(crate) session: Option<Arc<Session>>,
    /// The link that this side dials; none where the peer dials.
    pub(crate) target: Option<Lane>,
    /// When a peer that dials must be done, or one that is dialed over a connection that served before.
    pub(crate) deadline: Option<Instant>,
    connecting: bool,
    /// It served another generation before, whose farewell may come first.
    served: bool,
    /// What that generation encrypted it with.
    seal: Option<Box<Seal>>,
    stage: Stage,
    input: [u8; LONGEST],
    filled: usize,
    output: Vec<u8>,
}

impl Connection {
    /// A connection of TCP that was accepted.
    pub(crate) fn inbound(socket: Socket, deadline: Instant) -> io::Result<Connection> {
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        Ok(Connection::accepted(socket, None, deadline))
    }

    /// A stream that was accepted.
    pub(crate) fn inbound_quic((socket, session): Stream, deadline: Instant) -> Connection {
        Connection::accepted(socket, Some(session), deadline)
    }

    fn accepted(socket: Socket, session: Option<Arc<Session>>, deadline: Instant) -> Connection {
        Connection {
            socket,
            session,
            target: None,
            deadline: Some(deadline),
            connecting: false,
            served: false,
            seal: None,
            stage: Stage::Hello,
            input: [0; LONGEST],
            filled: 0,
            output: Vec::new(),
        }
    }

    /// Starts to dial `target` over TCP.
    pub(crate) fn outbound(
        identity: &Identity,
        target: Lane,
        address: SocketAddr,
        random: &SystemRandom,
    ) -> io::Result<Connection> {
        let nonce = nonce(random)?;
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        match socket.connect(&SockAddr::from(address)) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(nix::Error::EINPROGRESS as i32) => {}
            Err(error) => return Err(error),
        }
        Ok(Connection::dialed(identity, target, nonce, socket, None))
    }

    /// Says hello to `target` over a stream that is being dialed.
    pub(crate) fn outbound_quic(
        identity: &Identity,
        target: Lane,
        (socket, session): Stream,
        random: &SystemRandom,
    ) -> io::Result<Connection> {
        Ok(Connection::dialed(identity, target, nonce(random)?, socket, Some(session)))
    }

    fn dialed(
        identity: &Identity,
        target: Lane,
        nonce: [u8; 32],
        socket: Socket,
        session: Option<Arc<Session>>,
    ) -> Connection {
        let (stage, output) = Stage::dial(identity, target, nonce);
        let connecting = session.is_none();
        Connection {
            socket,
            session,
            target: Some(target),
            deadline: None,
            connecting,
            served: false,
            seal: None,
            stage,
            input: [0; LONGEST],
            filled: 0,
            output,
        }
    }

    /// Over a connection that served another generation; with the link that this side dials, if it does.
    pub(crate) fn again(
        identity: &Identity,
        target: Option<Lane>,
        Left { socket, session, parted, seal }: Left,
        deadline: Option<Instant>,
        random: &SystemRandom,
    ) -> io::Result<Connection> {
        let (stage, output) = match target {
            Some(target) => Stage::dial(identity, target, nonce(random)?),
            None => (Stage::Hello, Vec::new()),
        };
        // Who dials waits for the farewell: until then the peer reads for its old generation.
        let (connecting, served) = (false, !parted);
        let (input, filled) = ([0; LONGEST], 0);
        let mut connection = Connection {
            socket,
            session,
            target,
            deadline,
            connecting,
            served,
            seal,
            stage,
            input,
            filled,
            output,
        };
        if parted {
            connection.unseal();
        }
        Ok(connection)
    }

    /// From here on nothing is encrypted: what was read beyond the last record is the handshake's.
    fn unseal(&mut self) {
        if let Some(seal) = self.seal.take() {
            let beyond = seal.beyond();
            self.input[..beyond.len()].copy_from_slice(beyond);
            self.filled = beyond.len();
        }
    }

    /// Reads the farewell of the generation that has encrypted the connection. Returns why it cannot serve, if so.
    fn read_sealed_farewell(&mut self) -> io::Result<Option<String>> {
        let Some(seal) = &mut self.seal else { return Ok(None) };
        let mut frame = [0; FRAME_LENGTH];
        let count = seal.read(&self.socket, [&mut frame, &mut []])?;
        if count == FRAME_LENGTH && matches!(Frame::decode(&frame), Ok(Frame::Bye(_))) {
            self.served = false;
            self.unseal();
            return Ok(None);
        }
        Ok(Some(if count == 0 { CLOSED } else { LATE_DATA }.to_owned()))
    }

    /// The bytes that are due; of a connection that served before, enough to tell a farewell first.
    fn due(&self) -> usize {
        if !self.served {
            self.stage.due()
        } else if self.filled < MAGIC_LENGTH {
            MAGIC_LENGTH
        } else if Frame::starts(&self.input) {
            FRAME_LENGTH
        } else {
            self.stage.due()
        }
    }

    /// Whose link it is to be, as far as it is known.
    pub(crate) fn lane(&self) -> Option<Lane> {
        match &self.stage {
            Stage::Proof { lane, .. } => Some(*lane),
            _ => self.target,
        }
    }

    /// Takes the handshake as far as the socket allows.
    pub(crate) fn advance(&mut self, identity: &Identity, random: &SystemRandom) -> Outcome {
        match self.try_advance(identity, random) {
            Ok(outcome) => outcome,
            Err(error) if error.kind() == ErrorKind::WouldBlock => Outcome::Pending,
            Err(error) => Outcome::Failed(format!("the connection failed: {error}")),
        }
    }

    fn try_advance(&mut self, identity: &Identity, random: &SystemRandom) -> io::Result<Outcome> {
        if self.connecting {
            if let Some(error) = self.socket.take_error()? {
                return Err(error);
            }
            match self.socket.peer_addr() {
                Ok(_) => self.connecting = false,
                Err(error) if error.kind() == ErrorKind::NotConnected => {
                    return Ok(Outcome::Pending);
                }
                Err(error) => return Err(error),
            }
        }
        if let Some(why) = self.read_sealed_farewell()? {
            return Ok(Outcome::Failed(why));
        }
        loop {
            if !self.served || self.target.is_none() {
                self.flush()?;
            }
            let due = self.due();
            if self.filled < due {
                match (&self.socket).read(&mut self.input[self.filled..due]) {
                    Ok(0) => {
                        let why = self.session.as_ref().and_then(|session| session.failure());
                        return Ok(Outcome::Failed(why.unwrap_or(CLOSED).to_owned()));
                    }
                    Ok(count) => self.filled += count,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
                continue;
            }
            if self.served && Frame::starts(&self.input) {
                let Ok(Frame::Bye(_)) = Frame::decode(&prefix(&self.input)) else {
                    return Ok(Outcome::Failed(LATE_DATA.to_owned()));
                };
                (self.filled, self.served) = (0, false);
                continue;
            }
            self.served = false;
            let session = self.session.as_deref();
            let binding = session.and_then(Session::binding).map_or(&[][..], |binding| binding);
            if session.is_some() && binding.is_empty() {
                return Ok(Outcome::Failed("its stream has no connection".to_owned()));
            }
            match self.stage.handle(identity, &self.input, nonce(random)?, binding) {
                Step::Continue(output) => {
                    self.output = output;
                    self.filled = 0;
                }
                Step::Established(lane, output, secret) => {
                    // A few bytes always fit the empty buffer of a new connection.
                    self.output = output;
                    self.flush()?;
                    return Ok(Outcome::Established(lane, secret));
                }
                // The hello stays in `input`, and is judged again by the next generation.
                Step::Park => return Ok(Outcome::Park),
                Step::Refuse(output, why) => {
                    self.output = output;
                    // Whether the refused peer learns why does not matter here.
                    let _ = self.flush();
                    return Ok(Outcome::Failed(why));
                }
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.output.is_empty() {
            match self.socket.send_with_flags(&self.output, MsgFlags::MSG_NOSIGNAL.bits()) {
                Ok(count) => drop(self.output.drain(..count)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn nonce(random: &SystemRandom) -> io::Result<[u8; 32]> {
    let mut nonce = [0; 32];
    random.fill(&mut nonce).map_err(|_| io::Error::other("the system gives no randomness"))?;
    Ok(nonce)
}
