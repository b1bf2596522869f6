//! Reason for which a state's own code refuses to be encoded. Errors of postcard carry no text, so a binding stores the
//! reason here, and `snapshot` reads it.

use std::cell::RefCell;

use super::error::Error;

thread_local! {
    static REASON: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Stores the reason for which this thread cannot encode a state. The caller returns an error from its `serialize`.
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
