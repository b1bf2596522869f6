//! `config show`: the values of flags in force, as TOML that `--config` reads or as JSON, each with its origin. Called
//! by `run_config`.

use std::ffi::{OsStr, OsString};

use clap::{Arg, Args, CommandFactory as _};
use serde_json::{Map, Value, json};

use super::super::arguments::CommandLine;
use super::super::failure::CommandFailure;
use super::super::reading::{with_file, with_values_apart};
use super::super::stdout::print;
use super::precedence::set_aside;
use super::settings::{FileSettings, table_of};
use super::shown_flag::{ShownFlag, read_flag};
use super::tables::ConfigTable;

/// Widest value behind which the origins still stand in one column.
const COLUMN_MAX: usize = 40;

/// Flags of `config show`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ConfigShowFlags {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// The command line of which it is to be said, without `elastic-node`: `run -n 4 --config job.toml`, or `--role
    /// worker --join head:7070` [default: run]
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND LINE")]
    words: Vec<OsString>,
}

/// The settings of one command line.
struct ShownConfig {
    table: ConfigTable,
    settings: Option<FileSettings>,
    flags: Vec<ShownFlag>,
    /// Variables that are set, and that a flag sets aside.
    variables_aside: Vec<String>,
}

/// Prints the values in force.
pub(super) fn run_show(flags: &ConfigShowFlags) -> Result<(), CommandFailure> {
    let shown = resolve(&flags.words)?;
    print(&if flags.json { format!("{}\n", as_json(&shown)) } else { as_toml(&shown) })
}

fn resolve(words: &[OsString]) -> Result<ShownConfig, CommandFailure> {
    // Only the flags are shown: the program may be left out.
    let command = CommandLine::command()
        .mut_subcommand("run", |run| run.mut_arg("program", |program| program.required(false)));
    let line = |words: &[OsString], of: Option<&str>| {
        let own = ["elastic-node"].into_iter().chain(of).map(OsString::from);
        own.chain(words.iter().cloned()).collect::<Vec<OsString>>()
    };
    let is_run = match command.clone().try_get_matches_from(line(words, None)) {
        Ok(typed) => typed.subcommand().is_none() && !typed.contains_id("role"),
        // Wrong as it stands: it may be `run` without its name, with a program.
        Err(_) => !names_command_or_role(&command, words),
    };
    let line = with_values_apart(&command, line(words, is_run.then_some("run")));
    let (matches, settings) = with_file(&command, &line, |error| error.exit())?;
    let Some((table, matches)) = table_of(&matches) else {
        let typed = matches.subcommand_name().unwrap_or_default();
        return Err(CommandFailure::usage(format!("`{typed}` reads no configuration file"))
            .hint("`config show run …`, `config show --role driver …` or `--role worker …`"));
    };
    let flags = table.settable(&command).into_iter();
    let flags = flags.map(|flag| read_flag(flag, matches, settings.as_ref())).collect();
    let aside = set_aside(&command, &line)?;
    let of_aside = table.settable(&command).into_iter();
    let of_aside = of_aside.filter(|flag| aside.iter().any(|id| flag.get_id() == id.as_str()));
    let is_set = |variable: &&OsStr| std::env::var_os(variable).is_some();
    let variables = of_aside.filter_map(Arg::get_env).filter(is_set);
    let variables_aside = variables.map(|it| it.to_string_lossy().into_owned()).collect();
    Ok(ShownConfig { table, settings, flags, variables_aside })
}

fn names_command_or_role(command: &clap::Command, words: &[OsString]) -> bool {
    let first = words.first().and_then(|word| word.to_str()).unwrap_or_default();
    let mut before_program = words.iter().take_while(|word| *word != "--");
    command.find_subcommand(first).is_some()
        || before_program.any(|word| word.to_string_lossy().starts_with("--role"))
}

fn as_toml(shown: &ShownConfig) -> String {
    let mut text = format!("# {}: the values in force\n", shown.table.words());
    if let Some(settings) = &shown.settings {
        text.push_str(&format!("# with the file {}\n", settings.file.display()));
    }
    text.push('\n');
    let lines: Vec<(String, String)> = shown
        .flags
        .iter()
        .filter_map(|flag| Some((flag.toml()?, flag.origin.to_string())))
        .collect();
    let widths = lines.iter().map(|(line, _)| line.chars().count());
    let column = widths.filter(|width| *width <= COLUMN_MAX).max().unwrap_or_default();
    for (line, origin) in lines {
        text.push_str(&format!("{line:column$}  # {origin}\n"));
    }
    let settings = shown.settings.as_ref();
    for setting in settings.map(|it| it.set_aside.as_slice()).unwrap_or_default() {
        let line = format!(
            "# not in force: {} of {}; a flag or variable goes first\n",
            setting.flag, setting.at
        );
        text.push_str(&line);
    }
    for variable in &shown.variables_aside {
        text.push_str(&format!("# not in force: {variable}; a flag goes first\n"));
    }
    let unset: Vec<&ShownFlag> = shown.flags.iter().filter(|it| it.toml().is_none()).collect();
    if !unset.is_empty() {
        text.push_str("\n# Flags that are not set:\n");
    }
    for flag in unset {
        text.push_str(&format!("# {}: {}\n", flag.name, flag.why_no_value()));
    }
    text
}

/// `command`, `file` (null: none), and `values`: for each flag its `value` (null: not set) and `from`: `command_line`,
/// `environment` (with `variable`), `file` (with `line`) or `default` (with `default`, what the help says of it).
fn as_json(shown: &ShownConfig) -> Value {
    let values: Map<String, Value> =
        shown.flags.iter().map(|flag| (flag.name.clone(), flag.json())).collect();
    let file = shown.settings.as_ref().map(|it| it.file.display().to_string());
    json!({ "command": shown.table.name(), "file": file, "values": values })
}

#[cfg(test)]
#[path = "show_tests.rs"]
mod tests;
