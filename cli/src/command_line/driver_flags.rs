//! Flags of `--role driver` and of `run`. Flags that torchrun or Horovod also have keep those names. Used by
//! `arguments` and `driver_plan`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::BoolishValueParser;
use clap::{Args, ValueEnum};
use elastic_driver::{
    CheckpointEvery, ElasticMode, OnDivergence, OnFailure, OnHang, OnStraggler, OnTotalLoss,
};
use elastic_gpu::Backend;
use elastic_host_manager::DnsTarget;
use elastic_journal::etcd::EtcdAddress;
use elastic_protocol::DataPlane;
use elastic_protocol::messages::FileUmask;

use super::driver_plan::DashboardPlan;
use super::output_prefix::{OutputPrefix, output_prefix};
use super::values::{
    advertised, bytes, checkpoint_every, count, listening_address, positive_seconds, seconds,
    shards, slots, umask, workers,
};

/// The driver's flags. An absent flag means its default, which `plan_driver` and `plan_run` fill in.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Driver")]
pub(crate) struct DriverFlags {
    /// A file in TOML with flags, by their names; a flag or variable goes before it. See `elastic-node config show`
    #[arg(long, env = "ELASTIC_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Settings of that file, as words of a command line.
    #[arg(skip)]
    pub(crate) from_file: Vec<String>,
    /// The address on which the driver listens for QUIC; port 0 takes any free port [default: 127.0.0.1:7070;
    /// `run`: any free port]
    #[arg(long, env = "ELASTIC_BIND", value_name = "ADDR", value_parser = listening_address)]
    pub(crate) bind: Option<SocketAddr>,
    /// The address at which others reach the driver, if that is not --bind (0.0.0.0, a forwarded port); without a port
    /// it is that of --bind
    #[arg(long, env = "ELASTIC_ADVERTISE", value_name = "HOST[:PORT]", value_parser = advertised)]
    pub(crate) advertise: Option<String>,
    /// Workers to start with [default: all slots known at the start]
    #[arg(short = 'n', long, env = "ELASTIC_NP", value_name = "N", value_parser = workers)]
    pub(crate) np: Option<u32>,
    /// Fewest workers to go on with [default: --np]
    #[arg(long, env = "ELASTIC_MIN_NP", value_name = "N", value_parser = workers)]
    pub(crate) min_np: Option<u32>,
    /// Most workers [default: no cap]
    #[arg(long, env = "ELASTIC_MAX_NP", value_name = "N", value_parser = workers)]
    pub(crate) max_np: Option<u32>,
    /// Logical shards of each step's global batch, for the life of the job: with them results do not depend on the number of
    /// workers, of whom there are at most as many [default: what the program says]
    #[arg(long, env = "ELASTIC_SHARDS", value_name = "N", value_parser = shards)]
    pub(crate) shards: Option<u32>,
    /// The fixed list of hosts with their slots: a:2,b:2
    #[arg(short = 'H', long, env = "ELASTIC_HOSTS", value_name = "HOSTS")]
    pub(crate) hosts: Option<String>,
    /// A file with one `host:slots` or `host slots=N` a line; read again every second
    #[arg(long, env = "ELASTIC_HOSTFILE", value_name = "FILE")]
    pub(crate) hostfile: Option<PathBuf>,
    /// A program that prints one `host` or `host:slots` a line; run again every second
    #[arg(long, env = "ELASTIC_HOST_DISCOVERY_SCRIPT", value_name = "FILE")]
    pub(crate) host_discovery_script: Option<PathBuf>,
    /// A name whose addresses are the hosts, such as a headless service of Kubernetes: dns://NAME, or
    /// dns://SERVER[:PORT]/NAME; looked up again every second. Each host has --slots-per-host slots, else 1
    #[arg(long, env = "ELASTIC_DISCOVERY", value_name = "URL")]
    pub(crate) discovery: Option<DnsTarget>,
    /// Slots of a host that is listed without a number
    #[arg(long, env = "ELASTIC_SLOTS_PER_HOST", value_name = "N", value_parser = slots)]
    pub(crate) slots_per_host: Option<u32>,
    /// How an agent gets onto a host [default: join; `run`: local]
    #[arg(long, env = "ELASTIC_LAUNCHER", value_enum)]
    pub(crate) launcher: Option<LauncherKind>,
    /// How workers survive a reset [default: auto]
    #[arg(long, env = "ELASTIC_MODE", value_enum)]
    pub(crate) mode: Option<ElasticMode>,
    /// Timeout for a job without enough workers [default: 600]
    #[arg(long, env = "ELASTIC_ELASTIC_TIMEOUT", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) elastic_timeout: Option<Duration>,
    /// Timeout for a worker's program from its start to its first call of the library [default: 600]
    #[arg(long, env = "ELASTIC_START_TIMEOUT", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) start_timeout: Option<Duration>,
    /// Timeout for forming a generation [default: 10]
    #[arg(long, env = "ELASTIC_FORM_TIMEOUT", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) form_timeout: Option<Duration>,
    /// How long to wait for more workers once enough are there [default: 1]
    #[arg(long, env = "ELASTIC_LAST_CALL_TIMEOUT", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) last_call_timeout: Option<Duration>,
    /// Grace period between SIGTERM and SIGKILL [default: 5]
    #[arg(long, env = "ELASTIC_GRACE_PERIOD", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) grace_period: Option<Duration>,
    /// How long agents and workers go on without a driver [default: as long as nobody fails, and 30 s with nothing to
    /// do]
    #[arg(long, env = "ELASTIC_ORPHAN_TIMEOUT", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) orphan_timeout: Option<Duration>,
    /// Most resets of the job [default: no limit]
    #[arg(long, env = "ELASTIC_RESET_LIMIT", value_name = "N")]
    pub(crate) reset_limit: Option<u32>,
    /// Failures of one slot before its host is blacklisted [default: 3; `run` without `--`: 0, as
    /// torchrun]
    #[arg(long, alias = "max_restarts", env = "ELASTIC_MAX_RESTARTS", value_name = "N")]
    pub(crate) max_restarts: Option<u32>,
    /// Failures after which a job with --mode restart may start its group again [default: no limit]
    #[arg(long, env = "ELASTIC_MAX_JOB_RESTARTS", value_name = "N")]
    pub(crate) max_job_restarts: Option<u32>,
    /// Refill the slot after a back-off, or blacklist its host at once [default: restart]
    #[arg(long, env = "ELASTIC_ON_FAILURE", value_enum)]
    pub(crate) on_failure: Option<OnFailure>,
    /// Loss of every worker that held the training state, where no checkpoint is newer than what is left (with --checkpoint the
    /// job goes on from the newest one): end the job, or begin again from the start [default: fail, unless less than a
    /// minute of training is lost; a state that came from a checkpoint of an earlier job is never lost for that]
    #[arg(long, env = "ELASTIC_ON_TOTAL_LOSS", value_enum)]
    pub(crate) on_total_loss: Option<OnTotalLoss>,
    /// A worker for which others wait for longer than is usual: name it, show its stacks, too, start another process in its
    /// place as well, or do that on a spare slot [default: dump]
    #[arg(long, env = "ELASTIC_ON_HANG", value_enum)]
    pub(crate) on_hang: Option<OnHang>,
    /// Longest time that others may wait for a worker in a collective before it counts as hanging [default: what is usual is
    /// learnt]
    #[arg(long, env = "ELASTIC_HANG_TIMEOUT", value_name = "SECONDS", value_parser = positive_seconds)]
    pub(crate) hang_timeout: Option<Duration>,
    /// A worker that computes for longer than the others, which wait for it in each step: name it, have it carry fewer
    /// --shards, replace it by one on a spare slot, or do not compare them [default: tell]
    #[arg(long, env = "ELASTIC_ON_STRAGGLER", value_enum)]
    pub(crate) on_straggler: Option<OnStraggler>,
    /// A command, for the shell of a host whose worker was replaced, that says by its exit code whether the host is well:
    /// its slot is closed until the command succeeds [default: none]
    #[arg(long, env = "ELASTIC_HEALTH_CHECK", value_name = "COMMAND")]
    pub(crate) health_check: Option<String>,
    /// The time within which the health check must end [default: 60]
    #[arg(long, env = "ELASTIC_HEALTH_CHECK_TIMEOUT", value_name = "SECONDS", value_parser = positive_seconds)]
    pub(crate) health_check_timeout: Option<Duration>,
    /// Ranks whose replicas of the state differ: name them, have them take the majority's content over, or end the job
    /// [default: tell]
    #[arg(long, env = "ELASTIC_ON_DIVERGENCE", value_enum)]
    pub(crate) on_divergence: Option<OnDivergence>,
    /// The folder of durable checkpoints, which all hosts share: from them the job resumes when no worker holds its state
    /// any more [default: nothing is written]
    #[arg(long, env = "ELASTIC_CHECKPOINT", value_name = "FOLDER")]
    pub(crate) checkpoint: Option<PathBuf>,
    /// Interval between checkpoints: a time, or a number of commits such as 500 [default: 60s]
    #[arg(long, env = "ELASTIC_CHECKPOINT_EVERY", value_name = "TIME|COMMITS", value_parser = checkpoint_every)]
    pub(crate) checkpoint_every: Option<CheckpointEvery>,
    /// Checkpoints to keep [default: 3]
    #[arg(long, env = "ELASTIC_CHECKPOINT_KEEP", value_name = "N", value_parser = count)]
    pub(crate) checkpoint_keep: Option<u32>,
    /// Most that one worker writes a second, such as 200MiB [default: no bound]
    #[arg(long, env = "ELASTIC_CHECKPOINT_BANDWIDTH", value_name = "BYTES", value_parser = bytes)]
    pub(crate) checkpoint_bandwidth: Option<u64>,
    /// Source of the state if no worker holds one: `auto`, the newest whole checkpoint; `never`, none, so that the job
    /// begins at its start; or the folder of a step, for its checkpoint [default: auto]
    #[arg(long, env = "ELASTIC_RESUME", value_name = "auto|never|FOLDER")]
    pub(crate) resume: Option<String>,
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
    /// Collectives: auto takes NCCL where every worker has a GPU and else the CPU's, cpu the CPU's, nccl NCCL or fails
    /// [default: auto]
    #[arg(long, env = elastic_gpu::BACKEND, value_enum)]
    pub(crate) backend: Option<Backend>,
    /// Encrypt the data that workers send from host to host; with the CPU's collectives only, since NCCL cannot
    #[arg(long, env = "ELASTIC_ENCRYPT_DATA", value_parser = BoolishValueParser::new())]
    pub(crate) encrypt_data: bool,
    /// Transport of the CPU's collectives: shared memory within a host and TCP between hosts, TCP alone, QUIC alone,
    /// or shared memory and QUIC where only UDP passes between hosts [default: auto]
    #[arg(long, env = "ELASTIC_DATA_PLANE", value_enum)]
    pub(crate) data_plane: Option<DataPlane>,
    /// One log file per worker and incarnation, below this folder of each host
    #[arg(long, env = "ELASTIC_OUTPUT_DIR", value_name = "FOLDER")]
    pub(crate) output_dir: Option<PathBuf>,
    /// Prefix of each line of a worker: none, rank, or a text with {host}, {slot}, {rank} (- where a process outlives
    /// a rank) and {time} [default: '[{host}:{slot}] ']
    #[arg(long, env = "ELASTIC_OUTPUT_PREFIX", value_name = "none|rank|TEXT", value_parser = output_prefix)]
    pub(crate) output_prefix: Option<OutputPrefix>,
    /// Who may read the event log and output files: 027 for the group, too, 022 for everybody. It takes effect on new
    /// files and folders and on the event log; the token and the journal always stay private [default: 077]
    #[arg(long, env = "ELASTIC_UMASK", value_name = "OCTAL", value_parser = umask)]
    pub(crate) umask: Option<FileUmask>,
    /// Where the job's page is (http://ADDR/), and where Prometheus reads its metrics (http://ADDR/metrics); port 0 takes
    /// any free port. On addresses that are not loopback only with the job's token. `none`: nowhere [default: off; `run`:
    /// 127.0.0.1 with any free port]
    #[arg(long, env = "ELASTIC_DASHBOARD", value_name = "ADDR|none", value_parser = dashboard)]
    pub(crate) dashboard: Option<DashboardFlag>,
    /// The folder of `token`, `address`, `events.jsonl` and the journal, from which a driver that was killed goes on
    /// when it is started again; a worker or `status` looks for them there [default: a folder per address below
    /// ~/.local/state/elastic-node]
    #[arg(long, env = "ELASTIC_STATE_DIR", value_name = "FOLDER")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Record the inputs and decisions of the driver in the state directory, at most 64 MiB, for `replay`
    #[arg(long, env = "ELASTIC_RECORD", value_parser = BoolishValueParser::new())]
    pub(crate) record: bool,
    /// Where several drivers, of which one acts and the others stand by, share the journal:
    /// etcd://HOST:PORT[,HOST:PORT…][/NAME], with a name of its own for each job [default: the state directory]
    #[arg(long, env = "ELASTIC_STORE", value_name = "ADDR")]
    pub(crate) store: Option<EtcdAddress>,
    /// The authority of etcd's certificates, in PEM: --store is called over TLS
    #[arg(long, env = "ELASTIC_STORE_CA", value_name = "FILE")]
    pub(crate) store_ca: Option<PathBuf>,
    /// The certificate that this driver shows to etcd, in PEM
    #[arg(long, env = "ELASTIC_STORE_CERT", value_name = "FILE")]
    pub(crate) store_cert: Option<PathBuf>,
    /// The private key of --store-cert, in PEM
    #[arg(long, env = "ELASTIC_STORE_KEY", value_name = "FILE")]
    pub(crate) store_key: Option<PathBuf>,
    /// A file (mode 0600) with a text that all drivers of the job share: the job's private key is sealed with it in the
    /// store
    #[arg(long, env = "ELASTIC_STORE_SECRET", value_name = "FILE")]
    pub(crate) store_secret: Option<PathBuf>,
    /// Only stand by for the driver that acts, never begin a job: needs --store
    #[arg(long, env = "ELASTIC_STANDBY")]
    pub(crate) standby: bool,
    /// Leader lease: delay before a standby takes over after the acting driver has vanished, with --store [default: 5]
    #[arg(long, env = "ELASTIC_LEASE_TIMEOUT", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) lease_timeout: Option<Duration>,
}

/// The way an agent gets onto a host: `--launcher`.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum LauncherKind {
    /// The agent joins by itself.
    Join,
    /// The driver starts a process on this machine for each host name.
    Local,
    /// The driver starts the agent over ssh.
    Ssh,
}

/// Values of `--dashboard`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum DashboardFlag {
    /// There is none.
    Off,
    /// It listens there.
    At(SocketAddr),
}

impl DashboardFlag {
    /// The plan for it.
    pub(super) const fn plan(self) -> Option<DashboardPlan> {
        match self {
            Self::Off => None,
            Self::At(bind) => Some(DashboardPlan { bind, is_asked_for: true }),
        }
    }
}

/// Parses the value of `--dashboard`.
fn dashboard(text: &str) -> Result<DashboardFlag, String> {
    match text.trim() {
        "none" => Ok(DashboardFlag::Off),
        text => listening_address(text).map(DashboardFlag::At),
    }
}
