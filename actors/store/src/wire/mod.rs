//! torch's `TCPStore` protocol, as clients of torch 2.5 to 2.15 speak it: a byte that says what is wanted, then
//! its fields; numbers little-endian; strings and values with a u64 length before them.

mod decoder;
mod reply;
mod request;

pub use decoder::{DecodeError, Decoder};
pub use reply::Reply;
pub use request::Request;
