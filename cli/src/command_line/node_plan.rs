//! The plan of one node, if `run` is typed on each of a job's several nodes. Called by `driver_plan`.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use elastic_agent::host;
use elastic_journal::etcd::EtcdAddress;
use elastic_protocol::HostName;
use elastic_protocol::messages::NodeCount;

use super::arguments::RunFlags;
use super::driver_flags::{DriverFlags, LauncherKind};
use super::driver_plan::{DriverPlan, of_torch, plan};
use super::failure::{CommandFailure, ResultExt};
use super::slurm::SlurmTask;
use super::torch_flags::{Nodes, TorchFlags};
use super::torch_plan::{conf_value, read_torch};

/// torchrun's default port, for an endpoint without a port.
const RENDEZVOUS_PORT: u16 = 29_400;

/// etcd's default port, for an endpoint without a port.
const ETCD_PORT: u16 = 2379;

/// Default last-call timeout: how long to wait for more nodes once the fewest are there. Nodes are started by hand or
/// one after the other.
const LAST_CALL: Duration = Duration::from_secs(10);

/// The plan of one node of several.
#[derive(Clone, Debug)]
pub(crate) struct NodePlan {
    /// `HOST:PORT` of the driver; none where drivers find each other by a store.
    pub(crate) head: Option<String>,
    /// The value of `--node-rank`: rank 0 starts the driver, and no other does.
    pub(crate) rank: Option<u32>,
    /// The address of `--bind` without a store: it covers the head's.
    pub(crate) bind: Option<SocketAddr>,
    /// The plan of the driver, if this node turns out to run it; its address is filled in later.
    pub(crate) driver: DriverPlan,
    /// The node's name, if it is known to be unique.
    pub(crate) name: Option<HostName>,
    /// The number of workers of this node.
    pub(crate) slots: u32,
    /// The role of the workers.
    pub(crate) role: String,
    /// The network interface by which other nodes reach this one, if one was named.
    pub(crate) interface: Option<String>,
    /// The secret that the nodes share.
    pub(crate) secret: SecretSource,
    /// Time limit of the wait for the driver.
    pub(crate) patience: Duration,
    /// Whether another task of the same Slurm node is its agent.
    pub(crate) is_spare: bool,
}

/// The source of the secret that only the nodes of a job know.
#[derive(Clone, Debug)]
pub(crate) enum SecretSource {
    /// The text in `ELASTIC_TOKEN`.
    Text(SecretText),
    /// A file.
    File(PathBuf),
    /// A file in a home directory that all nodes share.
    Home,
    /// The job's name, which is not secret.
    Id(String),
}

/// A secret text, which logs do not show.
#[derive(Clone)]
pub(crate) struct SecretText(pub(crate) String);

impl FromStr for SecretText {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SecretText(hidden)")
    }
}

/// The meeting point of the nodes, if there may be several.
struct Rendezvous {
    nodes: Nodes,
    head: Option<String>,
    store: Option<EtcdAddress>,
}

/// The plan of a node, unless `run` is for this host alone.
pub(super) fn plan_node(run: &RunFlags) -> Result<Option<NodePlan>, CommandFailure> {
    let Some(Rendezvous { nodes, head, store }) = rendezvous(&run.torch, &run.driver)? else {
        return Ok(None);
    };
    let (mut flags, torch, program) = read_torch(run)?;
    refuse_other_hosts(&flags)?;
    let of_script = (!run.is_behind_dashes).then_some(1);
    let slots = run.torch.nproc_per_node.or(of_script).unwrap_or_else(host::slots);
    let np = (nodes.min == nodes.max).then_some(nodes.min * slots);
    flags.np = run.driver.np.or(np);
    flags.min_np = flags.min_np.or(Some(nodes.min * slots));
    let most = flags.shards.map_or(nodes.max * slots, |shards| shards.min(nodes.max * slots));
    flags.max_np = flags.max_np.or(Some(most));
    flags.last_call_timeout = flags.last_call_timeout.or(Some(LAST_CALL));
    flags.store = flags.store.or(store);
    let of_head = flags.bind.filter(|_| flags.store.is_none());
    if let (Some(bind), Some(head)) = (of_head, &head) {
        check_bind(bind, head)?;
    }
    let bind = ([0, 0, 0, 0], 0).into();
    let bind = flags.bind.unwrap_or(bind);
    let mut driver = plan(&flags, &program, bind, LauncherKind::Join, None)?;
    let role = torch.role.clone().unwrap_or_else(|| "default".to_owned());
    of_torch(&mut driver, torch)?;
    driver.config.nodes = Some(NodeCount { min: nodes.min, max: nodes.max });
    let slurm = SlurmTask::read(&|name| std::env::var(name).ok())?;
    let named = std::env::var("ELASTIC_HOST").ok();
    let named = named.map(|name| HostName::new(&name).usage("ELASTIC_HOST")).transpose()?;
    let is_spare = named.is_none() && slurm.as_ref().is_some_and(|task| task.local_id > 0);
    Ok(Some(NodePlan {
        head,
        rank: run.torch.node_rank,
        bind: of_head,
        patience: driver.config.deadlines.elastic,
        driver,
        name: named.or(slurm.map(|task| task.node)),
        slots,
        role,
        interface: run.torch.interface.clone(),
        secret: secret(&run.torch)?,
        is_spare,
    }))
}

fn rendezvous(
    torch: &TorchFlags,
    flags: &DriverFlags,
) -> Result<Option<Rendezvous>, CommandFailure> {
    let of_several = "say where they meet: --rdzv-endpoint HEAD[:PORT], the same on every node; or start \
                      `elastic-node --role driver -- train.py` on one machine and \
                      `elastic-node --role worker --join HOST:PORT` on each";
    if torch.standalone
        && let Some(nodes) = torch.nnodes.filter(|nodes| nodes.min > 1)
    {
        let message =
            format!("--standalone is for one host, and --nnodes asks for {} at least", nodes.min);
        return Err(CommandFailure::usage(message).hint("leave one of the two out"));
    }
    let Some(nodes) = torch.nnodes.filter(|nodes| nodes.max > 1 && !torch.standalone) else {
        return match torch.node_rank {
            None | Some(0) => Ok(None),
            Some(rank) => {
                let message = format!("--node-rank {rank} means another host");
                Err(CommandFailure::usage(message).hint("say how many there are: --nnodes N"))
            }
        };
    };
    let is_etcd = torch.rdzv_backend.as_deref().is_some_and(|name| name.starts_with("etcd"));
    if let Some(rank) = torch.node_rank.filter(|rank| *rank >= nodes.max) {
        let message = format!("--node-rank {rank} is none of --nnodes {}", nodes.max);
        return Err(CommandFailure::usage(message).hint("nodes are numbered from 0"));
    }
    if torch.master_port == Some(0) {
        let message = "--master-port 0 is another port on every node";
        return Err(CommandFailure::usage(message).hint("give the same port on all nodes"));
    }
    let port = torch.master_port.unwrap_or(RENDEZVOUS_PORT);
    let endpoint = torch.rdzv_endpoint.as_deref().filter(|endpoint| !endpoint.is_empty());
    endpoint.map_or(Ok(()), refuse_no_address)?;
    let (head, store) = match (endpoint, &torch.master_addr) {
        (Some(endpoint), _) if is_etcd => {
            let name = torch.rdzv_id.as_deref().unwrap_or("elastic-node");
            let address = format!("etcd://{}/{name}", with_port(endpoint, ETCD_PORT));
            let store = address.parse().usage("--rdzv-endpoint is no address of an etcd")?;
            (None, Some(store))
        }
        (Some(endpoint), _) => (Some(with_port(endpoint, RENDEZVOUS_PORT)), None),
        (None, Some(master)) => (Some(with_port(master, port)), None),
        (None, None) if flags.store.is_some() => (None, None),
        (None, None) if nodes.min == 1 => return Ok(None),
        (None, None) => {
            let message =
                format!("--nnodes asks for {} hosts, and nothing says where they meet", nodes.min);
            return Err(CommandFailure::usage(message).hint(of_several));
        }
    };
    Ok(Some(Rendezvous { nodes, head, store }))
}

/// Whether a socket that is bound to an address gets the packets to the head's.
pub(crate) fn covers(bind: SocketAddr, head: SocketAddr) -> bool {
    let (ip, head_ip) = (bind.ip().to_canonical(), head.ip().to_canonical());
    let covers_ip = match ip {
        IpAddr::V4(any) if any.is_unspecified() => head_ip.is_ipv4(),
        ip => ip.is_unspecified() || ip == head_ip,
    };
    covers_ip && bind.port() == head.port()
}

/// The refusal of an address of `--bind` that does not cover the endpoint's.
pub(crate) fn refuse_bind(bind: SocketAddr, head: &str) -> CommandFailure {
    let port = head.rsplit_once(':').map_or("PORT", |(_, port)| port);
    CommandFailure::usage(format!("--bind {bind} does not cover {head}, where the nodes meet"))
        .hint(format!(
            "leave --bind out, or give it as that address, as 0.0.0.0:{port} or as [::]:{port}"
        ))
}

/// Refuses an address of `--bind` that cannot cover the endpoint's, as far as is known before its name is resolved.
fn check_bind(bind: SocketAddr, head: &str) -> Result<(), CommandFailure> {
    let is_covered = match (head.parse(), head.rsplit_once(':')) {
        (Ok(address), _) => covers(bind, address),
        (Err(_), Some((_, port))) => port.parse() == Ok(bind.port()),
        (Err(_), None) => true,
    };
    if is_covered { Ok(()) } else { Err(refuse_bind(bind, head)) }
}

/// Refuses an endpoint that no other node can reach, whatever its host is.
fn refuse_no_address(endpoint: &str) -> Result<(), CommandFailure> {
    let what = match endpoint.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') && port.parse::<u16>().is_err() => {
            format!("has {port:?} as its port")
        }
        Some((_, "0")) if endpoint.parse::<std::net::Ipv6Addr>().is_err() => {
            "has port 0, which is another port on every node".to_owned()
        }
        split => {
            let host = if has_port(endpoint) {
                split.map_or(endpoint, |(host, _)| host)
            } else {
                endpoint
            };
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let is_any = |address: IpAddr| address.is_unspecified();
            if !host.parse().is_ok_and(is_any) {
                return Ok(());
            }
            "is every address of a node, and none that others can reach".to_owned()
        }
    };
    Err(CommandFailure::usage(format!("--rdzv-endpoint {endpoint} {what}"))
        .hint("give the address or name of one node: HEAD[:PORT]"))
}

/// The endpoint as `HOST:PORT`; `port` is used if it has none.
fn with_port(endpoint: &str, port: u16) -> String {
    let is_v6 = endpoint.parse::<std::net::Ipv6Addr>().is_ok();
    match (is_v6, has_port(endpoint)) {
        (true, _) => format!("[{endpoint}]:{port}"),
        (false, true) => endpoint.to_owned(),
        (false, false) => format!("{endpoint}:{port}"),
    }
}

fn has_port(endpoint: &str) -> bool {
    endpoint.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok())
}

/// Refuses flags that list hosts: the nodes start themselves.
fn refuse_other_hosts(flags: &DriverFlags) -> Result<(), CommandFailure> {
    let given = [
        ("--hosts", flags.hosts.is_some()),
        ("--hostfile", flags.hostfile.is_some()),
        ("--host-discovery-script", flags.host_discovery_script.is_some()),
        ("--discovery", flags.discovery.is_some()),
        ("--launcher", flags.launcher.is_some()),
        ("--standby", flags.standby),
    ];
    match given.iter().find(|(_, is_given)| *is_given) {
        None => Ok(()),
        Some((flag, _)) => {
            let message = format!("{flag} and --nnodes with an endpoint contradict each other");
            Err(CommandFailure::usage(message)
                .hint("nodes on which the same command is typed join by themselves: leave one out"))
        }
    }
}

fn secret(torch: &TorchFlags) -> Result<SecretSource, CommandFailure> {
    if let Some(file) = conf_value(torch, "token_file")? {
        return Ok(SecretSource::File(file.into()));
    }
    Ok(match (&torch.token, &torch.rdzv_id) {
        (Some(text), _) => SecretSource::Text(text.clone()),
        (None, Some(id)) => SecretSource::Id(id.clone()),
        (None, None) => SecretSource::Home,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(torch: TorchFlags) -> RunFlags {
        let program = vec!["train.py".to_owned()];
        RunFlags { driver: DriverFlags::default(), torch, program, is_behind_dashes: false }
    }

    fn flags(min: u32, max: u32) -> TorchFlags {
        TorchFlags { nnodes: Some(Nodes { min, max }), ..TorchFlags::default() }
    }

    fn planned(torch: TorchFlags) -> NodePlan {
        plan_node(&arguments(torch)).expect("nothing to refuse").expect("several nodes")
    }

    fn refused(torch: TorchFlags) -> String {
        plan_node(&arguments(torch)).expect_err("a contradiction").to_string()
    }

    #[test]
    fn t_2_nodes_are_counted_in_workers() {
        let endpoint = Some("head".to_owned());
        let elastic =
            TorchFlags { rdzv_endpoint: endpoint.clone(), nproc_per_node: Some(3), ..flags(2, 4) };
        let plan = planned(elastic.clone());
        let config = &plan.driver.config;
        assert_eq!((config.np, config.min_np, config.max_np), (None, Some(6), Some(12)));
        assert_eq!((plan.head.as_deref(), plan.slots), (Some("head:29400"), 3));
        let fixed = planned(TorchFlags { nnodes: Some(Nodes { min: 2, max: 2 }), ..elastic });
        assert_eq!(fixed.driver.config.np, Some(6));
    }

    #[test]
    fn t_2_an_endpoint_that_no_node_can_reach_is_refused() {
        let at =
            |endpoint: &str| TorchFlags { rdzv_endpoint: Some(endpoint.to_owned()), ..flags(2, 2) };
        for endpoint in ["0.0.0.0", "0.0.0.0:29500", "[::]:29500", "::"] {
            let message = refused(at(endpoint));
            assert!(message.contains("none that others can reach"), "{message}");
        }
        for endpoint in ["head:", "10.0.0.1:99999", "head:port"] {
            let message = refused(at(endpoint));
            assert!(message.contains("as its port"), "{message}");
        }
        for endpoint in ["head:0", "10.0.0.1:0", "[fd00::1]:0"] {
            let message = refused(at(endpoint));
            assert!(message.contains("port 0"), "{message}");
        }
        let master_addr = Some("head".to_owned());
        let master = TorchFlags { master_addr, master_port: Some(0), ..flags(2, 2) };
        assert!(refused(master).contains("--master-port 0"));
        for endpoint in ["fd00::1", "fd00::0", "[fd00::1]:29500", "head", "10.0.0.1:1"] {
            planned(at(endpoint));
        }
    }

    #[test]
    fn t_2_an_address_to_bind_that_covers_the_endpoint_s_is_kept_and_any_other_refused() {
        let at = |endpoint: &str, bind: &str| {
            let rdzv_endpoint = Some(endpoint.to_owned());
            let mut run = arguments(TorchFlags { rdzv_endpoint, ..flags(2, 2) });
            run.driver.bind = Some(bind.parse().expect("a literal"));
            plan_node(&run).map(|plan| plan.and_then(|plan| plan.bind).map(|bind| bind.to_string()))
        };
        for (endpoint, bind) in [
            ("10.0.0.1:7", "10.0.0.1:7"),
            ("10.0.0.1:7", "0.0.0.0:7"),
            ("10.0.0.1", "[::]:29400"),
            ("[fd00::1]:7", "[::]:7"),
            // A name is resolved later.
            ("head:7", "10.0.0.1:7"),
        ] {
            assert_eq!(at(endpoint, bind).expect("covered").as_deref(), Some(bind));
        }
        for (endpoint, bind) in [
            ("10.0.0.1:7", "10.0.0.2:7"),
            ("10.0.0.1:7", "0.0.0.0:8"),
            ("10.0.0.1:7", "0.0.0.0:0"),
            ("[fd00::1]:7", "0.0.0.0:7"),
            ("head:7", "0.0.0.0:8"),
        ] {
            let refused = at(endpoint, bind).expect_err("not covered").to_string();
            assert!(refused.contains("does not cover"), "{refused}");
        }
    }

    #[test]
    fn t_2_one_host_is_not_several() {
        let several = TorchFlags { standalone: true, ..flags(2, 2) };
        assert!(refused(several).contains("--standalone"));
        let at_least_one = TorchFlags { standalone: true, ..flags(1, 2) };
        assert!(plan_node(&arguments(at_least_one)).expect("one will do").is_none());
    }

    #[test]
    fn t_2_a_static_rendezvous_has_its_driver_at_the_master() {
        let master_addr = Some("10.0.0.1".to_owned());
        let (master_port, node_rank) = (Some(29_500), Some(1));
        let plan = planned(TorchFlags { master_addr, master_port, node_rank, ..flags(2, 2) });
        assert_eq!((plan.head.as_deref(), plan.rank), (Some("10.0.0.1:29500"), Some(1)));
        assert!(refused(TorchFlags { node_rank: Some(2), ..flags(2, 2) }).contains("none of"));
        assert!(
            refused(TorchFlags { node_rank: Some(2), ..TorchFlags::default() }).contains("another")
        );
    }

    #[test]
    fn t_2_with_etcd_nodes_need_no_head() {
        let plan = planned(TorchFlags {
            rdzv_backend: Some("etcd-v2".to_owned()),
            rdzv_endpoint: Some("etcd.example".to_owned()),
            rdzv_id: Some("job7".to_owned()),
            ..flags(1, 3)
        });
        let store = plan.driver.store.expect("where drivers meet").address.to_string();
        assert_eq!((plan.head, store.as_str()), (None, "etcd://etcd.example:2379/job7"));
        assert!(matches!(plan.secret, SecretSource::Id(_)));
    }

    #[test]
    fn one_host_or_no_endpoint_is_as_it_was() {
        let endpoint = Some("localhost:29400".to_owned());
        for torch in [
            TorchFlags { rdzv_endpoint: endpoint.clone(), ..flags(1, 1) },
            TorchFlags { rdzv_endpoint: endpoint, ..TorchFlags::default() },
            flags(1, 4),
        ] {
            assert!(plan_node(&arguments(torch)).expect("nothing to refuse").is_none());
        }
        assert!(refused(flags(2, 4)).contains("where they meet"));
    }

    #[test]
    fn a_secret_that_was_given_goes_before_the_job_s_name() {
        let endpoint = Some("head".to_owned());
        let torch = TorchFlags {
            rdzv_endpoint: endpoint,
            rdzv_id: Some("7".to_owned()),
            token: Some(SecretText("a text".to_owned())),
            ..flags(2, 2)
        };
        assert!(matches!(planned(torch.clone()).secret, SecretSource::Text(_)));
        let rdzv_conf = Some("join_timeout=5,token_file=/shared/token".to_owned());
        let plan = planned(TorchFlags { rdzv_conf, ..torch });
        assert!(matches!(plan.secret, SecretSource::File(_)));
        assert_eq!(plan.patience, Duration::from_secs(5));
        assert!(!format!("{plan:?}").contains("a text"));
    }
}
