//! The dashboard's connections, on its own thread and runtime: one request each. Started by `dashboard`.

use std::net::TcpListener;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::LocalSet;
use tokio::time::{sleep, timeout};

use super::PublishedSnapshot;
use super::access::Access;
use super::answer::answer;
use super::request::{HEAD_BYTES_MAX, HeadProgress, read_head};

/// Most connections at a time; another one is closed at once.
const CONNECTIONS_MAX: usize = 64;

/// Timeout for a request and its answer. A reader that stands still holds its connection for so long.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// Pause after a connection that could not be accepted, as without descriptors.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// Serves until the process ends. Without a runtime of its own nothing is served, and the log says so.
pub(super) fn serve(listener: TcpListener, access: &Access, published: &PublishedSnapshot) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let served = runtime.and_then(|runtime| {
        LocalSet::new().block_on(&runtime, accept(listener, access.clone(), published.clone()))
    });
    if let Err(error) = served {
        tracing::warn!(%error, "the dashboard does not answer");
    }
}

async fn accept(
    listener: TcpListener,
    access: Access,
    published: PublishedSnapshot,
) -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let (access, places) = (Rc::new(access), Arc::new(Semaphore::new(CONNECTIONS_MAX)));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(REFUSED_PAUSE).await;
            continue;
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
        let (access, published) = (Rc::clone(&access), published.clone());
        tokio::task::spawn_local(async move {
            // A reader that breaks off, or is cut off, is no event.
            let _ended = timeout(ANSWERED_WITHIN, serve_one(stream, &access, &published)).await;
            drop(place);
        });
    }
}

/// Reads a request, answers it, and ends the connection.
async fn serve_one(
    mut stream: TcpStream,
    access: &Access,
    published: &PublishedSnapshot,
) -> std::io::Result<()> {
    let mut head = Vec::new();
    let mut piece = [0; 4_096];
    loop {
        let answer = match read_head(&head) {
            HeadProgress::Complete(request) => answer(&request, access, published),
            HeadProgress::Invalid(answer) => answer,
            HeadProgress::Partial if head.len() < HEAD_BYTES_MAX => {
                let count = stream.read(&mut piece).await?;
                if count == 0 {
                    return Ok(());
                }
                head.extend_from_slice(&piece[..count]);
                continue;
            }
            HeadProgress::Partial => super::request::too_long(),
        };
        stream.write_all(&answer.into_bytes()).await?;
        return stream.shutdown().await;
    }
}
