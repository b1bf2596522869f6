//! `cargo xtask messages`: docs/messages.md lists each event, log line, error and hint of the product, made from its
//! sources; docs/troubleshooting.md has an entry for each error. `--accept` writes the list anew; without it, a difference is
//! a fault. Called by `main` and `check`.

mod entries;
mod events;
mod find;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail};

use crate::mutants::scope::tracked;
use crate::steps::root;
use crate::waits::is_product;
use entries::{TroubleEntry, cover_of};
use find::{Message, MessageKind};

/// The list.
const LIST: &str = "docs/messages.md";
/// The entries of errors.
const ENTRIES: &str = "docs/troubleshooting.md";
/// The file that puts events into words.
const EVENT_WORDS: &str = "observe/src/words.rs";
/// Rooms of the product beside those with durations.
const MORE_ROOMS: [&str; 2] = ["checkpoint/src/", "robust_lock/src/"];
/// Levels of log lines, in the order of the list.
const LEVELS: [&str; 3] = ["error", "warn", "info"];

/// Compares the list with the sources, or writes it.
///
/// # Errors
/// A message is missing from the list, an error has no entry, or an entry is for none.
pub(crate) fn messages(is_accepted: bool) -> anyhow::Result<()> {
    let root = root()?;
    let list = list(&root)?;
    let path = root.join(LIST);
    if is_accepted {
        return Ok(fs::write(path, list)?);
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    let faults = differences(&written, &list);
    if faults.is_empty() {
        return Ok(());
    }
    bail!(
        "{LIST} does not agree with the code:\n{faults}hint: `cargo xtask messages --accept`, and read what it wrote"
    )
}

/// The lines that one of two texts lacks.
fn differences(written: &str, made: &str) -> String {
    let lines = |text: &'static str, of: &str, without: &str| {
        let without: BTreeSet<&str> = without.lines().collect();
        let more = of.lines().filter(|line| !without.contains(line));
        more.map(|line| format!("{text} {line}\n")).collect::<String>()
    };
    let faults = lines("-", written, made) + &lines("+", made, written);
    if faults.is_empty() && written != made { "the order differs\n".to_owned() } else { faults }
}

/// The whole list.
fn list(root: &Path) -> anyhow::Result<String> {
    let read = |path: &str| {
        fs::read_to_string(root.join(path)).with_context(|| format!("{path} cannot be read"))
    };
    let mut found: BTreeSet<Message> = BTreeSet::new();
    for path in tracked(root)?.iter().filter(|path| is_shown(path)) {
        found.extend(find::in_file(path, &read(path)?)?);
    }
    let entries = entries::entries(&read(ENTRIES)?)?;
    let events = events::rows(&read(EVENT_WORDS)?)?;
    check(&found, &entries)?;
    Ok(page(&found, &entries, &events))
}

fn is_shown(path: &str) -> bool {
    let is_more = MORE_ROOMS.iter().any(|room| path.starts_with(room)) && path.ends_with(".rs");
    let is_test = crate::mutants::scope::is_test(path);
    (is_product(path) || is_more) && !is_test
}

/// Refuses errors without an entry, and entries of errors that do not exist.
fn check(found: &BTreeSet<Message>, entries: &[TroubleEntry]) -> anyhow::Result<()> {
    let mut faults = String::new();
    let mut covered: BTreeSet<&str> = BTreeSet::new();
    for entry in entries {
        for name in entry.covers.iter().filter(|name| !covered.insert(name)) {
            let _ =
                writeln!(faults, "{name} is covered twice, the second time by {:?}", entry.title);
        }
    }
    let mut unused = covered.clone();
    let mut told: BTreeSet<&str> = BTreeSet::new();
    for message in found.iter().filter(|message| message.kind == MessageKind::Error) {
        match cover_of(&message.owner, &covered) {
            Some(name) => drop(unused.remove(name)),
            None if told.insert(&message.owner) => {
                let _ = writeln!(faults, "no entry covers {}: {:?}", message.owner, message.text);
            }
            None => {}
        }
    }
    for name in unused {
        let _ = writeln!(faults, "an entry covers {name}, which has no message of its own");
    }
    if faults.is_empty() {
        return Ok(());
    }
    bail!(
        "{ENTRIES} does not agree with the code:\n{faults}hint: name the type, file or folder in the comment `<!-- covers: … -->` \
         below an entry's heading, or write an entry"
    )
}

fn page(
    found: &BTreeSet<Message>,
    entries: &[TroubleEntry],
    events: &BTreeMap<String, events::EventRow>,
) -> String {
    let mut page = String::from(
        "<!-- Written by `cargo xtask messages --accept`; do not edit. -->\n\n# Messages\n\nEach message of the product, as the code has \
         it: `{host}` stands for a name, `{}` for whatever belongs there.\n\n## Events\n\nThe driver's events stand in `events.jsonl` \
         ([operating.md](operating.md#events)), on the job's page, and in the driver's log at their level.\n\n| kind | level | words \
         |\n| --- | --- | --- |\n",
    );
    for (kind, row) in events {
        let words: Vec<String> = row.words.iter().map(|text| code(text)).collect();
        let _ = writeln!(page, "| `{kind}` | {} | {} |", row.level, words.join("<br>"));
    }
    page.push_str("\n## Log lines\n\nOn stderr, from `--log info` on, unless a level says otherwise. `-v` shows more.\n");
    for level in LEVELS {
        let lines = found.iter().filter(|it| it.kind == MessageKind::Log(level));
        let lines: BTreeSet<String> = lines.map(|it| code(&it.text)).collect();
        if !lines.is_empty() {
            let _ = writeln!(page, "\n### At level {level}\n");
        }
        for line in lines {
            let _ = writeln!(page, "- {line}");
        }
    }
    page.push_str(
        "\n## Errors\n\nBehind `error:`, `caused by:` and `hint:`, in a job's result, or as the reason of a warning; by the entry \
         that says what to do.\n",
    );
    let covered: BTreeSet<&str> =
        entries.iter().flat_map(|entry| &entry.covers).map(String::as_str).collect();
    for entry in entries {
        let errors = found.iter().filter(|it| it.kind == MessageKind::Error);
        let is_own = |message: &&Message| {
            cover_of(&message.owner, &covered).is_some_and(|name| entry.covers.contains(name))
        };
        let errors = errors.filter(is_own);
        let errors: BTreeSet<String> = errors.map(|it| code(&it.text)).collect();
        if !errors.is_empty() {
            let _ =
                writeln!(page, "\n### [{}](troubleshooting.md#{})\n", entry.title, entry.anchor);
        }
        for line in errors {
            let _ = writeln!(page, "- {line}");
        }
    }
    page
}

/// A text as code in a line of Markdown, also in a table.
fn code(text: &str) -> String {
    let text = text.replace('\n', " ").replace('|', "\\|");
    if text.contains('`') { format!("`` {text} ``") } else { format!("`{text}`") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_is_on_the_list_and_every_error_has_an_entry() {
        messages(false).expect("the list agrees with the code");
    }

    #[test]
    fn an_error_without_an_entry_and_an_entry_without_an_error_are_faults() {
        let error = |owner: &str| Message {
            kind: MessageKind::Error,
            text: "it is wrong".to_owned(),
            owner: owner.to_owned(),
        };
        let entry = |owner: &str| TroubleEntry {
            title: "An entry".to_owned(),
            anchor: "an-entry".to_owned(),
            covers: [owner.to_owned()].into(),
        };
        assert!(check(&[error("A")].into(), &[entry("A")]).is_ok());
        let fault = check(&[error("A")].into(), &[entry("B")]).expect_err("two faults").to_string();
        assert!(fault.contains("no entry covers A: \"it is wrong\""), "{fault}");
        assert!(fault.contains("covers B, which has no message"), "{fault}");
        let twice =
            check(&[error("A")].into(), &[entry("A"), entry("A")]).expect_err("covered twice");
        assert!(twice.to_string().contains("covered twice"), "{twice}");
    }
}
