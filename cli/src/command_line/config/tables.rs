//! The flags that each table of a configuration file may set, read from the declarations of clap: no flag is listed
//! twice. Used by the other files of `config`.

use clap::{Arg, ArgAction, Command};

use super::super::reading::WORKER_FLAGS;

/// A table of a configuration file, by the command or role that it applies to.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum ConfigTable {
    /// `elastic-node run`.
    Run,
    /// `--role driver`.
    Driver,
    /// `--role worker`.
    Worker,
}

/// Flags that only the command line and the environment may set, by id.
const OF_COMMAND_LINE: [&str; 2] = ["config", "role"];

/// The flags, by id, that name hosts or who knows them.
pub(super) const OF_HOSTS: [&str; 4] = ["hosts", "hostfile", "host_discovery_script", "discovery"];

/// Groups of flags, by id, that say the same thing or exclude each other. One of them on the command line sets aside the
/// variables of the others, and one on the command line or in the environment the others in a file.
const ALTERNATIVES: [&[&str]; 9] = [
    &["np", "nproc_per_node"],
    &["grace_period", "shutdown_timeout"],
    &OF_HOSTS,
    &["output_dir", "log_dir"],
    &["output_prefix", "log_line_prefix_template"],
    &["rdzv_endpoint", "master_addr"],
    &["module", "no_python"],
    &["token", "token_file"],
    &["log", "verbose"],
];

impl ConfigTable {
    /// All of them.
    pub(super) const ALL: [Self; 3] = [Self::Run, Self::Driver, Self::Worker];

    /// The name, in a file and as the command or role.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Driver => "driver",
            Self::Worker => "worker",
        }
    }

    /// The command line that it applies to.
    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::Run => "elastic-node run",
            Self::Driver => "elastic-node --role driver",
            Self::Worker => "elastic-node --role worker",
        }
    }

    /// The table of that name.
    pub(super) fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|table| table.name() == name)
    }

    /// The flags with a name that people see; `command` is the whole program's.
    pub(super) fn flags(self, command: &Command) -> Vec<&Arg> {
        let of_roles = command.get_arguments();
        let all: Vec<&Arg> = match self {
            Self::Run => {
                let own =
                    command.find_subcommand("run").into_iter().flat_map(Command::get_arguments);
                own.chain(of_roles.filter(|flag| flag.is_global_set())).collect()
            }
            Self::Driver => of_roles.filter(|flag| !is_of_worker(flag)).collect(),
            Self::Worker => {
                let common = ["config", "state_dir"];
                let is_common = |flag: &Arg| common.contains(&flag.get_id().as_str());
                of_roles
                    .filter(|flag| is_of_worker(flag) || is_common(flag) || flag.is_global_set())
                    .collect()
            }
        };
        all.into_iter().filter(|flag| flag.get_long().is_some() && !flag.is_hide_set()).collect()
    }

    /// The flags that a file may set, and secrets, which it may not.
    pub(super) fn settable(self, command: &Command) -> Vec<&Arg> {
        let mut flags = self.flags(command);
        flags.retain(|flag| !OF_COMMAND_LINE.contains(&flag.get_id().as_str()));
        flags
    }
}

fn is_of_worker(flag: &Arg) -> bool {
    WORKER_FLAGS.contains(&flag.get_id().as_str())
}

/// Whether the key is one of the flag's names.
pub(super) fn is_called(flag: &Arg, key: &str) -> bool {
    let aliases = flag.get_all_aliases().unwrap_or_default();
    flag.get_long() == Some(key) || aliases.contains(&key)
}

/// Whether the flag takes no value on a command line.
pub(super) fn is_switch(flag: &Arg) -> bool {
    matches!(flag.get_action(), ArgAction::SetTrue)
}

/// Whether other flags say the same as the flag of that id, or exclude it.
pub(super) fn is_alternative(id: &str) -> bool {
    ALTERNATIVES.iter().any(|group| group.contains(&id))
}

/// The flags that a flag sets aside, itself among them, by id.
pub(super) fn alternatives(id: &str) -> Vec<&str> {
    let group = ALTERNATIVES.iter().find(|group| group.contains(&id));
    group.map_or_else(|| vec![id], |group| group.to_vec())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::super::super::arguments::CommandLine;
    use super::*;

    #[test]
    fn each_table_has_the_flags_of_its_role() {
        let command = CommandLine::command();
        let has = |table: ConfigTable, key: &str| {
            table.settable(&command).into_iter().any(|flag| is_called(flag, key))
        };
        for (key, tables) in [
            ("np", [true, true, false]),
            ("nproc-per-node", [true, false, false]),
            ("nproc_per_node", [true, false, false]),
            ("role", [true, false, false]),
            ("join", [false, false, true]),
            ("state-dir", [true, true, true]),
            ("log", [true, true, true]),
            ("leash", [false; 3]),
            ("config", [false; 3]),
        ] {
            assert_eq!(ConfigTable::ALL.map(|table| has(table, key)), tables, "{key}");
        }
    }

    #[test]
    fn alternatives_are_flags_that_exist() {
        let command = CommandLine::command();
        let flags = ConfigTable::ALL.map(|table| table.flags(&command)).concat();
        for id in ALTERNATIVES.concat() {
            assert!(flags.iter().any(|flag| flag.get_id() == id), "{id}");
        }
    }
}
