//! `--dashboard ADDR`: the job's page and `/metrics`, read-only, on a thread of its own beside the actors. Started by the
//! driver's process.
//!
//! The actors' thread gives away its events, by a queue that it never waits for, and a status once a second; pages and
//! scrapes are answered from these. A reader that is slow, or stuck, holds a connection of this thread and nothing
//! else. Bounds limit the number of readers, the length and the requests of their connections, and the memory kept for
//! them.

mod access;
mod answer;
mod assets;
mod feed;
mod follow;
mod output;
mod request;
mod server;
mod viewers;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use actix::Addr;
use elastic_driver::{AskStatus, Driver};
use elastic_observe::JobSnapshot;
use elastic_protocol::Time;
use elastic_transport::JoinToken;
use tokio::time::{sleep, timeout};

use self::access::Access;
pub(crate) use self::feed::EventFeed;
use super::accounting::Accounting;
use crate::command_line::{CommandFailure, ResultExt};

/// Interval between two snapshots, if nothing happens.
const PUBLISHED_EVERY: Duration = Duration::from_secs(1);

/// Shortest interval between two snapshots, if much happens.
const PUBLISHED_APART: Duration = Duration::from_millis(200);

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

/// The job that a dashboard shows.
#[derive(Clone, Debug)]
pub(crate) struct DashboardJob {
    /// Its id.
    pub(crate) id: String,
    /// The event log, in which former drivers of the job may have written.
    pub(crate) log: PathBuf,
    /// The time at which this driver began, since 1970: later lines are its own, and come as events.
    pub(crate) since: Time,
    /// The folder in which hosts store the output of their workers, if they do.
    pub(crate) output_dir: Option<PathBuf>,
}

/// The listening dashboard.
pub(crate) struct Dashboard {
    /// The address at which it really listens.
    pub(crate) address: SocketAddr,
    /// Takes the driver's events.
    pub(crate) feed: EventFeed,
    published: PublishedSnapshot,
}

impl Dashboard {
    /// Listens, and answers on a thread of its own until the process ends. A job that `goes_on` is not kept waiting for its
    /// address: somebody else may have taken that meanwhile. It is tried until it is free.
    pub(crate) fn start(
        bind: SocketAddr,
        token: &JoinToken,
        job: DashboardJob,
        goes_on: bool,
    ) -> Result<Self, CommandFailure> {
        let listener = match listen(bind) {
            Err(error) if goes_on => {
                tracing::warn!(%bind, %error, "the job goes on without its dashboard until this address is free");
                Err(bind)
            }
            listened => Ok(listened
                .usage(format!("the dashboard cannot listen on {bind}"))
                .map_err(|failure| {
                    failure.hint(
                        "give --dashboard an address of this machine with a port that is free (port 0 takes any), or none",
                    )
                })?),
        };
        let address = match &listener {
            Ok(listener) => listener.local_addr().failed("the dashboard has no address")?,
            Err(bind) => *bind,
        };
        let published = PublishedSnapshot::default();
        let access = Access::new(address, token);
        let (feed, events) = EventFeed::new();
        let served = published.clone();
        thread::Builder::new()
            .name("dashboard".to_owned())
            .spawn(move || server::serve(listener, access, served, events, job))
            .failed("the dashboard has no thread")?;
        Ok(Self { address, feed, published })
    }

    /// Publishes snapshots until the driver is gone.
    pub(crate) async fn publish(self, driver: Addr<Driver>, accounting: Accounting) {
        while let Ok(status) = driver.send(AskStatus).await {
            let (tally, slots) = accounting.tally();
            self.published.publish(JobSnapshot { status: *status, tally, slots });
            sleep(PUBLISHED_APART).await;
            // Whether anything has happened or not, a snapshot is due then.
            let _due = timeout(PUBLISHED_EVERY - PUBLISHED_APART, self.feed.fed()).await;
        }
    }
}

/// Listens at an address.
fn listen(bind: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(bind)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
