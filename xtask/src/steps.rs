//! The steps of `cargo xtask test` and `cargo xtask check`, in the order in which they fail fastest.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context as _;
use xshell::{Shell, cmd};

use crate::{debian, direction, python};

/// The release of cargo-deny that the checks use, where none is installed.
const CARGO_DENY_VERSION: &str = "0.20.2";

/// The seeds of the simulation that are run, by what is simulated.
const SIMULATION_SEEDS: [(&str, &[&str], &str); 3] = [
    ("cores", &["--mode", "cores"], "0..1000"),
    ("by restart", &["--mode", "cores", "--job", "restart"], "0..500"),
    ("actors", &["--mode", "actors"], "0..200"),
];

/// How many of them are run twice and compared.
const SIMULATION_TWICE: &str = "20";

/// Format, lints, the direction of dependencies.
pub(crate) fn check() -> anyhow::Result<()> {
    let shell = shell()?;
    step("format", || Ok(cmd!(shell, "cargo fmt --all --check").run()?))?;
    step("direction of dependencies", direction::check)?;
    step("lints", || {
        let clippy = cmd!(shell, "cargo clippy --locked --workspace --all-targets -- -D warnings");
        Ok(clippy.run()?)
    })
}

/// Everything that has to pass.
pub(crate) fn test() -> anyhow::Result<()> {
    check()?;
    let shell = shell()?;
    step("documentation", || {
        let _warnings = shell.push_env("RUSTDOCFLAGS", "-D warnings");
        Ok(cmd!(shell, "cargo doc --locked --workspace --no-deps --document-private-items")
            .run()?)
    })?;
    let interpreter = step("what the tests run beside", || {
        debian::install(&shell, debian::ETCD)?;
        debian::install(&shell, debian::SSHD)?;
        debian::install(&shell, debian::DNSMASQ)?;
        debian::install(&shell, debian::FAKETIME)?;
        debian::install(&shell, debian::IPROUTE)?;
        debian::install(&shell, debian::PYTHON)?;
        python::environment(&shell, None)
    })?;
    step("tests", || {
        let _etcd = shell.push_env("ELASTIC_REQUIRE_ETCD", "1");
        let _sshd = shell.push_env("ELASTIC_REQUIRE_SSHD", "1");
        let _dnsmasq = shell.push_env("ELASTIC_REQUIRE_DNSMASQ", "1");
        let _faketime = shell.push_env("ELASTIC_REQUIRE_FAKETIME", "1");
        let _network =
            may_make_networks(&shell).then(|| shell.push_env("ELASTIC_REQUIRE_NETWORK", "1"));
        let _python = shell.push_env(python::TEST_PYTHON, &interpreter);
        // What is drawn at random is new with every commit, and the same for everyone who has it.
        let seed = seed_of_commit(&shell).map(|seed| seed.to_string());
        let _seed = seed.map(|seed| shell.push_env("PROPTEST_RNG_SEED", seed));
        // Those that have tests of their own are built by `cargo test` as tests, not as the programs that others run.
        cmd!(shell, "cargo build --locked --workspace --examples").run()?;
        Ok(cmd!(shell, "cargo test --locked --workspace --no-fail-fast").run()?)
    })?;
    step("tests in Python", || python::test_package(&shell, &interpreter))?;
    step("the example with candle", || candle(&shell))?;
    step("shared memory's protocol, over all interleavings", || {
        // A build of its own: all crates see the flag. It is not called `loom`, at which tokio would leave out its network.
        let _flags = shell.push_env("RUSTFLAGS", "--cfg model_checked");
        let _target = shell.push_env("CARGO_TARGET_DIR", "target/loom");
        let tests = ["--lib", "shm::model"];
        Ok(cmd!(shell, "cargo test --locked --package elastic-collectives {tests...}").run()?)
    })?;
    let jobs = std::thread::available_parallelism()?.get().to_string();
    for (name, what, seeds) in SIMULATION_SEEDS {
        step(&format!("simulation: {name}"), || sweep(&shell, what, seeds, SIMULATION_TWICE))?;
    }
    if let Some(seed) = seed_of_commit(&shell) {
        let seeds = format!("{seed}..{}", seed + 1);
        step("simulation: the commit's own seed", || sweep(&shell, &[], &seeds, "1"))?;
    }
    step("the simulation finds planted bugs", || {
        Ok(cmd!(shell, "cargo run --locked --release --package sim -- bugs --jobs {jobs}").run()?)
    })?;
    step("licences, bans and sources of dependencies", || {
        let deny = cargo_deny(&shell)?;
        // Advisories need a database from the network, and change without a change here.
        for manifest in ["Cargo.toml", "examples/candle/Cargo.toml"] {
            cmd!(shell, "{deny} --manifest-path {manifest} --config deny.toml --locked check")
                .args(["bans", "licenses", "sources"])
                .run()?;
        }
        Ok(())
    })
}

/// The tests that need Python, with this torch.
pub(crate) fn python(torch: Option<&str>) -> anyhow::Result<()> {
    let shell = shell()?;
    debian::install(&shell, debian::PYTHON)?;
    let interpreter = python::environment(&shell, torch)?;
    python::test_package(&shell, &interpreter)?;
    python::test_scripts(&shell, &interpreter)
}

/// The example with candle, as a job of the `elastic-node` that the tests in Python have built.
fn candle(shell: &Shell) -> anyhow::Result<()> {
    let manifest = ["--manifest-path", "examples/candle/Cargo.toml"];
    cmd!(shell, "cargo fmt {manifest...} --check").run()?;
    let target = root()?.join("target");
    let tests = cmd!(shell, "cargo test --locked {manifest...}")
        .env("CARGO_TARGET_DIR", target.join("candle"))
        .env("ELASTIC_NODE_BINARY", target.join("debug").join("elastic-node"))
        // Lints as it is compiled: `cargo clippy` would compile all that it needs once more.
        .env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver")
        .env("RUSTFLAGS", "-D warnings");
    Ok(tests.run()?)
}

fn sweep(shell: &Shell, what: &[&str], seeds: &str, twice: &str) -> anyhow::Result<()> {
    let jobs = std::thread::available_parallelism()?.get().to_string();
    let sweep = cmd!(shell, "cargo run --locked --release --package sim -- sweep {what...}");
    Ok(sweep.args(["--seeds", seeds, "--twice", twice, "--jobs", &jobs]).run()?)
}

/// Whether tests can have networks of their own here: that needs root, and a machine that lets it.
fn may_make_networks(shell: &Shell) -> bool {
    cmd!(shell, "unshare --net true").quiet().ignore_stderr().run().is_ok()
}

/// The first 12 hexadecimal digits of the commit's hash; none outside a checkout.
fn seed_of_commit(shell: &Shell) -> Option<u64> {
    let commit = cmd!(shell, "git rev-parse HEAD").quiet().ignore_stderr().read().ok()?;
    u64::from_str_radix(commit.get(..12)?, 16).ok()
}

fn shell() -> anyhow::Result<Shell> {
    let shell = Shell::new()?;
    shell.change_dir(root()?);
    Ok(shell)
}

/// The workspace's root: the parent of this package.
pub(crate) fn root() -> anyhow::Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(here.parent().context("this package stands in the workspace")?.to_owned())
}

fn step<T>(name: &str, run: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let mut stderr = std::io::stderr();
    writeln!(stderr, "\n== {name}")?;
    let started = now();
    let result = run().with_context(|| format!("{name} failed"))?;
    writeln!(stderr, "== {name}: passed in {:.0} s", started.elapsed().as_secs_f64())?;
    Ok(result)
}

#[expect(clippy::disallowed_methods, reason = "tells a person how long a step took")]
fn now() -> Instant {
    Instant::now()
}

/// cargo-deny: the installed one, or one that is built below `target/` once.
fn cargo_deny(shell: &Shell) -> anyhow::Result<PathBuf> {
    let installed = cmd!(shell, "cargo deny --version").quiet().ignore_stderr().ignore_status();
    if installed.read()?.starts_with("cargo-deny") {
        return Ok(PathBuf::from("cargo-deny"));
    }
    let tools = root()?.join("target").join("tools");
    let program = tools.join("bin").join("cargo-deny");
    if !program.exists() {
        let version = CARGO_DENY_VERSION;
        // It runs for a second: what counts is how soon it is built.
        let _plain = shell.push_env("CARGO_PROFILE_DEV_DEBUG", "0");
        cmd!(shell, "cargo install --debug --locked --root {tools} --version {version} cargo-deny")
            .run()?;
    }
    Ok(program)
}
