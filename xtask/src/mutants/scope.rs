//! The files that are mutated: those that make decisions or keep facts. Used by `mutants`.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use xshell::{Shell, cmd};

/// Folders and files that are mutated. The cores of actors are found by name, wherever an actor is.
const ROOMS: [&str; 8] = [
    "actors/driver/src/journal/",
    "actors/worker/src/state/core/",
    "actors/worker/src/state/sampler/",
    "actors/worker/src/state/training/",
    "runtime/src/session/",
    "journal/src/",
    "transport/src/peers/",
    "transport/src/quic/known_drivers.rs",
];

/// Names of modules that are compiled for tests alone.
const TEST_MODULES: [&str; 5] = ["tests", "properties", "property_tests", "model", "test_util"];

/// A file that is mutated.
#[derive(Debug)]
pub(crate) struct SourceFile {
    /// The path relative to the workspace's root, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl SourceFile {
    /// The folder of the file's package.
    pub(crate) fn package(&self) -> &str {
        self.path.split_once("/src/").map_or("", |(package, _)| package)
    }
}

/// All files in scope, by path.
pub(crate) fn files(root: &Path) -> anyhow::Result<Vec<SourceFile>> {
    let wanted = all_sources(root)?.into_iter().filter(|path| is_in_scope(path));
    wanted
        .map(|path| {
            let text = fs::read_to_string(root.join(&path));
            let text = text.with_context(|| format!("{path} cannot be read"))?;
            Ok(SourceFile { path, text })
        })
        .collect()
}

/// The Rust files of the workspace, tracked or new.
pub(crate) fn all_sources(root: &Path) -> anyhow::Result<Vec<String>> {
    Ok(tracked(root)?.into_iter().filter(|path| path.ends_with(".rs")).collect())
}

/// The files of the working tree that git does not ignore, by path.
pub(crate) fn tracked(root: &Path) -> anyhow::Result<Vec<String>> {
    let shell = Shell::new()?;
    shell.change_dir(root);
    let listed = cmd!(shell, "git ls-files --cached --others --exclude-standard").quiet().read()?;
    let mut paths: Vec<String> = listed.lines().map(ToOwned::to_owned).collect();
    paths.retain(|path| root.join(path).is_file());
    paths.sort();
    paths.dedup();
    Ok(paths)
}

fn is_in_scope(path: &str) -> bool {
    let is_core = path.starts_with("actors/")
        && (path.contains("/src/core/") || path.contains("/core/") || path.ends_with("/core.rs"));
    let is_room = is_core || ROOMS.iter().any(|room| path.starts_with(room));
    // The tests of etcd wait for leases: they are too slow for mutants.
    is_room && !is_test(path) && !path.starts_with("journal/src/etcd/")
}

/// Whether a file is part of tests alone, by its path.
pub(crate) fn is_test(path: &str) -> bool {
    path.split(['/', '.']).any(|part| TEST_MODULES.contains(&part) || part.ends_with("_tests"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_in_scope_and_their_tests_are_not() {
        assert!(is_in_scope("actors/driver/src/core/review.rs"));
        assert!(is_in_scope("actors/agent/src/core/mod.rs"));
        assert!(is_in_scope("actors/store/src/relay/core.rs"));
        assert!(is_in_scope("runtime/src/session/core.rs"));
        assert!(!is_in_scope("actors/driver/src/core/tests/failures.rs"));
        assert!(!is_in_scope("actors/host_manager/src/core/parse_tests.rs"));
        assert!(!is_in_scope("actors/worker/src/state/core/property_tests.rs"));
        assert!(!is_in_scope("actors/driver/src/actor/mod.rs"));
    }
}
