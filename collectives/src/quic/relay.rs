//! Relays bytes between a stream and the socket whose other end the training thread has. Called by the endpoint.

use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join;
use quinn::{RecvStream, SendStream, VarInt};
use socket2::SockRef;
use tokio::net::UnixStream;

use super::stream_delivery::{CountedStream, StreamDelivery};

/// Bytes relayed at a time.
const CHUNK: usize = 64 * 1024;

/// Counts the streams with bytes that are not sent, or not acknowledged.
#[derive(Debug, Default)]
pub(super) struct Unsent {
    count: Mutex<usize>,
    none: Condvar,
}

impl Unsent {
    pub(super) fn one_more(self: &Arc<Self>) -> Sending {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Sending(Arc::clone(self))
    }

    /// Waits until there is no such stream, at most `most`.
    pub(super) fn wait(&self, most: Duration) {
        let count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        // Peers that have not acknowledged by then count as gone.
        drop(self.none.wait_timeout_while(count, most, |count| *count > 0));
    }
}

/// Counts as one of [`Unsent`] until it is dropped.
pub(super) struct Sending(Arc<Unsent>);

impl Drop for Sending {
    fn drop(&mut self) {
        let mut count = self.0.count.lock().unwrap_or_else(PoisonError::into_inner);
        *count -= 1;
        if *count == 0 {
            self.0.none.notify_all();
        }
    }
}

/// Relays both ways until both have ended. The end of one side's bytes becomes the end of the other's.
pub(super) async fn relay(
    socket: UnixStream,
    send: SendStream,
    receive: RecvStream,
    sending: Sending,
    delivery: &StreamDelivery,
) {
    let counted = delivery.count(VarInt::from(send.id()).into_inner());
    join(carry_out(&socket, send, sending, &counted), carry_in(&socket, receive, &counted)).await;
}

async fn carry_out(
    socket: &UnixStream,
    mut send: SendStream,
    sending: Sending,
    counted: &CountedStream<'_>,
) {
    let mut bytes = vec![0; CHUNK];
    loop {
        match read(socket, &mut bytes).await {
            Ok(count) if count > 0 => {
                counted.wrote(count);
                if send.write_all(&bytes[..count]).await.is_err() {
                    // The peer takes no more bytes, or is gone: this end takes no more either.
                    shut(socket, Shutdown::Read);
                    break;
                }
            }
            // An error also comes after the last byte: the training thread has left, with unread bytes.
            Ok(_) | Err(_) => {
                // The stream ends well if the peer takes all bytes; otherwise the connection is lost to both ends.
                if send.finish().is_ok() {
                    let _ = send.stopped().await;
                }
                break;
            }
        }
    }
    drop(sending);
}

async fn carry_in(socket: &UnixStream, mut receive: RecvStream, counted: &CountedStream<'_>) {
    // An error is the connection's end: the training thread sees it as the end of the stream.
    while let Ok(Some(chunk)) = receive.read_chunk(CHUNK, true).await {
        counted.arrived(chunk.bytes.len());
        if write_all(socket, &chunk.bytes).await.is_err() {
            // The training thread has left; an error of `stop` means that the stream has ended anyway.
            let _ = receive.stop(VarInt::from_u32(0));
            break;
        }
        counted.taken();
    }
    shut(socket, Shutdown::Write);
}

fn shut(socket: &UnixStream, how: Shutdown) {
    // The shutdown fails where the other end is closed, which has the same effect.
    let _ = SockRef::from(socket).shutdown(how);
}

async fn read(socket: &UnixStream, bytes: &mut [u8]) -> io::Result<usize> {
    loop {
        socket.readable().await?;
        match socket.try_read(bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            done => return done,
        }
    }
}

async fn write_all(socket: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        socket.writable().await?;
        match socket.try_write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
