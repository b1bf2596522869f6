//! The documents that go with the program: manual pages, completions, licences, and the bills of materials. Called by
//! `dist`.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use xshell::{Shell, cmd};

use super::program::ReleaseProgram;
use super::release::{Platform, Release};
use crate::steps::root;

/// A shell, and where below `share/` it looks for completions.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "bash-completion/completions/elastic-node"),
    ("fish", "fish/vendor_completions.d/elastic-node.fish"),
    ("zsh", "zsh/site-functions/_elastic-node"),
];

/// Files that are written as they are.
const DOCUMENTS: [&str; 3] = ["CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"];

/// The packages whose dependencies are in a release: the program, and the Python module.
const RELEASED: [&str; 2] = ["cli", "python"];

/// The inputs of the list of the dependencies' licences.
const LICENCE_INPUTS: [&str; 3] = ["Cargo.lock", "packaging/about.toml", "packaging/about.hbs"];

/// Lays out the contents of the packages: `bin/` and `share/`, as below `/usr`.
///
/// # Errors
/// A file cannot be made.
pub(crate) fn lay_out(shell: &Shell, built: &ReleaseProgram, package: &Path) -> anyhow::Result<()> {
    let program = package.join("bin/elastic-node");
    shell.create_dir(package.join("bin"))?;
    shell.copy_file(&built.stripped, &program)?;
    let share = package.join("share");
    let pages = share.join("man/man1");
    shell.create_dir(&pages)?;
    // Without the environment, because flags show its values.
    let bare =
        |words: &[&str]| cmd!(shell, "env --ignore-environment {program} {words...}").quiet();
    bare(&["man", "--output"]).arg(&pages).run()?;
    for (name, place) in COMPLETIONS {
        let script = bare(&["completions", name]).read()?;
        shell.write_file(share.join(place), script + "\n")?;
    }
    let documents = share.join("doc/elastic-node");
    shell.create_dir(&documents)?;
    for name in DOCUMENTS {
        shell.copy_file(name, documents.join(name))?;
    }
    shell.copy_file(third_party_licences(shell)?, documents.join("THIRD-PARTY-LICENSES.txt"))?;
    Ok(())
}

/// The file with the licences of all crates in a release. It is made anew, in a minute or two, where its inputs have
/// changed.
fn third_party_licences(shell: &Shell) -> anyhow::Result<PathBuf> {
    let hashes = cmd!(shell, "git hash-object {LICENCE_INPUTS...}").quiet().read()?;
    let key: String =
        hashes.lines().filter_map(|hash| hash.get(..12)).collect::<Vec<_>>().join("-");
    let folder = root()?.join("target/tools/licences");
    let file = folder.join(format!("{key}.txt"));
    if file.exists() {
        return Ok(file);
    }
    shell.remove_path(&folder)?;
    shell.create_dir(&folder)?;
    // For all platforms: cargo-about asks cargo for them, and may ask no network.
    cmd!(shell, "cargo fetch --locked --quiet").run()?;
    let draft = folder.join("draft");
    cmd!(shell, "cargo about generate --frozen --workspace --config packaging/about.toml")
        .args(["packaging/about.hbs", "--output-file"])
        .arg(&draft)
        .run()?;
    std::fs::rename(&draft, &file)?;
    Ok(file)
}

/// Writes the bills of materials of the program and of the Python module, in the form of CycloneDX.
///
/// # Errors
/// cargo-cyclonedx failed.
pub(crate) fn write_bills(shell: &Shell, release: &Release) -> anyhow::Result<()> {
    let target = Platform::Glibc.triple();
    let root = root()?;
    let manifest = root.join("cli/Cargo.toml");
    let made = cmd!(shell, "cargo cyclonedx --quiet --manifest-path {manifest} --format json")
        .args(["--spec-version", "1.5", "--no-build-deps", "--target", &target])
        .args(["--override-filename", BILL])
        .run();
    // It writes one beside each manifest of the workspace, and knows no folder to write to.
    let bills = cmd!(shell, "git ls-files --others --exclude-standard **/{BILL}.json {BILL}.json");
    let bills = bills.quiet().read()?;
    for package in RELEASED {
        if made.is_err() {
            break;
        }
        let text = shell
            .read_file(root.join(package).join(format!("{BILL}.json")))
            .with_context(|| format!("cargo-cyclonedx wrote nothing for {package}"))?;
        // Packages of the workspace are named by their folders.
        let text =
            text.replace(&format!("path+file://{}", root.display()), "path+file:///elastic-node");
        let name = match package {
            "python" => "elastic_node",
            _ => "elastic-node",
        };
        let file = format!("{name}-{}-{}.cdx.json", release.version, Platform::Glibc.name());
        shell.write_file(release.folder.join(file), text)?;
    }
    for bill in bills.lines() {
        shell.remove_path(bill)?;
    }
    Ok(made?)
}

/// The name of the files that cargo-cyclonedx writes among the sources.
const BILL: &str = "release-bill";
