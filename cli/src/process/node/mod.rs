//! `run` on one of several nodes on which the same command is typed: the node that owns the head's address, or binds
//! it first, is the driver with an agent beside it; all others are agents that wait for it. With a store every node
//! has a driver, of which one acts. Called by `main`.

mod beside;
mod head;
mod head_choice;
mod name;
mod secret;
mod taken_port;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::rc::Rc;
use std::time::Duration;

use elastic_transport::SharedSecret;
use elastic_transport::network::ip_towards;

use self::beside::AgentFlags;
pub(super) use self::beside::Beside;
use self::head::bind_head;
use self::name::unique_name;
use self::secret::read_secret;
pub(crate) use self::secret::read_secret_file;
use super::agent::run_agent;
use super::driver::run_driver;
use super::network::{check_interface, ip_of};
use super::state_dir::state_root;
use super::token_source::TokenSource;
use crate::command_line::{CommandFailure, NodePlan, ResultExt, WorkerPlan};

/// An address that no machine has (RFC 5737): the route to it leads out of this machine.
const ELSEWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 9);

/// Grace period for the agent beside a driver that has ended.
const AGENT_GOES_WITHIN: Duration = Duration::from_secs(5);

/// Runs a node until its job is over.
pub(crate) fn run_node(mut plan: NodePlan, log: &str) -> Result<(), CommandFailure> {
    if plan.is_spare {
        tracing::info!("this node's first task is its agent, with slots for all");
        return Ok(());
    }
    if let Some(interface) = &plan.interface {
        check_interface(interface)?;
    }
    let part = match &plan.driver.store {
        Some(_) => NodePart::Driver(own_address(&plan)?),
        None => bind_head(&plan)?.map_or(NodePart::Agent, NodePart::Driver),
    };
    let leads = !matches!(part, NodePart::Agent);
    let text = read_secret(&plan, leads)?;
    let shared = SharedSecret::of(&text);
    let token = shared.join_token().failed("the job's token cannot be made")?;
    let ip = data_ip(&plan)?;
    let (name, _held) = unique_name(plan.name.as_ref(), ip, &meeting_point(&plan))?;
    let bound = match part {
        NodePart::Agent => {
            let driver = plan.head.clone().unwrap_or_default();
            tracing::info!(host = %name, driver, "joins, and waits for the driver if it is not there yet");
            return run_agent(WorkerPlan {
                token: TokenSource::given(&driver, token),
                driver,
                host: name,
                slots: plan.slots,
                role: plan.role,
                nodes: plan.driver.config.job_command(),
                run_id: plan.driver.config.run_id,
                interface: plan.interface,
                patience: plan.patience,
                is_launched: false,
                leash: None,
                is_spare: false,
            });
        }
        NodePart::Driver(bound) => bound,
    };
    let driver = &mut plan.driver;
    driver.bind = bound.address;
    driver.advertise = driver.advertise.take().or(bound.advertised);
    driver.shared = Some(shared);
    // All nodes know the driver's address, so a successor is found there.
    driver.keeps_journal = true;
    if driver.store.is_some() && driver.state_dir.is_none() {
        driver.state_dir = state_root().map(|root| root.join("nodes").join(name.as_str()));
    }
    tracing::info!(host = %name, address = %bound.address, "this node has a driver, with an agent beside it");
    let flags = AgentFlags {
        host: name,
        slots: plan.slots,
        role: plan.role,
        interface: plan.interface,
        token: token.to_line(),
    };
    let beside = Rc::new(Beside::new(flags, bound.socket));
    let result = run_driver(plan.driver, log, Some(Rc::clone(&beside)));
    beside.end(AGENT_GOES_WITHIN);
    result
}

/// The part of a node in its job.
enum NodePart {
    Driver(Bound),
    Agent,
}

/// The address on which this node's driver listens.
struct Bound {
    address: SocketAddr,
    /// The bound socket, held so that no other `run` of this machine takes the port.
    socket: Option<UdpSocket>,
    advertised: Option<String>,
}

fn resolve(head: &str) -> Result<Vec<SocketAddr>, CommandFailure> {
    let resolved = head.to_socket_addrs();
    let resolved = resolved.failed(format!("{head}, where the nodes meet, cannot be resolved"))?;
    Ok(resolved.collect())
}

/// The driver's address with a store: each node's driver has an address of its own.
fn own_address(plan: &NodePlan) -> Result<Bound, CommandFailure> {
    let port = plan.driver.bind.port();
    let ip = match plan.driver.bind.ip() {
        ip if ip.is_unspecified() => data_ip(plan)?,
        ip => ip,
    };
    Ok(Bound { address: SocketAddr::new(ip, port), socket: None, advertised: None })
}

/// This node's address for the other nodes.
fn data_ip(plan: &NodePlan) -> Result<IpAddr, CommandFailure> {
    if let Some(ip) = plan.interface.as_deref().and_then(ip_of) {
        return Ok(ip);
    }
    let peers = match (&plan.head, &plan.driver.store) {
        (Some(head), _) => resolve(head)?,
        (None, Some(store)) => {
            let members = store.address.members.iter().map(|member| resolve(member));
            members.collect::<Result<Vec<_>, _>>()?.concat()
        }
        (None, None) => Vec::new(),
    };
    let peer = peers.first().copied().unwrap_or(ELSEWHERE);
    ip_towards(peer).map_err(|error| {
        CommandFailure::new(format!("there is no way from this host to {peer}"))
            .source(error)
            .hint("name the network interface by which other nodes are reached: --interface NAME")
    })
}

/// The text that all nodes of the job have in common: the head's address, or the store's.
fn meeting_point(plan: &NodePlan) -> String {
    let store = plan.driver.store.as_ref().map(|store| store.address.to_string());
    plan.head.clone().or(store).unwrap_or_default()
}
