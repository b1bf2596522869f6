//! torchrun's flags, with its names, `PET_*` variables and defaults. `elastic-node run` takes them, so that replacing
//! the word `torchrun` is enough. `torch_plan` gives them their meaning.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::BoolishValueParser;
use elastic_protocol::output::{StreamMap, Streams};

use super::node_plan::SecretText;
use super::values::seconds;
use super::worker_flags::TOKEN_VARIABLE;

/// The variable with the backends of torch that the Python package takes over.
pub(crate) const BACKEND_FOR: &str = "ELASTIC_BACKEND_FOR";

/// The flags of torchrun.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "As torchrun")]
pub(crate) struct TorchFlags {
    /// Hosts, as N or MIN:MAX [default: 1:1]
    #[arg(long, env = "PET_NNODES", value_name = "MIN[:MAX]", value_parser = nodes)]
    pub(crate) nnodes: Option<Nodes>,
    /// Workers of this host: a number, auto, cpu or gpu [default: 1]
    #[arg(
        long,
        alias = "nproc_per_node",
        env = "PET_NPROC_PER_NODE",
        value_name = "N",
        value_parser = workers
    )]
    pub(crate) nproc_per_node: Option<u32>,
    /// The job's name, given to its workers (TORCHELASTIC_RUN_ID)
    #[arg(long, alias = "rdzv_id", env = "PET_RDZV_ID", value_name = "ID")]
    pub(crate) rdzv_id: Option<String>,
    /// etcd-v2: drivers on all nodes share the etcd at the endpoint, and any node may be lost. Any other name is
    /// accepted and ignored
    #[arg(long, alias = "rdzv_backend", env = "PET_RDZV_BACKEND", value_name = "NAME")]
    pub(crate) rdzv_backend: Option<String>,
    /// Where several nodes meet: the node that owns that address, or binds it first, starts the driver, and all join
    /// it; the same on every node [port: 29400]. Not needed on one host
    #[arg(long, alias = "rdzv_endpoint", env = "PET_RDZV_ENDPOINT", value_name = "HOST[:PORT]")]
    pub(crate) rdzv_endpoint: Option<String>,
    /// KEY=VALUE,…: join_timeout and last_call_timeout in seconds, token_file with the secret that all nodes share;
    /// other keys are ignored
    #[arg(long, alias = "rdzv_conf", env = "PET_RDZV_CONF", value_name = "CONF")]
    pub(crate) rdzv_conf: Option<String>,
    /// Use one host; refused where --nnodes asks for more
    #[arg(long, env = "PET_STANDALONE", value_parser = BoolishValueParser::new())]
    pub(crate) standalone: bool,
    /// Accepted and ignored: the end of a process is noticed at once
    #[arg(long, alias = "monitor_interval", env = "PET_MONITOR_INTERVAL", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) monitor_interval: Option<Duration>,
    /// Accepted and ignored: it applies to functions, and workers are programs
    #[arg(long, alias = "start_method", env = "PET_START_METHOD", value_parser = ["spawn", "fork", "forkserver"])]
    pub(crate) start_method: Option<String>,
    /// The role of the workers
    #[arg(id = "role_name", long = "role", env = "PET_ROLE", value_name = "NAME")]
    pub(crate) role_name: Option<String>,
    /// Run the program as a module: `python -u -m`
    #[arg(short = 'm', long, env = "PET_MODULE", value_parser = BoolishValueParser::new(), conflicts_with = "no_python")]
    pub(crate) module: bool,
    /// Run the program as it is, without Python
    #[arg(long, alias = "no_python", env = "PET_NO_PYTHON", value_parser = BoolishValueParser::new())]
    pub(crate) no_python: bool,
    /// The folder of output and error files, by job, generation and rank
    #[arg(long, alias = "log_dir", env = "PET_LOG_DIR", value_name = "FOLDER")]
    pub(crate) log_dir: Option<PathBuf>,
    /// Streams to store and not show: 0 none, 1 stdout, 2 stderr, 3 both; or by local rank: 0:1,1:2
    #[arg(short, long, env = "PET_REDIRECTS", value_name = "STREAMS", value_parser = streams)]
    pub(crate) redirects: Option<StreamMap>,
    /// Streams to store and show, in the same format
    #[arg(short, long, env = "PET_TEE", value_name = "STREAMS", value_parser = streams)]
    pub(crate) tee: Option<StreamMap>,
    /// Local ranks whose output is shown: 0,1 [default: all]
    #[arg(
        long,
        alias = "local_ranks_filter",
        env = "PET_LOCAL_RANKS_FILTER",
        value_name = "RANKS",
        value_delimiter = ','
    )]
    pub(crate) local_ranks_filter: Option<Vec<u32>>,
    /// The prefix of each line that is shown, with ${role_name}, ${rank}, ${local_rank}, ${hostname}; torchrun's own is
    /// '[${role_name}${rank}]:' [default: that of --output-prefix]
    #[arg(
        long,
        alias = "log_line_prefix_template",
        env = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
        value_name = "TEXT",
        conflicts_with = "output_prefix"
    )]
    pub(crate) log_line_prefix_template: Option<String>,
    /// Grace period between SIGTERM and SIGKILL, as --grace-period [default as torchrun: 30]
    #[arg(long, alias = "shutdown_timeout", env = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) shutdown_timeout: Option<Duration>,
    /// The number of this node among --nnodes: 0 starts the driver. The driver numbers hosts in the order in which
    /// they join
    #[arg(long, alias = "node_rank", env = "PET_NODE_RANK", value_name = "N")]
    pub(crate) node_rank: Option<u32>,
    /// Where several nodes meet, as --rdzv-endpoint without a port
    #[arg(long, alias = "master_addr", env = "PET_MASTER_ADDR", value_name = "HOST")]
    pub(crate) master_addr: Option<String>,
    /// The port of --master-addr, where several nodes meet [default: 29400]
    #[arg(long, alias = "master_port", env = "PET_MASTER_PORT", value_name = "PORT")]
    pub(crate) master_port: Option<u16>,
    /// Accepted, and ignored on one host
    #[arg(long, alias = "local_addr", env = "PET_LOCAL_ADDR", value_name = "HOST")]
    pub(crate) local_addr: Option<String>,
    /// The network interface by which other nodes reach this one's workers [default: that of the way to the driver]
    #[arg(long, env = "ELASTIC_INTERFACE", value_name = "NAME")]
    pub(crate) interface: Option<String>,
    /// A backend of torch whose name is this package's in the workers: scripts that ask for it run on its collectives
    #[arg(long, env = BACKEND_FOR, value_name = "NAME", value_parser = ["gloo"])]
    pub(crate) backend_for: Option<String>,
    /// A secret text that all nodes share. Better set in the environment: everyone on this machine can read a command
    /// line
    #[arg(long, env = TOKEN_VARIABLE, value_name = "TEXT", hide_env_values = true)]
    pub(crate) token: Option<SecretText>,
}

/// The value of `--nnodes`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Nodes {
    /// Fewest hosts.
    pub(crate) min: u32,
    /// Most hosts.
    pub(crate) max: u32,
}

fn nodes(text: &str) -> Result<Nodes, String> {
    let parts: Vec<&str> = text.split(':').collect();
    let number = |part: &str| match part.trim().parse::<u32>() {
        Ok(0) | Err(_) => Err(format!("{part:?} is no number of hosts")),
        Ok(number) => Ok(number),
    };
    match parts[..] {
        [both] => number(both).map(|both| Nodes { min: both, max: both }),
        [min, max] => {
            let nodes = Nodes { min: number(min)?, max: number(max)? };
            if nodes.min > nodes.max {
                return Err(format!("the fewest hosts ({min}) are more than the most ({max})"));
            }
            Ok(nodes)
        }
        _ => Err(format!("{text:?} has {} numbers; give N or MIN:MAX", parts.len())),
    }
}

fn workers(text: &str) -> Result<u32, String> {
    let processors = || std::thread::available_parallelism().map_or(1, |it| it.get() as u32);
    match (text.trim(), elastic_agent::host::gpus()) {
        ("cpu", _) | ("auto", 0) => Ok(processors()),
        ("gpu", 0) => Err("this host has no GPU".to_owned()),
        ("auto" | "gpu", gpus) => Ok(gpus),
        (text, _) => match text.parse() {
            Ok(0) => Err("at least one worker is needed".to_owned()),
            Ok(number) => Ok(number),
            Err(_) => Err(format!("{text:?} is no number, nor auto, cpu or gpu")),
        },
    }
}

fn streams(text: &str) -> Result<StreamMap, String> {
    let of = |number: &str| {
        let streams = number.trim().parse().ok().and_then(Streams::from_number);
        streams.ok_or_else(|| {
            format!("{number:?} is none of 0 (none), 1 (stdout), 2 (stderr), 3 (both)")
        })
    };
    let mut map = StreamMap::default();
    if !text.contains(':') {
        map.others = of(text)?;
        return Ok(map);
    }
    for part in text.split(',') {
        let (rank, number) = part.split_once(':').ok_or_else(|| {
            format!("{part:?} is not of the form LOCAL_RANK:STREAMS, as its neighbours are")
        })?;
        let rank = rank.trim().parse().map_err(|_| format!("{rank:?} is no local rank"))?;
        map.named.insert(rank, of(number)?);
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t_2_numbers_of_hosts_are_read_or_refused_with_the_reason() {
        assert_eq!(nodes("2"), Ok(Nodes { min: 2, max: 2 }));
        assert_eq!(nodes("1:4"), Ok(Nodes { min: 1, max: 4 }));
        assert_eq!(
            nodes("2:20:30"),
            Err("\"2:20:30\" has 3 numbers; give N or MIN:MAX".to_owned())
        );
        assert!(nodes("4:1").is_err_and(|reason| reason.contains("more than the most")));
        for wrong in ["", "0", "a", "1:", ":2", "-1"] {
            assert!(nodes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn t_2_workers_of_a_host() {
        assert_eq!(workers("4"), Ok(4));
        assert!(workers("cpu").is_ok_and(|number| number > 0) && workers("auto").is_ok());
        assert!(workers("0").is_err() && workers("many").is_err());
    }

    #[test]
    fn t_2_streams_are_told_as_to_torchrun() {
        let both = Streams { stdout: true, stderr: true };
        assert_eq!(streams("3").map(|map| map.of(7)), Ok(both));
        let map = streams("0:3,12:1").expect("two ranks");
        assert_eq!((map.of(0), map.of(1)), (both, Streams::NONE));
        assert_eq!(map.of(12), Streams { stdout: true, stderr: false });
        for wrong in ["4", "x", "0:1,2", "a:1", "0:9", ""] {
            assert!(streams(wrong).is_err(), "{wrong}");
        }
    }
}
