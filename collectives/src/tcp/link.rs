//! One connection to a peer, and its part of the operation in progress.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read};
use std::os::fd::AsRawFd;

use nix::sys::socket::{MsgFlags, recv};
use socket2::Socket;

use super::flow::{Flow, Incoming, Outgoing};
use super::standing::Left;
use crate::wire::{Bye, FRAME_LENGTH, Frame, FrameHeader, WireError};

/// A farewell, and for a mismatch what the peer was in and what it saw instead: those of its neighbours that
/// did not see it themselves can name it too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Farewell {
    pub(crate) bye: Bye,
    pub(crate) evidence: Option<[FrameHeader; 2]>,
}

/// What a link's next frame says.
#[derive(Debug)]
pub(crate) enum Told {
    Operation(FrameHeader),
    Farewell(Farewell),
}

/// Where a header says that it only announces, and that another one follows.
const DEFERRED_AT: usize = 12;
/// The bytes of a farewell's evidence.
const EVIDENCE_LENGTH: usize = 2 * FRAME_LENGTH;

/// Why a link cannot go on.
#[derive(Debug)]
pub(crate) enum LinkFault {
    Closed,
    Connection(io::Error),
    Farewell(Farewell),
    Mismatch { ours: FrameHeader, theirs: FrameHeader },
    Malformed(WireError),
}

#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) rank: u32,
    pub(crate) socket: Socket,
    /// The last attempt did not find the socket's buffer empty, or full. Edge-triggered events set these.
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// The peer's end is closed; data of it may be left. The number orders the links by when that was seen.
    pub(crate) hangup: Option<u64>,
    /// Something came that nobody has looked at.
    pub(crate) news: bool,
    /// The peer's farewell was read, and nothing after it.
    parted: bool,
    /// The operation still has something to send, or to receive, here.
    pub(crate) sending: bool,
    pub(crate) receiving: bool,
    expected: Option<FrameHeader>,
    header_out: [u8; FRAME_LENGTH],
    header_in: [u8; FRAME_LENGTH],
    header_sent: usize,
    header_received: usize,
    payload_sent: usize,
    payload_received: usize,
    /// The header that is out only announces the operation: another one, or a farewell, comes before the
    /// payload, for which this rank waits itself.
    deferred: bool,
    /// The peer has announced the operation.
    announced: bool,
    pub(crate) messages_sent: u64,
    pub(crate) messages_received: u64,
}

impl Link {
    pub(crate) fn new(rank: u32, socket: Socket) -> Link {
        Link {
            rank,
            socket,
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
            deferred: false,
            announced: false,
            messages_sent: 0,
            messages_received: 0,
        }
    }

    /// Starts an operation here: `ours` is what goes out, `expected` what must come in.
    pub(crate) fn begin(&mut self, ours: Option<FrameHeader>, expected: Option<FrameHeader>) {
        self.sending = ours.is_some();
        self.receiving = expected.is_some();
        if let Some(header) = ours {
            self.header_out = Frame::Operation(header).encode();
        }
        self.expected = expected;
        (self.header_sent, self.header_received) = (0, 0);
        (self.payload_sent, self.payload_received) = (0, 0);
        (self.deferred, self.announced) = (false, false);
    }

    /// Whether the peer has not even entered the operation.
    pub(crate) fn absent(&self) -> bool {
        self.receiving && self.header_received < FRAME_LENGTH && !self.announced
    }

    /// Whether a farewell can be sent: no frame is half out.
    pub(crate) fn at_boundary(&self) -> bool {
        !self.sending || self.header_sent == 0 || self.deferred && self.header_sent == FRAME_LENGTH
    }

    /// Sends what the flow has and the socket takes. Returns whether anything moved.
    pub(crate) fn push<F: Flow>(&mut self, flow: &F) -> Result<bool, LinkFault> {
        let mut moved = false;
        while self.sending && self.writable {
            let outgoing = flow.outgoing(self.rank, self.payload_sent);
            let blocked = matches!(outgoing, Outgoing::Blocked);
            if self.header_sent == 0 && blocked != self.deferred {
                self.deferred = blocked;
                self.header_out[DEFERRED_AT] = u8::from(blocked);
            } else if self.header_sent == FRAME_LENGTH && self.deferred && !blocked {
                self.header_sent = 0;
                continue;
            }
            let header = &self.header_out[self.header_sent..];
            let payload = match outgoing {
                Outgoing::Ready(_) if self.deferred => &[],
                Outgoing::Ready(payload) => payload,
                Outgoing::Done if header.is_empty() => {
                    self.sending = false;
                    return Ok(true);
                }
                Outgoing::Blocked if header.is_empty() => break,
                Outgoing::Done | Outgoing::Blocked => &[],
            };
            let flags = MsgFlags::MSG_NOSIGNAL.bits();
            let sent = if header.is_empty() {
                self.socket.send_with_flags(payload, flags)
            } else {
                let parts = [IoSlice::new(header), IoSlice::new(payload)];
                self.socket.send_vectored_with_flags(&parts, flags)
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

    /// Reads once what the socket has and the flow takes. Returns whether anything moved.
    pub(crate) fn pull<F: Flow>(&mut self, flow: &mut F) -> Result<bool, LinkFault> {
        if !self.receiving {
            return Ok(false);
        }
        self.news = false;
        let may_defer = flow.may_defer();
        let header = &mut self.header_in[self.header_received..];
        let payload = match flow.incoming(self.rank, self.payload_received) {
            Incoming::Ready(payload) => payload,
            Incoming::Done if header.is_empty() => {
                self.receiving = false;
                return Ok(true);
            }
            Incoming::Blocked if header.is_empty() => return Ok(false),
            Incoming::Done | Incoming::Blocked => &mut [],
        };
        if !self.readable {
            return Ok(false);
        }
        // Until it is known whether the payload follows, only the header is read where it may be deferred.
        let payload = if header.is_empty() || !may_defer { payload } else { &mut [] };
        let (header_room, room) = (header.len(), header.len() + payload.len());
        let read = if header_room == 0 {
            (&self.socket).read(payload)
        } else {
            let mut parts = [IoSliceMut::new(header), IoSliceMut::new(payload)];
            (&self.socket).read_vectored(&mut parts)
        };
        let count = match read {
            Ok(0) => return Err(LinkFault::Closed),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.readable = false;
                return Ok(false);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(true),
            Err(error) => return Err(LinkFault::Connection(error)),
        };
        // A short read empties the buffer (epoll(7)), but the end of the stream gives no further edge.
        if count < room && self.hangup.is_none() {
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
        }
        if count > of_header {
            self.payload_received += count - of_header;
            flow.received(self.rank, self.payload_received);
        }
        Ok(true)
    }

    /// Compares the header that came in with the one due; `rest` was read after it.
    fn verify(&self, rest: &[u8]) -> Result<(), LinkFault> {
        let theirs = match Frame::decode(&self.header_in) {
            Ok(Frame::Operation(theirs)) => theirs,
            Ok(Frame::Bye(bye)) => {
                let mut bytes = [0; EVIDENCE_LENGTH];
                let read = rest.len().min(EVIDENCE_LENGTH);
                bytes[..read].copy_from_slice(&rest[..read]);
                let more = self.peek(&mut bytes[read..]).unwrap_or(0);
                let evidence = evidence(&bytes[..read + more]);
                return Err(LinkFault::Farewell(Farewell { bye, evidence }));
            }
            Err(error) => return Err(LinkFault::Malformed(error)),
        };
        match self.expected {
            Some(ours) if ours != theirs => Err(LinkFault::Mismatch { ours, theirs }),
            _ => Ok(()),
        }
    }

    fn peek(&self, bytes: &mut [u8]) -> Result<usize, nix::Error> {
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        recv(self.socket.as_raw_fd(), bytes, flags)
    }

    /// What the next unread frame says, without taking it, where this link is between two frames. An end of
    /// the stream is a fault; nothing means that too little has come, or payload stands next.
    pub(crate) fn probe(&self) -> Result<Option<Told>, LinkFault> {
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
                    Ok(Frame::Operation(header)) => Some(Told::Operation(header)),
                    Ok(Frame::Bye(bye)) => {
                        Some(Told::Farewell(Farewell { bye, evidence: evidence(rest) }))
                    }
                    Err(_) => None,
                })
            }
            Ok(_) | Err(nix::Error::EAGAIN | nix::Error::EINTR) => Ok(None),
            Err(error) => Err(LinkFault::Connection(error.into())),
        }
    }

    /// The mismatch that an unread header of this link shows, if it does.
    pub(crate) fn mismatch(&self) -> Option<LinkFault> {
        match (self.absent(), self.expected, self.probe()) {
            (true, Some(ours), Ok(Some(Told::Operation(theirs)))) if ours != theirs => {
                Some(LinkFault::Mismatch { ours, theirs })
            }
            _ => None,
        }
    }

    /// Whether the peer is gone, or may have said something that no operation reads.
    pub(crate) fn has_news(&self) -> bool {
        self.hangup.is_some() || self.news
    }

    /// Says farewell where that is possible, without waiting. Returns the connection where it may serve the next
    /// generation, since nothing else is on its way from here, and nothing was read of what stands before the
    /// peer's farewell; else sends nothing more.
    pub(crate) fn leave(&mut self, farewell: &Farewell) -> Option<Left> {
        let headers = farewell.evidence.iter().flatten().map(|header| Frame::Operation(*header));
        let frames = std::iter::once(Frame::Bye(farewell.bye)).chain(headers);
        let bytes: Vec<u8> = frames.flat_map(|frame| frame.encode()).collect();
        let flags = MsgFlags::MSG_NOSIGNAL.bits();
        // The peer finds the end of the stream where the farewell does not reach it.
        let told = self.at_boundary()
            && self.socket.send_with_flags(&bytes, flags).is_ok_and(|count| count == bytes.len());
        let unread = !self.receiving || self.header_received == 0 || self.parted;
        let clean = told && unread && self.hangup.is_none() && farewell.evidence.is_none();
        if let (true, Ok(socket)) = (clean, self.socket.try_clone()) {
            return Some(Left { socket, parted: self.parted });
        }
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
        None
    }
}

/// The headers that follow a farewell, if both do.
fn evidence(bytes: &[u8]) -> Option<[FrameHeader; 2]> {
    let header = |at: usize| {
        let mut frame = [0; FRAME_LENGTH];
        frame.copy_from_slice(bytes.get(at..at + FRAME_LENGTH)?);
        match Frame::decode(&frame) {
            Ok(Frame::Operation(header)) => Some(header),
            _ => None,
        }
    };
    Some([header(0)?, header(FRAME_LENGTH)?])
}
