//! The check that the same commit gives the same bytes: a second build from nothing, in other folders. Called by
//! `dist --twice`.

use anyhow::ensure;
use xshell::Shell;

use super::release::Release;
use super::sums::SUMS;
use super::tools::Tools;

/// Makes the release, makes it again in other build folders, and compares the checksums.
///
/// # Errors
/// A build failed, or a file differs; the error names it.
pub(crate) fn compare(shell: &Shell, release: &Release, tools: &Tools) -> anyhow::Result<()> {
    super::make(shell, release, tools)?;
    let again = Release {
        folder: release.builds.join("dist-again"),
        builds: release.builds.join("again"),
        ..release.clone()
    };
    shell.remove_path(&again.builds)?;
    let first = shell.read_file(release.folder.join(SUMS))?;
    let _elsewhere = again.push_environment(shell, tools)?;
    super::make(shell, &again, tools)?;
    let second = shell.read_file(again.folder.join(SUMS))?;
    let differing: Vec<&str> = differing(&first, &second);
    ensure!(differing.is_empty(), "a second build gives other bytes: {}", differing.join(", "));
    Ok(())
}

/// The names of files in the first list whose line is not in the second, and the other way round.
fn differing<'a>(first: &'a str, second: &'a str) -> Vec<&'a str> {
    let missing = |of: &'a str, in_: &'a str| {
        of.lines().filter(move |line| !in_.lines().any(|other| other == *line))
    };
    let mut names: Vec<&str> = missing(first, second)
        .chain(missing(second, first))
        .filter_map(|line| line.split_whitespace().last())
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::differing;

    #[test]
    fn files_that_differ_are_named_once_and_missing_ones_too() {
        assert_eq!(differing("1  a\n2  b\n", "1  a\n3  b\n4  c\n"), ["b", "c"]);
        assert!(differing("1  a\n", "1  a\n").is_empty());
    }
}
