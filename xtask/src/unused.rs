//! Finds dependencies that no code uses: of the packages, and of the table that they share. The search is for names in
//! the text, as cargo-machete's is. Called by `check`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail};
use cargo_metadata::{DependencyKind, MetadataCommand, Package, TargetKind};

use crate::steps::{WORKSPACES, root};

/// Dependencies that no code names, with the reason: package and dependency.
const UNNAMED: &[(&str, &str, &str)] = &[
    ("elastic-gpu", "elastic-gpu-stand-in", "tests load it as a shared library"),
    ("elastic-node-cli", "elastic-gpu-stand-in", "tests load it as a shared library"),
    ("bench", "elastic-gpu", "its features are those of the workspace's build"),
    ("elastic-node-python", "elastic-gpu", "its features are those of the workspace's build"),
    ("elastic-node-python", "elastic-protocol", "its features are those of the workspace's build"),
    ("elastic-node-python", "elastic-runtime", "its features are those of the workspace's build"),
];

/// The package that is there for its features alone, as are its dependencies.
const FEATURES: &str = "workspace-features";

/// Looks for dependencies that no code uses.
///
/// # Errors
/// There is one, or a file cannot be read.
pub(crate) fn check() -> anyhow::Result<()> {
    let mut faults = Vec::new();
    for manifest in WORKSPACES {
        let path = root()?.join(manifest);
        let metadata = MetadataCommand::new().manifest_path(&path).no_deps().exec()?;
        for package in &metadata.packages {
            faults.extend(unused(package)?);
        }
        let shared = fs::read_to_string(&path)?;
        let manifests: Result<Vec<String>, _> =
            metadata.packages.iter().map(|one| fs::read_to_string(&one.manifest_path)).collect();
        faults.extend(unused_in_table(&shared, &manifests?));
    }
    if !faults.is_empty() {
        bail!("{}\nhint: remove it from the manifest", faults.join("\n"));
    }
    Ok(())
}

/// The dependencies of a package that its code does not name.
fn unused(package: &Package) -> anyhow::Result<Vec<String>> {
    let (mut shipped, mut tests) = (BTreeSet::new(), BTreeSet::new());
    for target in &package.targets {
        let is_test = |kind: &TargetKind| {
            matches!(kind, TargetKind::Test | TargetKind::Example | TargetKind::Bench)
        };
        let names = names_in(target.src_path.as_std_path())?;
        tests.extend(names.iter().cloned());
        if !target.kind.iter().any(is_test) {
            shipped.extend(names);
        }
    }
    let mut faults = Vec::new();
    for dependency in &package.dependencies {
        let name = dependency.rename.as_ref().unwrap_or(&dependency.name);
        let named = match dependency.kind {
            DependencyKind::Development => &tests,
            _ => &shipped,
        };
        let is_listed =
            |(of, unnamed, _): &(&str, &str, &str)| package.name == of && name == unnamed;
        let is_excused =
            UNNAMED.iter().any(is_listed) || name == FEATURES || package.name == FEATURES;
        if !named.contains(&name.replace('-', "_")) && !is_excused {
            faults.push(format!("{} does not use {name}", package.name));
        }
    }
    Ok(faults)
}

/// The identifiers in all files below the folder of a target's root file, with the modules that they take from
/// elsewhere.
fn names_in(root: &Path) -> anyhow::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    collect(root.parent().context("a file is in a folder")?, &mut names)?;
    Ok(names)
}

fn collect(folder: &Path, names: &mut BTreeSet<String>) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, names)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            collect_file(&path, names)?;
        }
    }
    Ok(())
}

fn collect_file(path: &Path, names: &mut BTreeSet<String>) -> anyhow::Result<()> {
    let text = fs::read_to_string(path)?;
    names.extend(identifiers(&text));
    let folder = path.parent().context("a file is in a folder")?;
    for module in text.lines().filter_map(|line| line.trim().strip_prefix("#[path = \"")) {
        let module = folder.join(module.trim_end_matches("\"]"));
        names.extend(identifiers(&fs::read_to_string(&module)?));
        let modules_below = module.with_extension("");
        if modules_below.is_dir() {
            collect(&modules_below, names)?;
        }
    }
    Ok(())
}

/// The identifiers of a text, without those of comments.
fn identifiers(text: &str) -> BTreeSet<String> {
    let code = text.lines().map(|line| line.split_once("//").map_or(line, |(code, _)| code));
    let words = code.flat_map(|line| line.split(|letter: char| !is_of_identifier(letter)));
    words.filter(|word| !word.is_empty()).map(ToOwned::to_owned).collect()
}

fn is_of_identifier(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// The entries of the workspace's table that no package takes.
fn unused_in_table(shared: &str, manifests: &[String]) -> Vec<String> {
    let lines = shared.lines().skip_while(|line| *line != "[workspace.dependencies]").skip(1);
    let keys = lines
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split_once(" = ").map(|(key, _)| key))
        .filter(|key| key.chars().all(|letter| is_of_identifier(letter) || letter == '-'));
    let is_taken = |key: &str| {
        let short = format!("{key}.workspace = true");
        let long = format!("{key} = {{ workspace = true");
        let takes = |line: &str| line == short || line.starts_with(&long);
        manifests.iter().any(|manifest| manifest.lines().any(takes))
    };
    let unused = keys.filter(|key| !is_taken(key));
    unused.map(|key| format!("no package takes {key} of [workspace.dependencies]")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_use_nothing() {
        let names = identifiers("use serde_json::Value; // and serde\n//! clap\nlet a = x::y;");
        for used in ["serde_json", "x", "y"] {
            assert!(names.contains(used), "{used}");
        }
        for unused in ["serde", "clap"] {
            assert!(!names.contains(unused), "{unused}");
        }
    }

    #[test]
    fn entries_that_no_package_takes_are_found() {
        let shared =
            "[workspace.dependencies]\na = \"1\"\nb-c = { path = \"b\" }\nd = \"2\"\n[x]\ne = 1\n";
        let manifests =
            ["a.workspace = true\nb-c = { workspace = true, features = [] }\n".to_owned()];
        let found = unused_in_table(shared, &manifests);
        assert_eq!(found, ["no package takes d of [workspace.dependencies]"]);
    }

    #[test]
    fn each_dependency_is_used() {
        check().expect("no unused dependency");
    }
}
