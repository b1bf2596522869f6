//! The collectives of a process, as torch's flight recorder counts them: the Python package (`_flight_recorder.py`) leaves the
//! counts in a file in memory. Called by `reading`.

use std::fs::File;
use std::io::Read as _;

use elastic_protocol::messages::RecordedCollectives;

use super::memory_file::path_of;

/// The name of the file, as `_flight_recorder.py` has it.
const NAME: &str = "elastic-collectives";

/// Most bytes that are read: two numbers of 20 digits.
const READ_MAX: u64 = 64;

/// The counts of a process; none where it does not tell any.
pub(super) fn recorded_collectives(pid: i32) -> Option<RecordedCollectives> {
    let mut text = String::new();
    File::open(path_of(pid, NAME)?).ok()?.take(READ_MAX).read_to_string(&mut text).ok()?;
    parse(&text)
}

fn parse(text: &str) -> Option<RecordedCollectives> {
    let mut counts = text.split_whitespace().map(str::parse);
    let (entered, completed) = (counts.next()?.ok()?, counts.next()?.ok()?);
    Some(RecordedCollectives { entered, completed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_counts_are_taken_and_anything_else_is_none() {
        let counts = RecordedCollectives { entered: 18, completed: 17 };
        assert_eq!(parse("00000000000000000018 00000000000000000017\n"), Some(counts));
        assert_eq!(["", "18", "18 x", "-1 0"].map(parse), [None; 4]);
    }
}
