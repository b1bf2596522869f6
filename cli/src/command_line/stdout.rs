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

/// Writes sentences for a person, and a line break, to stdout: on a terminal, lines that are too long for it are broken at
/// their words.
pub(crate) fn print_text(text: &str) -> Result<(), CommandFailure> {
    match stdout_columns() {
        Some(columns) => print_line(&wrapped(text, columns)),
        None => print_line(text),
    }
}

/// Width of the terminal that shows stdout, in characters; `None` if it is no terminal.
pub(crate) fn stdout_columns() -> Option<u16> {
    let is_terminal = io::stdout().is_terminal();
    let (columns, _) = ratatui::crossterm::terminal::size().ok().filter(|_| is_terminal)?;
    (columns > 0).then_some(columns)
}

/// The text with lines of at most so many characters; the rest of a broken line is indented.
fn wrapped(text: &str, columns: u16) -> String {
    let wrap = |line: &str| {
        if textwrap::core::display_width(line) <= usize::from(columns) {
            return line.to_owned();
        }
        let options = textwrap::Options::new(usize::from(columns)).subsequent_indent("  ");
        textwrap::fill(line, options.break_words(false))
    };
    let lines: Vec<String> = text.lines().map(wrap).collect();
    lines.join("\n")
}

/// Writes another program's output as it is, to stdout or to stderr.
pub(crate) fn print_output(is_stdout: bool, bytes: &[u8]) -> Result<(), CommandFailure> {
    match is_stdout {
        true => write_to(&mut io::stdout().lock(), bytes),
        false => write_to(&mut io::stderr().lock(), bytes),
    }
}

/// Whether the output to stdout, or to stderr, goes to a terminal that obeys escape sequences in it.
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
    fn long_lines_are_broken_at_words_and_what_has_none_stays_whole() {
        let text = "job 1 · run\nwaiting for a:0, b:0 and c:0\nhttp://127.0.0.1:1234/long";
        let expected =
            "job 1 · run\nwaiting for\n  a:0, b:0\n  and c:0\nhttp://127.0.0.1:1234/long";
        assert_eq!(wrapped(text, 12), expected);
        assert_eq!(wrapped(text, 80), text);
    }

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
