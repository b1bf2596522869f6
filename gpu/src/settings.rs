//! Settings: the demanded collectives, and the reach of NCCL. The driver's `--backend` reaches workers as a variable;
//! the others are set in their environment. Read by the Rust API and by `elastic-node doctor`.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The demanded collectives: `auto`, `cpu` or `nccl`.
pub const BACKEND: &str = "ELASTIC_BACKEND";
/// The reach of NCCL: `world` or `host`.
pub const SCOPE: &str = "ELASTIC_NCCL_SCOPE";
/// Communicators that are formed ahead in each generation.
pub const SPARES: &str = "ELASTIC_NCCL_SPARES";

/// Which collectives are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Backend {
    /// NCCL where every member has a GPU, else the CPU's.
    #[default]
    Auto,
    /// The CPU's.
    Cpu,
    /// NCCL, or nothing.
    Nccl,
}

/// The reach of NCCL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Within hosts and between them.
    #[default]
    World,
    /// Within hosts; between them go the CPU's collectives, for networks that NCCL cannot use well.
    Host,
}

/// A setting that is not one of those there are.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{variable} is {value:?}; give {expected}")]
pub struct InvalidSetting {
    /// The variable.
    pub variable: &'static str,
    /// The value of the variable.
    pub value: String,
    /// The values that it may have.
    pub expected: &'static str,
}

/// The settings in a worker's environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The demanded collectives.
    pub backend: Backend,
    /// The reach of NCCL.
    pub scope: Scope,
    /// Communicators that are formed ahead in each generation. None by default: each takes memory of the GPU.
    pub spares: u32,
}

impl Settings {
    /// Reads the environment through `lookup`.
    ///
    /// # Errors
    ///
    /// [`InvalidSetting`] names the variable.
    pub fn parse(lookup: impl Fn(&str) -> Option<String>) -> Result<Settings, InvalidSetting> {
        fn read<T: FromStr + Default>(
            variable: &'static str,
            expected: &'static str,
            text: Option<String>,
        ) -> Result<T, InvalidSetting> {
            let Some(value) = text.filter(|text| !text.is_empty()) else { return Ok(T::default()) };
            value.parse().map_err(|_| InvalidSetting { variable, value, expected })
        }
        Ok(Settings {
            backend: read(BACKEND, "auto, cpu or nccl", lookup(BACKEND))?,
            scope: read(SCOPE, "world or host", lookup(SCOPE))?,
            spares: read(SPARES, "a small number", lookup(SPARES))?,
        })
    }
}

impl FromStr for Backend {
    type Err = ();

    fn from_str(text: &str) -> Result<Backend, ()> {
        match text {
            "auto" => Ok(Backend::Auto),
            "cpu" => Ok(Backend::Cpu),
            "nccl" => Ok(Backend::Nccl),
            _ => Err(()),
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Backend::Auto => "auto",
            Backend::Cpu => "cpu",
            Backend::Nccl => "nccl",
        })
    }
}

impl FromStr for Scope {
    type Err = ();

    fn from_str(text: &str) -> Result<Scope, ()> {
        match text {
            "world" => Ok(Scope::World),
            "host" => Ok(Scope::Host),
            _ => Err(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_set_has_its_default_and_what_is_wrong_is_named() {
        let defaults = Settings { backend: Backend::Auto, scope: Scope::World, spares: 0 };
        assert_eq!(Settings::parse(|_| None), Ok(defaults));
        let set = |name: &str| match name {
            BACKEND => Some("nccl".to_owned()),
            SCOPE => Some("host".to_owned()),
            _ => Some("2".to_owned()),
        };
        let due = Settings { backend: Backend::Nccl, scope: Scope::Host, spares: 2 };
        assert_eq!(Settings::parse(set), Ok(due));
        let wrong = Settings::parse(|name| (name == SCOPE).then(|| "rack".to_owned()));
        assert_eq!(wrong.expect_err("no such scope").variable, SCOPE);
    }
}
