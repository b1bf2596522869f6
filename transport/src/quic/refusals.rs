//! Refusals: a peer's host has answered a datagram with "port unreachable" (ICMP), as the kernel does once the process
//! that had the port has ended. QUIC ignores these messages (RFC 9000, section 14.2.1), since others can forge
//! them; here they make the core of peers judge the peer's silence sooner. Called by the transport of a driver.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::rc::Rc;

use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::quic::links::QuicLinks;

/// Most messages that are read before other tasks get their turn.
const AT_ONCE_MAX: usize = 64;

/// Room for the control messages of one error. Besides the error itself, the kernel adds in front the data that QUIC
/// asked for with each datagram (its address and marks).
const CONTROL_BYTES: usize = 512;

/// Origins of errors that the kernel reports for a socket (`linux/errqueue.h`).
const FROM_ICMP: u8 = 2;
const FROM_ICMP6: u8 = 3;

/// Asks the kernel to keep refusals for this socket. Returns a second descriptor of it, to read them.
///
/// # Errors
/// The system's error.
pub(crate) fn keep_refusals(socket: &UdpSocket) -> io::Result<UdpSocket> {
    setsockopt(socket, sockopt::Ipv4RecvErr, &true)?;
    if socket.local_addr()?.is_ipv6() {
        setsockopt(socket, sockopt::Ipv6RecvErr, &true)?;
    }
    socket.try_clone()
}

/// Reads refusals for as long as the transport lives.
pub(crate) async fn watch_refusals(links: Rc<QuicLinks>, socket: UdpSocket) {
    let watched = match listen(socket) {
        Ok(watched) => watched,
        Err(error) => {
            // Without it, a process that was killed is noticed by its silence.
            return tracing::debug!(%error, "refusals are not read");
        }
    };
    while let Ok(mut guard) = watched.ready(Interest::ERROR).await {
        for _ in 0..AT_ONCE_MAX {
            match next_refusal(watched.get_ref()) {
                Ok(Some(address)) => links.handle_refused(address),
                Ok(None) => {}
                Err(_nothing_left) => {
                    guard.clear_ready();
                    break;
                }
            }
        }
        tokio::task::yield_now().await;
    }
}

#[expect(unsafe_code, reason = "tokio wants a promise about the descriptor")]
fn listen(socket: UdpSocket) -> io::Result<AsyncFd<UdpSocket>> {
    // SAFETY: the descriptor is valid, and stays so for as long as the `AsyncFd` owns it.
    Ok(unsafe { AsyncFd::register_with_interest(socket, Interest::ERROR)? })
}

/// The address to which a refused datagram was sent. `None` for another error, such as one of the path.
fn next_refusal(socket: &UdpSocket) -> Result<Option<SocketAddr>, Errno> {
    let mut datagram = [0; 64];
    let mut parts = [IoSliceMut::new(&mut datagram)];
    let mut space = vec![0; CONTROL_BYTES];
    let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
    let message =
        recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags)?;
    let is_refusal = message.cmsgs()?.any(|control| match control {
        ControlMessageOwned::Ipv4RecvErr(error, _) | ControlMessageOwned::Ipv6RecvErr(error, _) => {
            error.ee_errno == Errno::ECONNREFUSED as u32
                && matches!(error.ee_origin, FROM_ICMP | FROM_ICMP6)
        }
        _ => false,
    });
    Ok(message.address.filter(|_| is_refusal).and_then(|to| plain(&to)))
}

fn plain(address: &SockaddrStorage) -> Option<SocketAddr> {
    if let Some(v4) = address.as_sockaddr_in() {
        return Some(SocketAddr::from((v4.ip(), v4.port())));
    }
    let v6 = address.as_sockaddr_in6()?;
    Some(SocketAddr::from((IpAddr::V6(v6.ip()).to_canonical(), v6.port())))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_datagram_to_a_closed_port_is_told_with_its_address() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(told());
    }

    async fn told() {
        let gone = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = gone.local_addr().unwrap();
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let watched = keep_refusals(&socket).unwrap();
        drop(gone);
        assert_eq!(next_refusal(&watched), Err(Errno::EAGAIN), "nothing was sent yet");
        socket.send_to(b"x", address).unwrap();
        let watched = listen(watched).unwrap();
        let told = tokio::time::timeout(Duration::from_secs(10), watched.ready(Interest::ERROR));
        drop(told.await.expect("the kernel tells").unwrap());
        assert_eq!(next_refusal(watched.get_ref()), Ok(Some(address)));
    }
}
