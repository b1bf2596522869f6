//! Faults on request. A file, read at each call, has one fault a line:
//!
//! ```text
//! rank=1 call=ncclAllReduce nth=3 do=hang
//! ```
//!
//! `rank` is a communicator's; without it, any. `nth` counts that call in that communicator from 1; without it, each
//! one. Copies (`cuMemcpyHtoDAsync`, `cuMemcpyDtoHAsync`) have neither, and only hang. `do` is one of
//!
//! - `fail:CODE`: the call returns this code;
//! - `late:CODE`: the call returns, and this code comes later by `ncclCommGetAsyncError`, and the work is never done;
//! - `hang`: the call returns, and the work is never done until the communicator is aborted;
//! - `block`: the call itself does not return until the communicator is aborted;
//! - `stick`: the call never returns;
//! - `slow:MS`: the work takes so long more.
//!
//! Lines `version=23003` (NCCL's, as a code), `devices=8` and `cuda_init=0` (what `cuInit` returns) say what there is.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Number of calls of this process that have had a fault.
static MET: AtomicU32 = AtomicU32::new(0);

/// Number of calls of this process that have met a requested fault. Tests see by it that one is under way.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_faults() -> u32 {
    MET.load(Ordering::SeqCst)
}

/// The faulty behaviour of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Fail(u32),
    Late(u32),
    Hang,
    Block,
    Stick,
    Slow(Duration),
}

/// The fault of a call: the `nth` of its name in the communicator where this process is `rank`.
pub fn of(call: &str, rank: Option<u32>, nth: u64) -> Option<Fault> {
    let file = std::env::var_os("STAND_IN_FAULTS")?;
    let text = std::fs::read_to_string(file).ok()?;
    let fault = text.lines().find_map(|line| parse(line, call, rank, nth))?;
    MET.fetch_add(1, Ordering::SeqCst);
    Some(fault)
}

fn parse(line: &str, call: &str, rank: Option<u32>, nth: u64) -> Option<Fault> {
    let mut fault = None;
    for word in line.split_whitespace() {
        let (key, value) = word.split_once('=')?;
        let fits = match key {
            "rank" => value.parse().ok() == rank,
            "call" => value == call,
            "nth" => value.parse() == Ok(nth),
            "do" => {
                fault = parse_action(value);
                fault.is_some()
            }
            _ => false,
        };
        if !fits {
            return None;
        }
    }
    fault
}

fn parse_action(text: &str) -> Option<Fault> {
    let (name, value) = text.split_once(':').unwrap_or((text, "0"));
    let number: u32 = value.parse().ok()?;
    match name {
        "fail" => Some(Fault::Fail(number)),
        "late" => Some(Fault::Late(number)),
        "hang" => Some(Fault::Hang),
        "block" => Some(Fault::Block),
        "stick" => Some(Fault::Stick),
        "slow" => Some(Fault::Slow(Duration::from_millis(number.into()))),
        _ => None,
    }
}

/// A number that tests set by a line `name=number` of the same file.
pub fn setting(name: &str, default: u32) -> u32 {
    let read = || {
        let text = std::fs::read_to_string(std::env::var_os("STAND_IN_FAULTS")?).ok()?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('=').map(str::to_owned));
        line?.parse().ok()
    };
    read().unwrap_or(default)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_that_of_its_call() {
        let line = "rank=1 call=ncclAllReduce nth=3 do=fail:5";
        assert_eq!(parse(line, "ncclAllReduce", Some(1), 3), Some(Fault::Fail(5)));
        assert_eq!(parse(line, "ncclAllReduce", Some(0), 3), None);
        assert_eq!(parse(line, "ncclAllReduce", Some(1), 2), None);
        assert_eq!(parse(line, "ncclReduce", Some(1), 3), None);
        assert_eq!(parse("do=hang", "ncclReduce", None, 1), Some(Fault::Hang));
        assert_eq!(parse("", "ncclReduce", None, 1), None);
    }
}
