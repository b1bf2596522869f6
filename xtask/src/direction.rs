//! The permitted dependencies between packages (ARCHITECTURE.md, "Direction"), checked against `cargo metadata`.
//! Called by `check`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::bail;
use cargo_metadata::{DependencyKind, MetadataCommand, Package};

use crate::steps::root;

/// Each package with the workspace packages that it may depend on; dev-dependencies are free, except on `sim`.
const MAY_USE: &[(&str, &[&str])] = &[
    ("elastic-protocol", &[]),
    ("elastic-runtime", &["elastic-protocol"]),
    ("elastic-transport", &["elastic-protocol", "elastic-runtime"]),
    ("elastic-shm-protocol", &[]),
    ("elastic-robust-lock", &["elastic-shm-protocol"]),
    ("elastic-collectives", &["elastic-protocol", "elastic-robust-lock", "elastic-shm-protocol"]),
    ("elastic-checkpoint", &["elastic-protocol"]),
    ("elastic-journal", &[]),
    ("elastic-host-manager", &["elastic-protocol", "elastic-runtime"]),
    ("elastic-registry", &["elastic-protocol", "elastic-runtime"]),
    ("elastic-store", &["elastic-protocol", "elastic-runtime"]),
    (
        "elastic-driver",
        &[
            "elastic-host-manager",
            "elastic-journal",
            "elastic-protocol",
            "elastic-registry",
            "elastic-runtime",
        ],
    ),
    ("elastic-observe", &["elastic-driver", "elastic-protocol"]),
    ("elastic-gpu", &["elastic-collectives", "elastic-protocol", "elastic-runtime"]),
    ("elastic-gpu-stand-in", &[]),
    ("elastic-agent", &["elastic-protocol", "elastic-robust-lock", "elastic-runtime"]),
    (
        "elastic-worker",
        &["elastic-checkpoint", "elastic-collectives", "elastic-protocol", "elastic-runtime"],
    ),
    (
        "elastic-node",
        &[
            "elastic-collectives",
            "elastic-gpu",
            "elastic-protocol",
            "elastic-robust-lock",
            "elastic-runtime",
            "elastic-transport",
            "elastic-worker",
        ],
    ),
    (
        "elastic-node-cli",
        &[
            "elastic-agent",
            "elastic-checkpoint",
            "elastic-driver",
            "elastic-gpu",
            "elastic-host-manager",
            "elastic-journal",
            "elastic-node",
            "elastic-observe",
            "elastic-protocol",
            "elastic-runtime",
            "elastic-store",
            "elastic-transport",
            "elastic-worker",
        ],
    ),
    (
        "elastic-node-python",
        &[
            "elastic-collectives",
            "elastic-gpu",
            "elastic-node",
            "elastic-protocol",
            "elastic-runtime",
            "elastic-worker",
            "workspace-features",
        ],
    ),
    (
        "bench",
        &[
            "elastic-agent",
            "elastic-collectives",
            "elastic-driver",
            "elastic-gpu",
            "elastic-host-manager",
            "elastic-journal",
            "elastic-node",
            "elastic-protocol",
            "elastic-registry",
            "elastic-runtime",
            "elastic-transport",
            "elastic-worker",
            "workspace-features",
        ],
    ),
    ("xtask", &["workspace-features"]),
    ("workspace-features", &[]),
];

/// The simulation may depend on all packages, and no package depends on it.
const SIMULATION: &str = "sim";

/// Compares the workspace's dependencies with the table.
pub(crate) fn check() -> anyhow::Result<()> {
    let metadata =
        MetadataCommand::new().manifest_path(root()?.join("Cargo.toml")).no_deps().exec()?;
    let mut faults = faults(&metadata.packages);
    faults.extend(messages_named_in_runtime(&root()?.join("runtime/src"))?);
    if !faults.is_empty() {
        bail!("{}\nthe table of who may use whom is xtask/src/direction.rs", faults.join("\n"));
    }
    Ok(())
}

fn faults(packages: &[Package]) -> Vec<String> {
    let names: BTreeSet<&str> = packages.iter().map(|package| package.name.as_str()).collect();
    let may_use: BTreeMap<&str, &[&str]> = MAY_USE.iter().copied().collect();
    let mut faults = Vec::new();
    for package in packages {
        let name = package.name.as_str();
        let allowed = may_use.get(name);
        if allowed.is_none() && name != SIMULATION {
            faults.push(format!("{name} is not in the table"));
        }
        for dependency in &package.dependencies {
            let used = dependency.name.as_str();
            if !names.contains(used) || used == name {
                continue;
            }
            let is_free = dependency.kind == DependencyKind::Development && used != SIMULATION;
            let is_allowed = is_free || allowed.is_none_or(|allowed| allowed.contains(&used));
            if used == SIMULATION || !is_allowed {
                faults.push(format!("{name} must not depend on {used}"));
            }
        }
    }
    faults
}

/// Finds message types in the runtime: it may use ids, time and codec of the protocol, none of the product's messages.
/// Comments are not checked.
fn messages_named_in_runtime(folder: &Path) -> anyhow::Result<Vec<String>> {
    let mut faults = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            faults.extend(messages_named_in_runtime(&path)?);
            continue;
        }
        let text = fs::read_to_string(&path)?;
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        if code.into_iter().any(|line| line.contains("elastic_protocol::messages")) {
            faults.push(format!("{} must not name the product's messages", path.display()));
        }
    }
    Ok(faults)
}

#[cfg(test)]
mod tests {
    #[test]
    fn dependencies_point_in_one_direction() {
        super::check().expect("the direction is kept");
    }
}
