//! The copy of the workspace into which mutants are put. A file is written only where it differs, so that cargo
//! recompiles only what has changed. Used by `mutants`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::scope;

/// The name of the simulation's program in the copy. It differs from the original's, since the copy shares the build
/// folder.
pub(crate) const SIMULATION: &str = "sim-mutants";

/// The source of the switch that each mutated package gets.
const SWITCH: &str = include_str!("switch.rs.in");

/// The copy of the workspace.
#[derive(Debug)]
pub(crate) struct Copy {
    pub(crate) root: PathBuf,
    /// The build folder of the workspace itself: external dependencies are compiled once for both.
    pub(crate) builds: PathBuf,
}

impl Copy {
    /// Brings the copy to the working tree's state, without mutants.
    pub(crate) fn make(root: &Path) -> anyhow::Result<Self> {
        let builds = root.join("target");
        let copy = Self { root: builds.join("mutants").join("workspace"), builds };
        let paths: BTreeSet<String> = scope::tracked(root)?.into_iter().collect();
        for path in &paths {
            // Rust files are written later with their mutants; manifests and the lock file below, with other versions.
            let is_own = ["Cargo.toml", "Cargo.lock", "sim/Cargo.toml"].contains(&path.as_str());
            if !path.ends_with(".rs") && !is_own {
                copy.write(path, &fs::read(root.join(path))?)?;
            }
        }
        for path in ["Cargo.toml", "Cargo.lock"] {
            copy.write(path, with_own_version(&fs::read_to_string(root.join(path))?).as_bytes())?;
        }
        copy.write("sim/Cargo.toml", simulation_manifest(root)?.as_bytes())?;
        copy.forget_others(&copy.root, &paths)?;
        Ok(copy)
    }

    /// Writes a file, unless it has this content already.
    pub(crate) fn write(&self, path: &str, content: &[u8]) -> anyhow::Result<()> {
        let to = self.root.join(path);
        if fs::read(&to).is_ok_and(|now| now == content) {
            return Ok(());
        }
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&to, content).with_context(|| format!("{} cannot be written", to.display()))
    }

    /// Writes a package's root module with the switch at its end.
    pub(crate) fn write_with_switch(&self, path: &str, text: &str) -> anyhow::Result<()> {
        self.write(path, format!("{text}\n{SWITCH}").as_bytes())
    }

    /// Removes files that the working tree does not have any more.
    fn forget_others(&self, folder: &Path, paths: &BTreeSet<String>) -> anyhow::Result<()> {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let below = path.strip_prefix(&self.root)?.to_string_lossy().into_owned();
            if path.is_dir() {
                self.forget_others(&path, paths)?;
            } else if !paths.contains(&below) {
                fs::remove_file(&path)?;
            }
        }
        Ok(())
    }
}

/// A manifest or lock file with another version for the packages of this workspace. cargo takes packages of the same
/// name and version at the same place below their workspace as equal, and would mix up the workspace's own builds with
/// those made here.
fn with_own_version(text: &str) -> String {
    let marked = |part: &str| {
        let version = part.lines().find(|line| line.starts_with("version = "));
        match version {
            Some(version) => {
                let other = format!("{}-mutants\"", version.trim_end_matches('"'));
                part.replacen(version, &other, 1)
            }
            None => part.to_owned(),
        }
    };
    let is_own = |part: &str| !part.contains("\nsource = ") && part.starts_with("\nname = ");
    let (table, lock) = ("[workspace.package]", "[[package]]");
    let mut text = text.to_owned();
    if let Some((before, own)) = text.split_once(table) {
        text = format!("{before}{table}{}", marked(own));
    }
    let parts = text.split(lock).map(|part| if is_own(part) { marked(part) } else { part.into() });
    parts.collect::<Vec<String>>().join(lock)
}

/// The simulation's manifest, with another name for its program.
fn simulation_manifest(root: &Path) -> anyhow::Result<String> {
    let manifest = fs::read_to_string(root.join("sim").join("Cargo.toml"))?;
    let manifest = manifest.replacen("[package]\n", "[package]\nautobins = false\n", 1);
    Ok(format!("{manifest}\n[[bin]]\nname = \"{SIMULATION}\"\npath = \"src/main.rs\"\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_of_the_workspace_have_another_version() {
        let manifest = "[a]\nversion = \"1\"\n[workspace.package]\nversion = \"0.1.0\"\n";
        let other = "[a]\nversion = \"1\"\n[workspace.package]\nversion = \"0.1.0-mutants\"\n";
        assert_eq!(with_own_version(manifest), other);
        let lock = "version = 4\n[[package]]\nname = \"a\"\nversion = \"2\"\nsource = \"r\"\n\
                    [[package]]\nname = \"b\"\nversion = \"0.1.0\"\n";
        let other = lock.replace("0.1.0", "0.1.0-mutants");
        assert_eq!(with_own_version(lock), other);
    }
}
