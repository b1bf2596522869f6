//! Flags of `--role driver` and of `run`. Those of peers keep their peers' names.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::BoolishValueParser;
use clap::{Args, ValueEnum};
use elastic_gpu::Backend;
use elastic_host_manager::DnsTarget;
use elastic_journal::etcd::EtcdAddress;
use elastic_protocol::messages::DataPlane;

use super::values::{address, count, seconds};

/// What the driver can be told. Absent means the default, which `plan_driver` and `plan_run` fill in.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Driver")]
pub(crate) struct DriverFlags {
    /// Where it listens for QUIC; a port of 0 takes any that is free [default: 127.0.0.1:7070]
    #[arg(long, env = "ELASTIC_BIND", value_name = "ADDR", value_parser = address)]
    pub(crate) bind: Option<SocketAddr>,
    /// Where others reach it, if that is not --bind (0.0.0.0, a forwarded port)
    #[arg(long, env = "ELASTIC_ADVERTISE", value_name = "HOST:PORT")]
    pub(crate) advertise: Option<String>,
    /// Workers to start with [default: all slots known at the start]
    #[arg(short = 'n', long, env = "ELASTIC_NP", value_name = "N", value_parser = count)]
    pub(crate) np: Option<u32>,
    /// Fewest workers to go on with [default: --np]
    #[arg(long, env = "ELASTIC_MIN_NP", value_name = "N", value_parser = count)]
    pub(crate) min_np: Option<u32>,
    /// Most workers [default: no cap]
    #[arg(long, env = "ELASTIC_MAX_NP", value_name = "N", value_parser = count)]
    pub(crate) max_np: Option<u32>,
    /// The hosts with their slots, fixed: a:2,b:2
    #[arg(short = 'H', long, env = "ELASTIC_HOSTS", value_name = "HOSTS")]
    pub(crate) hosts: Option<String>,
    /// A file with one `host:slots` or `host slots=N` a line; read again every second
    #[arg(long, env = "ELASTIC_HOSTFILE", value_name = "FILE")]
    pub(crate) hostfile: Option<PathBuf>,
    /// A program that prints one `host` or `host:slots` a line; run again every second
    #[arg(long, env = "ELASTIC_HOST_DISCOVERY_SCRIPT", value_name = "FILE")]
    pub(crate) host_discovery_script: Option<PathBuf>,
    /// A name whose addresses are the hosts, such as a headless service of Kubernetes: dns://NAME, or
    /// dns://SERVER[:PORT]/NAME; asked for again every second. Each has --slots-per-host slots, else 1
    #[arg(long, env = "ELASTIC_DISCOVERY", value_name = "URL")]
    pub(crate) discovery: Option<DnsTarget>,
    /// Slots of a host that is named without any
    #[arg(long, env = "ELASTIC_SLOTS_PER_HOST", value_name = "N", value_parser = count)]
    pub(crate) slots_per_host: Option<u32>,
    /// How an agent gets onto a host [default: join; `run`: local]
    #[arg(long, env = "ELASTIC_LAUNCHER", value_enum)]
    pub(crate) launcher: Option<LauncherFlag>,
    /// How workers survive a reset [default: auto]
    #[arg(long, env = "ELASTIC_MODE", value_enum)]
    pub(crate) mode: Option<ModeFlag>,
    /// How long a job may be without enough workers [default: 600]
    #[arg(long, env = "ELASTIC_ELASTIC_TIMEOUT", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) elastic_timeout: Option<Duration>,
    /// How long a worker's program may take from its start to its first call of the library
    /// [default: 600]
    #[arg(long, env = "ELASTIC_START_TIMEOUT", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) start_timeout: Option<Duration>,
    /// How long a generation may take to form [default: 10]
    #[arg(long, env = "ELASTIC_FORM_TIMEOUT", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) form_timeout: Option<Duration>,
    /// How long more workers are waited for once enough are there [default: 1]
    #[arg(long, env = "ELASTIC_LAST_CALL_TIMEOUT", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) last_call_timeout: Option<Duration>,
    /// From SIGTERM to SIGKILL [default: 5]
    #[arg(long, env = "ELASTIC_GRACE_PERIOD", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) grace_period: Option<Duration>,
    /// How long agents and workers go on without a driver [default: as long as nobody fails, and 30 s with
    /// nothing to do]
    #[arg(long, env = "ELASTIC_ORPHAN_TIMEOUT", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) orphan_timeout: Option<Duration>,
    /// Resets allowed [default: no limit]
    #[arg(long, env = "ELASTIC_RESET_LIMIT", value_name = "N")]
    pub(crate) reset_limit: Option<u32>,
    /// Failures of one slot before its host is blacklisted [default: 3]
    #[arg(long, alias = "max_restarts", env = "ELASTIC_MAX_RESTARTS", value_name = "N")]
    pub(crate) max_restarts: Option<u32>,
    /// Failures after which a job by restart may start its group again [default: no limit]
    #[arg(long, env = "ELASTIC_MAX_JOB_RESTARTS", value_name = "N")]
    pub(crate) max_job_restarts: Option<u32>,
    /// Refill the slot after a back-off, or blacklist its host at once [default: restart]
    #[arg(long, env = "ELASTIC_ON_FAILURE", value_enum)]
    pub(crate) on_failure: Option<OnFailureFlag>,
    /// How long a blacklisted host stays out, doubling from MIN to MAX [default: for ever]
    #[arg(
        long,
        env = "ELASTIC_BLACKLIST_COOLDOWN_RANGE",
        value_names = ["MIN", "MAX"],
        num_args = 1..=2,
        value_delimiter = ',',
        value_parser = seconds,
    )]
    pub(crate) blacklist_cooldown_range: Option<Vec<Duration>>,
    /// Collectives: NCCL where every worker has a GPU and else the CPU's, the CPU's, or NCCL or nothing
    /// [default: auto]
    #[arg(long, env = elastic_gpu::BACKEND, value_enum)]
    pub(crate) backend: Option<BackendFlag>,
    /// Encrypt what workers send each other from host to host; with the CPU's collectives, since NCCL cannot
    #[arg(long, env = "ELASTIC_ENCRYPT_DATA", value_parser = BoolishValueParser::new())]
    pub(crate) encrypt_data: bool,
    /// What carries the data of the CPU's collectives: shared memory within a host and TCP between hosts, TCP alone,
    /// QUIC alone, or shared memory and QUIC where only UDP passes between hosts [default: auto]
    #[arg(long, env = "ELASTIC_DATA_PLANE", value_enum)]
    pub(crate) data_plane: Option<DataPlaneFlag>,
    /// One log file per worker and incarnation, below this folder of each host
    #[arg(long, env = "ELASTIC_OUTPUT_DIR", value_name = "FOLDER")]
    pub(crate) output_dir: Option<PathBuf>,
    /// Where `token`, `address`, `events.jsonl` and the journal are kept, from which a driver that was killed
    /// goes on when it is started again; told to a worker or `status`, where they are looked for [default: a folder per address below ~/.local/state/elastic-node]
    #[arg(long, env = "ELASTIC_STATE_DIR", value_name = "FOLDER")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Where the journal is kept for several drivers, of which one acts and the others stand by:
    /// etcd://HOST:PORT[,HOST:PORT…][/NAME], with a name of its own for each job [default: the state directory]
    #[arg(long, env = "ELASTIC_STORE", value_name = "ADDR")]
    pub(crate) store: Option<EtcdAddress>,
    /// Stand by for the driver that acts, and begin no job: needs --store
    #[arg(long, env = "ELASTIC_STANDBY")]
    pub(crate) standby: bool,
    /// How long nobody acts after the acting driver has vanished, with --store [default: 5]
    #[arg(long, env = "ELASTIC_LEASE_TIMEOUT", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) lease_timeout: Option<Duration>,
}

/// `--data-plane`.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum DataPlaneFlag {
    /// Shared memory within a host, TCP between hosts.
    Auto,
    /// TCP alone.
    Tcp,
    /// QUIC alone.
    Quic,
    /// Shared memory within a host, QUIC between hosts.
    ShmQuic,
}

impl DataPlaneFlag {
    /// As workers are told.
    pub(crate) const fn data_plane(self) -> DataPlane {
        match self {
            DataPlaneFlag::Auto => DataPlane::Auto,
            DataPlaneFlag::Tcp => DataPlane::Tcp,
            DataPlaneFlag::Quic => DataPlane::Quic,
            DataPlaneFlag::ShmQuic => DataPlane::ShmQuic,
        }
    }
}

/// `--launcher`.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum LauncherFlag {
    /// It joins by itself.
    Join,
    /// A process here for each host name.
    Local,
    /// Over ssh.
    Ssh,
}

/// `--mode`.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum ModeFlag {
    /// A worker that uses the library is in process.
    Auto,
    /// Every worker uses the library.
    InProcess,
    /// The whole group is stopped and started at each reset.
    Restart,
}

/// `--backend`.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum BackendFlag {
    /// NCCL where every worker has a GPU, else the CPU's.
    Auto,
    /// The CPU's.
    Cpu,
    /// NCCL, or the workers fail.
    Nccl,
}

impl BackendFlag {
    /// As workers are told.
    pub(crate) const fn backend(self) -> Backend {
        match self {
            BackendFlag::Auto => Backend::Auto,
            BackendFlag::Cpu => Backend::Cpu,
            BackendFlag::Nccl => Backend::Nccl,
        }
    }
}

/// `--on-failure`.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum OnFailureFlag {
    /// Refill the slot on its host after a back-off.
    Restart,
    /// Blacklist the host at once.
    Blacklist,
}
