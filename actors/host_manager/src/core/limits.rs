//! Bounds on what discovery may say, and on what is remembered of it.

use elastic_protocol::Assignment;

/// Most slots of one host: four times the largest machine known, so beyond it is a slip of the pen.
pub const SLOTS_MAX: u32 = 4096;

/// Most hosts: as many as there can be workers.
pub const HOSTS_MAX: usize = Assignment::WORLD_SIZE_MAX;

/// Most output of one discovery, in bytes.
pub const OUTPUT_BYTES_MAX: usize = 1 << 20;

/// Longest line that is read, in bytes; comments may be longer.
pub const LINE_BYTES_MAX: usize = 1024;

/// Most malformed lines of one discovery that are named; the others are counted.
pub const LINE_ERRORS_MAX: usize = 16;

/// How much of a malformed line is shown, in characters.
pub const LINE_SHOWN_CHARS_MAX: usize = 80;

/// How much of a discovery's stderr is kept, in bytes: its end.
pub const STDERR_BYTES_MAX: usize = 4096;

/// Most hosts whose failures are remembered after they left the list.
pub const PENALTIES_MAX: usize = HOSTS_MAX;
