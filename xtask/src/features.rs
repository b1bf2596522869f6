//! One set of features: the external crates of each program for developers have the features that they have in a build
//! of the whole workspace, so that one build serves all. Called by `check`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::bail;
use xshell::{Shell, cmd};

use crate::steps::shell;

/// The programs that are run by themselves between builds of the workspace.
const PROGRAMS: [&str; 3] = ["bench", "sim", "xtask"];

/// Each external crate, with the sets of features in which it is built: one for programs, and maybe one for build
/// scripts and macros.
type FeatureSets = BTreeMap<String, BTreeSet<String>>;

/// Compares the features of each program's dependencies with those of the workspace.
///
/// # Errors
/// A crate has fewer features for a program, or cargo fails.
pub(crate) fn check() -> anyhow::Result<()> {
    let shell = shell()?;
    let all = tree(&shell, &["--workspace", "--edges", "all"])?;
    let mut faults = BTreeSet::new();
    for program in PROGRAMS {
        let own = tree(&shell, &["--package", program, "--edges", "normal,build"])?;
        faults.extend(differences(&all, &own));
    }
    if !faults.is_empty() {
        let faults: Vec<String> = faults.into_iter().collect();
        bail!(
            "features of the workspace that {} are built without\n{}\nhint: add them to xtask/features/Cargo.toml",
            PROGRAMS.join(", "),
            faults.join("\n")
        );
    }
    Ok(())
}

fn tree(shell: &Shell, of: &[&str]) -> anyhow::Result<FeatureSets> {
    let format = ["--prefix", "none", "--format", "{p}|{f}"];
    let tree = cmd!(shell, "cargo tree --locked --quiet {of...} {format...}").quiet().read()?;
    Ok(external(&tree))
}

/// The external crates in the output of `cargo tree`.
fn external(tree: &str) -> FeatureSets {
    let mut sets = FeatureSets::new();
    for line in tree.lines() {
        let line = line.trim_end_matches(" (*)");
        let Some((package, features)) = line.split_once('|') else { continue };
        // A crate of the workspace stands with its path.
        if !package.contains("(/") {
            sets.entry(package.to_owned()).or_default().insert(features.to_owned());
        }
    }
    sets
}

/// The crates of a program whose features are none of those in the workspace.
fn differences(all: &FeatureSets, own: &FeatureSets) -> Vec<String> {
    let known = |package: &str, features: &String| {
        all.get(package).is_some_and(|sets| sets.contains(features))
    };
    let each = own.iter().flat_map(|(package, sets)| sets.iter().map(move |one| (package, one)));
    let different = each.filter(|(package, features)| !known(package, features));
    different
        .map(|(package, features)| {
            let wanted: Vec<&str> =
                all.get(package).into_iter().flatten().map(String::as_str).collect();
            format!("{package}: {} instead of {features}", wanted.join(" or "))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_with_fewer_features_is_told() {
        let all = external("a v1.0.0|std,x\na v1.0.0|std\nours v0.1.0 (/work)|y\n");
        assert!(
            differences(&all, &external("a v1.0.0|std (*)\nours v0.1.0 (/work)|\n")).is_empty()
        );
        let told = differences(&all, &external("a v1.0.0|\n"));
        assert_eq!(told, ["a v1.0.0: std or std,x instead of "]);
    }

    #[test]
    fn programs_share_the_build_of_the_workspace() {
        check().expect("one set of features");
    }
}
