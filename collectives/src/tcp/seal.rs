//! Encryption of a link between hosts, where [`crate::GroupSpec::encrypts`] asks for it: AES-256-GCM (RFC 5116) by
//! `ring`, in records numbered implicitly. HKDF (RFC 5869) derives a key for each direction from the generation's
//! key and the nonces of both ends' handshake. Keys are replaced after [`RECORDS_OF_A_KEY`]. Called by the links.

use std::io::{self, ErrorKind, Read};
use std::ops::Range;

use nix::sys::socket::MsgFlags;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk};
use socket2::Socket;

/// Most bytes of the stream in one record.
const RECORD: usize = 64 * 1024;
/// Size of the length field before each record, in bytes. The length includes the tag.
const LENGTH: usize = 4;
const TAG: usize = 16;
/// Records under one key: at most 64 GiB, far below what the mode allows.
const RECORDS_OF_A_KEY: u64 = 1 << 20;

/// A secret known only to the two ends of a handshake.
#[derive(Clone)]
pub(crate) struct SealSecret(pub(crate) [u8; 32]);

/// One direction of a stream.
struct Direction {
    chain: [u8; 32],
    key: LessSafeKey,
    /// The number of the next record.
    record: u64,
}

struct ChainLength;

impl KeyType for ChainLength {
    fn len(&self) -> usize {
        32
    }
}

fn refused() -> io::Error {
    io::Error::other("the cryptographic library refused a key")
}

impl Direction {
    fn new(chain: [u8; 32]) -> io::Result<Direction> {
        let prk = Prk::new_less_safe(HKDF_SHA256, &chain);
        let key = prk.expand(&[b"key"], &AES_256_GCM).map_err(|_| refused())?;
        Ok(Direction { chain, key: LessSafeKey::new(UnboundKey::from(key)), record: 0 })
    }

    fn derived(secret: &[u8; 32], label: &'static [u8]) -> io::Result<Direction> {
        let prk = Prk::new_less_safe(HKDF_SHA256, secret);
        let (mut chain, info) = ([0; 32], [label]);
        let expanded = prk.expand(&info, ChainLength).map_err(|_| refused())?;
        expanded.fill(&mut chain).map_err(|_| refused())?;
        Direction::new(chain)
    }

    /// The next nonce: unique among the records of this key.
    fn nonce(&mut self) -> io::Result<Nonce> {
        if self.record == RECORDS_OF_A_KEY {
            *self = Direction::derived(&self.chain, b"next")?;
        }
        let mut nonce = [0; NONCE_LEN];
        nonce[..8].copy_from_slice(&self.record.to_le_bytes());
        self.record += 1;
        Ok(Nonce::assume_unique_for_key(nonce))
    }
}

/// Both directions of a stream, with the records that are not complete.
pub(crate) struct Seal {
    sealing: Direction,
    opening: Direction,
    output: Vec<u8>,
    /// Number of bytes of `output` that the socket has taken.
    flushed: usize,
    /// The current record, decrypted in place, and the length of the next one.
    input: Vec<u8>,
    filled: usize,
    /// The part of the current record that has not been read.
    plain: Range<usize>,
    /// The end of the current record.
    end: usize,
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Seal").finish_non_exhaustive()
    }
}

impl Seal {
    /// The encryption of a stream at the end that dialed, or at the other end.
    ///
    /// # Errors
    ///
    /// The cryptographic library refuses the keys.
    pub(crate) fn new(secret: &SealSecret, dialed: bool) -> io::Result<Seal> {
        let dialer = Direction::derived(&secret.0, b"dialer")?;
        let acceptor = Direction::derived(&secret.0, b"acceptor")?;
        let (sealing, opening) = if dialed { (dialer, acceptor) } else { (acceptor, dialer) };
        let input = vec![0; LENGTH + RECORD + TAG + LENGTH];
        let (output, flushed, filled, plain, end) = (Vec::new(), 0, 0, 0..0, 0);
        Ok(Seal { sealing, opening, output, flushed, input, filled, plain, end })
    }

    /// Encrypts the first bytes of `parts`, and sends as much of the record as the socket takes. Returns how many
    /// bytes were encrypted.
    ///
    /// # Errors
    ///
    /// As the socket's. [`ErrorKind::WouldBlock`] where an earlier record is still on its way.
    pub(crate) fn send(&mut self, socket: &Socket, parts: [&[u8]; 2]) -> io::Result<usize> {
        if !self.flush(socket)? {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.output.resize(LENGTH, 0);
        for part in parts {
            let room = LENGTH + RECORD - self.output.len();
            self.output.extend_from_slice(&part[..part.len().min(room)]);
        }
        let count = self.output.len() - LENGTH;
        let length = ((count + TAG) as u32).to_le_bytes();
        self.output[..LENGTH].copy_from_slice(&length);
        let nonce = self.sealing.nonce()?;
        let plain = &mut self.output[LENGTH..];
        let sealed = self.sealing.key.seal_in_place_separate_tag(nonce, Aad::from(length), plain);
        self.output.extend_from_slice(sealed.map_err(|_| refused())?.as_ref());
        self.flush(socket)?;
        Ok(count)
    }

    /// Sends the rest of the last record. Returns whether the socket has taken all of it.
    ///
    /// # Errors
    ///
    /// As the socket's.
    pub(crate) fn flush(&mut self, socket: &Socket) -> io::Result<bool> {
        while self.flushed < self.output.len() {
            let flags = MsgFlags::MSG_NOSIGNAL.bits();
            match socket.send_with_flags(&self.output[self.flushed..], flags) {
                Ok(count) => self.flushed += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.output.clear();
        self.flushed = 0;
        Ok(true)
    }

    /// Reads the next bytes of the stream. 0 means its end.
    ///
    /// # Errors
    ///
    /// As the socket's, and where a record is not what the other end sealed.
    pub(crate) fn read(&mut self, socket: &Socket, parts: [&mut [u8]; 2]) -> io::Result<usize> {
        if self.plain.is_empty() && !self.open_next(socket)? {
            return Ok(0);
        }
        let start = self.plain.start;
        for part in parts {
            let length = part.len().min(self.plain.len());
            let from = self.plain.start;
            part[..length].copy_from_slice(&self.input[from..from + length]);
            self.plain.start += length;
        }
        Ok(self.plain.start - start)
    }

    /// Copies the next bytes of the stream, without consuming them. 0 means its end.
    ///
    /// # Errors
    ///
    /// As [`Seal::read`].
    pub(crate) fn peek(&mut self, socket: &Socket, bytes: &mut [u8]) -> io::Result<usize> {
        if self.plain.is_empty() && !self.open_next(socket)? {
            return Ok(0);
        }
        let length = bytes.len().min(self.plain.len());
        bytes[..length].copy_from_slice(&self.input[self.plain.start..][..length]);
        Ok(length)
    }

    /// The bytes that were read from the socket beyond the last record.
    pub(crate) fn beyond(&self) -> &[u8] {
        &self.input[self.end..self.filled]
    }

    /// Decrypts the next record. Returns whether there is one.
    fn open_next(&mut self, socket: &Socket) -> io::Result<bool> {
        self.input.copy_within(self.end..self.filled, 0);
        self.filled -= self.end;
        (self.end, self.plain) = (0, 0..0);
        loop {
            let body = self.input.first_chunk().filter(|_| self.filled >= LENGTH);
            let body = body.map_or(0, |length| u32::from_le_bytes(*length) as usize);
            if self.filled >= LENGTH && !(TAG..=RECORD + TAG).contains(&body) {
                return Err(not_authentic());
            }
            // The length of the next record is read together with a record, which saves a call.
            let due = if body == 0 { LENGTH } else { LENGTH + body };
            if body > 0 && self.filled >= due {
                return self.open(body).map(|()| true);
            }
            let most = if body == 0 { LENGTH } else { due + LENGTH };
            let mut socket = socket;
            match socket.read(&mut self.input[self.filled..most]) {
                Ok(0) => return Ok(false),
                Ok(count) => self.filled += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn open(&mut self, body: usize) -> io::Result<()> {
        let nonce = self.opening.nonce()?;
        let (length, rest) = self.input.split_at_mut(LENGTH);
        let opened = self.opening.key.open_in_place(nonce, Aad::from(&*length), &mut rest[..body]);
        let plain = opened.map_err(|_| not_authentic())?.len();
        self.plain = LENGTH..LENGTH + plain;
        self.end = LENGTH + body;
        Ok(())
    }
}

fn not_authentic() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "a record is not what the other end has sealed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    fn sockets() -> (Socket, Socket) {
        let (left, right) = UnixStream::pair().unwrap();
        (OwnedFd::from(left).into(), OwnedFd::from(right).into())
    }

    fn pair() -> (Socket, Seal, Socket, Seal) {
        let (left, right) = sockets();
        left.set_nonblocking(true).unwrap();
        right.set_nonblocking(true).unwrap();
        let secret = SealSecret([9; 32]);
        let seals = (Seal::new(&secret, true).unwrap(), Seal::new(&secret, false).unwrap());
        (left, seals.0, right, seals.1)
    }

    /// Sends all of `bytes` and reads it at the other end, in parts of odd lengths.
    fn cross(bytes: &[u8], from: (&Socket, &mut Seal), to: (&Socket, &mut Seal)) -> Vec<u8> {
        let (mut sent, mut received) = (0, Vec::new());
        while received.len() < bytes.len() {
            if sent < bytes.len() {
                match from.1.send(from.0, [&bytes[sent..sent + 1], &bytes[sent + 1..]]) {
                    Ok(count) => sent += count,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            } else {
                from.1.flush(from.0).unwrap();
            }
            let (mut few, mut many) = ([0; 7], [0; 5000]);
            match to.1.read(to.0, [&mut few, &mut many]) {
                Ok(count) => received.extend_from_slice(&[&few[..], &many[..]].concat()[..count]),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
        received
    }

    #[test]
    fn a_stream_crosses_both_ways_and_not_in_the_clear() {
        let (left, mut left_seal, right, mut right_seal) = pair();
        for length in [1, 2, 8000, RECORD, RECORD + 1, 5 * RECORD + 3] {
            let bytes: Vec<u8> = (0..length).map(|byte| byte as u8).collect();
            let there = cross(&bytes, (&left, &mut left_seal), (&right, &mut right_seal));
            assert!(there == bytes, "{length} bytes");
            let back = cross(&bytes, (&right, &mut right_seal), (&left, &mut left_seal));
            assert!(back == bytes, "{length} bytes back");
        }
        let text = b"a text that is long enough to be found in what crosses";
        left_seal.send(&left, [text, &[]]).unwrap();
        let mut raw = [0; 200];
        let count = (&right).read(&mut raw).unwrap();
        assert_eq!(count, LENGTH + text.len() + TAG);
        assert!(!raw.windows(8).any(|window| text.windows(8).any(|part| part == window)));
    }

    #[test]
    fn keys_are_replaced_in_step() {
        let (left, mut left_seal, right, mut right_seal) = pair();
        let before = left_seal.sealing.chain;
        for seal in [&mut left_seal, &mut right_seal] {
            seal.sealing.record = RECORDS_OF_A_KEY - 1;
            seal.opening.record = RECORDS_OF_A_KEY - 1;
        }
        for round in 0..3u8 {
            let there = cross(&[round; 10], (&left, &mut left_seal), (&right, &mut right_seal));
            assert_eq!(there, [round; 10]);
        }
        assert_ne!(left_seal.sealing.chain, before);
        assert_eq!(left_seal.sealing.record, 2);
    }

    #[test]
    fn a_record_that_was_changed_or_repeated_is_refused() {
        for change in 0..3 {
            let (left, mut left_seal, right, mut right_seal) = pair();
            left_seal.send(&left, [&[7; 50], &[]]).unwrap();
            let mut raw = [0; LENGTH + 50 + TAG];
            (&right).read_exact(&mut raw).unwrap();
            let (relay, end) = sockets();
            if change < 2 {
                raw[[0, LENGTH + 20][change]] ^= 1;
            }
            relay.send(&raw).unwrap();
            relay.send(&raw).unwrap();
            let read = right_seal.read(&end, [&mut [0; 50], &mut []]);
            assert_eq!(read.is_ok(), change == 2);
            let again = right_seal.read(&end, [&mut [0; 50], &mut []]).unwrap_err();
            assert_eq!(again.kind(), ErrorKind::InvalidData);
        }
    }

    #[test]
    fn the_end_of_the_stream_is_none_of_its_records() {
        let (left, mut left_seal, right, mut right_seal) = pair();
        left_seal.send(&left, [b"last", &[]]).unwrap();
        drop(left);
        let mut peeked = [0; 2];
        assert_eq!(right_seal.peek(&right, &mut peeked).unwrap(), 2);
        assert_eq!(&peeked, b"la");
        assert_eq!(right_seal.read(&right, [&mut [0; 9], &mut []]).unwrap(), 4);
        assert_eq!(right_seal.read(&right, [&mut [0; 9], &mut []]).unwrap(), 0);
    }
}
