//! Who may depend on whom (ARCHITECTURE.md, "Direction"), held over `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::bail;
use cargo_metadata::{DependencyKind, MetadataCommand, Package};

use crate::steps::root;

/// Each package with those of the workspace that it may depend on; dev-dependencies are free, but for `sim`.
const MAY_USE: &[(&str, &[&str])] = &[
    ("elastic-protocol", &[]),
    ("elastic-runtime", &["elastic-protocol"]),
    ("elastic-transport", &["elastic-protocol", "elastic-runtime"]),
    ("elastic-collectives", &["elastic-protocol"]),
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
    ("elastic-gpu", &["elastic-collectives", "elastic-protocol", "elastic-runtime"]),
    ("elastic-gpu-stand-in", &[]),
    ("elastic-worker", &["elastic-protocol", "elastic-runtime", "elastic-collectives"]),
    (
        "elastic-node",
        &[
            "elastic-collectives",
            "elastic-driver",
            "elastic-gpu",
            "elastic-host-manager",
            "elastic-journal",
            "elastic-protocol",
            "elastic-registry",
            "elastic-runtime",
            "elastic-store",
            "elastic-transport",
            "elastic-worker",
        ],
    ),
    ("elastic-node-python", &["elastic-collectives", "elastic-node", "elastic-worker"]),
    (
        "bench",
        &[
            "elastic-collectives",
            "elastic-driver",
            "elastic-host-manager",
            "elastic-journal",
            "elastic-node",
            "elastic-protocol",
            "elastic-registry",
            "elastic-runtime",
            "elastic-transport",
            "elastic-worker",
        ],
    ),
    ("xtask", &[]),
];

/// The simulation may use everybody, and nobody uses it.
const SIMULATION: &str = "sim";

/// Compares the workspace with the table.
pub(crate) fn check() -> anyhow::Result<()> {
    let metadata =
        MetadataCommand::new().manifest_path(root()?.join("Cargo.toml")).no_deps().exec()?;
    let faults = faults(&metadata.packages);
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

#[cfg(test)]
mod tests {
    #[test]
    fn dependencies_point_in_one_direction() {
        super::check().expect("the direction is kept");
    }
}
