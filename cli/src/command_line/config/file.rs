//! Reads a configuration file into its keys and values, each with its line. It does not know the meaning of the keys.
//! Called by `settings`.

use std::fs::File;
use std::io::Read as _;
use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::super::nearest::nearest;
use super::error::{ConfigFileError, FilePlace};
use super::tables::ConfigTable;

/// Most bytes of a configuration file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// One `key = value` of a file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct FileEntry {
    /// The table in which it stands; none: before every table, for all roles and commands.
    pub(super) table: Option<ConfigTable>,
    /// The key.
    pub(super) key: String,
    /// Its place in the file.
    pub(super) at: FilePlace,
    /// The value.
    pub(super) value: FileValue,
}

/// A value of a file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum FileValue {
    /// `true` or `false`.
    Truth(bool),
    /// A text or a number, as it would stand on a command line.
    Word(String),
    /// An array of such.
    Words(Vec<String>),
    /// A value that no flag takes, in words.
    Other(&'static str),
}

/// Reads a file.
///
/// # Errors
/// The file cannot be read, is not TOML, or has a table that belongs to no role or command.
pub(super) fn read_file(path: &Path) -> Result<Vec<FileEntry>, ConfigFileError> {
    let file = path.display().to_string();
    let unreadable = |source| ConfigFileError::Unreadable { file: file.clone(), source };
    let mut text = String::new();
    let opened = File::open(path).map_err(unreadable)?;
    opened.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(ConfigFileError::TooLong { file, bytes_max: FILE_BYTES_MAX });
    }
    entries(&file, &text)
}

/// The keys and values of a text, in the order of its lines.
pub(super) fn entries(file: &str, text: &str) -> Result<Vec<FileEntry>, ConfigFileError> {
    let place =
        |span: Range<usize>| FilePlace { file: file.to_owned(), line: line(text, span.start) };
    let parsed = DeTable::parse(text).map_err(|error| {
        let span = error.span().unwrap_or(text.len()..text.len());
        let column = column(text, span.start);
        // The reason is one line: it stands behind the place.
        let reason = error.message().lines().collect::<Vec<_>>().join(", ");
        ConfigFileError::NotToml { at: place(span), column, reason }
    })?;
    let mut entries = Vec::new();
    for (key, value) in parsed.into_inner() {
        let at = place(key.span());
        let name = key.into_inner().into_owned();
        let DeValue::Table(inner) = value.get_ref() else {
            entries.push(FileEntry { table: None, key: name, at, value: read_value(&value) });
            continue;
        };
        let Some(table) = ConfigTable::of_name(&name) else {
            let meant = nearest(&name, ConfigTable::ALL.map(ConfigTable::name));
            let meant = meant.and_then(ConfigTable::of_name).map(ConfigTable::name);
            return Err(ConfigFileError::UnknownTable { at, table: name, meant });
        };
        for (key, value) in inner {
            let at = place(key.span());
            let (key, value) = (key.get_ref().clone().into_owned(), read_value(value));
            entries.push(FileEntry { table: Some(table), key, at, value });
        }
    }
    entries.sort_by_key(|entry| entry.at.line);
    Ok(entries)
}

fn read_value(value: &Spanned<DeValue<'_>>) -> FileValue {
    match value.get_ref() {
        DeValue::Boolean(truth) => FileValue::Truth(*truth),
        DeValue::Array(items) => {
            let words: Option<Vec<String>> =
                items.iter().map(|item| word(item.get_ref())).collect();
            words.map_or(FileValue::Other("an array of other things"), FileValue::Words)
        }
        DeValue::Table(_) => FileValue::Other("a table"),
        DeValue::Datetime(_) => FileValue::Other("a date"),
        value => word(value)
            .map_or(FileValue::Other("an octal, hexadecimal or binary number"), FileValue::Word),
    }
}

/// A text or a decimal number as a word of the command line: other numbers would be read there as decimal, too.
fn word(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.clone().into_owned()),
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        _ => None,
    }
}

fn line(text: &str, at: usize) -> usize {
    before(text, at).matches('\n').count() + 1
}

fn column(text: &str, at: usize) -> usize {
    let before = before(text, at);
    before.rsplit('\n').next().map_or(1, |line| line.chars().count() + 1)
}

/// The text before a byte; the parser names bytes at which characters begin.
fn before(text: &str, at: usize) -> &str {
    text.get(..at).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_their_table_line_and_value() {
        let text = "# all\nnp = 4\nstandalone = true\n\n[driver]\nblacklist-cooldown-range = [10, 0.5]\numask = 0o27\n";
        let entries = entries("f.toml", text).expect("TOML");
        let short = entries.iter().map(|it| (it.table, it.key.as_str(), it.at.line, &it.value));
        let expected = [
            (None, "np", 2, &FileValue::Word("4".to_owned())),
            (None, "standalone", 3, &FileValue::Truth(true)),
            (
                Some(ConfigTable::Driver),
                "blacklist-cooldown-range",
                6,
                &FileValue::Words(vec!["10".to_owned(), "0.5".to_owned()]),
            ),
            (
                Some(ConfigTable::Driver),
                "umask",
                7,
                &FileValue::Other("an octal, hexadecimal or binary number"),
            ),
        ];
        assert_eq!(short.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn what_is_not_toml_is_named_with_its_line_and_column() {
        let error = entries("f.toml", "np = 4\nmin-np 2\n").expect_err("no equals sign");
        let text = error.to_string();
        assert!(text.starts_with("f.toml, line 2, column 8: this is not TOML: "), "{text}");
        let error = entries("f.toml", "[drivre]\nnp = 4\n").expect_err("no such table");
        let ConfigFileError::UnknownTable { meant, .. } = error else { panic!("{error}") };
        assert_eq!(meant, Some("driver"));
    }
}
