//! Writes a command's data to stdout. A reader that has gone, as `| head` does, ends the command quietly. Used by the
//! commands that print.

use std::io::{self, ErrorKind, IsTerminal as _, Write};

use super::failure::{CommandFailure, ResultExt as _};

/// Exit code of a command whose reader has gone: that of a program that SIGPIPE ended.
const CODE_READER_GONE: i32 = 128 + libc::SIGPIPE;

/// Writes `text` to stdout, in colour where stdout shows colours.
pub(crate) fn print(text: &str) -> Result<(), CommandFailure> {
    print_to(&mut anstream::stdout().lock(), text)
}

/// Writes `text` and a line break to stdout.
pub(crate) fn print_line(text: &str) -> Result<(), CommandFailure> {
    print(&format!("{text}\n"))
}

/// Writes another program's output as it is, to stdout or to stderr.
pub(crate) fn print_output(is_stdout: bool, bytes: &[u8]) -> Result<(), CommandFailure> {
    match is_stdout {
        true => write_to(&mut io::stdout().lock(), bytes),
        false => write_to(&mut io::stderr().lock(), bytes),
    }
}

/// Whether a terminal shows what is written to stdout, or to stderr, and obeys escape sequences in it.
pub(crate) fn shows_escapes(is_stdout: bool) -> bool {
    match is_stdout {
        true => io::stdout().is_terminal(),
        false => io::stderr().is_terminal(),
    }
}

fn print_to(stdout: &mut dyn Write, text: &str) -> Result<(), CommandFailure> {
    write_to(stdout, text.as_bytes())
}

fn write_to(stdout: &mut dyn Write, bytes: &[u8]) -> Result<(), CommandFailure> {
    written(stdout.write_all(bytes).and_then(|()| stdout.flush()))
}

/// The result of writing to stdout.
pub(crate) fn written(result: io::Result<()>) -> Result<(), CommandFailure> {
    match result {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {
            Err(CommandFailure::new("nobody reads stdout any more")
                .with_code(CODE_READER_GONE)
                .told_elsewhere())
        }
        written => written.failed("stdout cannot be written"),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_reader_that_has_gone_is_no_error_to_be_told() {
        struct Refusing(ErrorKind);
        impl Write for Refusing {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(self.0.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let gone = print_to(&mut Refusing(ErrorKind::BrokenPipe), "x").expect_err("gone");
        assert_eq!((gone.code(), gone.is_told()), (141, true));
        let full = print_to(&mut Refusing(ErrorKind::StorageFull), "x").expect_err("full");
        assert_eq!((full.code(), full.is_told()), (1, false));
    }
}
