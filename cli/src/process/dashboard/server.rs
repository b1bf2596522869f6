//! The dashboard's connections, on its own thread and runtime, by hyper: one request each. Run by `thread`.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use elastic_observe::{PageRecord, since_1970};
use elastic_runtime::system::new_runtime;
use elastic_runtime::wall_clock;
use elastic_store::relay::listener::Ends;
use futures_util::future::{Either, select};
use http_body_util::{BodyExt as _, Either as OneBody, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::LocalSet;
use tokio::time::sleep;

use super::access::Access;
use super::answer::{DashboardRoute, answer};
use super::feed::FedEvents;
use super::follow::follow;
use super::output::{OutputFolder, answer_output};
use super::request::{DashboardAnswer, DashboardRequest, EVENT_STREAM};
use super::viewers::{ConnectionState, ViewerNews, Viewers};
use super::{PublishedSnapshot, listen};

/// Most connections at a time; another one is closed at once.
const CONNECTIONS_MAX: usize = 64;

/// Timeout for a request and its answer. A reader that stands still holds its connection for so long.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// Pause after a connection that could not be accepted, as without descriptors.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// Interval between two attempts to listen at an address that somebody else has.
const LISTEN_AGAIN: Duration = Duration::from_secs(2);

/// Most bytes of a request's head.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Most headers of a request.
const HEADERS_MAX: usize = 64;

/// Most bytes of a login.
const LOGIN_BYTES_MAX: usize = 4 << 10;

/// The state that all connections share.
pub(super) struct DashboardService {
    access: Access,
    pub(super) published: PublishedSnapshot,
    pub(super) record: RefCell<PageRecord>,
    pub(super) viewers: Viewers,
    outputs: OutputFolder,
}

type DashboardBody = OneBody<Full<Bytes>, ViewerNews>;

/// The parts of a server that does not answer yet.
pub(super) struct Unserved {
    /// The listener; or the address, if that is not free yet.
    pub(super) listener: Result<TcpListener, SocketAddr>,
    pub(super) access: Access,
    pub(super) published: PublishedSnapshot,
    pub(super) events: FedEvents,
    pub(super) output_dir: Option<PathBuf>,
}

/// Serves until `ended` is closed, by a listener or, later, at an address that is not free yet. Then the listener and all
/// connections are closed; reads of a disk that does not answer are not waited for. Without a runtime of its own nothing
/// is served, and the log says so.
pub(super) fn serve(unserved: Unserved, record: PageRecord, ended: oneshot::Receiver<Infallible>) {
    let Unserved { listener, access, published, events, output_dir } = unserved;
    let record = RefCell::new(record);
    let (viewers, outputs) = (Viewers::default(), OutputFolder::new(output_dir));
    let service = Rc::new(DashboardService { access, published, record, viewers, outputs });
    let served = new_runtime().and_then(|runtime| {
        let local = LocalSet::new();
        local.spawn_local(follow(Rc::clone(&service), events));
        let accepting = pin!(accept(listener, service));
        let served = match local.block_on(&runtime, select(accepting, ended)) {
            Either::Left((served, _)) => served,
            Either::Right(_) => Ok(()),
        };
        drop(local);
        runtime.shutdown_background();
        served
    });
    if let Err(error) = served {
        tracing::warn!(%error, "the dashboard does not answer");
    }
}

async fn accept(
    listener: Result<TcpListener, SocketAddr>,
    service: Rc<DashboardService>,
) -> std::io::Result<()> {
    let listener = match listener {
        Ok(listener) => listener,
        Err(bind) => loop {
            sleep(LISTEN_AGAIN).await;
            if let Ok(listener) = listen(bind) {
                tracing::info!(%bind, "the dashboard's address is free: it listens there");
                break listener;
            }
        },
    };
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(REFUSED_PAUSE).await;
            continue;
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
        let service = Rc::clone(&service);
        tokio::task::spawn_local(async move {
            serve_one(stream, service).await;
            drop(place);
        });
    }
}

/// Serves a connection until its answer is sent, its time is over, or its page is cut off. A reader that breaks off is no
/// event.
async fn serve_one(stream: TcpStream, service: Rc<DashboardService>) {
    let state = Rc::new(ConnectionState::default());
    let Ok(ends) = ends_of(&stream) else { return };
    let asked = Rc::clone(&state);
    let respond =
        service_fn(move |request| respond(request, Rc::clone(&service), Rc::clone(&asked), ends));
    let mut builder = http1::Builder::new();
    builder.keep_alive(false).max_buf_size(HEAD_BYTES_MAX).max_headers(HEADERS_MAX);
    let served = pin!(builder.serve_connection(TokioIo::new(stream), respond));
    let ended = until(served, sleep(ANSWERED_WITHIN)).await;
    if let Some(served) = ended
        && state.is_viewer.get()
    {
        until(served, state.cut.notified()).await;
    }
}

fn ends_of(stream: &TcpStream) -> std::io::Result<Ends> {
    Ok(Ends { client: stream.peer_addr()?, server: stream.local_addr()? })
}

/// Runs a future to its end, or until another one ends first; then it is returned.
async fn until<F: Future + Unpin>(run: F, end: impl Future) -> Option<F> {
    match select(run, pin!(end)).await {
        Either::Left(_) => None,
        Either::Right((_, run)) => Some(run),
    }
}

async fn respond(
    request: Request<Incoming>,
    service: Rc<DashboardService>,
    connection: Rc<ConnectionState>,
    ends: Ends,
) -> Result<Response<DashboardBody>, Infallible> {
    let (head, body) = request.into_parts();
    let mut request = DashboardRequest::new(&head);
    if request.is_login() && service.access.has_login() {
        match Limited::new(body, LOGIN_BYTES_MAX).collect().await {
            Ok(body) => request.body = body.to_bytes(),
            Err(_too_long_or_broken) => {
                let text = "the form is too long";
                return Ok(of(DashboardAnswer::plain(StatusCode::PAYLOAD_TOO_LARGE, text)));
            }
        }
    }
    Ok(match answer(&request, &service.access, &service.published) {
        DashboardRoute::Answer(answer) => of(answer),
        DashboardRoute::News => news(&service, &connection),
        DashboardRoute::Output(query) => {
            let reader = (!service.access.has_login()).then_some(ends);
            of(answer_output(&service.outputs, query, reader, &service.record).await)
        }
    })
}

fn of(answer: DashboardAnswer) -> Response<DashboardBody> {
    answer.head().map(|()| OneBody::Left(Full::new(answer.body)))
}

/// The stream of news for a page: everything, and then the changes.
fn news(service: &DashboardService, connection: &Rc<ConnectionState>) -> Response<DashboardBody> {
    let snapshot = service.published.last();
    let status = snapshot.as_ref().map(|snapshot| &snapshot.status);
    let whole = service.record.borrow().whole(since_1970(wall_clock()), status);
    match service.viewers.add(connection, &whole) {
        Some(news) => {
            let stream = DashboardAnswer::new(StatusCode::OK, EVENT_STREAM, Bytes::new());
            stream.head().map(|()| OneBody::Right(news))
        }
        None => {
            let text = "too many pages are open";
            of(DashboardAnswer::plain(StatusCode::SERVICE_UNAVAILABLE, text))
        }
    }
}
