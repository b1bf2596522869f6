//! A viewer of the page: a connection that asks for news and takes them, or does not. Used by `page`.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// A viewer's treatment of the data that it is sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ViewerManner {
    /// It takes everything.
    Reads,
    /// It takes nothing.
    Stuck,
}

/// An open page; dropped, it is closed.
pub(super) struct PageViewer {
    connection: TcpStream,
    bytes: Arc<AtomicU64>,
}

impl PageViewer {
    /// Opens the page's stream of news.
    pub(super) fn open(page: SocketAddr, manner: ViewerManner) -> anyhow::Result<Self> {
        let mut connection = TcpStream::connect(page)?;
        write!(connection, "GET /news HTTP/1.1\r\nhost: {page}\r\n\r\n")?;
        let bytes: Arc<AtomicU64> = Arc::default();
        if manner == ViewerManner::Reads {
            let (mut news, taken) = (connection.try_clone()?, Arc::clone(&bytes));
            let read = move || {
                let mut buffer = vec![0; 64 << 10];
                while let Ok(read @ 1..) = news.read(&mut buffer) {
                    taken.fetch_add(read as u64, Ordering::Relaxed);
                }
            };
            thread::Builder::new().name("viewer".to_owned()).spawn(read)?;
        }
        Ok(Self { connection, bytes })
    }

    /// Bytes that it has taken.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for PageViewer {
    fn drop(&mut self) {
        // A viewer that was cut off has no connection to close.
        let _ = self.connection.shutdown(Shutdown::Both);
    }
}
