//! Decoder of the store's protocol: bytes of a connection in, requests out. A length that a client only claims causes
//! no allocation. Used by the relay's core.

use super::Request;
use crate::limits::{
    KEY_BYTES_MAX, KEYS_MAX, READ_BYTES, REQUEST_BYTES_MAX, UNGRANTED_BYTES, VALUE_BYTES_MAX,
};

/// First word of a client of torch.
const MAGIC: u32 = 0x3C85_F7CE;

/// Reason why a connection's bytes are not requests. The connection is of no use after it.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum DecodeError {
    /// The first word is not that of a client of torch 2.
    #[error("it does not speak the TCPStore protocol of torch 2")]
    NotAClient,
    /// The kind of request is not known.
    #[error("request {0} is not known")]
    UnknownRequest(u8),
    /// A count or length is above its bound.
    #[error("a {what} of {length}; at most {max} are allowed")]
    TooLarge {
        /// Name of the counted or measured thing.
        what: &'static str,
        /// The claimed count or length.
        length: u64,
        /// The bound.
        max: usize,
    },
}

/// A connection's decoder. Holds at most one unfinished request, of at most [`REQUEST_BYTES_MAX`] bytes.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    is_client: bool,
}

impl Decoder {
    /// Takes bytes that were read.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Bytes that were read and belong to no request yet.
    pub const fn buffered(&self) -> usize {
        self.buffer.len()
    }

    /// The next request; none until it is there in full.
    ///
    /// # Errors
    /// [`DecodeError`]: the connection is to be closed.
    pub fn poll_request(&mut self) -> Result<Option<Request>, DecodeError> {
        if !self.is_client {
            let Some(first) = self.buffer.first_chunk::<5>() else {
                let is_wrong = self.buffer.first().is_some_and(|kind| *kind != 0);
                return if is_wrong { Err(DecodeError::NotAClient) } else { Ok(None) };
            };
            let [0, magic @ ..] = *first else { return Err(DecodeError::NotAClient) };
            if u32::from_le_bytes(magic) != MAGIC {
                return Err(DecodeError::NotAClient);
            }
            self.is_client = true;
            self.buffer.drain(..5);
        }
        let mut fields = Fields { bytes: &self.buffer };
        match request(&mut fields) {
            Ok(request) => {
                let used = self.buffer.len() - fields.bytes.len();
                self.buffer.drain(..used);
                if self.buffer.capacity() > UNGRANTED_BYTES + READ_BYTES {
                    // The room of a long request is given back at its end.
                    self.buffer.shrink_to(UNGRANTED_BYTES + READ_BYTES);
                }
                Ok(Some(request))
            }
            Err(DecodeStop::Unfinished) if self.buffer.len() > REQUEST_BYTES_MAX => {
                Err(too_large("request's bytes", self.buffer.len() as u64, REQUEST_BYTES_MAX))
            }
            Err(DecodeStop::Unfinished) => Ok(None),
            Err(DecodeStop::Wrong(error)) => Err(error),
        }
    }
}

enum DecodeStop {
    Unfinished,
    Wrong(DecodeError),
}

fn too_large(what: &'static str, length: u64, max: usize) -> DecodeError {
    DecodeError::TooLarge { what, length, max }
}

fn request(fields: &mut Fields<'_>) -> Result<Request, DecodeStop> {
    let [kind] = fields.array()?;
    Ok(match kind {
        1 => Request::Set { key: fields.key()?, value: fields.value()? },
        2 => Request::CompareSet {
            key: fields.key()?,
            expected: fields.value()?,
            desired: fields.value()?,
        },
        3 => Request::Get { key: fields.key()? },
        4 => Request::Add { key: fields.key()?, amount: fields.i64()? },
        5 => Request::Check { keys: fields.keys()? },
        6 => Request::Wait { keys: fields.keys()? },
        7 => Request::CountKeys,
        8 => Request::Delete { key: fields.key()? },
        9 => Request::Append { key: fields.key()?, value: fields.value()? },
        10 => Request::MultiGet { keys: fields.keys()? },
        11 => Request::MultiSet { entries: fields.list(|it| Ok((it.key()?, it.value()?)))? },
        12 => Request::CancelWait,
        13 => Request::Ping { nonce: u32::from_le_bytes(fields.array()?) },
        14 => Request::QueuePush { key: fields.key()?, value: fields.value()? },
        15 => Request::QueuePop { key: fields.key()? },
        16 => Request::QueueLength { key: fields.key()? },
        17 => Request::ListKeys,
        18 => Request::Barrier { key: fields.key()?, world_size: fields.i64()? },
        other => return Err(DecodeStop::Wrong(DecodeError::UnknownRequest(other))),
    })
}

/// The unread rest of a request.
struct Fields<'a> {
    bytes: &'a [u8],
}

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeStop> {
        let (field, rest) = self.bytes.split_first_chunk().ok_or(DecodeStop::Unfinished)?;
        self.bytes = rest;
        Ok(*field)
    }

    fn i64(&mut self) -> Result<i64, DecodeStop> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    /// A count or length within its bound.
    fn length(&mut self, what: &'static str, max: usize) -> Result<usize, DecodeStop> {
        let length = u64::from_le_bytes(self.array()?);
        match usize::try_from(length) {
            Ok(within) if within <= max => Ok(within),
            _ => Err(DecodeStop::Wrong(too_large(what, length, max))),
        }
    }

    fn blob(&mut self, what: &'static str, max: usize) -> Result<Vec<u8>, DecodeStop> {
        let length = self.length(what, max)?;
        let (blob, rest) = self.bytes.split_at_checked(length).ok_or(DecodeStop::Unfinished)?;
        self.bytes = rest;
        Ok(blob.to_vec())
    }

    fn key(&mut self) -> Result<Vec<u8>, DecodeStop> {
        self.blob("key's bytes", KEY_BYTES_MAX)
    }

    fn value(&mut self) -> Result<Vec<u8>, DecodeStop> {
        self.blob("value's bytes", VALUE_BYTES_MAX)
    }

    fn list<T>(
        &mut self,
        item: impl Fn(&mut Self) -> Result<T, DecodeStop>,
    ) -> Result<Vec<T>, DecodeStop> {
        let count = self.length("list's items", KEYS_MAX)?;
        // The list grows as items arrive: the count is only claimed by the client.
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(item(self)?);
        }
        Ok(items)
    }

    fn keys(&mut self) -> Result<Vec<Vec<u8>>, DecodeStop> {
        self.list(Self::key)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn blob(bytes: &[u8]) -> Vec<u8> {
        [&(bytes.len() as u64).to_le_bytes()[..], bytes].concat()
    }

    fn hello() -> Vec<u8> {
        [&[0][..], &MAGIC.to_le_bytes()].concat()
    }

    fn all(chunks: &[&[u8]]) -> Result<Vec<Request>, DecodeError> {
        let mut decoder = Decoder::default();
        let mut requests = Vec::new();
        for chunk in chunks {
            decoder.feed(chunk);
            while let Some(request) = decoder.poll_request()? {
                requests.push(request);
            }
        }
        Ok(requests)
    }

    #[test]
    fn requests_come_out_however_they_are_cut() {
        let bytes = [
            hello(),
            vec![13, 1, 2, 3, 4],
            [vec![1], blob(b"/k"), blob(b"v")].concat(),
            [vec![6], 2u64.to_le_bytes().to_vec(), blob(b"a"), blob(b"b")].concat(),
            [vec![4], blob(b"n"), (-3i64).to_le_bytes().to_vec()].concat(),
            [vec![11], 1u64.to_le_bytes().to_vec(), blob(b"k"), blob(b"")].concat(),
        ]
        .concat();
        let expected = vec![
            Request::Ping { nonce: 0x0403_0201 },
            Request::Set { key: b"/k".to_vec(), value: b"v".to_vec() },
            Request::Wait { keys: vec![b"a".to_vec(), b"b".to_vec()] },
            Request::Add { key: b"n".to_vec(), amount: -3 },
            Request::MultiSet { entries: vec![(b"k".to_vec(), Vec::new())] },
        ];
        assert_eq!(all(&[&bytes]), Ok(expected.clone()));
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(all(&single), Ok(expected));
    }

    #[test]
    fn who_is_no_client_of_torch_2_is_found_out_by_the_first_byte() {
        assert_eq!(all(&[b"GET / HTTP/1.1"]), Err(DecodeError::NotAClient));
        assert_eq!(all(&[&[1]]), Err(DecodeError::NotAClient));
        assert_eq!(all(&[&[0, 1, 2, 3, 4]]), Err(DecodeError::NotAClient));
    }

    #[test]
    fn what_is_claimed_is_bounded_before_it_is_allocated() {
        let claim =
            |kind: u8, count: u64| [hello(), vec![kind], count.to_le_bytes().to_vec()].concat();
        for (kind, what) in [(1, "key's bytes"), (6, "list's items"), (11, "list's items")] {
            let error = all(&[&claim(kind, u64::MAX)]).expect_err("too large");
            assert!(
                matches!(error, DecodeError::TooLarge { what: it, .. } if it == what),
                "{error}"
            );
        }
        assert_eq!(all(&[&[hello(), vec![77]].concat()]), Err(DecodeError::UnknownRequest(77)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_requests_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = all(&[&hello(), &bytes]);
        }
    }
}
