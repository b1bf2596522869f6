//! The file of `--config` (`file`, `settings`), the flags that it may set (`tables`), its errors (`error`), the
//! order of flags that say the same thing (`precedence`), and `config show` (`show`, `shown_flag`). Called by `reading` and `main`.

mod error;
mod file;
mod precedence;
mod settings;
mod show;
mod shown_flag;
mod tables;

use std::borrow::Cow;
use std::ffi::OsString;

use clap::{ArgMatches, Args, Command, Subcommand};

use super::failure::CommandFailure;
pub(super) use settings::FileSettings;
use show::ConfigShowFlags;

/// Flags of `config`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ConfigFlags {
    #[command(subcommand)]
    command: ConfigSubcommand,
}

#[derive(Clone, Debug, Subcommand)]
enum ConfigSubcommand {
    /// Print the values in force as TOML, each with where it comes from: command line, environment, file or default.
    Show(ConfigShowFlags),
}

/// Settings of the file of `--config`, if one is named.
///
/// # Errors
/// The file cannot be used.
pub(super) fn file_settings(
    command: &Command,
    matches: &ArgMatches,
) -> Result<Option<FileSettings>, CommandFailure> {
    Ok(settings::file_settings(command, matches)?)
}

/// The command without the variables that the command line sets aside.
///
/// # Errors
/// Two flags on the command line contradict each other.
pub(super) fn without_set_aside<'a>(
    command: &'a Command,
    arguments: &[OsString],
) -> Result<Cow<'a, Command>, CommandFailure> {
    let aside = precedence::set_aside(command, arguments)?;
    Ok(match aside.is_empty() {
        true => Cow::Borrowed(command),
        false => Cow::Owned(precedence::without_variables(command.clone(), &|id| {
            aside.iter().any(|it| it == id)
        })),
    })
}

/// Runs `config`.
pub(crate) fn run_config(flags: &ConfigFlags) -> Result<(), CommandFailure> {
    match &flags.command {
        ConfigSubcommand::Show(flags) => show::run_show(flags),
    }
}
