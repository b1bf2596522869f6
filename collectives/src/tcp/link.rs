//! One connection to a peer, with its part of the operation in progress. Driven by the engine.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::socket::{MsgFlags, recv};
use socket2::Socket;

use super::farewell::{EVIDENCE_LENGTH, Farewell, FarewellTail, evidence};
use super::flow::{Flow, IncomingBytes, OutgoingBytes, StreamLane};
use super::path::{PathWatch, silent};
use super::seal::Seal;
use super::standing::Left;
use super::transfer::TransferWatch;
use crate::clock;
use crate::quic::QuicSession;
use crate::wire::{FRAME_LENGTH, Frame, FrameError, FrameHeader};

/// The content of a link's next frame.
#[derive(Debug)]
pub(crate) enum PeerFrame {
    Operation(FrameHeader),
    Farewell(Farewell),
}

/// Offset of the header byte that says that the header only announces, and that a second one follows.
const DEFERRED_AT: usize = 12;
/// Bytes read at a time of a payload that is no longer needed.
const DRAINED: usize = 64 * 1024;
/// Most reads of one such payload at a time, so that a peer that goes on sending does not hold this rank.
const DRAINS: usize = 256;

/// The reason why a link cannot go on.
#[derive(Debug)]
pub(crate) enum LinkFault {
    Closed,
    Connection(io::Error),
    Farewell(Box<Farewell>),
    Mismatch { ours: FrameHeader, theirs: FrameHeader },
    Malformed(FrameError),
}

/// The remains of a link that has ended.
pub(crate) enum Leave {
    /// A connection that may serve the next generation: this rank's farewell was sent between two frames, and no data
    /// before the peer's farewell was read.
    Standing(Left),
    /// A connection on which this rank's last bytes may still be in flight.
    Ending(Socket),
    Nothing,
}

#[derive(Debug)]
pub(crate) struct StreamLink {
    /// The peer's rank and the stream of this link.
    pub(crate) lane: StreamLane,
    pub(crate) socket: Socket,
    /// The QUIC connection, if this is a stream of one.
    session: Option<Arc<QuicSession>>,
    /// The encryption of the stream, where it is encrypted.
    seal: Option<Box<Seal>>,
    /// Whether the last attempt did not find the socket's buffer empty (`readable`) or full (`writable`).
    /// Edge-triggered events set these.
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// Set when the peer's end is closed; unread data may be left. The number orders the links by the time of
    /// detection.
    pub(crate) hangup: Option<u64>,
    /// Whether there was input that has not been checked.
    pub(crate) news: bool,
    /// The peer's farewell was read, and nothing after it.
    parted: bool,
    /// Whether the operation still has something to send, or to receive, on this link.
    pub(crate) sending: bool,
    pub(crate) receiving: bool,
    expected: Option<FrameHeader>,
    header_out: [u8; FRAME_LENGTH],
    header_in: [u8; FRAME_LENGTH],
    header_sent: usize,
    header_received: usize,
    payload_sent: usize,
    payload_received: usize,
    /// The payload to send in this operation, in bytes.
    payload_due: u64,
    /// The last bytes that came in.
    tail: FarewellTail,
    /// The rest of a farewell that is sent in the middle of a payload.
    parting: Vec<u8>,
    /// Whether nothing more comes in, or nothing more can be sent.
    ended: bool,
    /// Whether the farewell was sent between two frames, and nothing after it.
    clean: bool,
    /// Whether the header that was sent only announces the operation. Another header, or a farewell, then comes
    /// before the payload, for which this rank waits itself.
    deferred: bool,
    /// Whether the peer has announced the operation.
    announced: bool,
    path: PathWatch,
    /// Times the first bytes of the operation on their way.
    pub(super) transfer: TransferWatch,
    pub(crate) messages_sent: u64,
    pub(crate) messages_received: u64,
}

impl StreamLink {
    pub(crate) fn new(
        lane: StreamLane,
        socket: Socket,
        session: Option<Arc<QuicSession>>,
        seal: Option<Box<Seal>>,
    ) -> StreamLink {
        StreamLink {
            lane,
            socket,
            session,
            seal,
            readable: true,
            writable: true,
            hangup: None,
            news: true,
            parted: false,
            sending: false,
            receiving: false,
            expected: None,
            header_out: [0; FRAME_LENGTH],
            header_in: [0; FRAME_LENGTH],
            header_sent: 0,
            header_received: 0,
            payload_sent: 0,
            payload_received: 0,
            payload_due: 0,
            tail: FarewellTail::new(),
            parting: Vec::new(),
            ended: false,
            clean: false,
            deferred: false,
            announced: false,
            path: PathWatch::default(),
            transfer: TransferWatch::default(),
            messages_sent: 0,
            messages_received: 0,
        }
    }

    /// Starts an operation on this link: `ours` is the header to send, with a payload of `due` bytes, `expected` the
    /// header that must come in, behind which `ready` bytes follow without a wait of the peer. Returns whether they are timed.
    pub(crate) fn begin(
        &mut self,
        ours: Option<FrameHeader>,
        due: u64,
        expected: Option<FrameHeader>,
        ready: usize,
    ) -> bool {
        self.sending = ours.is_some();
        self.receiving = expected.is_some();
        if let Some(header) = ours {
            self.header_out = Frame::Operation(header).encode();
        }
        self.expected = expected;
        (self.header_sent, self.header_received) = (0, 0);
        (self.payload_sent, self.payload_received) = (0, 0);
        self.payload_due = due;
        self.tail.clear();
        (self.deferred, self.announced) = (false, false);
        self.transfer.begin(ready)
    }

    /// The fault of a path that no longer carries data.
    pub(crate) fn silence(&mut self, now: Instant, deadline: Duration) -> Option<LinkFault> {
        let is_dead = match &self.session {
            Some(session) => self.path.is_session_dead(session, now, deadline),
            None => self.path.is_dead(&self.socket, now, deadline),
        };
        is_dead.then(|| LinkFault::Connection(silent(deadline)))
    }

    /// Time for which the path has carried no data, as of the last look.
    pub(crate) fn silent_for(&self, now: Instant) -> Duration {
        self.path.silent_for(now)
    }

    /// Whether the QUIC connection has ended for its silence. The training thread finds the end of the stream, as after
    /// any other end.
    pub(crate) fn is_timed_out(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.is_timed_out())
    }

    /// Whether the peer has not yet entered the operation.
    pub(crate) fn absent(&self) -> bool {
        self.receiving && self.header_received < FRAME_LENGTH && !self.announced
    }

    /// Whether a farewell can be sent as a frame: no frame is partly sent.
    fn at_boundary(&self) -> bool {
        !self.sending || self.header_sent == 0 || self.deferred && self.header_sent == FRAME_LENGTH
    }

    /// Sends as much as the flow has and the socket takes. Returns whether anything moved.
    pub(crate) fn push<F: Flow>(&mut self, flow: &F) -> Result<bool, LinkFault> {
        let mut moved = false;
        while self.sending && self.writable {
            let outgoing = flow.outgoing(self.lane, self.payload_sent);
            let blocked = matches!(outgoing, OutgoingBytes::Blocked);
            if self.header_sent == 0 && blocked != self.deferred {
                self.deferred = blocked;
                self.header_out[DEFERRED_AT] = u8::from(blocked);
            } else if self.header_sent == FRAME_LENGTH && self.deferred && !blocked {
                self.header_sent = 0;
                continue;
            }
            let header = &self.header_out[self.header_sent..];
            let payload = match outgoing {
                OutgoingBytes::Ready(_) if self.deferred => &[],
                OutgoingBytes::Ready(payload) => payload,
                OutgoingBytes::Done if header.is_empty() => {
                    self.sending = !self.flush()?;
                    return Ok(moved || !self.sending);
                }
                OutgoingBytes::Blocked if header.is_empty() => {
                    self.flush()?;
                    break;
                }
                OutgoingBytes::Done | OutgoingBytes::Blocked => &[],
            };
            let flags = MsgFlags::MSG_NOSIGNAL.bits();
            let sent = match &mut self.seal {
                Some(seal) => seal.send(&self.socket, [header, payload]),
                None if header.is_empty() => self.socket.send_with_flags(payload, flags),
                None => {
                    let parts = [IoSlice::new(header), IoSlice::new(payload)];
                    self.socket.send_vectored_with_flags(&parts, flags)
                }
            };
            match sent {
                Ok(count) => {
                    let of_header = count.min(header.len());
                    self.header_sent += of_header;
                    self.payload_sent += count - of_header;
                    moved = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.writable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(LinkFault::Connection(error)),
            }
        }
        Ok(moved)
    }

    /// Sends the rest of an encrypted record. Returns whether nothing is left of it.
    fn flush(&mut self) -> Result<bool, LinkFault> {
        let Some(seal) = &mut self.seal else { return Ok(true) };
        let flushed = seal.flush(&self.socket).map_err(LinkFault::Connection)?;
        self.writable &= flushed;
        Ok(flushed)
    }

    /// Reads once, as much as the socket has and the flow takes. Returns whether anything moved.
    pub(crate) fn pull<F: Flow>(&mut self, flow: &mut F) -> Result<bool, LinkFault> {
        if !self.receiving {
            return Ok(false);
        }
        self.news = false;
        let may_defer = flow.may_defer();
        let header = &mut self.header_in[self.header_received..];
        let payload = match flow.incoming(self.lane, self.payload_received) {
            IncomingBytes::Ready(payload) => payload,
            IncomingBytes::Done if header.is_empty() => {
                self.receiving = false;
                return Ok(true);
            }
            IncomingBytes::Blocked if header.is_empty() => return Ok(false),
            IncomingBytes::Done | IncomingBytes::Blocked => &mut [],
        };
        if !self.readable {
            self.transfer_waits();
            return Ok(false);
        }
        // If the payload may be deferred, only the header is read until it is known whether the payload follows.
        let payload = if header.is_empty() || !may_defer { payload } else { &mut [] };
        let (header_room, room) = (header.len(), header.len() + payload.len());
        let read = match &mut self.seal {
            Some(seal) => seal.read(&self.socket, [header, payload]),
            None if header_room == 0 => (&self.socket).read(payload),
            None => {
                let mut parts = [IoSliceMut::new(header), IoSliceMut::new(payload)];
                (&self.socket).read_vectored(&mut parts)
            }
        };
        let count = match read {
            Ok(0) => return Err(self.last_words().unwrap_or(LinkFault::Closed)),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.readable = false;
                self.transfer_waits();
                return Ok(false);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(true),
            Err(error) => {
                return Err(self.last_words().unwrap_or(LinkFault::Connection(error)));
            }
        };
        // A short read empties the buffer (epoll(7)), but the end of the stream gives no further edge. A short read
        // of an encrypted stream may only mean the end of a record.
        if count < room && self.hangup.is_none() && self.seal.is_none() {
            self.readable = false;
        }
        let of_header = count.min(header_room);
        self.header_received += of_header;
        if of_header > 0 && self.header_received == FRAME_LENGTH {
            let rest = &payload[..count - of_header];
            self.verify(rest).inspect_err(|fault| {
                let farewell = matches!(fault, LinkFault::Farewell(_));
                self.parted = farewell && rest.is_empty();
            })?;
            if self.header_in[DEFERRED_AT] != 0 {
                (self.header_received, self.announced) = (0, true);
                return Ok(true);
            }
            self.transfer.enter(clock::now);
        }
        if count > of_header {
            self.tail.push(&payload[..count - of_header]);
            self.payload_received += count - of_header;
            self.transfer.receive(self.payload_received, clock::now);
            flow.received(self.lane, self.payload_received);
        }
        Ok(true)
    }

    /// Notes that nothing is there to read.
    const fn transfer_waits(&mut self) {
        if self.header_received == 0 {
            self.transfer.wait();
        }
    }

    /// The payload that has come in, in bytes.
    pub(super) const fn received(&self) -> usize {
        self.payload_received
    }

    /// Compares the header that came in with the one due; `rest` was read after it.
    fn verify(&mut self, rest: &[u8]) -> Result<(), LinkFault> {
        let theirs = match Frame::decode(&self.header_in) {
            Ok(Frame::Operation(theirs)) => theirs,
            Ok(Frame::Bye(bye)) => {
                let mut bytes = [0; EVIDENCE_LENGTH];
                let read = rest.len().min(EVIDENCE_LENGTH);
                bytes[..read].copy_from_slice(&rest[..read]);
                let more = self.peek(&mut bytes[read..]).unwrap_or(0);
                let evidence = evidence(&bytes[..read + more]);
                return Err(LinkFault::Farewell(Box::new(Farewell { bye, evidence })));
            }
            Err(error) => return Err(LinkFault::Malformed(error)),
        };
        match self.expected {
            Some(ours) if ours != theirs => Err(LinkFault::Mismatch { ours, theirs }),
            _ => Ok(()),
        }
    }

    fn peek(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if let Some(seal) = &mut self.seal {
            return seal.peek(&self.socket, bytes);
        }
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        Ok(recv(self.socket.as_raw_fd(), bytes, flags)?)
    }

    /// Peeks at the next unread frame, where this link is between two frames. An end of the stream is a fault. `None`
    /// means that too few bytes have come in, or that payload comes next.
    pub(crate) fn probe(&mut self) -> Result<Option<PeerFrame>, LinkFault> {
        let mut bytes = [0; FRAME_LENGTH + EVIDENCE_LENGTH];
        match self.peek(&mut bytes) {
            Ok(0) => Err(LinkFault::Closed),
            Ok(count)
                if count >= FRAME_LENGTH && (!self.receiving || self.header_received == 0) =>
            {
                let (header, rest) = bytes[..count].split_at(FRAME_LENGTH);
                let mut frame = [0; FRAME_LENGTH];
                frame.copy_from_slice(header);
                Ok(match Frame::decode(&frame) {
                    Ok(Frame::Operation(header)) => Some(PeerFrame::Operation(header)),
                    Ok(Frame::Bye(bye)) => {
                        Some(PeerFrame::Farewell(Farewell { bye, evidence: evidence(rest) }))
                    }
                    Err(_) => None,
                })
            }
            Ok(_) => Ok(None),
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(None),
                _ => Err(LinkFault::Connection(error)),
            },
        }
    }

    /// The mismatch in an unread header of this link, if there is one.
    pub(crate) fn mismatch(&mut self) -> Option<LinkFault> {
        match (self.absent(), self.expected, self.probe()) {
            (true, Some(ours), Ok(Some(PeerFrame::Operation(theirs)))) if ours != theirs => {
                Some(LinkFault::Mismatch { ours, theirs })
            }
            _ => None,
        }
    }

    /// Whether the peer is gone, or there is input that no operation has read.
    pub(crate) fn has_news(&self) -> bool {
        self.hangup.is_some() || self.news
    }

    /// The fault of the farewell at the end of the payload, if there is one.
    fn last_words(&self) -> Option<LinkFault> {
        self.told_in_payload().map(|told| LinkFault::Farewell(Box::new(told)))
    }

    /// The farewell at the end of the last payload, if there is one.
    pub(crate) fn told_in_payload(&self) -> Option<Farewell> {
        self.tail.farewell(self.expected?.generation)
    }

    /// Reads, without waiting, the rest of a payload that is no longer needed. Only its end matters, and the peer can
    /// send its own farewell when there is room again. Bytes between frames stay unread.
    pub(crate) fn drain(&mut self) {
        if !self.receiving || self.ended || self.parted {
            return;
        }
        if self.header_received == 0 {
            match self.probe() {
                Ok(Some(PeerFrame::Operation(theirs))) if self.expected == Some(theirs) => {}
                Ok(_) => return,
                Err(_) => {
                    self.ended = true;
                    return;
                }
            }
        }
        let mut scrap = vec![0; DRAINED];
        for _ in 0..DRAINS {
            let header = FRAME_LENGTH - self.header_received;
            let room = if header > 0 { header } else { scrap.len() };
            let read = match &mut self.seal {
                Some(seal) => seal.read(&self.socket, [&mut scrap[..room], &mut []]),
                None => (&self.socket).read(&mut scrap[..room]),
            };
            match read {
                Ok(0) => self.ended = true,
                Ok(count) if header > 0 => {
                    self.header_received += count;
                    continue;
                }
                Ok(count) => {
                    self.tail.push(&scrap[..count]);
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.readable = false,
                Err(_) => self.ended = true,
            }
            return;
        }
    }

    /// Starts the farewell: between frames at once, in the middle of a payload after the part that was sent. Where
    /// neither is possible the peer finds the end of the stream.
    pub(crate) fn part(&mut self, farewell: &Farewell) {
        let bytes = farewell.encode();
        self.clean = false;
        if self.at_boundary() {
            let told = self.say(&bytes).is_ok_and(|count| count == bytes.len());
            let told = told && self.flush().unwrap_or(false);
            self.clean = told && farewell.evidence.is_none();
        } else if self.header_sent == FRAME_LENGTH {
            let left = self.payload_due.saturating_sub(self.payload_sent as u64);
            // The farewell must not reach the length of the payload, or the peer would take it for the payload's end.
            if left > bytes.len() as u64 {
                self.parting = bytes;
            }
        }
    }

    fn say(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.seal {
            Some(seal) => seal.send(&self.socket, [bytes, &[]]),
            None => self.socket.send_with_flags(bytes, MsgFlags::MSG_NOSIGNAL.bits()),
        }
    }

    /// Continues a farewell in the middle of a payload. Returns whether it is complete, or can go no further.
    pub(crate) fn finish_parting(&mut self) -> bool {
        while !self.ended && self.told_in_payload().is_none() {
            if self.parting.is_empty() {
                return self.flush().unwrap_or(true);
            }
            let parting = std::mem::take(&mut self.parting);
            match self.say(&parting) {
                Ok(count) => self.parting = parting[count..].to_vec(),
                Err(error) => {
                    self.parting = parting;
                    match error.kind() {
                        ErrorKind::Interrupted => {}
                        ErrorKind::WouldBlock => return false,
                        _ => self.ended = true,
                    }
                }
            }
        }
        true
    }

    /// Ends the link once it has parted, and returns its connection, if the peer has not ended it.
    pub(crate) fn leave(&mut self) -> Leave {
        // The connection cannot be reused if part of a frame before the peer's farewell was read.
        let unread = !self.receiving || self.header_received == 0 || self.parted;
        let Ok(socket) = self.socket.try_clone() else { return Leave::Nothing };
        if self.clean && unread && self.hangup.is_none() {
            let (session, seal) = (self.session.take(), self.seal.take());
            return Leave::Standing(Left { socket, session, parted: self.parted, seal });
        }
        let _ = socket.shutdown(std::net::Shutdown::Write);
        if self.ended { Leave::Nothing } else { Leave::Ending(socket) }
    }
}
