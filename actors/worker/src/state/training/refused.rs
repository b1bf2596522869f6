//! Why a state's own code refuses to be encoded: the errors of postcard carry no text. A binding says it, and `snapshot` asks.

use std::cell::RefCell;

use super::error::Error;

thread_local! {
    static REASON: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Says why the state that this thread encodes cannot be; the caller returns an error from its `serialize`.
pub fn refuse(reason: String) {
    REASON.set(Some(reason));
}

/// The error for a state that this thread has failed to encode.
pub(super) fn unencodable(source: postcard::Error) -> Error {
    match REASON.take() {
        Some(reason) => Error::Refused { reason },
        None => Error::State { action: "encoded", source },
    }
}
