//! Bounds on a discovery's output, and on remembered failures. Used by `core` and `discovery`.

use elastic_protocol::Assignment;

/// Most slots of one host: four times the largest known machine, so a larger number is a typing error.
pub const SLOTS_MAX: u32 = 4096;

/// Most hosts: as many as there can be workers.
pub const HOSTS_MAX: usize = Assignment::WORLD_SIZE_MAX;

/// Most output of one discovery, in bytes.
pub const OUTPUT_BYTES_MAX: usize = 1 << 20;

/// Longest line that is read, in bytes; comments may be longer.
pub const LINE_BYTES_MAX: usize = 1024;

/// Most malformed lines of one discovery that are named; the others are counted.
pub const LINE_ERRORS_MAX: usize = 16;

/// Most characters of a malformed line that are shown.
pub const LINE_SHOWN_CHARS_MAX: usize = 80;

/// Most bytes of a discovery's stderr that are kept: its end.
pub const STDERR_BYTES_MAX: usize = 4096;

/// Most hosts whose failures are remembered after they left the list.
pub const PENALTIES_MAX: usize = HOSTS_MAX;
