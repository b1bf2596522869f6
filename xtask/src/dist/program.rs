//! The program: built for an old glibc or for musl, stripped, with its debug symbols in a file of their own. Called by
//! `dist`.

use std::path::{Path, PathBuf};

use anyhow::ensure;
use xshell::{Shell, cmd};

use super::release::{GLIBC, PROFILE, Platform, Release};

/// A built program.
#[derive(Clone, Debug)]
pub(crate) struct ReleaseProgram {
    /// The program without symbols; it names its debug file.
    pub(crate) stripped: PathBuf,
    /// A folder with the debug file, `elastic-node.debug`, alone.
    pub(crate) debug_folder: PathBuf,
}

/// Builds the program for this platform.
///
/// # Errors
/// The build failed, or the program needs more than it may.
pub(crate) fn build(
    shell: &Shell,
    release: &Release,
    platform: Platform,
) -> anyhow::Result<ReleaseProgram> {
    let target = platform.zig_target();
    cmd!(shell, "cargo zigbuild --locked --profile {PROFILE} --target {target}")
        .args(["--package", "elastic-node-cli", "--bin", "elastic-node"])
        .run()?;
    let built = release.builds.join(platform.triple()).join(PROFILE).join("elastic-node");
    let drafts = release.drafts.join(platform.name());
    let debug_folder = drafts.join("debug");
    shell.create_dir(&debug_folder)?;
    let debug = debug_folder.join("elastic-node.debug");
    let stripped = drafts.join("elastic-node");
    cmd!(shell, "objcopy --only-keep-debug --compress-debug-sections=zlib {built} {debug}")
        .run()?;
    // The link is the debug file's name with a checksum; the build id is in both anyway.
    cmd!(shell, "objcopy --strip-all --remove-section=.comment --add-gnu-debuglink={debug}")
        .args([&built, &stripped])
        .run()?;
    if platform == Platform::Glibc {
        check_glibc(shell, &stripped)?;
    }
    Ok(ReleaseProgram { stripped, debug_folder })
}

/// The libraries of glibc that the program may need.
const LIBRARIES: [&str; 7] = [
    "ld-linux-aarch64.so.1",
    "ld-linux-x86-64.so.2",
    "libc.so.6",
    "libdl.so.2",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
];

/// Fails if the program needs a library that is not of glibc, or a symbol of a newer glibc than [`GLIBC`].
fn check_glibc(shell: &Shell, program: &Path) -> anyhow::Result<()> {
    let needed = cmd!(shell, "readelf --wide --dynamic {program}").quiet().read()?;
    for library in needed.lines().filter(|line| line.contains("(NEEDED)")) {
        let name = library.split(['[', ']']).nth(1).unwrap_or(library);
        ensure!(LIBRARIES.contains(&name), "the program needs {name}, which is not of glibc");
    }
    let versions = cmd!(shell, "readelf --wide --version-info {program}").quiet().read()?;
    for word in versions.split_whitespace() {
        let Some(version) = word.strip_prefix("GLIBC_") else { continue };
        ensure!(
            numbers(version) <= numbers(GLIBC),
            "the program needs glibc {version}, and may need {GLIBC} at most"
        );
    }
    Ok(())
}

/// A version, such as 2.17, as numbers that can be compared.
fn numbers(version: &str) -> Vec<u32> {
    version.split('.').map_while(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(numbers("2.2.5") < numbers("2.17"));
        assert!(numbers("2.17") <= numbers(GLIBC));
        assert!(numbers("2.34") > numbers(GLIBC));
    }
}
