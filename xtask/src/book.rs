//! `cargo xtask book`: the documents as a book. They are copied with what they link to, so that links between them stay as they
//! are, and mdBook makes HTML of the copy. Called by `main` and `ci`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use xshell::{Shell, cmd};

use crate::checked::RecordedCheck;
use crate::docs::{self, SUMMARY, parts, target};
use crate::mutants::scope::tracked;
use crate::steps::root;

/// The release of mdBook that is built where none is installed.
const MDBOOK_VERSION: &str = "0.5.2";

/// The book's settings.
const SETTINGS: &str = "docs/book.toml";

/// What decides whether mdBook makes a book: its settings, its table of contents, and the code that copies the documents.
/// A document's text is not among them: no preprocessor reads it, and `docs` checks that each document of the table is
/// there, and each link.
const CHECK: RecordedCheck = RecordedCheck {
    name: "the book",
    task: "cargo xtask book",
    inputs: &[SETTINGS, SUMMARY, "xtask/src/book.rs"],
    record: "docs/book.checked",
};

/// Builds the book, unless what decides about it has passed before.
///
/// # Errors
/// As for [`build_and_note`].
pub(crate) fn build_if_changed(shell: &Shell) -> anyhow::Result<()> {
    CHECK.run_if_changed(shell, build)
}

/// Builds the book in `target/book/html`, and records that it can be built.
///
/// # Errors
/// A link of the documents leads nowhere, mdBook cannot be built, or it fails.
pub(crate) fn build_and_note(shell: &Shell) -> anyhow::Result<()> {
    CHECK.run_and_note(shell, build)
}

fn build(shell: &Shell) -> anyhow::Result<()> {
    docs::check()?;
    let root = root()?;
    let book = root.join("target").join("book");
    let source = book.join("src");
    if source.exists() {
        fs::remove_dir_all(&source)?;
    }
    copy_documents(&root, &source)?;
    fs::copy(root.join(SETTINGS), book.join("book.toml")).context(SETTINGS)?;
    let mdbook = mdbook(shell)?;
    Ok(cmd!(shell, "{mdbook} build {book}").run()?)
}

/// Copies the documents, with the files that they link to, to the same places below `source`.
fn copy_documents(root: &Path, source: &Path) -> anyhow::Result<()> {
    let documents: Vec<String> =
        tracked(root)?.into_iter().filter(|path| path.ends_with(".md")).collect();
    for path in &documents {
        let text = fs::read_to_string(root.join(path))?;
        for file in parts(&text).links.iter().filter_map(|link| target(path, link)) {
            if root.join(&file).is_file() {
                copy(&root.join(&file), &source.join(&file))?;
            }
        }
        if path == SUMMARY {
            fs::create_dir_all(source)?;
            fs::write(source.join("SUMMARY.md"), from_the_root(&text)?)?;
        }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::copy(from, to).with_context(|| format!("{} cannot be copied", from.display()))?;
    Ok(())
}

/// The table of contents with links from the root: mdBook takes none that leave its folder.
fn from_the_root(summary: &str) -> anyhow::Result<String> {
    let mut text = String::new();
    for line in summary.lines() {
        match line.split_once("](") {
            None => text.push_str(line),
            Some((before, rest)) => {
                let Some((link, after)) = rest.split_once(')') else { bail!("{SUMMARY}: {line}") };
                let link = target(SUMMARY, link).context("a link that leaves the repository")?;
                text.push_str(&format!("{before}]({link}){after}"));
            }
        }
        text.push('\n');
    }
    Ok(text)
}

/// The path of mdBook: the installed program, or one that is built below `target/` once.
fn mdbook(shell: &Shell) -> anyhow::Result<PathBuf> {
    let installed = cmd!(shell, "mdbook --version").quiet().ignore_stderr().ignore_status().read();
    if installed.is_ok_and(|version| version.starts_with("mdbook")) {
        return Ok(PathBuf::from("mdbook"));
    }
    let tools = root()?.join("target").join("tools");
    let program = tools.join("bin").join("mdbook");
    if !program.exists() {
        let version = MDBOOK_VERSION;
        // Without its server and its search: they are most of what would be built.
        let _plain = shell.push_env("CARGO_PROFILE_DEV_DEBUG", "0");
        cmd!(shell, "cargo install --debug --locked --root {tools} --version {version} --no-default-features mdbook")
            .run()?;
    }
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_contents_leads_from_the_root() {
        let summary = "# Summary\n\n[Introduction](../README.md)\n\n- [Run](quick-start.md)\n";
        let expected = "# Summary\n\n[Introduction](README.md)\n\n- [Run](docs/quick-start.md)\n";
        assert_eq!(from_the_root(summary).expect("sound"), expected);
    }
}
