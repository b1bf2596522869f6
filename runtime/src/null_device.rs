//! The null device, as input of a process that reads nothing, or output of a process whose output is dropped. It
//! replaces the standard library's `Stdio::null`, which reports a missing device as if the program were missing. Called
//! wherever a process is started.

use std::fs::File;
use std::io;
use std::process::Stdio;

/// The file that is always empty, and takes everything.
const NULL_DEVICE: &str = "/dev/null";

/// A stream for a process that reads nothing, or whose output is dropped. This opens a file, so actors' threads must
/// not call it.
///
/// # Errors
/// The file cannot be opened; the error names it, and is no [`io::ErrorKind::NotFound`], which is said of programs.
pub fn null_device() -> io::Result<Stdio> {
    open(NULL_DEVICE)
}

fn open(path: &str) -> io::Result<Stdio> {
    let opened = File::options().read(true).write(true).open(path);
    let explain = |error: io::Error| {
        io::Error::other(format!("{path} cannot be opened, which every system has: {error}"))
    };
    opened.map(Stdio::from).map_err(explain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s_13_a_missing_device_is_named_and_no_program_is() {
        assert!(null_device().is_ok());
        let missing = "/dev/null/null";
        let error = open(missing).expect_err("there is none");
        assert!(error.to_string().starts_with(missing), "{error}");
        assert_ne!(error.kind(), io::ErrorKind::NotFound);
    }
}
