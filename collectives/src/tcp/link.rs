//! One connection to a peer, and its part of the operation in progress.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read};
use std::os::fd::AsRawFd;

use nix::sys::socket::{MsgFlags, recv};
use socket2::Socket;

use super::flow::{Flow, Incoming, Outgoing};
use crate::wire::{Bye, FRAME_LENGTH, Frame, FrameHeader, WireError};

/// Why a link cannot go on.
#[derive(Debug)]
pub(crate) enum LinkFault {
    Closed,
    Connection(io::Error),
    Bye(Bye),
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
            sending: false,
            receiving: false,
            expected: None,
            header_out: [0; FRAME_LENGTH],
            header_in: [0; FRAME_LENGTH],
            header_sent: 0,
            header_received: 0,
            payload_sent: 0,
            payload_received: 0,
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
    }

    /// Whether the peer has not even entered the operation.
    pub(crate) fn absent(&self) -> bool {
        self.receiving && self.header_received < FRAME_LENGTH
    }

    /// Whether a farewell can be sent: no frame is half out.
    pub(crate) fn at_boundary(&self) -> bool {
        !self.sending || self.header_sent == 0
    }

    /// Sends what the flow has and the socket takes. Returns whether anything moved.
    pub(crate) fn push<F: Flow>(&mut self, flow: &F) -> Result<bool, LinkFault> {
        let mut moved = false;
        while self.sending && self.writable {
            let header = &self.header_out[self.header_sent..];
            let payload = match flow.outgoing(self.rank, self.payload_sent) {
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
            self.verify()?;
        }
        if count > of_header {
            self.payload_received += count - of_header;
            flow.received(self.rank, self.payload_received);
        }
        Ok(true)
    }

    fn verify(&self) -> Result<(), LinkFault> {
        let theirs = match Frame::decode(&self.header_in) {
            Ok(Frame::Operation(theirs)) => theirs,
            Ok(Frame::Bye(bye)) => return Err(LinkFault::Bye(bye)),
            Err(error) => return Err(LinkFault::Malformed(error)),
        };
        match self.expected {
            Some(ours) if ours != theirs => Err(LinkFault::Mismatch { ours, theirs }),
            _ => Ok(()),
        }
    }

    /// The next unread frame header, without taking it, where this link is between two frames. An end of
    /// the stream is a fault; nothing means that too little has come, or payload stands next.
    pub(crate) fn probe(&self) -> Result<Option<Frame>, LinkFault> {
        let mut bytes = [0; FRAME_LENGTH];
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        match recv(self.socket.as_raw_fd(), &mut bytes, flags) {
            Ok(0) => Err(LinkFault::Closed),
            Ok(FRAME_LENGTH) if !self.receiving || self.header_received == 0 => {
                Ok(Frame::decode(&bytes).ok())
            }
            Ok(_) | Err(nix::Error::EAGAIN | nix::Error::EINTR) => Ok(None),
            Err(error) => Err(LinkFault::Connection(error.into())),
        }
    }

    /// The mismatch that an unread header of this link shows, if it does.
    pub(crate) fn mismatch(&self) -> Option<LinkFault> {
        match (self.absent(), self.expected, self.probe()) {
            (true, Some(ours), Ok(Some(Frame::Operation(theirs)))) if ours != theirs => {
                Some(LinkFault::Mismatch { ours, theirs })
            }
            _ => None,
        }
    }

    /// Says farewell where that is possible, without waiting, and sends nothing more.
    pub(crate) fn leave(&mut self, bye: Bye) {
        if self.at_boundary() {
            let flags = MsgFlags::MSG_NOSIGNAL.bits();
            // The peer finds the end of the stream where this does not reach it.
            let _ = self.socket.send_with_flags(&Frame::Bye(bye).encode(), flags);
        }
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
    }
}
