//! [`InboundHandshakes`]: the handshakes of dialing peers that are in progress, and their bound. The endpoint asks for each.
//!
//! Anybody can begin a handshake with one packet and never go on. Each costs the time of a signature and some memory
//! until its connection is given up. So there is a bound, and the oldest handshake gives way. While many are in
//! progress, a peer must first prove its address, for which nothing is stored.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quinn::{Connection, Incoming};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

/// Most handshakes in progress. Those of a group's honest peers end within a few round trips.
const HANDSHAKES_MOST: usize = 256;
/// Number of handshakes in progress from which a peer must prove its address first.
const HANDSHAKES_RETRY: usize = 128;

#[derive(Debug, Default)]
pub(super) struct InboundHandshakes {
    open: Mutex<OpenHandshakes>,
    /// InboundHandshakes that did not end in a connection, since the last look.
    unfinished: AtomicU64,
}

/// Oldest first.
#[derive(Debug, Default)]
struct OpenHandshakes {
    next: u64,
    tasks: BTreeMap<u64, AbortHandle>,
}

impl InboundHandshakes {
    /// Answers a first packet. If its handshake succeeds, `serve` goes on with the connection.
    pub(super) fn admit<F>(
        self: &Arc<Self>,
        incoming: Incoming,
        serve: impl FnOnce(Connection) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send,
    {
        let mut open = self.open();
        if open.tasks.len() >= HANDSHAKES_RETRY && !incoming.remote_address_validated() {
            self.count_unfinished();
            if let Err(error) = incoming.retry() {
                error.into_incoming().refuse();
            }
            return;
        }
        if open.tasks.len() >= HANDSHAKES_MOST
            && let Some((_, oldest)) = open.tasks.pop_first()
        {
            oldest.abort();
            self.count_unfinished();
        }
        // The error is that of a packet that begins no connection.
        let Ok(connecting) = incoming.accept() else { return };
        let number = open.next;
        open.next += 1;
        let handshakes = Arc::clone(self);
        let task = Handle::current().spawn(async move {
            let connected = connecting.await;
            handshakes.open().tasks.remove(&number);
            match connected {
                Ok(connection) => serve(connection).await,
                Err(_) => handshakes.count_unfinished(),
            }
        });
        open.tasks.insert(number, task.abort_handle());
    }

    /// Number of handshakes that did not end in a connection, since the last call.
    pub(super) fn take_unfinished(&self) -> u64 {
        self.unfinished.swap(0, Ordering::Relaxed)
    }

    fn count_unfinished(&self) {
        self.unfinished.fetch_add(1, Ordering::Relaxed);
    }

    fn open(&self) -> MutexGuard<'_, OpenHandshakes> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
