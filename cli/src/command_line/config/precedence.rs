//! Flags that say the same thing or exclude each other: one on the command line goes before the variables of the others,
//! and two on one command line must not contradict each other. Called by `reading`, and by `show`.

use std::ffi::{OsStr, OsString};

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

use super::super::failure::CommandFailure;
use super::super::torch_flags::Nodes;
use super::super::torch_plan::flags_of_conf;
use super::settings::table_of;
use super::tables::{OF_HOSTS, alternatives, is_alternative};

/// Flags of which the second would be left out without a word, and the reason why they are not given together.
const PAIRS: [([&str; 2], &str); 3] = [
    (["np", "nproc_per_node"], "on one host both say how many workers there are"),
    (["grace_period", "shutdown_timeout"], "both say how long a worker has to end"),
    (["output_dir", "log_dir"], "both name the folder of the workers' output"),
];

/// torchrun's flag of several settings, some of which are flags of their own.
const CONF: &str = "rdzv_conf";

/// The flags that are typed on a command line.
struct Typed {
    matches: ArgMatches,
    /// Their ids.
    ids: Vec<String>,
}

impl Typed {
    /// The typed flags; none of a command line that cannot be read, or has no flags of these.
    fn read(command: &Command, arguments: &[OsString]) -> Option<Self> {
        // A variable may contradict the command line, which clap refuses.
        let command = without_variables(command.clone(), &is_alternative);
        let matches = command.clone().try_get_matches_from(arguments).ok()?;
        let (table, matches) = table_of(&matches)?;
        let is_typed = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        let flags = table.flags(&command).into_iter();
        let ids = flags.map(|flag| flag.get_id().to_string()).filter(|id| is_typed(id)).collect();
        Some(Self { matches: matches.clone(), ids })
    }

    fn has(&self, id: &str) -> bool {
        self.ids.iter().any(|typed| typed == id)
    }

    /// Whether the number of workers may differ from that of a host.
    fn has_hosts(&self) -> bool {
        let nodes = self.matches.try_get_one::<Nodes>("nnodes").ok().flatten();
        nodes.is_some_and(|nodes| nodes.max > 1) || OF_HOSTS.iter().any(|id| self.has(id))
    }

    /// Whether these flags say different things.
    fn are_apart(&self, id: &str) -> bool {
        ["np", "nproc_per_node"].contains(&id) && self.has_hosts()
    }

    fn words(&self, id: &str) -> String {
        let values = self.matches.get_raw(id).into_iter().flatten();
        values.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
    }
}

/// The flags, by id, whose variables a flag on the command line sets aside.
///
/// # Errors
/// Two flags on the command line contradict each other.
pub(super) fn set_aside(
    command: &Command,
    arguments: &[OsString],
) -> Result<Vec<String>, CommandFailure> {
    match may_meet(command, arguments) {
        true => of_typed(command, arguments),
        false => Ok(Vec::new()),
    }
}

fn of_typed(command: &Command, arguments: &[OsString]) -> Result<Vec<String>, CommandFailure> {
    let Some(typed) = Typed::read(command, arguments) else { return Ok(Vec::new()) };
    let both = |ids: &[&str; 2]| ids.iter().all(|id| typed.has(id) && !typed.are_apart(id));
    for (ids, reason) in PAIRS.into_iter().filter(|(ids, _)| both(ids)) {
        if typed.words(ids[0]) != typed.words(ids[1]) {
            let [first, second] =
                ids.map(|id| format!("--{} {}", id.replace('_', "-"), typed.words(id)));
            return Err(CommandFailure::usage(format!(
                "{first} and {second} contradict each other"
            ))
            .hint(format!("{reason}: keep one of them")));
        }
    }
    let typed_ids = typed.ids.iter().filter(|id| !typed.are_apart(id));
    let conf = if typed.has(CONF) { typed.words(CONF) } else { String::new() };
    let others = typed_ids.flat_map(|id| alternatives(id)).chain(flags_of_conf(&conf));
    Ok(others.filter(|id| !typed.has(id)).map(ToOwned::to_owned).collect())
}

/// Whether flags of this kind can meet: a variable is set, or torchrun's flag of a pair is typed. Else the command line is not read
/// for it, which would take memory that an agent keeps.
fn may_meet(command: &Command, arguments: &[OsString]) -> bool {
    let flags = command
        .get_arguments()
        .chain(command.find_subcommand("run").into_iter().flat_map(Command::get_arguments));
    let mut variables =
        flags.filter(|flag| is_alternative(flag.get_id().as_str())).filter_map(Arg::get_env);
    let of_torch = || PAIRS.map(|([_, id], _)| format!("--{}", id.replace('_', "-")));
    let is_torch_s = |argument: &OsString| {
        let argument = argument.to_string_lossy().replace('_', "-");
        of_torch().iter().any(|flag| argument.starts_with(flag))
    };
    variables.any(|variable| std::env::var_os(variable).is_some())
        || arguments.iter().any(is_torch_s)
}

/// The command, which does not read the variables of these flags.
pub(super) fn without_variables(command: Command, is_meant: &dyn Fn(&str) -> bool) -> Command {
    let strip = |flag: Arg| match is_meant(flag.get_id().as_str()) {
        true => flag.env(None::<&'static str>),
        false => flag,
    };
    command.mut_args(strip).mut_subcommand("run", |run| run.mut_args(strip))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::super::super::arguments::CommandLine;
    use super::*;

    fn aside(line: &str) -> Result<Vec<String>, String> {
        let arguments: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        of_typed(&CommandLine::command(), &arguments).map_err(|error| error.to_string())
    }

    #[test]
    fn a_flag_of_the_command_line_sets_aside_the_variables_of_those_that_say_the_same() {
        for (line, ids) in [
            ("run --nproc-per-node 2 x.py", &["np"][..]),
            ("run -n 2 x.py", &["nproc_per_node"]),
            ("run --shutdown-timeout 5 x.py", &["grace_period"]),
            ("run --module --log-dir logs x", &["output_dir", "no_python"]),
            ("run --master-addr a --nnodes 2 x.py", &["rdzv_endpoint"]),
            ("--role driver -H a:1 -- x", &["hostfile", "host_discovery_script", "discovery"]),
            ("--role worker --join a:1 --token-file f", &["token"]),
            ("run --rdzv-conf join_timeout=5,x=1 x.py", &["elastic_timeout"]),
            ("run --rdzv-conf timeout=5 --elastic-timeout 6 x.py", &[]),
            ("run x.py -n 2 --shutdown-timeout 5", &[]),
            ("status --state-dir s", &[]),
        ] {
            let aside = aside(&format!("elastic-node {line}")).map(|mut aside| {
                aside.sort();
                aside
            });
            let mut ids: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
            ids.sort();
            assert_eq!(aside, Ok(ids), "{line}");
        }
    }

    #[test]
    fn the_workers_of_all_hosts_are_not_those_of_one() {
        for line in ["--nnodes 2 --nproc-per-node 2 -n 3", "-H a:2,b:2 -n 4 --nproc-per-node 2"] {
            let aside = aside(&format!("elastic-node run {line} x.py")).expect("no contradiction");
            assert!(!aside.iter().any(|id| id.contains("np")), "{aside:?}");
        }
        assert!(aside("elastic-node run -n 2 --nproc-per-node 2 x.py").is_ok());
        assert_eq!(
            aside("elastic-node run -n 2 --nproc-per-node 3 x.py"),
            Err("--np 2 and --nproc-per-node 3 contradict each other".to_owned())
        );
    }
}
