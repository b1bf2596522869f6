//! The relay's sockets: a listener on the loopback, and a task for each connection.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use actix::Addr;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::spawn_local;

use super::actor::{Bytes, Closed, Connected, ORDERS_MAX, Order, Relay};
use super::core::Owner;

/// Read at a time.
const READ_BYTES: usize = 64 << 10;

/// Says whose process is at the other end of a connection, or why it is not let in.
pub type Admission = Rc<dyn Fn(Ends) -> Result<Owner, String>>;

/// A connection of this machine with itself.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// The client's address.
    pub client: SocketAddr,
    /// The address that it has connected to.
    pub server: SocketAddr,
}

/// Listens on the loopback, on any port that is free; serves until the node's tasks end.
///
/// # Errors
/// If the system gives no port.
pub fn listen(relay: Addr<Relay>, admission: Admission) -> io::Result<SocketAddr> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let address = listener.local_addr()?;
    spawn_local(async move {
        loop {
            match listener.accept().await {
                Ok((stream, client)) => match admission(Ends { client, server: address }) {
                    Ok(owner) => drop(spawn_local(serve(stream, owner, relay.clone()))),
                    Err(reason) => tracing::warn!(%client, reason, "not let in to the store"),
                },
                Err(error) => {
                    tracing::warn!(%error, "a connection to the store was not taken");
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
            }
        }
    });
    Ok(address)
}

async fn serve(stream: TcpStream, owner: Owner, relay: Addr<Relay>) {
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
                // Full: it has been told already. Closed: the reader has ended.
                let _ = read_on.try_send(());
            }
            Order::Write(bytes) => {
                if writes.write_all(&bytes).await.is_err() {
                    break;
                }
            }
        }
    }
    reader.abort();
    relay.do_send(Closed(client));
    end(writes).await;
}

/// Closes the connection for the client, too: it fails at once, whatever it waits for.
async fn end(mut writes: OwnedWriteHalf) {
    // It may have closed the connection itself.
    let _ = writes.shutdown().await;
}

async fn read(
    mut reads: OwnedReadHalf,
    client: crate::messages::ClientId,
    relay: Addr<Relay>,
    mut read_on: mpsc::Receiver<()>,
) {
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let bytes = match reads.read(&mut buffer).await {
            Ok(length) if length > 0 => buffer[..length].to_vec(),
            _ => break,
        };
        match relay.send(Bytes { client, bytes }).await {
            Ok(true) => {}
            Ok(false) if read_on.recv().await.is_some() => {}
            _ => return,
        }
    }
    relay.do_send(Closed(client));
}
