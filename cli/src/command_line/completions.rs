//! `completions`: scripts with which a shell completes commands and flags. Called by `main`.

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use super::arguments::CommandLine;
use super::failure::{CommandFailure, ResultExt as _};
use super::stdout::print_line;

/// Flags of `completions`.
#[derive(Args, Clone, Debug)]
pub(crate) struct CompletionsFlags {
    /// The shell. In bash: `source <(elastic-node completions bash)`
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints the script that the shell reads.
pub(crate) fn print_completions(flags: &CompletionsFlags) -> Result<(), CommandFailure> {
    let mut command = CommandLine::command();
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(flags.shell, &mut command, name, &mut script);
    let script = String::from_utf8(script).failed("the script is not UTF-8")?;
    print_line(script.trim_end())
}
