//! The documents: each relative link and anchor leads somewhere, and each document stands in the book's table of contents.
//! Called by `check`; `book` and `messages` use its parts.

mod markdown;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail};

use crate::mutants::scope::tracked;
use crate::steps::root;
pub(crate) use markdown::{DocumentParts, anchor, parts};

/// The table of contents.
pub(crate) const SUMMARY: &str = "docs/SUMMARY.md";
/// The folder of the documents.
const FOLDER: &str = "docs/";

/// Looks for links that lead nowhere, and documents that are not in the book.
///
/// # Errors
/// There is such a link or document.
pub(crate) fn check() -> anyhow::Result<()> {
    let faults = faults(&root()?)?;
    if faults.is_empty() {
        return Ok(());
    }
    let count = faults.len();
    bail!("{count} faults of the documents\n{}", faults.join("\n"))
}

fn faults(root: &Path) -> anyhow::Result<Vec<String>> {
    let paths = tracked(root)?;
    let mut documents: BTreeMap<String, DocumentParts> = BTreeMap::new();
    for path in paths.iter().filter(|path| path.ends_with(".md")) {
        let text = fs::read_to_string(root.join(path));
        documents
            .insert(path.clone(), parts(&text.with_context(|| format!("{path} cannot be read"))?));
    }
    let mut faults = Vec::new();
    for (path, document) in &documents {
        for link in &document.links {
            if let Some(fault) = fault_of(root, path, link, &documents) {
                faults.push(format!("{path}: {link}: {fault}"));
            }
        }
    }
    let Some(summary) = documents.get(SUMMARY) else { bail!("there is no {SUMMARY}") };
    let listed: BTreeSet<String> =
        summary.links.iter().filter_map(|link| target(SUMMARY, link)).collect();
    // The book has no page for what is not listed.
    let linked = listed.iter().filter_map(|path| Some((path, documents.get(path)?)));
    for (path, document) in linked {
        let targets = document.links.iter().filter_map(|link| target(path, link));
        let left = targets.filter(|to| documents.contains_key(to) && !listed.contains(to));
        faults.extend(left.map(|to| format!("{path} links to {to}, which is not in {SUMMARY}")));
    }
    let in_folder = documents.keys().filter(|path| path.starts_with(FOLDER) && *path != SUMMARY);
    let left = in_folder.filter(|path| !listed.contains(*path));
    faults.extend(left.map(|path| format!("{path} is not in {SUMMARY}")));
    Ok(faults)
}

/// Fault of a link of a document; `None` if it leads somewhere.
fn fault_of(
    root: &Path,
    path: &str,
    link: &str,
    documents: &BTreeMap<String, DocumentParts>,
) -> Option<String> {
    let target = target(path, link)?;
    let Some((_, fragment)) = link.split_once('#') else {
        return (!root.join(&target).exists()).then(|| "no such file".to_owned());
    };
    match documents.get(&target) {
        Some(document) if document.anchors.contains(fragment) => None,
        Some(_) => Some("no such heading".to_owned()),
        None => Some("no such document".to_owned()),
    }
}

/// The path from the root that a link of a document leads to; none of a link that leaves the repository.
pub(crate) fn target(path: &str, link: &str) -> Option<String> {
    let file = link.split('#').next().unwrap_or_default();
    let is_elsewhere = link.contains("://") || link.starts_with("mailto:") || link.starts_with('/');
    if is_elsewhere {
        return None;
    }
    if file.is_empty() {
        return Some(path.to_owned());
    }
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut names: Vec<&str> = folder.split('/').filter(|name| !name.is_empty()).collect();
    for name in file.split('/') {
        match name {
            ".." => drop(names.pop()),
            "" | "." => {}
            name => names.push(name),
        }
    }
    Some(names.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_somewhere_and_every_document_is_in_the_book() {
        check().expect("sound documents");
    }

    #[test]
    fn a_link_is_relative_to_its_document() {
        let at = |link| target("docs/design/a.md", link);
        assert_eq!(at("../b.md#x").as_deref(), Some("docs/b.md"));
        assert_eq!(at("#x").as_deref(), Some("docs/design/a.md"));
        assert_eq!(at("../../src").as_deref(), Some("src"));
        assert_eq!(at("https://example.org/b.md"), None);
    }
}
