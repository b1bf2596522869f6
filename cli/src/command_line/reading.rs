//! Reads the command line, and refuses flags of one role that are given to the other. Called by `main`.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use elastic_protocol::environment;

use super::arguments::{CommandLine, ProgramCommand, Role};
use super::config::{FileSettings, file_settings, without_set_aside};
use super::failure::CommandFailure;
use super::help::{asks_for_short_help, with_short_help};
use super::nearest::nearest;

/// Flags of `--role worker`.
pub(super) const WORKER_FLAGS: [&str; 9] =
    ["join", "token", "token_file", "host", "slots", "role_name", "interface", "launched", "leash"];
/// Flags that both roles share.
const COMMON_FLAGS: [&str; 6] = ["role", "config", "log", "verbose", "state_dir", "program"];
/// Log filter of `--verbose`.
const VERBOSE_LOG: &str = "debug";

/// The environment variables that set flags of roles. Agents that a driver starts must not inherit them: they are
/// meant for the driver.
pub(crate) fn flag_variables() -> Vec<OsString> {
    let command = CommandLine::command();
    command.get_arguments().filter_map(|it| it.get_env().map(ToOwned::to_owned)).collect()
}

/// Reads the arguments of this process, and the file that they name. clap itself ends the process for `--help` and for invalid arguments.
pub(crate) fn read() -> Result<CommandLine, CommandFailure> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let command = with_short_help(CommandLine::command(), asks_for_short_help(&arguments));
    let arguments = with_values_apart(&command, arguments);
    let (matches, from_file) = with_file(&command, &arguments, |error| {
        unknown_command(&error)
            .or_else(|| not_unicode(&error, &arguments))
            .unwrap_or_else(|| error.exit())
    })?;
    let mut cli = interpret(&matches)?;
    note_dashes(&mut cli, &arguments);
    check_program(&cli)?;
    note_file(&mut cli, from_file.as_ref());
    Ok(cli)
}

/// Parses the arguments, with the values of `--config` beneath them. A flag goes before the variable of one that says the
/// same.
pub(super) fn with_file(
    command: &clap::Command,
    arguments: &[OsString],
    refused: impl Fn(clap::Error) -> CommandFailure,
) -> Result<(ArgMatches, Option<FileSettings>), CommandFailure> {
    let command = without_set_aside(command, arguments)?;
    let command = &*command;
    let matches = command.clone().try_get_matches_from(arguments).map_err(&refused)?;
    let Some(settings) = file_settings(command, &matches)? else { return Ok((matches, None)) };
    let matches = settings.beneath(command.clone()).try_get_matches_from(arguments);
    Ok((matches.map_err(&refused)?, Some(settings)))
}

/// The arguments of `run` with `-n4` and `-n=4` as `--np=4`: clap takes a short flag for the program where its value begins
/// with a letter that is no flag.
pub(super) fn with_values_apart(
    command: &clap::Command,
    mut arguments: Vec<OsString>,
) -> Vec<OsString> {
    while let Some((at, apart)) = value_apart(command, &arguments) {
        arguments[at] = apart;
    }
    arguments
}

/// The place of a short flag of `run` that clap takes for the program, and what it means.
fn value_apart(command: &clap::Command, arguments: &[OsString]) -> Option<(usize, OsString)> {
    let is_short = |it: &OsString| it.len() > 2 && !it.as_encoded_bytes().starts_with(b"--");
    arguments.iter().find(|it| it.as_encoded_bytes().starts_with(b"-") && is_short(it))?;
    let matches = command.clone().try_get_matches_from(arguments).ok()?;
    let run = matches.subcommand_matches("run")?;
    let program = run.get_many::<String>("program")?;
    let at = arguments.len().checked_sub(program.len())?;
    if arguments[at - 1] == "--" {
        return None;
    }
    let mut letters = arguments[at].to_str()?.strip_prefix('-')?.chars();
    let short = letters.next()?;
    let mut flags = command.find_subcommand("run")?.get_arguments();
    let flag =
        flags.find(|flag| flag.get_short() == Some(short) && flag.get_action().takes_values())?;
    let value = letters.as_str();
    let value = value.strip_prefix('=').unwrap_or(value);
    Some((at, format!("--{}={value}", flag.get_long()?).into()))
}

/// Notes the settings of a file, for the list of jobs.
fn note_file(cli: &mut CommandLine, from_file: Option<&FileSettings>) {
    let words = from_file.map(FileSettings::words).unwrap_or_default();
    match &mut cli.command {
        Some(ProgramCommand::Run(run)) => run.driver.from_file = words,
        _ => cli.role.driver.from_file = words,
    }
}

/// A word in the place of a command that is none; clap calls it an unexpected argument.
fn unknown_command(error: &clap::Error) -> Option<CommandFailure> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) else { return None };
    let command = CommandLine::command();
    let is_first = std::env::args().nth(1).is_some_and(|first| first == *word);
    if word.starts_with('-') || !is_first {
        return None;
    }
    let names: Vec<&str> =
        command.get_subcommands().filter(|it| !it.is_hide_set()).map(|it| it.get_name()).collect();
    let flags = ["version", "help"];
    let hint = match (nearest(word, names.iter().copied()), nearest(word, flags)) {
        (Some(name), _) => format!("did you mean `elastic-node {name}`?"),
        (None, Some(flag)) => format!("did you mean `elastic-node --{flag}`?"),
        (None, None) => {
            format!("the commands are: {}; see `elastic-node --help`", names.join(", "))
        }
    };
    Some(CommandFailure::usage(format!("there is no command `{word}`")).hint(hint))
}

/// An argument that is not UTF-8; clap does not say which.
fn not_unicode(error: &clap::Error, arguments: &[OsString]) -> Option<CommandFailure> {
    if error.kind() != ErrorKind::InvalidUtf8 {
        return None;
    }
    let mut numbered = arguments.iter().enumerate().skip(1);
    let (number, argument) = numbered.find(|(_, argument)| argument.to_str().is_none())?;
    let message = format!("argument {number} is not UTF-8: {argument:?}");
    let hint = "a job's program and its arguments are sent to other hosts as text: pass the name in a file, or rename it";
    Some(CommandFailure::usage(message).hint(hint))
}

/// Variables of this program that set no flag.
const OTHER_VARIABLES: [&str; 13] = [
    environment::DRIVER,
    environment::JOB,
    environment::WORKER,
    environment::CREDENTIAL,
    environment::LOCK,
    environment::DATA_ADDRESS,
    environment::MEETING_ADDRESS,
    environment::STORE_ADDRESS,
    "ELASTIC_COLLECTIVE_TIMEOUT",
    "ELASTIC_CUDA_LIBRARY",
    "ELASTIC_NCCL_LIBRARY",
    "ELASTIC_NCCL_SCOPE",
    "ELASTIC_NCCL_SPARES",
];

/// Warns of variables that are nearly those of a flag: they would set nothing, silently.
pub(crate) fn warn_of_misspelt_variables() {
    let mut command = CommandLine::command();
    command.build();
    let of_commands = command.get_subcommands().flat_map(clap::Command::get_arguments);
    let known: Vec<String> = command
        .get_arguments()
        .chain(of_commands)
        .filter_map(|it| it.get_env()?.to_str().map(ToOwned::to_owned))
        .chain(OTHER_VARIABLES.map(ToOwned::to_owned))
        .collect();
    for (variable, _) in std::env::vars_os() {
        let Some(variable) = variable.to_str().filter(|it| it.starts_with("ELASTIC_")) else {
            continue;
        };
        if known.iter().any(|it| it == variable) {
            continue;
        }
        if let Some(meant) = nearest(variable, known.iter().map(String::as_str)) {
            tracing::warn!("{variable} sets nothing: did you mean {meant}?");
        }
    }
}

/// Notes whether `--` stands before the program, which clap does not tell.
fn note_dashes(cli: &mut CommandLine, arguments: &[OsString]) {
    if let Some(ProgramCommand::Run(run)) = &mut cli.command {
        let before = arguments.len().checked_sub(run.program.len() + 1);
        run.is_behind_dashes = before.is_some_and(|before| arguments[before] == "--");
    }
}

/// Refuses a flag of `run` that there is not. clap takes it for the program, which Python would then run.
fn check_program(cli: &CommandLine) -> Result<(), CommandFailure> {
    let Some(ProgramCommand::Run(run)) = &cli.command else { return Ok(()) };
    let is_flag = |word: &&String| word.starts_with('-') && *word != "-" && !run.is_behind_dashes;
    let Some(flag) = run.program.first().filter(is_flag) else { return Ok(()) };
    let name = flag.split('=').next().unwrap_or(flag);
    let command = CommandLine::command();
    let of_run = command.find_subcommand("run").into_iter().flat_map(clap::Command::get_arguments);
    let flags: Vec<String> =
        of_run.filter_map(|it| it.get_long()).map(|long| format!("--{long}")).collect();
    let hint = match nearest(name, flags.iter().map(String::as_str)) {
        Some(meant) => format!("did you mean {meant}?"),
        None => "see `elastic-node run --help`; what is meant for Python stands behind `--`: \
                 `elastic-node run -- python -u train.py`"
            .to_owned(),
    };
    Err(CommandFailure::usage(format!("`run` has no flag {name}")).hint(hint))
}

fn interpret(matches: &ArgMatches) -> Result<CommandLine, CommandFailure> {
    let mut cli = CommandLine::from_arg_matches(matches)
        .map_err(|error| CommandFailure::usage(error.to_string()))?;
    if cli.verbose && !is_log_given(matches) {
        cli.log = VERBOSE_LOG.to_owned();
    }
    match matches.subcommand_name() {
        Some(command) => check_command(matches, command)?,
        None => check_role(matches, cli.role.role)?,
    }
    Ok(cli)
}

/// Whether `--log` is on the command line, before or behind the command.
fn is_log_given(matches: &ArgMatches) -> bool {
    let is_given = |of: &ArgMatches| of.value_source("log") == Some(ValueSource::CommandLine);
    is_given(matches) || matches.subcommand().is_some_and(|(_, of)| is_given(of))
}

/// The arguments given before any command. Values from the environment are left out: they may be meant for another
/// process.
fn given(matches: &ArgMatches) -> Vec<String> {
    let command = CommandLine::command();
    let ids = command.get_arguments().map(|argument| argument.get_id().as_str());
    ids.filter(|id| matches.value_source(id) == Some(ValueSource::CommandLine))
        .map(ToOwned::to_owned)
        .collect()
}

fn flag_of(id: &str) -> String {
    format!("--{}", id.replace('_', "-"))
}

fn check_command(matches: &ArgMatches, command: &str) -> Result<(), CommandFailure> {
    match given(matches).into_iter().find(|id| !["log", "verbose"].contains(&id.as_str())) {
        None => Ok(()),
        Some(id) => {
            Err(CommandFailure::usage(format!("{} is given before `{command}`", flag_of(&id)))
                .hint(format!("flags of `{command}` follow it; a role takes no command")))
        }
    }
}

fn check_role(matches: &ArgMatches, role: Option<Role>) -> Result<(), CommandFailure> {
    let given = given(matches);
    let given = given.iter().map(String::as_str).filter(|id| !COMMON_FLAGS.contains(id));
    for id in given {
        let flag = flag_of(id);
        let of_worker = WORKER_FLAGS.contains(&id);
        match role {
            None => {
                let role = if of_worker { "worker" } else { "driver" };
                return Err(CommandFailure::usage(format!("{flag} is given, but no role"))
                    .hint(format!("add --role {role}")));
            }
            Some(Role::Driver) if of_worker => {
                return Err(CommandFailure::usage(format!("{flag} is a flag of --role worker"))
                    .hint(format!("leave {flag} out, or play --role worker")));
            }
            Some(Role::Worker) if !of_worker => {
                return Err(CommandFailure::usage(format!("{flag} is a flag of --role driver"))
                    .hint(format!("leave {flag} out: agents are told by their driver")));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn parse(line: &str) -> Result<CommandLine, CommandFailure> {
        let matches = CommandLine::command()
            .try_get_matches_from(line.split_whitespace())
            .map_err(|error| CommandFailure::usage(error.to_string()))?;
        interpret(&matches)
    }

    /// A command line with a program, and whether `--` stands before it.
    fn with_program(line: &str) -> CommandLine {
        let arguments: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let mut cli = parse(line).expect("a program");
        note_dashes(&mut cli, &arguments);
        cli
    }

    #[test]
    fn an_argument_that_is_not_unicode_is_named() {
        let mut arguments: Vec<OsString> =
            ["elastic-node", "run", "train"].map(OsString::from).into();
        arguments.push(OsString::from_vec(b"a\xffb".to_vec()));
        let error = CommandLine::command().try_get_matches_from(&arguments).expect_err("refused");
        let failure = not_unicode(&error, &arguments).expect("it is told");
        assert_eq!(failure.to_string(), "argument 3 is not UTF-8: \"a\\xFFb\"");
    }

    #[test]
    fn the_command_line_is_sound() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn every_flag_of_a_role_can_come_from_the_environment() {
        for argument in CommandLine::command().get_arguments() {
            let id = argument.get_id().as_str();
            if ["program", "help", "version"].contains(&id) {
                continue;
            }
            let variable = argument.get_env().map(|name| name.to_string_lossy().into_owned());
            assert_eq!(variable, Some(format!("ELASTIC_{}", id.to_uppercase())));
        }
    }

    #[test]
    fn roles_and_commands_are_read() {
        let cli = parse("elastic-node --role driver -n 2 --min-np 1 -- train --epochs 3");
        let cli = cli.expect("as the README shows");
        assert_eq!(cli.role.role, Some(Role::Driver));
        assert_eq!(cli.role.program, ["train", "--epochs", "3"]);
        assert_eq!((cli.role.driver.np, cli.role.driver.min_np), (Some(2), Some(1)));
        assert!(parse("elastic-node run -n 4 -- train -n 5").is_ok());
        let cli = parse("elastic-node run --nproc_per_node 2 -r 0:1 train.py --lr 0.1 -- x");
        let Some(ProgramCommand::Run(run)) = cli.expect("as torchrun").command else {
            panic!("run")
        };
        assert_eq!(run.program, ["train.py", "--lr", "0.1", "--", "x"]);
        assert!(parse("elastic-node run --nnodes 2:20:30 train.py").is_err(), "T-2");
        assert!(parse("elastic-node run -m --no-python x").is_err(), "T-2");
        assert!(parse("elastic-node --role driver --blacklist-cooldown-range 1 2 -- x").is_ok());
        assert!(parse("elastic-node run -n 0 -- train").is_err());
        assert!(parse("elastic-node run -n 4").is_err(), "no program");
    }

    #[test]
    fn a_program_behind_dashes_is_told_from_a_script() {
        let is_behind_dashes = |line: &str| {
            let cli = with_program(line);
            matches!(cli.command, Some(ProgramCommand::Run(run)) if run.is_behind_dashes)
        };
        assert!(is_behind_dashes("elastic-node run -n 2 -- prog -- x"));
        assert!(!is_behind_dashes("elastic-node run -n 2 prog.py -- x"));
    }

    #[test]
    fn a_flag_that_run_does_not_have_is_no_program() {
        let check =
            |line: &str| check_program(&with_program(line)).map_err(|error| error.to_string());
        let text = check("elastic-node run -n 2 --min-npp=1 train.py").expect_err("misspelt");
        assert_eq!(text, "`run` has no flag --min-npp");
        assert!(check("elastic-node run -n 2 -u train.py").is_err(), "a flag of Python");
        assert!(check("elastic-node run -n 2 -- -x").is_ok(), "a program of that name");
        assert!(check("elastic-node run -n 2 train.py --min-npp 1").is_ok(), "the script's own");
    }

    #[test]
    fn a_value_may_stand_right_behind_a_short_flag_of_run() {
        let apart = |line: &str| {
            let arguments: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            let apart = with_values_apart(&CommandLine::command(), arguments);
            apart.join(OsStr::new(" ")).to_string_lossy().into_owned()
        };
        for (line, means) in [
            ("run -n4 x.py -n5", "run --np=4 x.py -n5"),
            ("run -n=4 -Ha:2 -- x -n5", "run --np=4 --hosts=a:2 -- x -n5"),
            ("run -n 4 -r3 x.py", "run -n 4 --redirects=3 x.py"),
            ("run -- -n4", "run -- -n4"),
            ("run -u x.py", "run -u x.py"),
            ("--role driver -n4 -- x", "--role driver -n4 -- x"),
        ] {
            assert_eq!(apart(&format!("elastic-node {line}")), format!("elastic-node {means}"));
        }
    }

    #[test]
    fn flags_of_the_other_role_are_refused() {
        let error = |line: &str| parse(line).expect_err("contradiction").to_string();
        let text = error("elastic-node --role worker --join a:1 --min-np 2");
        assert_eq!(text, "--min-np is a flag of --role driver");
        let text = error("elastic-node --role driver --token-file f -- x");
        assert_eq!(text, "--token-file is a flag of --role worker");
        assert_eq!(error("elastic-node --np 3 -- x"), "--np is given, but no role");
        assert_eq!(error("elastic-node -n 3 run -- x"), "--np is given before `run`");
        assert!(parse("elastic-node --log warn run -- x").is_ok());
        assert_eq!(parse("elastic-node run -v -- x").expect("sound").log, "debug");
        assert_eq!(parse("elastic-node run -v --log warn -- x").expect("sound").log, "warn");
    }
}
