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
mod thread;
mod viewers;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use actix::Addr;
use elastic_driver::{AskStatus, Driver};
use elastic_observe::JobSnapshot;
use elastic_protocol::Time;
use elastic_transport::JoinToken;
use tokio::time::{sleep, timeout};

use self::access::Access;
pub(crate) use self::feed::EventFeed;
use self::server::Unserved;
use self::thread::DashboardThread;
use super::accounting::Accounting;
use crate::command_line::{CommandFailure, MORE_THREADS, ResultExt};

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

/// The listening dashboard. It ends when this is dropped: nothing listens at its address any more, its connections are
/// closed, and its thread ends.
pub(crate) struct Dashboard {
    /// The address at which it really listens.
    pub(crate) address: SocketAddr,
    /// Takes the driver's events.
    pub(crate) feed: EventFeed,
    published: PublishedSnapshot,
    _thread: Rc<DashboardThread>,
}

impl Dashboard {
    /// Listens, and answers on a thread of its own. A job that `goes_on` is not kept waiting for its address, which somebody
    /// else may have taken meanwhile, nor for a thread: either is tried until it can be had.
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
        let output_dir = job.output_dir.clone();
        let unserved =
            Unserved { listener, access, published: published.clone(), events, output_dir };
        let thread = Rc::new(DashboardThread::new(job, unserved));
        match thread.start() {
            Ok(()) => {}
            Err(error) if goes_on => {
                tracing::warn!(%error, "the job goes on without its dashboard until there is a thread for it");
                tokio::task::spawn_local(thread::start_later(Rc::downgrade(&thread)));
            }
            Err(error) => {
                let failure = CommandFailure::new("the dashboard has no thread").source(error);
                return Err(failure.hint(MORE_THREADS));
            }
        }
        Ok(Self { address, feed, published, _thread: thread })
    }

    /// Publishes snapshots until the driver is gone.
    pub(crate) fn publish(
        &self,
        driver: Addr<Driver>,
        accounting: Accounting,
    ) -> impl Future<Output = ()> + use<> {
        let (published, feed) = (self.published.clone(), self.feed.clone());
        async move {
            while let Ok(status) = driver.send(AskStatus).await {
                let (tally, slots) = accounting.tally();
                published.publish(JobSnapshot { status: *status, tally, slots });
                sleep(PUBLISHED_APART).await;
                // Whether anything has happened or not, a snapshot is due then.
                let _due = timeout(PUBLISHED_EVERY - PUBLISHED_APART, feed.fed()).await;
            }
        }
    }
}

/// Listens at an address.
fn listen(bind: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(bind)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;
    use std::rc::Weak;
    use std::thread::park_timeout;

    use elastic_protocol::{Incarnation, JobId};
    use elastic_runtime::system::run_paused;
    use elastic_runtime::wall_clock;
    use elastic_transport::JobSecrets;
    use uuid::Uuid;

    use super::*;

    fn token() -> JoinToken {
        let secrets = JobSecrets::new(JobId(Uuid::nil())).expect("made");
        let authority = secrets.authority().expect("made");
        secrets.credentials(&authority, Incarnation(1)).join_token()
    }

    fn job() -> DashboardJob {
        let since = elastic_observe::since_1970(wall_clock());
        DashboardJob { id: "j".to_owned(), log: "/nowhere/log".into(), since, output_dir: None }
    }

    /// A connection, once it has answered a request.
    fn asked(address: SocketAddr, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(WITHIN)).expect("a socket");
        let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("it is read");
        let mut head = [0; 12];
        stream.read_exact(&mut head).expect("an answer");
        assert_eq!(&head, b"HTTP/1.1 200");
        stream
    }

    const WITHIN: Duration = Duration::from_secs(20);

    fn threads() -> usize {
        let tasks = std::fs::read_dir("/proc/self/task").expect("ours");
        let names =
            tasks.flatten().filter_map(|it| std::fs::read_to_string(it.path().join("comm")).ok());
        names.filter(|name| name.trim() == "dashboard").count()
    }

    fn wait(what: &str, condition: impl Fn() -> bool) {
        let until = tokio::time::Instant::now() + WITHIN;
        while !condition() {
            assert!(tokio::time::Instant::now() < until, "waited for {what} in vain");
            park_timeout(Duration::from_millis(5));
        }
    }

    fn not_started() -> (SocketAddr, DashboardThread) {
        let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
        let address = listener.local_addr().expect("bound");
        let (_feed, events) = EventFeed::new();
        let (access, published) = (Access::new(address, &token()), PublishedSnapshot::default());
        let unserved =
            Unserved { listener: Ok(listener), access, published, events, output_dir: None };
        (address, DashboardThread::new(job(), unserved))
    }

    #[test]
    fn d_2_a_dashboard_that_ends_leaves_its_address_its_connections_and_no_thread() {
        let mut bind = SocketAddr::from(([127, 0, 0, 1], 0));
        for _life in 0..3 {
            let dashboard = Dashboard::start(bind, &token(), job(), false).expect("it is free");
            bind = dashboard.address;
            drop(asked(bind, "/"));
            let mut page = asked(bind, "/news");
            drop(dashboard);
            // An open page has no end of its own.
            page.read_to_end(&mut Vec::new()).expect("it is closed");
            wait("the end of its thread", || threads() == 0);
            TcpStream::connect(bind).expect_err("nothing listens there");
        }
    }

    #[test]
    fn d_2_a_dashboard_whose_thread_does_not_come_to_answer_leaves_its_address() {
        let (address, thread) = not_started();
        // As where its disk hangs, or there is no thread.
        drop(thread);
        TcpStream::connect(address).expect_err("nothing listens there");
    }

    #[test]
    fn s_2_a_dashboard_that_got_no_thread_answers_once_there_is_one() {
        let (address, thread) = not_started();
        let thread = Rc::new(thread);
        run_paused(thread::start_later(Rc::downgrade(&thread)));
        drop(asked(address, "/"));
        drop(thread);
        wait("the end of its listener", || TcpStream::connect(address).is_err());
        // One whose dashboard has ended meanwhile starts nothing.
        run_paused(thread::start_later(Weak::new()));
    }
}
