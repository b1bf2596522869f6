//! Draws a sample of the mutants, and adds every one on a changed line. Used by `mutants`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_chacha::ChaCha8Rng;
use xshell::{Shell, cmd};

use super::mutant::Mutant;

/// The changed lines, by file.
pub(crate) type ChangedLines = BTreeMap<String, BTreeSet<usize>>;

/// The lines that the working tree has changed since a commit.
pub(crate) fn changed_lines(root: &Path, since: &str) -> anyhow::Result<ChangedLines> {
    let shell = Shell::new()?;
    shell.change_dir(root);
    let difference = cmd!(shell, "git diff --unified=0 --no-color --no-ext-diff {since} -- *.rs");
    Ok(parse(&difference.quiet().read()?))
}

fn parse(difference: &str) -> ChangedLines {
    let mut changed = ChangedLines::new();
    let mut file = None;
    for line in difference.lines() {
        if let Some(path) = line.strip_prefix("+++ b/") {
            file = Some(path.to_owned());
        } else if let (Some(file), Some(hunk)) = (&file, line.strip_prefix("@@ "))
            && let Some(new) = hunk.split(' ').find_map(|part| part.strip_prefix('+'))
        {
            let (first, count) = new.split_once(',').unwrap_or((new, "1"));
            if let (Ok(first), Ok(count)) = (first.parse::<usize>(), count.parse::<usize>()) {
                changed.entry(file.clone()).or_default().extend(first..first + count);
            }
        }
    }
    changed
}

/// The mutants on changed lines first, in order, then the rest of the sample, drawn. Without a sample size: only those
/// on changed lines.
pub(crate) fn draw(
    mutants: Vec<Mutant>,
    sample: Option<usize>,
    seed: u64,
    changed: &ChangedLines,
) -> Vec<Mutant> {
    let is_changed = |mutant: &Mutant| {
        changed.get(&mutant.file).is_some_and(|lines| lines.contains(&mutant.line))
    };
    let (mut drawn, mut others): (Vec<Mutant>, Vec<Mutant>) =
        mutants.into_iter().partition(is_changed);
    others.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
    others.truncate(sample.unwrap_or(0));
    drawn.extend(others);
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_names_its_lines() {
        let difference = "\
--- a/a.rs
+++ b/a.rs
@@ -3 +3,2 @@ fn f() {
+one
+two
@@ -9,2 +11,0 @@
--- a/b.rs
+++ b/b.rs
@@ -1 +1 @@
";
        let changed = parse(difference);
        assert_eq!(changed["a.rs"], BTreeSet::from([3, 4]));
        assert_eq!(changed["b.rs"], BTreeSet::from([1]));
    }
}
