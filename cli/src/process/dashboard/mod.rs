//! `--dashboard ADDR`: `/metrics` for Prometheus, read-only, on a thread of its own beside the actors. Started by the
//! driver's process.
//!
//! The actors' thread publishes a snapshot once a second; requests are answered from it. A reader that is slow, or stuck,
//! holds a connection of this thread and nothing else: their number, their length and their requests are bounded.

mod access;
mod answer;
mod request;
mod server;

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use actix::Addr;
use elastic_driver::{AskStatus, Driver};
use elastic_observe::JobSnapshot;
use elastic_transport::JoinToken;
use tokio::time::sleep;

use self::access::Access;
use super::accounting::Accounting;
use crate::command_line::{CommandFailure, ResultExt};

/// Interval between two snapshots.
const PUBLISHED_EVERY: Duration = Duration::from_secs(1);

/// The snapshot that requests are answered from: written by the actors' thread, read by the server's. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct PublishedSnapshot(Arc<Mutex<Option<Arc<JobSnapshot>>>>);

impl PublishedSnapshot {
    /// The last snapshot; none before the first.
    fn last(&self) -> Option<Arc<JobSnapshot>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn publish(&self, snapshot: JobSnapshot) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(snapshot));
    }
}

/// The listening dashboard.
pub(crate) struct Dashboard {
    /// The address at which it really listens.
    pub(crate) address: SocketAddr,
    published: PublishedSnapshot,
}

impl Dashboard {
    /// Listens, and answers on a thread of its own until the process ends.
    pub(crate) fn start(bind: SocketAddr, token: &JoinToken) -> Result<Self, CommandFailure> {
        let listening = || -> std::io::Result<(TcpListener, SocketAddr)> {
            let listener = TcpListener::bind(bind)?;
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        };
        let (listener, address) = listening()
            .usage(format!("the dashboard cannot listen on {bind}"))
            .map_err(|failure| {
                failure.hint("give --dashboard an address of this machine with a port that is free (port 0 takes any)")
            })?;
        let published = PublishedSnapshot::default();
        let access = Access::new(address, token);
        let served = published.clone();
        thread::Builder::new()
            .name("dashboard".to_owned())
            .spawn(move || server::serve(listener, &access, &served))
            .failed("the dashboard has no thread")?;
        Ok(Self { address, published })
    }

    /// Publishes snapshots until the driver is gone.
    pub(crate) async fn publish(self, driver: Addr<Driver>, accounting: Accounting) {
        while let Ok(status) = driver.send(AskStatus).await {
            let (tally, slots) = accounting.tally();
            self.published.publish(JobSnapshot { status: *status, tally, slots });
            sleep(PUBLISHED_EVERY).await;
        }
    }
}
