//! The facts of a release: its version, its time, its folders, and the environment in which the same commit gives the same
//! bytes. Used by all parts of `dist`.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use cargo_metadata::MetadataCommand;
use xshell::{PushEnv, Shell, cmd};

use super::tools::Tools;
use crate::steps::root;

/// The oldest glibc that the program runs with: that of manylinux2014, of 2012.
pub(crate) const GLIBC: &str = "2.17";

/// cargo's profile of released programs.
pub(crate) const PROFILE: &str = "dist";

/// A release in the making.
#[derive(Clone, Debug)]
pub(crate) struct Release {
    pub(crate) version: String,
    /// The commit's time, in seconds since 1970: that of every file in the release.
    pub(crate) epoch_s: String,
    /// The folder of the finished files: `dist`.
    pub(crate) folder: PathBuf,
    /// The folder of files before they are packed. The Debian package's list of files, in cli/Cargo.toml, names this
    /// folder.
    pub(crate) drafts: PathBuf,
    /// cargo's target folder. Its subfolder with the name of the profile is cargo's, too.
    pub(crate) builds: PathBuf,
}

/// The target of a build: this machine's architecture, with one of two C libraries.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Platform {
    Glibc,
    /// Linked statically, with musl.
    Musl,
}

impl Release {
    /// The release of the checkout at the workspace's root.
    ///
    /// # Errors
    /// It is no git checkout, or cargo fails.
    pub(crate) fn of_checkout(shell: &Shell) -> anyhow::Result<Self> {
        let root = root()?;
        let metadata =
            MetadataCommand::new().manifest_path(root.join("cli/Cargo.toml")).no_deps().exec()?;
        let mut packages = metadata.packages.iter();
        let program = packages.find(|package| package.name.as_str() == "elastic-node-cli");
        let version = program.context("the workspace has the package elastic-node-cli")?;
        let epoch_s = cmd!(shell, "git log -1 --format=%ct").quiet().read()?;
        Ok(Self {
            version: version.version.to_string(),
            epoch_s,
            folder: root.join("dist"),
            drafts: root.join("target/packaging"),
            builds: root.join("target"),
        })
    }

    /// The beginning of the names of its files.
    pub(crate) fn name(&self) -> String {
        format!("elastic-node-{}", self.version)
    }

    /// The platforms for which programs are built on this machine.
    pub(crate) fn platforms(&self) -> [Platform; 2] {
        [Platform::Glibc, Platform::Musl]
    }

    /// The folder with the files to pack for this platform: `bin/` and `share/`.
    pub(crate) fn package_of(&self, platform: Platform) -> PathBuf {
        self.drafts.join(match platform {
            Platform::Glibc => "package",
            Platform::Musl => "package-musl",
        })
    }

    /// The commit's time as an argument of `tar --mtime` and `date --date`.
    pub(crate) fn time(&self) -> String {
        format!("@{}", self.epoch_s)
    }

    /// The finished files, by name.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub(crate) fn files(&self) -> anyhow::Result<Vec<PathBuf>> {
        let entries = std::fs::read_dir(&self.folder).with_context(|| {
            format!("{} cannot be read; `cargo xtask dist` makes it", self.folder.display())
        })?;
        let mut files = Vec::new();
        for entry in entries {
            files.push(entry?.path());
        }
        files.sort();
        Ok(files)
    }

    /// The only finished file whose name begins and ends so.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn file(&self, begin: &str, end: &str) -> anyhow::Result<PathBuf> {
        let is_meant = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(begin) && name.ends_with(end)
        };
        self.files()?
            .into_iter()
            .find(is_meant)
            .with_context(|| format!("there is no {begin}*{end} in {}", self.folder.display()))
    }

    /// Sets, until the guards are dropped, the variables that make builds independent of this machine, its folders
    /// and the clock, and puts the release's tools first on the path.
    ///
    /// # Errors
    /// The path to the tools cannot stand in PATH.
    pub(crate) fn push_environment<'a>(
        &self,
        shell: &'a Shell,
        tools: &Tools,
    ) -> anyhow::Result<Vec<PushEnv<'a>>> {
        let root = root()?;
        let home = std::env::var("HOME").unwrap_or_default();
        let cargo_home = std::env::var("CARGO_HOME").unwrap_or_else(|_| format!("{home}/.cargo"));
        // Of several prefixes that fit, the last counts.
        let prefixes = [
            (root.as_path(), "/elastic-node"),
            (self.builds.as_path(), "/elastic-node/target"),
            (Path::new(&cargo_home), "/cargo"),
        ];
        let mut rust: Vec<String> = Vec::new();
        let mut c: Vec<String> = Vec::new();
        for (from, to) in prefixes {
            rust.push(format!("--remap-path-prefix={}={to}", from.display()));
            c.push(format!("-ffile-prefix-map={}={to}", from.display()));
        }
        // Debug files are found by it.
        rust.push("-Clink-arg=-Wl,--build-id=sha1".to_owned());
        Ok(vec![
            shell.push_env("CARGO_ENCODED_RUSTFLAGS", rust.join("\u{1f}")),
            shell.push_env("TARGET_CFLAGS", c.join(" ")),
            shell.push_env("CARGO_TARGET_DIR", &self.builds),
            shell.push_env("SOURCE_DATE_EPOCH", &self.epoch_s),
            shell.push_env("LC_ALL", "C.UTF-8"),
            shell.push_env("TZ", "UTC"),
            shell.push_env("PATH", tools.path()?),
        ])
    }
}

impl Platform {
    /// The name in those of files.
    pub(crate) fn name(self) -> String {
        format!("{}-linux-{}", std::env::consts::ARCH, self.libc())
    }

    /// Rust's name of it.
    pub(crate) fn triple(self) -> String {
        format!("{}-unknown-linux-{}", std::env::consts::ARCH, self.libc())
    }

    /// cargo-zigbuild's name of it, with the version of glibc.
    pub(crate) fn zig_target(self) -> String {
        match self {
            Self::Glibc => format!("{}.{GLIBC}", self.triple()),
            Self::Musl => self.triple(),
        }
    }

    fn libc(self) -> &'static str {
        match self {
            Self::Glibc => "gnu",
            Self::Musl => "musl",
        }
    }

    /// Whether Rust's standard library for it is there.
    ///
    /// # Errors
    /// rustc cannot be called.
    pub(crate) fn is_installed(self, shell: &Shell) -> anyhow::Result<bool> {
        let triple = self.triple();
        let library =
            cmd!(shell, "rustc --print target-libdir --target {triple}").quiet().read()?;
        Ok(Path::new(&library).exists())
    }
}
