//! Tests of forming over loopback, with threads of this process as ranks.

mod encryption;
mod forming;
mod quic;

use std::net::SocketAddr;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::{DEFAULT_STREAMS, GroupSpec, TcpCommunicator, TcpFabric};
use crate::DataPlane;
use crate::{AbortHandle, FormError};

const KEY: [u8; 32] = [7; 32];
/// Time limit that ends a hanging test; a passing test never waits this long.
const LONG: Duration = Duration::from_secs(60);

#[expect(clippy::disallowed_methods, reason = "the ranks of a test are threads")]
fn spawn<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    thread::spawn(body)
}

fn fabric() -> TcpFabric {
    TcpFabric::bind("127.0.0.1:0".parse().unwrap()).unwrap()
}

fn fabrics(world: u32) -> (Vec<TcpFabric>, Vec<SocketAddr>) {
    let fabrics: Vec<_> = (0..world).map(|_| fabric()).collect();
    let addresses = fabrics.iter().map(TcpFabric::local_address).collect();
    (fabrics, addresses)
}

fn group(generation: u64, rank: u32, peers: &[SocketAddr]) -> GroupSpec {
    GroupSpec {
        term: 1,
        generation,
        rank,
        peers: peers.to_vec(),
        hosts: Vec::new(),
        host_names: Vec::new(),
        key: KEY,
        data_plane: DataPlane::Auto,
        encrypts: false,
        streams: DEFAULT_STREAMS,
        form_deadline: LONG,
        operation_deadline: LONG,
        path_deadline: crate::DEFAULT_PATH_DEADLINE,
    }
}

type Formed = Result<(TcpFabric, TcpCommunicator), (TcpFabric, FormError)>;

/// Forms a group on a separate thread.
#[expect(clippy::result_large_err, reason = "the fabric comes back either way")]
fn form(mut fabric: TcpFabric, group: GroupSpec, abort: &AbortHandle) -> JoinHandle<Formed> {
    let abort = abort.clone();
    spawn(move || match fabric.form(&group, &abort) {
        Ok(communicator) => Ok((fabric, communicator)),
        Err(error) => Err((fabric, error)),
    })
}
