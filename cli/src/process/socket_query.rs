//! Asks the kernel for one TCP connection of this machine (sock_diag(7)): the owner of the other end of a loopback
//! connection. A lookup by both addresses takes microseconds, while a table of all connections takes 10 ms and more.
//! Used by [`socket_table`](super::socket_table).

use std::io;
use std::net::SocketAddr;

use elastic_store::relay::listener::Ends;
use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload, Nla as _};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP};
use netlink_packet_sock_diag::inet::nlas::Nla;
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, SocketId, StateFlags};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use nix::libc::MSG_DONTWAIT;

use super::socket_table::LocalSocket;

/// Most bytes of an answer: one socket, and attributes that were not asked for.
const ANSWER_MAX: usize = 8 * 1024;

/// Any socket with these addresses (`INET_DIAG_NOCOOKIE`).
const ANY_COOKIE: [u8; 8] = [0xff; 8];

/// `INET_DIAG_CGROUP_ID` (Linux 5.9), which comes without being asked for.
const CONTROL_GROUP_ID: u16 = 21;

/// A connection to the kernel's socket monitor.
pub(super) struct SocketMonitor(Socket);

impl SocketMonitor {
    /// Connects to it.
    ///
    /// # Errors
    /// The kernel lacks it, or a sandbox forbids it.
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
        socket.bind_auto()?;
        socket.connect(&netlink_sys::SocketAddr::new(0, 0))?;
        Ok(Self(socket))
    }

    /// The client's socket of a connection; `None` if this machine has none.
    ///
    /// # Errors
    /// The kernel cannot say, or its answer is not understood.
    pub(super) fn client_socket(&self, ends: Ends) -> io::Result<Option<LocalSocket>> {
        let id = id_of(ends.client, ends.server);
        self.0.send(&request(id.clone()), 0)?;
        let mut answer = Vec::with_capacity(ANSWER_MAX);
        // The kernel has answered when `send` is back.
        self.0.recv(&mut answer, MSG_DONTWAIT)?;
        let message = NetlinkMessage::<SockDiagMessage>::deserialize(&answer)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        match message.payload {
            NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(response)) => {
                let found = response.header;
                // If no connection has these addresses, a listening socket may answer.
                let is_it = has_ends_of(&found.socket_id, &id) && found.inode != 0;
                let inode = u64::from(found.inode);
                let group = response.nlas.iter().find_map(control_group);
                Ok(is_it.then_some(LocalSocket { inode, user: found.uid, group }))
            }
            NetlinkPayload::Error(error) => {
                let error = error.to_io();
                if error.kind() == io::ErrorKind::NotFound { Ok(None) } else { Err(error) }
            }
            other => Err(io::Error::new(io::ErrorKind::InvalidData, format!("{other:?}"))),
        }
    }
}

/// The control group of a socket, by its id.
fn control_group(attribute: &Nla) -> Option<u64> {
    if attribute.kind() != CONTROL_GROUP_ID {
        return None;
    }
    let mut bytes = [0; 8];
    (attribute.value_len() == bytes.len()).then(|| attribute.emit_value(&mut bytes))?;
    Some(u64::from_ne_bytes(bytes))
}

fn request(socket_id: SocketId) -> Vec<u8> {
    let family = if socket_id.source_address.is_ipv4() { AF_INET } else { AF_INET6 };
    let extensions = ExtensionFlags::empty();
    let (protocol, states) = (IPPROTO_TCP, StateFlags::all());
    let request = InetRequest { family, protocol, extensions, states, socket_id };
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST;
    let mut message = NetlinkMessage::new(header, SockDiagMessage::InetRequest(request).into());
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

/// IPv4 addresses are written as such: the kernel finds sockets of IPv6 with IPv4 addresses by them, too.
fn id_of(source: SocketAddr, destination: SocketAddr) -> SocketId {
    SocketId {
        source_port: source.port(),
        destination_port: destination.port(),
        source_address: source.ip().to_canonical(),
        destination_address: destination.ip().to_canonical(),
        interface_id: 0,
        cookie: ANY_COOKIE,
    }
}

fn has_ends_of(found: &SocketId, asked: &SocketId) -> bool {
    let ends = |id: &SocketId| {
        let addresses = (id.source_address.to_canonical(), id.destination_address.to_canonical());
        (addresses, id.source_port, id.destination_port)
    };
    ends(found) == ends(asked)
}
