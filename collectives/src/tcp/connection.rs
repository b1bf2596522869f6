//! A connection during its handshake, with the non-blocking I/O that drives it. Used by the forming of groups.

use std::io::{self, ErrorKind, Read};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Instant;

use nix::sys::socket::{MsgFlags, recv};
use ring::rand::{SecureRandom, SystemRandom};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::flow::StreamLane;
use super::handshake::{HandshakeStage, HandshakeStep, LONGEST, RankIdentity, prefix};
use super::path::probe_handshake;
use super::seal::{Seal, SealSecret};
use super::standing::Left;
use crate::quic::{QuicSession, Stream};
use crate::wire::{FRAME_LENGTH, Frame, MAGIC_LENGTH};

const CLOSED: &str = "it closed the handshake's connection";
const LATE_DATA: &str = "data of an older generation is left in its connection";

/// The result of one attempt to advance the handshake.
pub(crate) enum HandshakeOutcome {
    /// The handshake waits for the peer.
    Pending,
    /// The link is established, and its ends share a secret.
    Established(StreamLane, SealSecret),
    /// The peer forms a later group of the generation: keep the connection with its hello.
    Park,
    /// The handshake has failed, for this reason.
    Failed(String),
}

#[derive(Debug)]
pub(crate) struct PendingConnection {
    pub(crate) socket: Socket,
    /// The QUIC connection, if this is a stream of one.
    pub(crate) session: Option<Arc<QuicSession>>,
    /// The link that this side dials; none where the peer dials.
    pub(crate) target: Option<StreamLane>,
    /// The deadline: of the handshake where the peer dials, or where a connection of an earlier generation is reused;
    /// of the connection attempt where this side dials anew.
    pub(crate) deadline: Option<Instant>,
    connecting: bool,
    /// Whether the connection served an earlier generation, whose farewell may come first.
    served: bool,
    /// The encryption of that generation.
    seal: Option<Box<Seal>>,
    stage: HandshakeStage,
    input: [u8; LONGEST],
    filled: usize,
    output: Vec<u8>,
}

impl PendingConnection {
    /// A TCP connection that was accepted.
    pub(crate) fn inbound(socket: Socket, deadline: Instant) -> io::Result<PendingConnection> {
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        Ok(PendingConnection::accepted(socket, None, deadline))
    }

    /// A QUIC stream that was accepted.
    pub(crate) fn inbound_quic((socket, session): Stream, deadline: Instant) -> PendingConnection {
        PendingConnection::accepted(socket, Some(session), deadline)
    }

    fn accepted(
        socket: Socket,
        session: Option<Arc<QuicSession>>,
        deadline: Instant,
    ) -> PendingConnection {
        PendingConnection {
            socket,
            session,
            target: None,
            deadline: Some(deadline),
            connecting: false,
            served: false,
            seal: None,
            stage: HandshakeStage::Hello,
            input: [0; LONGEST],
            filled: 0,
            output: Vec::new(),
        }
    }

    /// Dials `target` over TCP.
    pub(crate) fn outbound(
        identity: &RankIdentity,
        target: StreamLane,
        address: SocketAddr,
        connected_by: Instant,
        random: &SystemRandom,
    ) -> io::Result<PendingConnection> {
        let nonce = nonce(random)?;
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        probe_handshake(&socket)?;
        match socket.connect(&SockAddr::from(address)) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(nix::Error::EINPROGRESS as i32) => {}
            Err(error) => return Err(error),
        }
        let mut connection = PendingConnection::dialed(identity, target, nonce, socket, None);
        connection.deadline = Some(connected_by);
        Ok(connection)
    }

    /// Sends the hello to `target` over a stream that is being dialed.
    pub(crate) fn outbound_quic(
        identity: &RankIdentity,
        target: StreamLane,
        (socket, session): Stream,
        random: &SystemRandom,
    ) -> io::Result<PendingConnection> {
        Ok(PendingConnection::dialed(identity, target, nonce(random)?, socket, Some(session)))
    }

    fn dialed(
        identity: &RankIdentity,
        target: StreamLane,
        nonce: [u8; 32],
        socket: Socket,
        session: Option<Arc<QuicSession>>,
    ) -> PendingConnection {
        let (stage, output) = HandshakeStage::dial(identity, target, nonce);
        let connecting = session.is_none();
        PendingConnection {
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

    /// Reuses a connection of an earlier generation; with the link that this side dials, if it does.
    pub(crate) fn again(
        identity: &RankIdentity,
        target: Option<StreamLane>,
        Left { socket, session, parted, seal }: Left,
        deadline: Option<Instant>,
        random: &SystemRandom,
    ) -> io::Result<PendingConnection> {
        let (stage, output) = match target {
            Some(target) => HandshakeStage::dial(identity, target, nonce(random)?),
            None => (HandshakeStage::Hello, Vec::new()),
        };
        if target.is_some() && session.is_none() {
            probe_handshake(&socket)?;
        }
        // The dialing side waits for the farewell: until then the peer reads for its old generation.
        let (connecting, served) = (false, !parted);
        let (input, filled) = ([0; LONGEST], 0);
        let mut connection = PendingConnection {
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

    /// Ends the encryption: bytes that were read beyond the last record belong to the handshake.
    fn unseal(&mut self) {
        if let Some(seal) = self.seal.take() {
            let beyond = seal.beyond();
            self.input[..beyond.len()].copy_from_slice(beyond);
            self.filled = beyond.len();
        }
    }

    /// Reads the farewell of the generation that has encrypted the connection. Returns the reason if the connection
    /// cannot be reused.
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

    /// The number of bytes to read next. A reused connection first needs enough to recognise a farewell.
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

    /// Whether the peer has closed the connection; unread data is of no use then.
    pub(crate) fn is_closed(&self) -> bool {
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        match recv(self.socket.as_raw_fd(), &mut [0], flags) {
            Ok(count) => count == 0,
            Err(error) => !matches!(error, nix::Error::EAGAIN | nix::Error::EINTR),
        }
    }

    /// The link that the connection is to become, as far as it is known.
    pub(crate) fn lane(&self) -> Option<StreamLane> {
        match &self.stage {
            HandshakeStage::Proof { lane, .. } => Some(*lane),
            _ => self.target,
        }
    }

    /// Advances the handshake as far as the socket allows.
    pub(crate) fn advance(
        &mut self,
        identity: &RankIdentity,
        random: &SystemRandom,
    ) -> HandshakeOutcome {
        match self.try_advance(identity, random) {
            Ok(outcome) => outcome,
            Err(error) if error.kind() == ErrorKind::WouldBlock => HandshakeOutcome::Pending,
            Err(error) => HandshakeOutcome::Failed(format!("the connection failed: {error}")),
        }
    }

    fn try_advance(
        &mut self,
        identity: &RankIdentity,
        random: &SystemRandom,
    ) -> io::Result<HandshakeOutcome> {
        if self.connecting {
            if let Some(error) = self.socket.take_error()? {
                return Err(error);
            }
            match self.socket.peer_addr() {
                // The peer answers once it forms the group, which may take until the deadline of forming.
                Ok(_) => (self.connecting, self.deadline) = (false, None),
                Err(error) if error.kind() == ErrorKind::NotConnected => {
                    return Ok(HandshakeOutcome::Pending);
                }
                Err(error) => return Err(error),
            }
        }
        if let Some(why) = self.read_sealed_farewell()? {
            return Ok(HandshakeOutcome::Failed(why));
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
                        return Ok(HandshakeOutcome::Failed(why.unwrap_or(CLOSED).to_owned()));
                    }
                    Ok(count) => self.filled += count,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
                continue;
            }
            if self.served && Frame::starts(&self.input) {
                let Ok(Frame::Bye(_)) = Frame::decode(&prefix(&self.input)) else {
                    return Ok(HandshakeOutcome::Failed(LATE_DATA.to_owned()));
                };
                (self.filled, self.served) = (0, false);
                continue;
            }
            self.served = false;
            let session = self.session.as_deref();
            let binding = session.and_then(QuicSession::binding).map_or(&[][..], |binding| binding);
            if session.is_some() && binding.is_empty() {
                return Ok(HandshakeOutcome::Failed("its stream has no connection".to_owned()));
            }
            match self.stage.handle(identity, &self.input, nonce(random)?, binding) {
                HandshakeStep::Continue(output) => {
                    self.output = output;
                    self.filled = 0;
                }
                HandshakeStep::Established(lane, output, secret) => {
                    // A new connection's empty buffer always has room for a few bytes.
                    self.output = output;
                    self.flush()?;
                    return Ok(HandshakeOutcome::Established(lane, secret));
                }
                // The hello stays in `input`, and is judged again by the next generation.
                HandshakeStep::Park => return Ok(HandshakeOutcome::Park),
                HandshakeStep::Refuse(output, why) => {
                    self.output = output;
                    // A failure to tell the refused peer the reason does not matter.
                    let _ = self.flush();
                    return Ok(HandshakeOutcome::Failed(why));
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
