//! `cargo xtask dist`: the parts of a release, made in `dist/`: programs, wheel, Debian package, bill of materials,
//! checksums. `--twice` compares the bytes of two builds, and `--check` tries each part on a system with nothing else
//! installed. Called by `main`, and through it by the release workflow.

mod archive;
mod debian_package;
mod papers;
mod program;
mod release;
mod sums;
mod tools;
mod trial;
mod twice;
mod wheel;

use std::io::Write as _;

use xshell::Shell;

use self::release::{Platform, Release};
use self::tools::Tools;
use crate::steps::{shell, skip, step};

/// Flags of `dist`.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct DistOptions {
    /// Try what lies in `dist/` where nothing else is installed, and do not build it; as root, on Debian.
    #[arg(long, conflicts_with = "twice")]
    check: bool,
    /// Build it a second time with empty build folders, and compare the checksums.
    #[arg(long)]
    twice: bool,
}

/// Makes the release of this checkout, or tries the one that lies in `dist/`.
///
/// # Errors
/// A tool cannot be installed, a build failed, or a trial failed.
pub(crate) fn dist(options: DistOptions) -> anyhow::Result<()> {
    let shell = shell()?;
    let release = Release::of_checkout(&shell)?;
    if options.check {
        return trial::check(&shell, &release);
    }
    let tools = step("tools of a release", || Tools::install(&shell))?;
    let _plain = release.push_environment(&shell, &tools)?;
    if options.twice {
        return twice::compare(&shell, &release, &tools);
    }
    make(&shell, &release, &tools)
}

/// Makes all parts in the release's folder, which is emptied before.
fn make(shell: &Shell, release: &Release, tools: &Tools) -> anyhow::Result<()> {
    shell.remove_path(&release.folder)?;
    shell.create_dir(&release.folder)?;
    shell.remove_path(&release.drafts)?;
    shell.create_dir(&release.drafts)?;
    for platform in release.platforms() {
        let name = platform.name();
        if !platform.is_installed(shell)? {
            let hint = format!("rustup target add {}", platform.triple());
            skip(
                &format!("program for {name}"),
                &format!("Rust's library for it is missing ({hint})"),
            )?;
            continue;
        }
        step(&format!("program for {name}"), || make_program(shell, release, platform))?;
    }
    step("wheel", || wheel::make(shell, release, tools))?;
    step("Debian package", || debian_package::make(shell, release))?;
    step("bill of materials", || papers::write_bills(shell, release))?;
    step("checksums", || sums::write(shell, &release.folder))?;
    print_sizes(release)
}

/// Builds the program for this platform, and packs it. The one for glibc is what the wheel and the Debian package contain.
fn make_program(shell: &Shell, release: &Release, platform: Platform) -> anyhow::Result<()> {
    let built = program::build(shell, release, platform)?;
    let package = release.package_of(platform);
    papers::lay_out(shell, &built, &package)?;
    let name = format!("{}-{}", release.name(), platform.name());
    archive::pack(shell, release, &package, &name)?;
    archive::pack(shell, release, &built.debug_folder, &format!("{name}-debug"))
}

fn print_sizes(release: &Release) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout();
    for file in release.files()? {
        let bytes = std::fs::metadata(&file)?.len();
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        writeln!(stdout, "{:8.2} MB  {name}", bytes as f64 / 1e6)?;
    }
    Ok(())
}
