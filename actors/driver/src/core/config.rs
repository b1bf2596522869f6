//! What the driver is told before the job begins. Made by the command line, checked here once.

use std::time::Duration;

use elastic_protocol::messages::{DataPlane, OutputSettings};
use elastic_protocol::{Deadlines, InvalidDeadlines, ProgramSpec};

/// What becomes of a slot whose worker failed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum OnFailure {
    /// Start it again after a back-off; its host is out after `max_restarts` failures.
    #[default]
    Restart,
    /// Its host is out at once, as in Horovod.
    Blacklist,
}

/// How workers survive a reset.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Mode {
    /// By restart, until the first worker attaches: then every worker must.
    #[default]
    Auto,
    /// Every worker must attach.
    InProcess,
    /// Every process lives for one generation; none may attach.
    Restart,
}

/// Settings of the driver.
#[derive(Clone, Debug)]
pub struct DriverConfig {
    /// Workers to start with; none: all slots known at the start.
    pub np: Option<u32>,
    /// Fewest workers to go on with; none: as many as it started with.
    pub min_np: Option<u32>,
    /// Most workers; none: no cap.
    pub max_np: Option<u32>,
    /// Resets allowed, planned ones counted too; none: any number.
    pub reset_limit: Option<u32>,
    /// Failures of one slot after which its host is blacklisted. Default 3.
    pub max_restarts: u32,
    /// How long after a slot's process has trained first, with no failure since and a process that trains, its earlier
    /// failures are forgiven. Default 10 min.
    pub forgiven_after: Duration,
    /// Resets that failures may cause in the restart mode before the job fails; none: any number.
    pub max_job_restarts: Option<u32>,
    /// What becomes of a slot whose worker failed.
    pub on_failure: OnFailure,
    /// How workers survive a reset.
    pub mode: Mode,
    /// Whether hosts may still join of themselves when every known one is out.
    pub hosts_join: bool,
    /// Whether workers encrypt what they send each other from host to host. Default: no.
    pub encrypt_data: bool,
    /// What carries the data of workers' collectives. Default: shared memory, and TCP between hosts.
    pub data_plane: DataPlane,
    /// How long waits may last.
    pub deadlines: Deadlines,
    /// What workers run.
    pub program: ProgramSpec,
    /// What becomes of their output.
    pub output: OutputSettings,
    /// What scripts of torch take for the job's name (`TORCHELASTIC_RUN_ID`); none: the job's id.
    pub run_id: Option<String>,
    /// Where workers reach the driver (`ELASTIC_DRIVER`).
    pub driver_address: String,
}

/// Settings that contradict each other.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidDriverConfig {
    /// A number of workers that must be at least one.
    #[error("{name} must be at least 1")]
    Zero {
        /// Which.
        name: &'static str,
    },
    /// `min_np <= np <= max_np` does not hold.
    #[error("{smaller} ({smaller_value}) is larger than {larger} ({larger_value})")]
    Order {
        /// The one that must be smaller.
        smaller: &'static str,
        /// Its value.
        smaller_value: u32,
        /// The one that must be larger.
        larger: &'static str,
        /// Its value.
        larger_value: u32,
    },
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
            reset_limit: None,
            encrypt_data: false,
            data_plane: DataPlane::Auto,
            max_restarts: 3,
            forgiven_after: Duration::from_secs(600),
            max_job_restarts: None,
            on_failure: OnFailure::default(),
            mode: Mode::default(),
            hosts_join: true,
            deadlines: Deadlines::default(),
            program,
            output: OutputSettings::default(),
            run_id: None,
            driver_address: String::new(),
        }
    }

    /// Checks that the settings agree.
    ///
    /// # Errors
    /// Names the first contradiction.
    pub fn validate(self) -> Result<Self, InvalidDriverConfig> {
        let sizes = [("--min-np", self.min_np), ("--np", self.np), ("--max-np", self.max_np)];
        let given: Vec<(&'static str, u32)> =
            sizes.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        if let Some((name, _)) = given.iter().find(|(_, value)| *value == 0) {
            return Err(InvalidDriverConfig::Zero { name });
        }
        for pair in given.windows(2) {
            let [(smaller, smaller_value), (larger, larger_value)] = pair else { continue };
            if smaller_value > larger_value {
                return Err(InvalidDriverConfig::Order {
                    smaller,
                    smaller_value: *smaller_value,
                    larger,
                    larger_value: *larger_value,
                });
            }
        }
        if self.program.argv.is_empty() {
            return Err(InvalidDriverConfig::NoProgram);
        }
        self.deadlines.validate()?;
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
    fn zero_workers_and_no_program_are_refused() {
        let wrong = DriverConfig { np: Some(0), ..config() };
        assert_eq!(wrong.validate().err(), Some(InvalidDriverConfig::Zero { name: "--np" }));
        let wrong = DriverConfig::new(ProgramSpec::default());
        assert_eq!(wrong.validate().err(), Some(InvalidDriverConfig::NoProgram));
    }
}
