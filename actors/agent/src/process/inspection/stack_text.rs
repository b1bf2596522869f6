//! The text of a process's stacks: the main thread's first, and no longer than a sight may be. Called by `stack_file`.

use elastic_protocol::messages::ProcessSight;

use super::texts::{bounded_lines, printable};

/// Rearranges the text that `faulthandler` has written. It has a block for each thread, the newest thread first, and
/// the innermost call first in each block. The main thread is called current if it handled the signal. If another
/// thread did, the main thread is the oldest.
pub(super) fn arranged(written: &str) -> String {
    let mut blocks: Vec<String> = Vec::new();
    for line in written.lines() {
        let begins = line.starts_with("Thread 0x") || line.starts_with("Current thread 0x");
        match blocks.last_mut().filter(|_| !begins) {
            Some(block) => *block += &(printable(line) + "\n"),
            None => blocks.push(printable(line) + "\n"),
        }
    }
    // The thread that only looks at torch's recorder is ours.
    blocks.retain(|block| !block.contains("/_flight_recorder.py\""));
    let current = blocks.iter().position(|block| block.starts_with("Current"));
    let main = current.or_else(|| blocks.len().checked_sub(1));
    if let Some(main) = main {
        blocks[..=main].rotate_right(1);
    }
    let lines: Vec<&str> = blocks.iter().flat_map(|block| block.lines()).collect();
    bounded_lines(&lines, ProcessSight::STACK_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_thread_comes_first_and_the_others_keep_their_order() {
        let block = |head: &str| format!("{head} (most recent call first):\n  File \"{head}\"\n");
        let [a, b, c] = ["Thread 0x1", "Thread 0x2", "Thread 0x3"].map(block);
        let main = block("Current thread 0x4");
        let written = format!("{a}\n{b}\n{main}\n{c}");
        assert_eq!(arranged(&written), format!("{main}{a}{b}{c}"));
        assert_eq!(arranged(&format!("{a}\n{b}\n{c}")), format!("{c}{a}{b}"), "the oldest");
        assert_eq!(arranged(""), "");
    }

    #[test]
    fn the_thread_of_this_package_is_left_out() {
        let main = "Current thread 0x4 (most recent call first):\n  File \"/a/train.py\", line 7 in step\n";
        let ours = "Thread 0x5 (most recent call first):\n  File \"/b/_flight_recorder.py\", line 49 in _watch\n";
        assert_eq!(arranged(&format!("{ours}\n{main}")), main);
    }

    #[test]
    fn what_is_too_long_loses_whole_lines_at_the_end() {
        let frames: String =
            (0..1_000).map(|it| format!("  File \"x.py\", line {it} in f\n")).collect();
        let told = arranged(&format!("Thread 0x1 (most recent call first):\n{frames}"));
        assert!(told.len() <= ProcessSight::STACK_BYTES_MAX, "{}", told.len());
        assert!(told.len() > ProcessSight::STACK_BYTES_MAX - 64, "{}", told.len());
        assert!(told.starts_with("Thread 0x1") && told.ends_with("in f\n…\n"), "{told}");
    }

    #[test]
    fn control_characters_do_not_get_through() {
        assert_eq!(arranged("Thread 0x1 \u{1b}[31m:\n"), "Thread 0x1 ?[31m:\n");
    }
}
