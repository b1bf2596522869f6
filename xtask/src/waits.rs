//! `cargo xtask waits`: compares docs/waits.md with the durations in the product's code. Each duration must have its
//! row, with its value; the row of a deadline names tests that wait until it has passed, and these tests must exist.
//! Called by `main`; a test calls the same function.

mod find;
mod page;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail};

use crate::mutants::scope::tracked;
use crate::steps::root;
use find::Wait;
use page::{Row, WaitKind};

/// The page with a row for each duration.
const PAGE: &str = "docs/waits.md";

/// Folders with code of the product.
const PRODUCT: [&str; 10] = [
    "actors/",
    "cli/src/",
    "collectives/src/",
    "gpu/src/",
    "journal/src/",
    "observe/src/",
    "protocol/src/",
    "python/src/",
    "runtime/src/",
    "transport/src/",
];

/// The library's folder.
const LIBRARY: &str = "src/";

/// Names of modules that are compiled for tests alone.
const TEST_MODULES: [&str; 6] =
    ["tests", "properties", "property_tests", "model", "test_util", "core_tests"];

/// Compares the page with the code.
///
/// # Errors
/// Durations without a row, and rows without code or without a test.
pub(crate) fn waits() -> anyhow::Result<()> {
    let faults = faults(&root()?)?;
    if faults.is_empty() {
        return Ok(());
    }
    bail!("{PAGE} does not agree with the code:\n{faults}")
}

/// The differences between page and code, a line each; empty without any.
fn faults(root: &Path) -> anyhow::Result<String> {
    let paths = tracked(root)?;
    let read = |path: &str| {
        fs::read_to_string(root.join(path)).with_context(|| format!("{path} cannot be read"))
    };
    let mut found = Vec::new();
    let mut tests = Tests::default();
    for path in paths.iter().filter(|path| path.ends_with(".rs") || path.ends_with(".py")) {
        let text = read(path)?;
        tests.add(path, &text);
        if is_product(path) {
            found.extend(find::in_file(path, &text)?);
        }
    }
    let rows = page::rows(&read(PAGE)?);
    Ok(compare(&found, &rows, &tests))
}

pub(crate) fn is_product(path: &str) -> bool {
    let in_rooms = PRODUCT.iter().any(|room| path.starts_with(room)) || path.starts_with(LIBRARY);
    let is_test = path.split(['/', '.']).any(|part| TEST_MODULES.contains(&part));
    in_rooms && path.ends_with(".rs") && path.contains("src/") && !is_test
}

fn compare(found: &[Wait], rows: &[Row], tests: &Tests) -> String {
    let mut faults = String::new();
    let mut left: BTreeMap<(&str, &str), &Row> =
        rows.iter().map(|row| ((row.file.as_str(), row.name.as_str()), row)).collect();
    for Wait { file, name, value } in found {
        match left.remove(&(file.as_str(), name.as_str())) {
            None => {
                let _ = writeln!(faults, "no row: | `{file}` | `{name}` | {value} | | | |");
            }
            Some(row) if row.value != *value => {
                let _ = writeln!(faults, "{file} {name} is {value}, and {} on the page", row.value);
            }
            Some(_) => {}
        }
    }
    for (file, name) in left.keys() {
        let _ = writeln!(faults, "{file} has no duration {name}");
    }
    for row in rows {
        for test in row.tests.iter().filter(|test| !tests.has(test)) {
            let _ = writeln!(faults, "{} {}: there is no test {test}", row.file, row.name);
        }
        if row.kind == Some(WaitKind::Deadline) && row.tests.is_empty() {
            let _ = writeln!(faults, "{} {}: a deadline without a test", row.file, row.name);
        }
        if row.kind.is_none() {
            let _ = writeln!(faults, "{} {}: neither deadline nor interval", row.file, row.name);
        }
        if row.says.is_empty() {
            let _ = writeln!(faults, "{} {}: what is it?", row.file, row.name);
        }
    }
    faults
}

/// The names of all functions in the repository that are tests, each with the files that have one of that name.
#[derive(Debug, Default)]
struct Tests(BTreeMap<String, BTreeSet<String>>);

impl Tests {
    fn add(&mut self, path: &str, text: &str) {
        let mut is_marked = path.ends_with(".py");
        for line in text.lines().map(str::trim_start) {
            if line.starts_with("#[test]") || line.contains("::test]") {
                is_marked = true;
            }
            let name = ["fn ", "async fn ", "def "].iter().find_map(|it| line.strip_prefix(it));
            if let Some(name) = name.filter(|_| is_marked) {
                let name = name.split(['(', '<']).next().unwrap_or_default();
                self.0.entry(name.to_owned()).or_default().insert(path.to_owned());
                is_marked = path.ends_with(".py");
            }
        }
    }

    /// Whether there is a test of this name in a file of this module. `test` is `module::name`.
    fn has(&self, test: &str) -> bool {
        let (modules, name) = test.rsplit_once("::").unwrap_or(("", test));
        let Some(files) = self.0.get(name) else { return false };
        let is_there = |file: &String| {
            let parts: Vec<&str> = file.split(['/', '.']).collect();
            modules.split("::").filter(|it| !it.is_empty()).all(|it| parts.contains(&it))
        };
        files.iter().any(is_there)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_duration_of_the_product_has_its_row_and_each_deadline_its_test() {
        let faults = faults(&root().expect("this package stands in the workspace"))
            .expect("the sources can be read");
        assert!(faults.is_empty(), "{PAGE} does not agree with the code:\n{faults}");
    }

    fn wait(name: &str, value: &str) -> Wait {
        Wait { file: "a/src/b.rs".to_owned(), name: name.to_owned(), value: value.to_owned() }
    }

    fn tests() -> Tests {
        let mut tests = Tests::default();
        tests.add("a/src/b.rs", "#[test]\nfn it_passes() {}\nfn no_test() {}\n");
        tests
    }

    fn told(row: &str, found: &[Wait]) -> String {
        let table = format!("| file | wait |\n| --- | --- |\n{row}\n");
        compare(found, &page::rows(&table), &tests())
    }

    #[test]
    fn a_row_with_value_kind_and_test_is_enough() {
        let row = "| `a/src/b.rs` | `A` | 2 s | deadline | of an answer | `b::it_passes` |";
        assert_eq!(told(row, &[wait("A", "2 s")]), "");
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let row = "| `a/src/b.rs` | `A` | 2 s | deadline | of an answer | `b::no_test` |";
        let faults = told(row, &[wait("A", "3 s"), wait("B", "1 s")]);
        for part in ["A is 3 s, and 2 s on", "no row: | `a/src/b.rs` | `B`", "no test b::no_test"] {
            assert!(faults.contains(part), "{part}: {faults}");
        }
        let row = "| `a/src/b.rs` | `A` | 2 s | deadline | of an answer | |";
        assert!(told(row, &[wait("A", "2 s")]).contains("a deadline without a test"));
        assert!(told(row, &[]).contains("has no duration A"));
    }
}
