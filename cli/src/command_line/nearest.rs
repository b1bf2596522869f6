//! Suggestions for misspelt words: commands, and environment variables that set flags. Used by `reading`.

/// Most changes of a letter between a word and the suggestion for it.
const CHANGES_MAX: usize = 2;

/// The candidate that `word` most likely means; none if none is near.
pub(super) fn nearest<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let near = candidates.into_iter().map(|it| (changes(word, it), it));
    // A short word is near to everything.
    let most = CHANGES_MAX.min(word.chars().count() / 2);
    near.filter(|(changes, _)| *changes <= most)
        .min_by_key(|(changes, _)| *changes)
        .map(|(_, it)| it)
}

/// Number of letters to insert, remove, replace or swap with their neighbour that makes one word the other.
fn changes(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=other.len()).collect();
    for (row, letter) in one.iter().enumerate() {
        let mut next = vec![row + 1];
        for (column, its) in other.iter().enumerate() {
            let replaced = last[column] + usize::from(letter != its);
            let mut least = replaced.min(last[column + 1] + 1).min(next[column] + 1);
            let is_swapped =
                row > 0 && column > 0 && *letter == other[column - 1] && one[row - 1] == *its;
            if is_swapped {
                least = least.min(before[column - 1] + 1);
            }
            next.push(least);
        }
        before = std::mem::replace(&mut last, next);
    }
    last[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_word_has_a_suggestion_and_another_word_has_none() {
        let commands = ["run", "status", "doctor", "demo"];
        for (word, meant) in
            [("stauts", "status"), ("rnu", "run"), ("doktor", "doctor"), ("demos", "demo")]
        {
            assert_eq!(nearest(word, commands), Some(meant), "{word}");
        }
        for word in ["version", "x", "", "help"] {
            assert_eq!(nearest(word, commands), None, "{word}");
        }
        assert_eq!(changes("", "abc"), 3);
    }
}
