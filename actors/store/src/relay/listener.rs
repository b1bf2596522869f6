//! The relay's sockets: a listener on the loopback, and a task for each connection. Called by the agent.

use std::cell::Cell;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use futures_util::future::LocalBoxFuture;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep, timeout};

use super::actor::{BytesRead, Closed, Connected, Faulty, ORDERS_MAX, Order, Relay, Written};
use super::core::ConnectionOwner;
use crate::limits::{NOT_TAKEN_AFTER, READ_BYTES};
use crate::messages::ClientId;

/// Most connections whose owner is not known yet; others wait in the system's queue.
pub const UNPROVED_MAX: usize = 128;

/// Time limit for finding a connection's owner.
const PROVED_WITHIN: Duration = Duration::from_secs(5);

/// Interval between log messages about refused connections.
const REFUSALS_TOLD_EVERY: Duration = Duration::from_secs(10);

/// Finds the owner of a connection's process, or the reason why it is refused.
pub type ClientAdmission =
    Rc<dyn Fn(Ends) -> LocalBoxFuture<'static, Result<ConnectionOwner, String>>>;

/// A connection of this machine with itself.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// The client's address.
    pub client: SocketAddr,
    /// The address that it has connected to.
    pub server: SocketAddr,
}

/// A port of the loopback for [`listen`], any that is free.
///
/// # Errors
/// The system gives no port.
pub fn free_port() -> io::Result<std::net::TcpListener> {
    std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
}

/// Listens on a port of the loopback; serves until the node's tasks end.
///
/// # Errors
/// The system refuses an event for it.
pub fn listen(
    listener: std::net::TcpListener,
    relay: Addr<Relay>,
    admission: ClientAdmission,
) -> io::Result<SocketAddr> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let address = listener.local_addr()?;
    let (places, refusals) = (Arc::new(Semaphore::new(UNPROVED_MAX)), Rc::new(Refusals::default()));
    spawn_local(async move {
        // The semaphore is never closed.
        while let Ok(place) = Arc::clone(&places).acquire_owned().await {
            match listener.accept().await {
                Ok((stream, client)) => {
                    let proved = admission(Ends { client, server: address });
                    let (relay, refusals) = (relay.clone(), Rc::clone(&refusals));
                    spawn_local(async move {
                        let proved = owner_in_time(proved).await;
                        drop(place);
                        match proved {
                            Ok(owner) => serve(stream, owner, relay).await,
                            Err(reason) => refusals.tell(client, &reason),
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection to the store was not taken");
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
    });
    Ok(address)
}

/// The owner, if it is found in time.
async fn owner_in_time(
    proved: LocalBoxFuture<'static, Result<ConnectionOwner, String>>,
) -> Result<ConnectionOwner, String> {
    let in_time = timeout(PROVED_WITHIN, proved).await;
    in_time.unwrap_or_else(|_| Err("its owner was not found in time".into()))
}

/// Logs refused connections at intervals.
#[derive(Debug, Default)]
struct Refusals {
    told_at: Cell<Option<Instant>>,
    untold: Cell<u64>,
}

impl Refusals {
    fn tell(&self, client: SocketAddr, reason: &str) {
        let untold = self.untold.get();
        if self.told_at.get().is_some_and(|at| at.elapsed() < REFUSALS_TOLD_EVERY) {
            return self.untold.set(untold + 1);
        }
        tracing::warn!(%client, reason, untold, "not let in to the store");
        self.told_at.set(Some(Instant::now()));
        self.untold.set(0);
    }
}

async fn serve(stream: TcpStream, owner: ConnectionOwner, relay: Addr<Relay>) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "answers may be held back by the system");
    }
    let (tell, mut orders) = mpsc::channel(ORDERS_MAX);
    let Ok(Some(client)) = relay.send(Connected { owner, orders: tell }).await else {
        return tracing::warn!("too many connections to the store");
    };
    let (reads, mut writes) = stream.into_split();
    let (read_on, held) = mpsc::channel(1);
    let reader = spawn_local(read(reads, client, relay.clone(), held));
    while let Some(order) = orders.recv().await {
        match order {
            Order::ReadOn => {
                // Full: the reader has been told already. Closed: the reader has ended.
                let _ = read_on.try_send(());
            }
            Order::Write(bytes) => match write(&mut writes, &bytes).await {
                Ok(()) => relay.do_send(Written(client)),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    let seconds = NOT_TAKEN_AFTER.as_secs();
                    let reason = format!("it has not read its answer for {seconds} s");
                    relay.do_send(Faulty(client, reason));
                    break;
                }
                Err(_) => break,
            },
        }
    }
    reader.abort();
    relay.do_send(Closed(client));
    end(writes).await;
}

/// Writes an answer for as long as the client takes some of it now and then.
async fn write(writes: &mut OwnedWriteHalf, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = timeout(NOT_TAKEN_AFTER, writes.write(bytes)).await??;
        bytes = bytes.get(written..).unwrap_or_default();
    }
    Ok(())
}

/// Closes the connection for the client, too. Any call in which the client waits fails at once.
async fn end(mut writes: OwnedWriteHalf) {
    // The client may have closed the connection itself.
    let _ = writes.shutdown().await;
}

async fn read(
    mut reads: OwnedReadHalf,
    client: ClientId,
    relay: Addr<Relay>,
    mut read_on: mpsc::Receiver<()>,
) {
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let bytes = match reads.read(&mut buffer).await {
            Ok(length) if length > 0 => buffer[..length].to_vec(),
            _ => break,
        };
        match relay.send(BytesRead { client, bytes }).await {
            Ok(true) => {}
            Ok(false) if read_on.recv().await.is_some() => {}
            _ => return,
        }
    }
    relay.do_send(Closed(client));
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("bound")).await;
        let (server, _) = listener.accept().await.expect("it has connected");
        (client.expect("it is there"), server)
    }

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(test);
    }

    #[test]
    fn s_8_an_answer_of_which_a_client_takes_nothing_is_given_up_in_time() {
        run(give_up_an_answer());
    }

    async fn give_up_an_answer() {
        let (client, server) = connected().await;
        let (_reads, mut writes) = server.into_split();
        // More than the system takes for a client that does not read.
        let answer = vec![0; 64 << 20];
        tokio::time::pause();
        let begun = Instant::now();
        let error = write(&mut writes, &answer).await.expect_err("nobody reads it");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() >= NOT_TAKEN_AFTER, "{:?}", begun.elapsed());
        drop(client);
    }

    #[test]
    fn s_4_a_connection_whose_owner_is_not_found_in_time_is_refused() {
        run(refuse_for_lack_of_an_owner());
    }

    async fn refuse_for_lack_of_an_owner() {
        let never = Box::pin(std::future::pending());
        tokio::time::pause();
        let begun = Instant::now();
        let Err(reason) = owner_in_time(never).await else { panic!("it has no owner") };
        assert_eq!(reason, "its owner was not found in time");
        assert_eq!(begun.elapsed().as_secs(), PROVED_WITHIN.as_secs());
    }
}
