//! The entries of docs/troubleshooting.md: headings, each with a comment that names the errors that it covers. Used
//! by `messages`.

use std::collections::BTreeSet;

use anyhow::bail;

use crate::docs::anchor;

/// The begin of the comment below an entry's heading, before types and files.
const COVERS: &str = "<!-- covers:";

/// An entry.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct TroubleEntry {
    /// Its heading.
    pub(super) title: String,
    /// Anchor of the heading, for links.
    pub(super) anchor: String,
    /// Types of errors, and files with texts of failures; folders of such files end with `/`.
    pub(super) covers: BTreeSet<String>,
}

/// The name in an entry's comment that covers an owner of messages: its own, else that of the nearest folder.
pub(super) fn cover_of<'a>(owner: &str, covered: &BTreeSet<&'a str>) -> Option<&'a str> {
    let is_of =
        |name: &&&str| **name == owner || (name.ends_with('/') && owner.starts_with(**name));
    covered.iter().filter(is_of).max_by_key(|name| name.len()).copied()
}

/// The entries of a page: its headings of the third level.
pub(super) fn entries(page: &str) -> anyhow::Result<Vec<TroubleEntry>> {
    let mut entries: Vec<TroubleEntry> = Vec::new();
    let mut is_comment = false;
    for line in page.lines() {
        if let Some(title) = line.strip_prefix("### ") {
            let (title, anchor) = (title.trim().to_owned(), anchor(title));
            entries.push(TroubleEntry { title, anchor, covers: BTreeSet::new() });
        }
        let rest = match (is_comment, line.strip_prefix(COVERS)) {
            (_, Some(rest)) => rest,
            (true, None) => line,
            (false, None) => continue,
        };
        let names = rest.trim_end().strip_suffix("-->");
        is_comment = names.is_none();
        let Some(entry) = entries.last_mut() else { bail!("a comment before every entry: {line}") };
        let names = names.unwrap_or(rest).split(',').map(str::trim).filter(|it| !it.is_empty());
        entry.covers.extend(names.map(ToOwned::to_owned));
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_names_what_it_covers() {
        let page =
            "# Trouble\n\n### No answer\n<!-- covers: A, b/c.rs,\nD -->\n\nText.\n\n### Else\n";
        let entries = entries(page).expect("sound");
        assert_eq!(entries[0].title, "No answer");
        assert_eq!(entries[0].anchor, "no-answer");
        assert_eq!(entries[0].covers, ["A", "D", "b/c.rs"].map(ToOwned::to_owned).into());
        assert!(entries[1].covers.is_empty());
        let covered = ["a/", "a/b/", "a/b/c.rs", "Error"].into();
        assert_eq!(cover_of("a/b/c.rs", &covered), Some("a/b/c.rs"));
        assert_eq!(cover_of("a/b/d.rs", &covered), Some("a/b/"));
        assert_eq!(cover_of("a/d.rs", &covered), Some("a/"));
        assert_eq!(cover_of("ErrorOfA", &covered), None);
    }
}
