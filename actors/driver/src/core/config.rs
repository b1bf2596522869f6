//! The driver's settings. The command line makes them; they are checked here once.

use std::path::Path;
use std::time::Duration;

use elastic_protocol::DataPlane;
use elastic_protocol::messages::{NodeCount, OutputSettings};
use elastic_protocol::{Deadlines, InvalidDeadlines, ProgramSpec, Step};
use serde::{Deserialize, Serialize};

/// Treatment of a slot whose worker failed.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum OnFailure {
    /// Start it again after a back-off; its host is out after `max_restarts` failures.
    #[default]
    Restart,
    /// Its host is out at once, as in Horovod.
    Blacklist,
}

/// Treatment of the loss of all workers that held the training state.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum OnTotalLoss {
    /// The job fails.
    Fail,
    /// Training begins again from the start.
    Restart,
}

/// Answer to a member for which others wait for too long.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum OnHang {
    /// It is named, with what its process does.
    Tell,
    /// It is named, with its native stack and the stacks of its Python threads, too.
    #[default]
    Dump,
    /// As `dump`; then its process is stopped, and another one takes its place. By restart, only where it is certain that
    /// the process hangs: every process is started anew then.
    Restart,
    /// As `restart`, on a spare slot where there is one: its own rests for a cool-down.
    Replace,
}

/// Answer to a member that computes for longer than the others, which wait for it in each step.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum OnStraggler {
    /// None: members are not compared.
    Off,
    /// It is named, with how slow it is.
    #[default]
    Tell,
    /// As `tell`; then it carries fewer logical shards (`--shards`), as far as steps get shorter by that. Data, global batch and
    /// results stay what they were. Without shards, as `tell`.
    Rebalance,
    /// As `tell`; then it leaves by a planned end, as soon as a spare slot has another worker, or at once where enough are
    /// left. Its slot rests for a cool-down.
    Replace,
}

/// The operator's health check: a command whose exit code tells whether a host is healthy.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct HealthCheck {
    /// The command, for the shell of the host.
    #[serde(with = "crate::recording::readable::command")]
    pub command: String,
    /// The time within which it must end.
    pub timeout: Duration,
}

/// Answer to members whose replicas of the state differ.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum OnDivergence {
    /// They are named, with the array and the step.
    #[default]
    Tell,
    /// They take the majority's content over.
    Repair,
    /// The job fails.
    Fail,
}

/// Ways in which workers survive a reset.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum ElasticMode {
    /// By restart, until the first worker attaches: then every worker must.
    #[default]
    Auto,
    /// Every worker must attach.
    InProcess,
    /// Every process lives for one generation; none may attach.
    Restart,
}

/// Interval between checkpoints.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum CheckpointEvery {
    /// This time after the last save has ended.
    Period(Duration),
    /// At steps that are multiples of this.
    Steps(u64),
}

/// Start of a job of which no worker holds a commit.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub enum ResumeFrom {
    /// The newest checkpoint that is whole; the start if there is none.
    #[default]
    Auto,
    /// The start.
    Never,
    /// The checkpoint in this step's directory.
    Exactly(String),
}

impl ResumeFrom {
    /// The step of the checkpoint that was chosen, by the name of its directory; none if none was chosen.
    pub(crate) fn step(&self) -> Option<Step> {
        let Self::Exactly(of_step) = self else { return None };
        let name = Path::new(of_step).file_name()?.to_str()?;
        name.strip_prefix("step-")?.parse().ok().map(Step)
    }
}

/// Settings of durable checkpoints.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct CheckpointSettings {
    /// The directory, which all hosts share.
    pub directory: String,
    /// Interval between saves.
    pub every: CheckpointEvery,
    /// Number of checkpoints to keep.
    pub keep: u32,
    /// Most bytes a second that one worker writes; none: no bound.
    pub bytes_per_s: Option<u64>,
    /// Start of the job while no worker holds a commit.
    pub resume: ResumeFrom,
}

/// Settings of the driver.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct DriverConfig {
    /// Number of workers to start with; none: all slots known at the start.
    pub np: Option<u32>,
    /// Least number of workers to go on with; none: the number that the job started with.
    pub min_np: Option<u32>,
    /// Most workers; none: no cap but that of `shards`.
    pub max_np: Option<u32>,
    /// Logical shards of the batch plan, for the life of the job; none: the program sets them, or has none. A world has at
    /// most this number of workers.
    #[serde(default)]
    pub shards: Option<u32>,
    /// Number of allowed resets, planned ones included; none: any number.
    pub reset_limit: Option<u32>,
    /// Failures of one slot that are tolerated; one more blacklists its host. Default 3.
    pub max_restarts: u32,
    /// Time after which a slot's earlier failures are forgiven, counted from the first training after the last
    /// failure. A process of the slot must train then. Default 10 min.
    pub forgiven_after: Duration,
    /// First cool-down of a slot after its member was replaced. During a cool-down the slot is used last of all. The
    /// cool-down doubles with each further replacement, up to twelve times its first length. Default 10 min.
    #[serde(default = "default_cool_down")]
    pub cool_down: Duration,
    /// Most replacements within an hour; the members of one host that are replaced together count as one. Default 4.
    #[serde(default = "default_replacements_max")]
    pub replacements_max: u32,
    /// The check of a host whose worker was replaced; none: hosts are not checked.
    #[serde(default)]
    pub health_check: Option<HealthCheck>,
    /// First cool-down between two deals of shards (`OnStraggler::Rebalance`). It doubles with each further deal within an
    /// hour, up to twelve times its first length. Default 30 s.
    #[serde(default = "default_rebalance_cool_down")]
    pub rebalance_cool_down: Duration,
    /// Most deals of shards within an hour. Default 6.
    #[serde(default = "default_rebalances_max")]
    pub rebalances_max: u32,
    /// Number of journal records after a snapshot before the next one is written. Default 4096.
    pub records_between_snapshots: u64,
    /// Number of resets that failures may cause in the restart mode before the job fails; none: any number.
    pub max_job_restarts: Option<u32>,
    /// Treatment of a slot whose worker failed.
    pub on_failure: OnFailure,
    /// Treatment of the loss of all workers that held the training state; none: training begins again from the start
    /// if less than a minute of it is lost, else the job fails.
    pub on_total_loss: Option<OnTotalLoss>,
    /// Answer to a member for which others wait for too long. Default: its stacks are shown.
    pub on_hang: OnHang,
    /// Longest time that others may wait for a member in a collective; none: the limit is learnt from earlier waits.
    pub hang_timeout: Option<Duration>,
    /// Answer to a member that is slower than the others. Default: it is named.
    #[serde(default)]
    pub on_straggler: OnStraggler,
    /// Answer to replicas of the state that differ. Default: they are named.
    #[serde(default)]
    pub on_divergence: OnDivergence,
    /// Durable checkpoints; none: nothing is written.
    pub checkpoint: Option<CheckpointSettings>,
    /// Way in which workers survive a reset.
    pub mode: ElasticMode,
    /// Whether hosts may still join by themselves when every known one is out.
    pub hosts_join: bool,
    /// Whether workers encrypt data sent from host to host. Default: no.
    pub encrypt_data: bool,
    /// Transport of the collectives' data. Default: shared memory, and TCP between hosts.
    pub data_plane: DataPlane,
    /// Limits of all waits.
    pub deadlines: Deadlines,
    /// The program that workers run.
    #[serde(with = "crate::recording::readable::program")]
    pub program: ProgramSpec,
    /// Treatment of the workers' output.
    pub output: OutputSettings,
    /// Name of the job for scripts of torch (`TORCHELASTIC_RUN_ID`); none: the job's id.
    pub run_id: Option<String>,
    /// Number of hosts, if the job is started on each of them (`--nnodes`). A host that was given another number is refused.
    #[serde(default)]
    pub nodes: Option<NodeCount>,
    /// Address at which workers reach the driver (`ELASTIC_DRIVER`).
    pub driver_address: String,
}

const fn default_cool_down() -> Duration {
    Duration::from_secs(600)
}

const fn default_replacements_max() -> u32 {
    4
}

const fn default_rebalance_cool_down() -> Duration {
    Duration::from_secs(30)
}

const fn default_rebalances_max() -> u32 {
    6
}

/// Settings that contradict each other.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidDriverConfig {
    /// A number of workers that must be at least one.
    #[error("{name} must be at least 1")]
    Zero {
        /// The option's name.
        name: &'static str,
    },
    /// `min_np <= np <= max_np` does not hold.
    #[error("{smaller} ({smaller_value}) is larger than {larger} ({larger_value})")]
    Order {
        /// Name of the option that must be smaller.
        smaller: &'static str,
        /// The option's value.
        smaller_value: u32,
        /// Name of the option that must be larger.
        larger: &'static str,
        /// The option's value.
        larger_value: u32,
    },
    /// A number of workers that is larger than the number of shards.
    #[error(
        "{name} ({workers}) is larger than --shards ({shards}): a worker without a shard has nothing to do"
    )]
    MoreThanShards {
        /// The option's name.
        name: &'static str,
        /// The option's value.
        workers: u32,
        /// The number of shards.
        shards: u32,
    },
    /// A batch plan with a single shard.
    #[error("--shards must be at least 2: one shard is one worker's alone")]
    OneShard,
    /// Checkpoints of programs whose state the library does not hold.
    #[error(
        "--checkpoint saves the state of programs that use the library, and --mode restart runs those that do not"
    )]
    CheckpointByRestart,
    /// Replacing members that do not report their steps and collectives.
    #[error(
        "{flag} {answer} needs to know the steps of programs that use the library, and --mode restart runs those that do \
         not"
    )]
    ReplaceByRestart {
        /// The option's name.
        flag: &'static str,
        /// Its value.
        answer: &'static str,
    },
    /// A health check of hosts of which no worker is ever replaced.
    #[error(
        "--health-check looks at hosts whose workers were replaced: it needs --on-hang replace or --on-straggler replace"
    )]
    HealthCheckOfNobody,
    /// No program.
    #[error("no program was given")]
    NoProgram,
    /// The deadlines contradict each other.
    #[error("the deadlines contradict each other")]
    Deadlines(#[from] InvalidDeadlines),
}

impl DriverConfig {
    /// Defaults for a program.
    pub fn new(program: ProgramSpec) -> Self {
        Self {
            np: None,
            min_np: None,
            max_np: None,
            shards: None,
            reset_limit: None,
            encrypt_data: false,
            data_plane: DataPlane::Auto,
            max_restarts: 3,
            forgiven_after: Duration::from_secs(600),
            cool_down: default_cool_down(),
            health_check: None,
            replacements_max: default_replacements_max(),
            rebalance_cool_down: default_rebalance_cool_down(),
            rebalances_max: default_rebalances_max(),
            records_between_snapshots: 4096,
            max_job_restarts: None,
            on_failure: OnFailure::default(),
            on_total_loss: None,
            on_hang: OnHang::default(),
            on_straggler: OnStraggler::default(),
            on_divergence: OnDivergence::default(),
            hang_timeout: None,
            checkpoint: None,
            mode: ElasticMode::default(),
            hosts_join: true,
            deadlines: Deadlines::default(),
            program,
            output: OutputSettings::default(),
            run_id: None,
            nodes: None,
            driver_address: String::new(),
        }
    }

    /// Checks that the settings agree, and caps the world at the number of shards.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn validate(mut self) -> Result<Self, InvalidDriverConfig> {
        let sizes = [
            ("--min-np", self.min_np),
            ("--np", self.np),
            ("--max-np", self.max_np),
            ("--shards", self.shards),
        ];
        let given: Vec<(&'static str, u32)> =
            sizes.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        if let Some((name, _)) = given.iter().find(|(_, value)| *value == 0) {
            return Err(InvalidDriverConfig::Zero { name });
        }
        if self.shards == Some(1) {
            return Err(InvalidDriverConfig::OneShard);
        }
        for pair in given.windows(2) {
            let [(smaller, smaller_value), (larger, larger_value)] = pair else { continue };
            if smaller_value > larger_value {
                if *larger == "--shards" {
                    return Err(InvalidDriverConfig::MoreThanShards {
                        name: smaller,
                        workers: *smaller_value,
                        shards: *larger_value,
                    });
                }
                return Err(InvalidDriverConfig::Order {
                    smaller,
                    smaller_value: *smaller_value,
                    larger,
                    larger_value: *larger_value,
                });
            }
        }
        if self.checkpoint.is_some() && self.mode == ElasticMode::Restart {
            return Err(InvalidDriverConfig::CheckpointByRestart);
        }
        let replaces = [
            ("--on-hang", "replace", self.on_hang == OnHang::Replace),
            ("--on-straggler", "replace", self.on_straggler == OnStraggler::Replace),
            ("--on-straggler", "rebalance", self.on_straggler == OnStraggler::Rebalance),
        ];
        let is_replacing =
            self.on_hang == OnHang::Replace || self.on_straggler == OnStraggler::Replace;
        if self.health_check.is_some() && !is_replacing {
            return Err(InvalidDriverConfig::HealthCheckOfNobody);
        }
        if self.mode == ElasticMode::Restart
            && let Some((flag, answer, _)) = replaces.into_iter().find(|(_, _, is_set)| *is_set)
        {
            return Err(InvalidDriverConfig::ReplaceByRestart { flag, answer });
        }
        if self.program.argv.is_empty() {
            return Err(InvalidDriverConfig::NoProgram);
        }
        self.deadlines.validate()?;
        self.max_np = self.max_np.or(self.shards);
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> DriverConfig {
        DriverConfig::new(ProgramSpec { argv: vec!["train".to_owned()], environment: Vec::new() })
    }

    #[test]
    fn sizes_must_be_in_order() {
        let wrong = DriverConfig { min_np: Some(3), np: Some(2), ..config() };
        let error = wrong.validate().expect_err("min above np");
        assert_eq!(error.to_string(), "--min-np (3) is larger than --np (2)");
        let wrong = DriverConfig { min_np: Some(3), max_np: Some(2), ..config() };
        assert!(wrong.validate().is_err(), "min above max, np not given");
        assert!(DriverConfig { min_np: Some(1), np: Some(2), ..config() }.validate().is_ok());
    }

    #[test]
    fn c_2_no_world_is_larger_than_the_number_of_shards() {
        let wrong =
            |config: DriverConfig| config.validate().map(|_| ()).map_err(|it| it.to_string());
        let of =
            |np, min_np, max_np| DriverConfig { np, min_np, max_np, shards: Some(8), ..config() };
        let reason = "is larger than --shards (8): a worker without a shard has nothing to do";
        assert_eq!(wrong(of(Some(9), None, None)), Err(format!("--np (9) {reason}")));
        assert_eq!(wrong(of(Some(2), None, Some(9))), Err(format!("--max-np (9) {reason}")));
        assert_eq!(wrong(of(None, Some(10), None)), Err(format!("--min-np (10) {reason}")));
        let capped = of(Some(2), Some(1), None).validate().expect("nothing to refuse");
        assert_eq!(capped.max_np, Some(8), "other slots are spares");
        let capped = of(Some(2), Some(1), Some(4)).validate().expect("nothing to refuse");
        assert_eq!(capped.max_np, Some(4));
    }

    #[test]
    fn replacing_needs_programs_that_use_the_library() {
        let wrong = DriverConfig {
            on_straggler: OnStraggler::Replace,
            mode: ElasticMode::Restart,
            ..config()
        };
        let error = wrong.clone().validate().expect_err("by restart").to_string();
        assert!(error.starts_with("--on-straggler replace needs"), "{error}");
        assert!(DriverConfig { mode: ElasticMode::InProcess, ..wrong }.validate().is_ok());
    }

    #[test]
    fn zero_workers_and_no_program_are_refused() {
        let wrong = DriverConfig { np: Some(0), ..config() };
        assert_eq!(wrong.validate().err(), Some(InvalidDriverConfig::Zero { name: "--np" }));
        let wrong = DriverConfig::new(ProgramSpec::default());
        assert_eq!(wrong.validate().err(), Some(InvalidDriverConfig::NoProgram));
    }

    #[test]
    fn a_ladder_of_deadlines_out_of_order_is_refused() {
        let mut wrong = config();
        wrong.deadlines.lost = wrong.deadlines.suspect / 2;
        let error = wrong.validate().expect_err("lost before suspect").to_string();
        assert_eq!(error, "the deadlines contradict each other");
    }
}
