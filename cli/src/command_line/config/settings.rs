//! A configuration file's settings for the command or role that is typed: their values go beneath the command line and
//! the environment, as defaults of clap. Called by `reading`, and by `show`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

use super::super::arguments::Role;
use super::super::nearest::nearest;
use super::super::torch_plan::flags_of_conf;
use super::error::{ConfigFileError, FilePlace};
use super::file::{FileEntry, FileValue, read_file};
use super::tables::{ConfigTable, alternatives, is_called, is_switch};

/// torchrun's variable of `--max-restarts`, which `run` reads besides the flag's own.
const PET_MAX_RESTARTS: &str = "PET_MAX_RESTARTS";

/// A file's settings for one command or role.
#[derive(Clone, Debug)]
pub(in super::super) struct FileSettings {
    pub(super) table: ConfigTable,
    /// The file.
    pub(super) file: PathBuf,
    /// The values that are in force, by the flag's id.
    pub(super) in_force: BTreeMap<String, FileSetting>,
    /// The values that a flag or a variable sets aside.
    pub(super) set_aside: Vec<FileSetting>,
}

/// One value that a file sets.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct FileSetting {
    /// The flag's name, without its dashes.
    pub(super) flag: String,
    /// The place of the setting in the file.
    pub(super) at: FilePlace,
    /// The value as words of a command line; of a switch `true` or `false`.
    pub(super) words: Vec<String>,
    is_switch: bool,
}

/// Settings of the file of `--config` or `ELASTIC_CONFIG`, if there is one; `matches` are those of the command line
/// without it, and `command` the whole program's.
///
/// # Errors
/// The file cannot be used.
pub(super) fn file_settings(
    command: &Command,
    matches: &ArgMatches,
) -> Result<Option<FileSettings>, ConfigFileError> {
    let Some((table, matches)) = table_of(matches) else { return Ok(None) };
    let Some(file) = matches.get_one::<PathBuf>("config") else { return Ok(None) };
    let entries = read_file(file)?;
    let ids = table.flags(command).into_iter().map(|flag| flag.get_id().as_str());
    let mut given: Vec<&str> = ids.filter(|id| is_given(matches, id)).collect();
    if table == ConfigTable::Run && std::env::var_os(PET_MAX_RESTARTS).is_some() {
        given.push("max_restarts");
    }
    if table == ConfigTable::Run && is_given(matches, "rdzv_conf") {
        let conf = matches.get_one::<String>("rdzv_conf");
        given.extend(conf.into_iter().flat_map(|conf| flags_of_conf(conf)));
    }
    settings(command, table, file.clone(), &entries, &given).map(Some)
}

/// The typed command or role, with its part of clap's matches.
pub(super) fn table_of(matches: &ArgMatches) -> Option<(ConfigTable, &ArgMatches)> {
    match (matches.subcommand(), matches.get_one::<Role>("role")) {
        (Some(("run", of_run)), _) => Some((ConfigTable::Run, of_run)),
        (None, Some(Role::Driver)) => Some((ConfigTable::Driver, matches)),
        (None, Some(Role::Worker)) => Some((ConfigTable::Worker, matches)),
        _ => None,
    }
}

fn is_given(matches: &ArgMatches, id: &str) -> bool {
    let source = matches.value_source(id);
    matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable))
}

/// A file's settings for one table. The flags `given`, by id, go first.
fn settings(
    command: &Command,
    table: ConfigTable,
    file: PathBuf,
    entries: &[FileEntry],
    given: &[&str],
) -> Result<FileSettings, ConfigFileError> {
    let mut found: BTreeMap<String, (bool, FileSetting)> = BTreeMap::new();
    for entry in entries {
        check_key(command, entry)?;
        let mut flags = table.settable(command).into_iter();
        let flag = flags.find(|flag| is_called(flag, &entry.key));
        let is_of_table = entry.table.is_none_or(|of| of == table);
        let Some(flag) = flag.filter(|_| is_of_table) else { continue };
        let setting = setting(flag, entry)?;
        let id = flag.get_id().as_str();
        let is_special = entry.table.is_some();
        let rivals = alternatives(id).into_iter().filter_map(|it| Some((it, found.get(it)?)));
        // A key of a table takes precedence over a top-level key.
        let rivals: Vec<_> =
            rivals.map(|(id, (special, it))| (id.to_owned(), *special, it)).collect();
        if rivals.iter().any(|(_, special, _)| *special && !is_special) {
            continue;
        }
        if let Some((_, _, other)) = rivals.iter().find(|(_, special, _)| *special == is_special) {
            let (key, other) = (entry.key.clone(), other.flag.clone());
            return Err(ConfigFileError::TwoKeys { at: entry.at.clone(), key, other });
        }
        let replaced: Vec<String> = rivals.into_iter().map(|(id, _, _)| id).collect();
        for id in replaced {
            found.remove(&id);
        }
        found.insert(id.to_owned(), (is_special, setting));
    }
    let is_aside = |id: &str| alternatives(id).iter().any(|it| given.contains(it));
    let (aside, in_force): (Vec<_>, Vec<_>) =
        found.into_iter().map(|(id, (_, setting))| (id, setting)).partition(|(id, _)| is_aside(id));
    let set_aside = aside.into_iter().map(|(_, setting)| setting).collect();
    Ok(FileSettings { table, file, in_force: in_force.into_iter().collect(), set_aside })
}

/// Refuses a key that is no flag which a file may set, there.
fn check_key(command: &Command, entry: &FileEntry) -> Result<(), ConfigFileError> {
    let (at, key) = (entry.at.clone(), entry.key.clone());
    let flag_in = |table: &ConfigTable| {
        table.settable(command).into_iter().find(|flag| is_called(flag, &entry.key))
    };
    let tables: Vec<ConfigTable> =
        ConfigTable::ALL.into_iter().filter(|table| flag_in(table).is_some()).collect();
    let is_of_command_line = |table: ConfigTable| {
        table.flags(command).into_iter().any(|flag| is_called(flag, &entry.key))
    };
    match entry.table {
        // The role decides which part of the file applies, so the file cannot set it; `run` has a flag of torchrun of
        // that name.
        None if key == "role" => Err(ConfigFileError::OfCommandLine { at, key }),
        _ if tables.is_empty() && ConfigTable::ALL.into_iter().any(is_of_command_line) => {
            Err(ConfigFileError::OfCommandLine { at, key })
        }
        _ if tables.is_empty() => {
            let names = ConfigTable::ALL.into_iter().flat_map(|table| table.settable(command));
            let names: Vec<&str> = names.filter_map(Arg::get_long).collect();
            let meant = nearest(&key, names).map(ToOwned::to_owned);
            Err(ConfigFileError::UnknownKey { at, key, meant })
        }
        _ if tables.iter().filter_map(flag_in).any(Arg::is_hide_env_values_set) => {
            Err(ConfigFileError::SecretInFile { at, key })
        }
        Some(table) if !tables.contains(&table) => {
            let tables = tables.into_iter().map(ConfigTable::name).collect();
            Err(ConfigFileError::OtherTable { at, key, table: table.name(), tables })
        }
        _ => Ok(()),
    }
}

/// A value as its flag reads it.
fn setting(flag: &Arg, entry: &FileEntry) -> Result<FileSetting, ConfigFileError> {
    let is_list = flag.get_value_delimiter().is_some();
    let wrong = |found| {
        let expected = match (is_switch(flag), is_list) {
            (true, _) => "true or false",
            (false, true) => "an array",
            (false, false) => "a text or a number",
        };
        let (at, key) = (entry.at.clone(), entry.key.clone());
        Err(ConfigFileError::WrongType { at, key, expected, found })
    };
    let words = match (&entry.value, is_switch(flag)) {
        (FileValue::Truth(truth), true) => vec![truth.to_string()],
        (FileValue::Word(word), false) if is_list => {
            word.split(',').map(ToOwned::to_owned).collect()
        }
        (FileValue::Word(word), false) => vec![word.clone()],
        (FileValue::Words(words), false) if is_list && !words.is_empty() => words.clone(),
        (FileValue::Truth(_), false) => return wrong("true or false"),
        (FileValue::Word(_), true) => return wrong("a text or a number"),
        (FileValue::Words(words), _) if words.is_empty() => return wrong("an empty array"),
        (FileValue::Words(_), _) => return wrong("an array"),
        (FileValue::Other(found), _) => return wrong(found),
    };
    if !is_switch(flag) {
        check_words(flag, &words).map_err(|reason| ConfigFileError::WrongValue {
            at: entry.at.clone(),
            key: entry.key.clone(),
            value: words.join(","),
            reason,
        })?;
    }
    let name = flag.get_long().unwrap_or(&entry.key).to_owned();
    Ok(FileSetting { flag: name, at: entry.at.clone(), words, is_switch: is_switch(flag) })
}

/// Gives the words to the flag's own parser; the error is its reason.
fn check_words(flag: &Arg, words: &[String]) -> Result<(), String> {
    // Without its neighbours the flag can exclude none of them.
    let alone = Arg::new("alone")
        .long("alone")
        .allow_hyphen_values(true)
        .value_parser(flag.get_value_parser().clone());
    let command = Command::new("file").no_binary_name(true).arg(alone);
    for word in words {
        let line = ["--alone".to_owned(), word.clone()];
        if let Err(error) = command.clone().try_get_matches_from(line) {
            return Err(reason(&error));
        }
    }
    Ok(())
}

fn reason(error: &clap::Error) -> String {
    if let Some(ContextValue::Strings(values)) = error.get(ContextKind::ValidValue) {
        return format!("it is one of {}", values.join(", "));
    }
    let own = std::error::Error::source(error).map(ToString::to_string);
    own.unwrap_or_else(|| "the flag does not take it".to_owned())
}

impl FileSettings {
    /// The whole program's command with the file's values beneath the command line and the environment.
    pub(in super::super) fn beneath(&self, command: Command) -> Command {
        let is_run = self.table == ConfigTable::Run;
        self.in_force.iter().fold(command, |command, (id, setting)| {
            let lay = |flag: Arg| flag.default_values(setting.words.clone());
            let is_of_all =
                command.get_arguments().any(|flag| flag.is_global_set() && flag.get_id() == id);
            match is_run && !is_of_all {
                true => command.mut_subcommand("run", |run| run.mut_arg(id, lay)),
                false => command.mut_arg(id, lay),
            }
        })
    }

    /// The values in force as words of a command line.
    pub(in super::super) fn words(&self) -> Vec<String> {
        let words = self.in_force.values().filter_map(|it| match (it.is_switch, &it.words[..]) {
            (true, [word]) if word == "true" => Some(format!("--{}", it.flag)),
            (true, _) => None,
            (false, words) => Some(format!("--{}={}", it.flag, words.join(","))),
        });
        words.collect()
    }
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
