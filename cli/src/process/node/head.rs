//! Whether the driver is on this node: at the head's address, unless another `run` of this machine has bound it, or another
//! node that has one of the endpoint's addresses drives. Called by `node`.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::thread;

use elastic_runtime::system;
use elastic_transport::network::{ip_towards, is_name_of_host};
use tokio::time::{Instant, sleep};

use super::head_choice::{HeadChoice, HeadStep, OTHERS_MAX};
use super::taken_port::once_settled;
use super::{Bound, ELSEWHERE, resolve};
use crate::command_line::{CommandFailure, NodePlan, ResultExt, covers, refuse_bind};
use crate::process::driver_reach::{DriverLook, look_at, route_to};
use crate::process::network::is_own;

/// The head's port, as this node finds it.
pub(super) enum HeadPort<T> {
    /// This node has bound it.
    Bound(T),
    /// It is this node's, and another process has it.
    Taken,
    /// It is another node's.
    Elsewhere,
}

/// The driver's address, bound, if the driver is on this node.
pub(super) fn bind_head(plan: &NodePlan) -> Result<Option<Bound>, CommandFailure> {
    let head = plan.head.as_deref().unwrap_or_default();
    if plan.rank.is_some_and(|rank| rank > 0) {
        return Ok(None);
    }
    let addresses = resolve(head)?;
    if let Some(bind) = plan.bind
        && !addresses.iter().any(|address| covers(bind, *address))
    {
        return Err(refuse_bind(bind, head));
    }
    let port = || head_port(head, plan.rank, plan.bind, &addresses);
    let is_answered = || look(&addresses).contains(&DriverLook::Answered);
    let choice = plan.rank.is_none().then(|| choice_among(&addresses)).flatten();
    let settled = async {
        let bound = once_settled(head, plan.patience, port, is_answered).await?;
        match (bound, choice) {
            (Some(bound), Some(choice)) => Ok(is_chosen(head, choice, look).await.then_some(bound)),
            (bound, _) => Ok(bound),
        }
    };
    system::run(settled).failed("the system refuses what the node needs")?
}

/// The choice of the head, if the endpoint has addresses of other nodes beside this node's own.
fn choice_among(addresses: &[SocketAddr]) -> Option<HeadChoice> {
    let (own, others): (Vec<_>, Vec<_>) = addresses.iter().partition(|it| is_own(it.ip()));
    // The loopback is every node's: only an address that others know has a place in the order.
    let towards = others.first().and_then(|other| route_to(*other).ok());
    let known = own.iter().map(|it| it.ip()).filter(|ip| !ip.is_loopback()).min();
    HeadChoice::new(known.or(towards.map(|route| route.from)), &others)
}

/// Looks for a driver at the endpoint's other addresses until the choice is made; whether this node drives.
async fn is_chosen(
    head: &str,
    mut choice: HeadChoice,
    look: impl Fn(&[SocketAddr]) -> Vec<DriverLook>,
) -> bool {
    let begun = Instant::now();
    let mut is_told = false;
    loop {
        // Nothing else runs in this process, so that the answers are waited for here.
        let looks = look(choice.others());
        match choice.handle_looks(begun.elapsed(), &looks) {
            HeadStep::Join { driver } => {
                tracing::info!(%driver, "a driver answers at another address of {head}");
                return false;
            }
            HeadStep::Begin { is_lowest: true } => return true,
            HeadStep::Begin { is_lowest: false } => {
                tracing::warn!(
                    "{head} has addresses of other hosts, too ({}), and no driver answers there: this node starts the driver. \
                     Give every node an endpoint that is one node's alone, else nodes that do not reach each other train a job each",
                    choice.listed()
                );
                return true;
            }
            HeadStep::LookAgain { after } => {
                if !std::mem::replace(&mut is_told, true) {
                    tracing::info!(
                        "{head} has addresses of other hosts, too ({}): looks for a driver there before this node starts one",
                        choice.listed()
                    );
                }
                sleep(after).await;
            }
        }
    }
}

/// Looks for a driver at these addresses at once, at no more than [`OTHERS_MAX`].
fn look(at: &[SocketAddr]) -> Vec<DriverLook> {
    let look = |to: SocketAddr| {
        route_to(to).map_or(DriverLook::Silent, |route| look_at(route.from, route.to))
    };
    thread::scope(|threads| {
        let begin =
            |to: SocketAddr| thread::Builder::new().spawn_scoped(threads, move || look(to)).ok();
        let looks: Vec<_> = at.iter().take(OTHERS_MAX).map(|to| begin(*to)).collect();
        let seen = looks.into_iter().map(|it| it.and_then(|it| it.join().ok()));
        seen.map(|look| look.unwrap_or(DriverLook::Silent)).collect()
    })
}

/// Binds the first of the head's addresses that is this node's, or the given address that covers it.
fn head_port(
    head: &str,
    rank: Option<u32>,
    given: Option<SocketAddr>,
    addresses: &[SocketAddr],
) -> Result<HeadPort<Bound>, CommandFailure> {
    let mut is_refused = None;
    for address in addresses {
        // The name of a machine often resolves to its own loopback, which no other machine reaches.
        let is_own_name = address.ip().is_loopback() && is_name_of_host(head);
        let bind = match (given, is_own_name) {
            (Some(given), _) if covers(given, *address) => given,
            (Some(_), _) => continue,
            (None, true) => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port()),
            (None, false) => *address,
        };
        match bind_own(address.ip(), bind) {
            Ok(socket) => {
                let own = match is_own_name {
                    true => ip_towards(ELSEWHERE).ok(),
                    false => Some(address.ip()),
                };
                let own = own.filter(|_| bind.ip().is_unspecified());
                let advertised = own.map(|ip| SocketAddr::new(ip, address.port()).to_string());
                let socket = Some(socket);
                return Ok(HeadPort::Bound(Bound { address: bind, socket, advertised }));
            }
            Err(error) if error.kind() == ErrorKind::AddrInUse => return Ok(HeadPort::Taken),
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {
                is_refused = Some((address, error));
            }
            Err(error) => {
                return Err(error).failed(format!("the driver cannot listen at {bind}"));
            }
        }
    }
    match (rank, is_refused) {
        (Some(_), Some((address, error))) => {
            let message = format!("node 0 is to be at {address}, which is no address of this host");
            Err(CommandFailure::new(message)
                .source(error)
                .hint("give every node the address of the one with --node-rank 0"))
        }
        _ => Ok(HeadPort::Elsewhere),
    }
}

/// Binds an address if the head's is one of this host. With the kernel's `ip_nonlocal_bind`, each address can be bound, or is
/// in use, that of another host, too; so can those for all addresses.
fn bind_own(head: IpAddr, bind: SocketAddr) -> io::Result<UdpSocket> {
    if bind.ip() != head && !is_own(head) {
        return Err(ErrorKind::AddrNotAvailable.into());
    }
    let bound = UdpSocket::bind(bind);
    let error = bound.as_ref().err().map(io::Error::kind);
    if matches!(error, None | Some(ErrorKind::AddrInUse)) && !is_own(head) {
        return Err(ErrorKind::AddrNotAvailable.into());
    }
    bound
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use elastic_runtime::system::run_paused;

    use super::*;

    fn port_of(addresses: &[SocketAddr], rank: Option<u32>) -> HeadPort<Bound> {
        let head = addresses[0].to_string();
        head_port(&head, rank, None, addresses).expect("nothing to refuse")
    }

    #[test]
    fn t_2_a_node_that_is_not_the_lowest_looks_for_a_driver_before_it_starts_one() {
        let choice = || {
            let others = [ELSEWHERE];
            HeadChoice::new(Some([198, 51, 100, 1].into()), &others).expect("another address")
        };
        let chosen = |answers_after: Duration| {
            run_paused(async {
                let begun = Instant::now();
                let look = |at: &[SocketAddr]| match begun.elapsed() < answers_after {
                    true => vec![DriverLook::Refused; at.len()],
                    false => vec![DriverLook::Answered; at.len()],
                };
                (is_chosen("head:9", choice(), look).await, begun.elapsed())
            })
        };
        assert!(matches!(chosen(Duration::ZERO), (false, Duration::ZERO)));
        let (drives, _) = chosen(Duration::from_secs(1));
        assert!(!drives, "a driver answers meanwhile");
        let (drives, after) = chosen(Duration::from_secs(3600));
        assert!(drives && after > Duration::from_secs(1), "{after:?}");
    }

    #[test]
    fn t_2_only_addresses_of_other_hosts_make_a_choice() {
        let own = SocketAddr::from((Ipv4Addr::LOCALHOST, 9));
        assert!(choice_among(&[own, (Ipv4Addr::new(127, 0, 1, 1), 9).into()]).is_none());
        let choice = choice_among(&[own, ELSEWHERE]).expect("another host's");
        assert_eq!(choice.others(), [ELSEWHERE]);
    }

    #[test]
    fn t_2_the_first_to_bind_the_head_s_port_has_the_driver() {
        let any = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let head = any.local_addr().expect("bound");
        assert!(matches!(port_of(&[head], None), HeadPort::Taken));
        drop(any);
        let HeadPort::Bound(first) = port_of(&[head], None) else { panic!("it is free") };
        assert_eq!((first.address, &first.advertised), (head, &None));
        assert!(matches!(port_of(&[head], Some(0)), HeadPort::Taken), "the second");
    }

    #[test]
    fn t_2_an_address_of_another_node_is_bound_by_none_but_that_node() {
        let (other, own) = ((ELSEWHERE.ip(), 0).into(), (Ipv4Addr::LOCALHOST, 0).into());
        assert!(matches!(port_of(&[other], None), HeadPort::Elsewhere));
        assert!(matches!(port_of(&[other, own], None), HeadPort::Bound(_)));
        let refused =
            head_port("192.0.2.1:9", Some(0), None, &[other]).err().expect("not its address");
        assert!(refused.to_string().contains("no address of this host"), "{refused}");
    }

    #[test]
    fn t_2_a_given_address_is_bound_by_the_owner_of_the_head_s_alone_and_the_head_s_is_told() {
        let bound = |given: SocketAddr, at: SocketAddr| {
            head_port(&at.to_string(), None, Some(given), &[at]).expect("nothing to refuse")
        };
        let any = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let head = any.local_addr().expect("bound");
        drop(any);
        let wildcard = SocketAddr::from((Ipv4Addr::UNSPECIFIED, head.port()));
        let elsewhere = SocketAddr::new(ELSEWHERE.ip(), head.port());
        assert!(matches!(bound(wildcard, elsewhere), HeadPort::Elsewhere));
        let HeadPort::Bound(all) = bound(wildcard, head) else { panic!("it is free") };
        assert_eq!((all.address, all.advertised), (wildcard, Some(head.to_string())));
        drop(all.socket);
        let HeadPort::Bound(one) = bound(head, head) else { panic!("it is free again") };
        assert_eq!((one.address, one.advertised), (head, None));
    }

    #[test]
    fn a_port_at_which_no_driver_listens_does_not_answer() {
        let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        assert_eq!(look(&[silent.local_addr().expect("bound")]), [DriverLook::Silent]);
    }
}
