//! The two lengths of help: `-h` shows the flags that most jobs need, without the environment's variables; `--help`
//! shows all. Called by `reading`.

use std::ffi::{OsStr, OsString};

use clap::{Arg, Command};

/// The flags, by id, that `-h` shows of a role and of `run`.
const COMMON: [&str; 22] = [
    "role",
    "program",
    "bind",
    "np",
    "min_np",
    "max_np",
    "hosts",
    "hostfile",
    "launcher",
    "mode",
    "checkpoint",
    "output_dir",
    "join",
    "token_file",
    "host",
    "slots",
    "nnodes",
    "nproc_per_node",
    "rdzv_endpoint",
    "module",
    "help",
    "version",
];

/// The commands that `-h` leaves out.
const RARE: [&str; 10] = [
    "config",
    "timeline",
    "replay",
    "completions",
    "man",
    "history",
    "stop",
    "drain",
    "readmit",
    "forget",
];

/// The line below a short help.
const MORE: &str =
    "`--help` shows all commands and flags, their environment variables and examples.";

/// Gives a command its short help; with `is_short` the variables are left out, too, which clap shows in both.
pub(super) fn with_short_help(command: Command, is_short: bool) -> Command {
    let command = command.mut_args(|argument| common_only(argument, is_short)).after_help(MORE);
    command.mut_subcommands(|command| match command.get_name() {
        "run" => command.mut_args(|argument| common_only(argument, is_short)).after_help(MORE),
        name => {
            let is_hidden = command.is_hide_set() || (is_short && RARE.contains(&name));
            command.hide(is_hidden).mut_args(|argument| argument.hide_env(is_short))
        }
    })
}

fn common_only(argument: Arg, is_short: bool) -> Arg {
    let is_common = COMMON.contains(&argument.get_id().as_str());
    argument.hide_short_help(!is_common).hide_env(is_short)
}

/// Whether the words ask for the short help: `-h` before the program.
pub(super) fn asks_for_short_help(arguments: &[OsString]) -> bool {
    arguments
        .iter()
        .take_while(|word| *word != OsStr::new("--"))
        .any(|word| word == OsStr::new("-h"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::super::arguments::CommandLine;
    use super::*;

    /// Most lines of a short help on a wide terminal.
    const SHORT_LINES_MAX: usize = 50;

    #[test]
    fn the_short_help_fits_on_a_screen_and_the_long_one_has_every_flag() {
        let help = |name: &str, is_short: bool| {
            let mut command = with_short_help(CommandLine::command().term_width(100), is_short);
            command.build();
            let command = match name {
                "" => &mut command,
                name => command.find_subcommand_mut(name).expect("a command"),
            };
            let text = if is_short { command.render_help() } else { command.render_long_help() };
            text.to_string()
        };
        for name in ["", "run"] {
            let (short, long) = (help(name, true), help(name, false));
            assert!(short.lines().count() <= SHORT_LINES_MAX, "{name:?}:\n{short}");
            assert!(!short.contains("env:") && short.contains("--help"), "{short}");
            assert!(long.contains("--blacklist-cooldown-range") && long.contains("env:"), "{long}");
        }
        assert!(!help("status", false).contains("Worker:"), "--log belongs to all commands");
    }

    #[test]
    fn only_flags_that_exist_are_shown() {
        let command = CommandLine::command();
        let run = command.find_subcommand("run").expect("a command");
        let of_all = command.get_arguments().chain(run.get_arguments());
        let ids: Vec<&str> = of_all.map(|argument| argument.get_id().as_str()).collect();
        for id in COMMON.iter().filter(|id| !["help", "version"].contains(id)) {
            assert!(ids.contains(id), "{id}");
        }
    }
}
