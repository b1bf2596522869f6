//! One flag as `config show` prints it: its value, and the value's origin. Used by `show`.

use std::fmt;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches};
use serde_json::{Value, json};

use super::super::report::masked_command;
use super::error::FilePlace;
use super::settings::FileSettings;
use super::tables::is_switch;

/// The words of a flag's help before its default.
const DEFAULT_MARK: &str = "[default: ";

/// A flag with its value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct ShownFlag {
    /// Its name, without the dashes.
    pub(super) name: String,
    /// The origin of its value.
    pub(super) origin: FlagOrigin,
    value: ShownValue,
}

#[derive(Clone, Debug, Eq, PartialEq)]
enum ShownValue {
    /// None is set.
    Unset,
    /// A secret is set.
    Secret,
    Switch(bool),
    Word(String),
    Words(Vec<String>),
}

/// The origin of a value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum FlagOrigin {
    /// It is typed.
    CommandLine,
    /// An environment variable sets it.
    Environment(String),
    /// The configuration file sets it.
    File(FilePlace),
    /// Nothing sets it; with the default, if there is one.
    Default(Option<String>),
}

impl fmt::Display for FlagOrigin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CommandLine => formatter.write_str("command line"),
            Self::Environment(variable) => formatter.write_str(variable),
            Self::File(place) => place.fmt(formatter),
            Self::Default(None) => formatter.write_str("no default"),
            Self::Default(Some(text)) => write!(formatter, "default {text}"),
        }
    }
}

/// Reads a flag's value out of clap's matches.
pub(super) fn read_flag(
    flag: &Arg,
    matches: &ArgMatches,
    settings: Option<&FileSettings>,
) -> ShownFlag {
    let id = flag.get_id().as_str();
    let name = flag.get_long().unwrap_or(id).to_owned();
    let of_file = settings.and_then(|settings| settings.in_force.get(id));
    let origin = match (matches.value_source(id), of_file) {
        (Some(ValueSource::CommandLine), _) => FlagOrigin::CommandLine,
        (Some(ValueSource::EnvVariable), _) => {
            let variable = flag.get_env().map(|name| name.to_string_lossy().into_owned());
            FlagOrigin::Environment(variable.unwrap_or_default())
        }
        (_, Some(setting)) => FlagOrigin::File(setting.at.clone()),
        (_, None) => FlagOrigin::Default(default_text(flag)),
    };
    let raw = matches.get_raw(id).into_iter().flatten();
    let words: Vec<String> = raw.map(|word| masked(&name, &word.to_string_lossy())).collect();
    let value = match (is_switch(flag), words.as_slice()) {
        (true, _) => ShownValue::Switch(matches.get_flag(id)),
        (false, []) => ShownValue::Unset,
        _ if flag.is_hide_env_values_set() => ShownValue::Secret,
        (false, [word]) if flag.get_value_delimiter().is_none() => ShownValue::Word(word.clone()),
        (false, words) => ShownValue::Words(words.to_vec()),
    };
    ShownFlag { name, origin, value }
}

/// A value without passwords in it.
fn masked(name: &str, word: &str) -> String {
    let prefix = format!("--{name}=");
    let masked = masked_command(&[format!("{prefix}{word}")]).concat();
    masked.strip_prefix(&prefix).unwrap_or_default().to_owned()
}

/// The default of a flag: its declaration's, else the one in its help.
fn default_text(flag: &Arg) -> Option<String> {
    if is_switch(flag) {
        return Some("false".to_owned());
    }
    if let [value] = flag.get_default_values() {
        return Some(value.to_string_lossy().into_owned());
    }
    let help = flag.get_help()?.to_string();
    let (_, rest) = help.rsplit_once(DEFAULT_MARK)?;
    Some(rest.trim_end().strip_suffix(']')?.to_owned())
}

impl ShownFlag {
    /// The line of a configuration file that sets the value; none where nothing sets it, or it is secret.
    pub(super) fn toml(&self) -> Option<String> {
        let value = match &self.value {
            _ if matches!(self.origin, FlagOrigin::Default(_)) => return None,
            ShownValue::Unset | ShownValue::Secret => return None,
            ShownValue::Switch(is_on) => is_on.to_string(),
            ShownValue::Word(word) => toml_word(word),
            ShownValue::Words(words) => {
                format!("[{}]", words.iter().map(|it| toml_word(it)).collect::<Vec<_>>().join(", "))
            }
        };
        Some(format!("{} = {value}", self.name))
    }

    /// The text in place of a value that has no line.
    pub(super) fn why_no_value(&self) -> String {
        match self.value {
            ShownValue::Secret => format!("a secret, from: {}", self.origin),
            _ => self.origin.to_string(),
        }
    }

    /// The object of `--json`: `value` (null: not set), `from`, and further fields of the origin.
    pub(super) fn json(&self) -> Value {
        let value = match &self.value {
            ShownValue::Unset => Value::Null,
            ShownValue::Secret => "[secret]".into(),
            ShownValue::Switch(is_on) => (*is_on).into(),
            ShownValue::Word(word) => json_word(word),
            ShownValue::Words(words) => words.iter().map(|it| json_word(it)).collect(),
        };
        match &self.origin {
            FlagOrigin::CommandLine => json!({ "value": value, "from": "command_line" }),
            FlagOrigin::Environment(variable) => {
                json!({ "value": value, "from": "environment", "variable": variable })
            }
            FlagOrigin::File(at) => json!({ "value": value, "from": "file", "line": at.line }),
            FlagOrigin::Default(text) => {
                json!({ "value": value, "from": "default", "default": text })
            }
        }
    }
}

/// A number if the word is one in its usual form, else a text.
fn json_word(word: &str) -> Value {
    match word.parse::<i64>() {
        Ok(number) if number.to_string() == word => number.into(),
        _ => word.into(),
    }
}

fn toml_word(word: &str) -> String {
    // JSON's texts are TOML's, but for this one character, which TOML wants escaped.
    json_word(word).to_string().replace('\u{7f}', "\\u007f")
}
