//! torch's `TCPStore` protocol, as clients of torch 2.5 to 2.15 speak it. A request is a byte for its kind, then its
//! fields. Numbers are little-endian; strings and values have a u64 length before them.

mod decoder;
mod reply;
mod request;

pub use decoder::{DecodeError, Decoder};
pub use reply::StoreReply;
pub use request::Request;
