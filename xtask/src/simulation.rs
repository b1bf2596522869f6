//! Sweeps of simulated clusters, and the planted bugs. Called by `test` and `ci`.

use xshell::{Shell, cmd};

use crate::steps::{seed_of_commit, step};

/// The seeds of each kind of simulation. The newest set of draws is the default.
const SEEDS: [(&str, &[&str], &str); 5] = [
    ("cores", &["--mode", "cores"], "0..1000"),
    ("by restart", &["--mode", "cores", "--job", "restart"], "0..500"),
    ("actors", &["--mode", "actors"], "0..200"),
    ("training", &["--mode", "training"], "0..300"),
    ("the store", &["--mode", "store"], "0..1000"),
];

/// The seeds of the tier for a fresh checkout.
const SEEDS_BRIEFLY: &str = "0..200";

/// The number of seeds that are run twice and compared.
const TWICE: &str = "20";

/// Sweeps a few seeds of the cores, and compares recorded decisions and states.
///
/// # Errors
/// A seed failed, or a decision or a state differs; the simulation has printed which.
pub(crate) fn sweep_briefly(shell: &Shell) -> anyhow::Result<()> {
    sweep(shell, &["--mode", "cores"], SEEDS_BRIEFLY, "1")?;
    decisions(shell, false)
}

/// Compares the recorded runs' decisions, and the states of their cores, with the committed ones; with `accept`,
/// records both anew.
///
/// # Errors
/// A decision or a state differs; the simulation has printed which.
pub(crate) fn decisions(shell: &Shell, accept: bool) -> anyhow::Result<()> {
    let jobs = jobs()?;
    for what in ["decisions", "states"] {
        let compare =
            cmd!(shell, "cargo run --locked --release --package sim -- {what} --jobs {jobs}");
        compare.args(accept.then_some("--accept")).run()?;
    }
    Ok(())
}

/// Sweeps every kind of cluster and the commit's own seed, and looks for the planted bugs.
///
/// # Errors
/// A seed failed, or a planted bug was not found.
pub(crate) fn sweep_all(shell: &Shell) -> anyhow::Result<()> {
    for (name, what, seeds) in SEEDS {
        step(&format!("simulation: {name}"), || sweep(shell, what, seeds, TWICE))?;
    }
    step("simulation: recorded decisions and states", || decisions(shell, false))?;
    if let Some(seed) = seed_of_commit(shell) {
        let seeds = format!("{seed}..{}", seed + 1);
        step("simulation: the commit's own seed", || sweep(shell, &[], &seeds, "1"))?;
    }
    step("the simulation finds planted bugs", || {
        let jobs = jobs()?;
        let bugs = cmd!(shell, "cargo run --locked --release --package sim -- bugs");
        Ok(bugs.args(["--known", "docs/planted-bugs.md", "--jobs", &jobs]).run()?)
    })
}

fn sweep(shell: &Shell, what: &[&str], seeds: &str, twice: &str) -> anyhow::Result<()> {
    let jobs = jobs()?;
    let sweep = cmd!(shell, "cargo run --locked --release --package sim -- sweep {what...}");
    Ok(sweep.args(["--seeds", seeds, "--twice", twice, "--jobs", &jobs]).run()?)
}

fn jobs() -> anyhow::Result<String> {
    Ok(std::thread::available_parallelism()?.get().to_string())
}
