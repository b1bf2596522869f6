//! The features of a run: which decisions its nodes have made, in which order, and about how often. Called by `GuidedSearch`.

use std::collections::{BTreeMap, BTreeSet};

use crate::dataset::mix;
use crate::decisions::words::PROGRESS;

/// Parts of a place's name that tell what kind of node it is.
fn kind_of(place: &str) -> u64 {
    match place {
        "driver" => 0,
        _ if place.ends_with(']') => 1,
        _ => 2,
    }
}

/// Hash of a decision's words without names and numbers: a word with a digit in it counts as a number, and numbers that follow
/// each other count as one.
fn shape_of(words: &str) -> u64 {
    let mut shape = 0;
    let mut was_number = false;
    for word in words.split_ascii_whitespace() {
        let is_number = word.bytes().any(|byte| byte.is_ascii_digit());
        if !(is_number && was_number) {
            let word = if is_number { "#" } else { word };
            shape = word.bytes().fold(mix(shape, 1), |shape, byte| {
                (shape ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
            });
        }
        was_number = is_number;
    }
    shape
}

/// Prefixes of lines that are no decision of their own: answers to questions, and consequences of each decision.
const NO_DECISIONS: [&str; 3] = [PROGRESS, "status:", "store "];

/// The features of a run with these decisions, each as its hash.
///
/// A decision is told by its kind of node and its words without names and numbers. Features are two decisions that follow each
/// other at one node, and a decision with how often it was made, in powers of two. (Pairs and counts are the features of AFL,
/// there of branches.)
pub(super) fn features(decisions: &[String]) -> BTreeSet<u64> {
    let mut features = BTreeSet::new();
    let mut counts = BTreeMap::new();
    let mut last_at = BTreeMap::new();
    for line in decisions {
        // A line is a time, a place and words.
        let line = line.trim_start();
        let Some((_, line)) = line.split_once(' ') else { continue };
        let Some((place, words)) = line.split_once(' ') else { continue };
        let words = words.trim_start();
        if NO_DECISIONS.iter().any(|begin| words.starts_with(begin)) {
            continue;
        }
        let decision = mix(kind_of(place), shape_of(words));
        *counts.entry(decision).or_insert(0_u64) += 1;
        if let Some(last) = last_at.insert(place, decision) {
            features.insert(mix(mix(last, decision), 2));
        }
    }
    features.extend(
        counts.into_iter().map(|(decision, count)| mix(mix(decision, count.ilog2().into()), 3)),
    );
    features
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &[&str]) -> BTreeSet<u64> {
        features(&lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn names_and_numbers_are_no_features_and_orders_and_counts_are() {
        let one =
            of(&["     0.1 driver   hosts changed: u0:1 p1:1", "     0.2 h0[1]    vote READY"]);
        let same = of(&["     7.1 driver   hosts changed: h0:2", "     9.2 h7[0]    vote READY"]);
        assert_eq!(one, same);
        let pair = of(&["     0.1 driver   a", "     0.2 driver   b"]);
        assert_ne!(pair, of(&["     0.1 driver   b", "     0.2 driver   a"]));
        assert_ne!(pair, of(&["     0.1 driver   a", "     0.2 h0       b"]));
        let twice = of(&["     0.1 driver   a", "     0.1 driver   a"]);
        assert_ne!(twice, of(&["     0.1 driver   a"]));
    }
}
