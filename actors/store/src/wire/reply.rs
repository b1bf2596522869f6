//! Answers of the store, and their encoding. Made by the store's core.

/// One answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum StoreReply {
    /// A value; empty if the key is absent.
    Value(Vec<u8>),
    /// Several values.
    Values(Vec<Vec<u8>>),
    /// A number.
    Number(i64),
    /// Answer to a check: whether all keys are there.
    Ready(bool),
    /// The successful end of a wait or barrier.
    Released,
    /// The end of a wait that was given up.
    Cancelled,
    /// Answer to a ping.
    Nonce(u32),
    /// The first value of a queue; none if it is empty.
    Popped(Option<Vec<u8>>),
    /// All keys.
    Keys(Vec<Vec<u8>>),
}

impl StoreReply {
    /// Encodes the answer for the client.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Self::Value(value) => blob(&mut bytes, value),
            Self::Values(values) => values.iter().for_each(|value| blob(&mut bytes, value)),
            Self::Number(number) => bytes.extend(number.to_le_bytes()),
            Self::Ready(ready) => bytes.push(u8::from(!ready)),
            Self::Released => bytes.push(0),
            Self::Cancelled => bytes.push(1),
            Self::Nonce(nonce) => bytes.extend(nonce.to_le_bytes()),
            Self::Popped(None) => bytes.extend(0i64.to_le_bytes()),
            Self::Popped(Some(value)) => {
                bytes.extend(1i64.to_le_bytes());
                blob(&mut bytes, value);
            }
            Self::Keys(keys) => {
                bytes.extend((keys.len() as u64).to_le_bytes());
                keys.iter().for_each(|key| blob(&mut bytes, key));
            }
        }
        bytes
    }

    /// Number of bytes that [`encode`](Self::encode) gives for values that are not encoded yet.
    pub(crate) fn bytes_of(values: &[Vec<u8>]) -> usize {
        values.iter().map(|value| value.len() + size_of::<u64>()).sum()
    }
}

fn blob(bytes: &mut Vec<u8>, value: &[u8]) {
    bytes.extend((value.len() as u64).to_le_bytes());
    bytes.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_what_torch_reads() {
        assert_eq!(
            StoreReply::Value(b"ab".to_vec()).encode(),
            [2, 0, 0, 0, 0, 0, 0, 0, b'a', b'b']
        );
        assert_eq!(StoreReply::Ready(true).encode(), [0]);
        assert_eq!(StoreReply::Ready(false).encode(), [1]);
        assert_eq!(StoreReply::Popped(None).encode(), [0; 8]);
        assert_eq!(StoreReply::Number(-1).encode(), [0xff; 8]);
    }
}
