//! Bounded texts of a [`ProcessSight`]: texts that a process chooses itself,
//! such as its name, are made printable and short. Called by all parts of an inspection.

use elastic_protocol::messages::ProcessSight;

/// Longest path that is shown whole, in bytes.
const PATH_BYTES_MAX: usize = 160;

/// Ends a text of which a part was left out.
const LEFT_OUT: &str = "…\n";

/// A finding, or the description of a thread's wait, without control characters and within its bound.
pub(super) fn bounded(text: &str) -> String {
    let mut text = printable(text);
    while text.len() > ProcessSight::TEXT_BYTES_MAX {
        text.pop();
    }
    text
}

/// The end of a path, which says more than its beginning.
pub(super) fn shortened(path: &str) -> String {
    let mut kept = path;
    while kept.len() > PATH_BYTES_MAX {
        kept = kept.strip_prefix(|_| true).unwrap_or_default();
    }
    if kept.len() == path.len() { path.to_owned() } else { format!("…{kept}") }
}

/// As many whole lines as there is room for in so many bytes; empty ones are left out.
pub(super) fn bounded_lines(lines: &[&str], bytes_max: usize) -> String {
    let mut text = String::new();
    for line in lines.iter().filter(|line| !line.is_empty()) {
        if text.len() + line.len() + 1 + LEFT_OUT.len() > bytes_max {
            text.push_str(LEFT_OUT);
            break;
        }
        text.push_str(line);
        text.push('\n');
    }
    text
}

/// A text on one line.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|it| if it.is_control() { '?' } else { it }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_between_two_characters_and_stay_on_a_line() {
        let long = bounded(&format!("x\n{}", "ä".repeat(200)));
        assert!(long.len() <= ProcessSight::TEXT_BYTES_MAX, "{}", long.len());
        assert!(long.starts_with("x?ää") && long.ends_with('ä'), "{long}");
        let path = shortened(&format!("/{}/train.bin", "ä".repeat(200)));
        assert!(path.starts_with("…ä") && path.ends_with("ä/train.bin"), "{path}");
        assert_eq!(shortened("/data/train.bin"), "/data/train.bin");
    }
}
