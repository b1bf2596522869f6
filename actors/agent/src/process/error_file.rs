//! Reads a program's error file: `error.json`, as torch's `@record` writes it. Called by `system` after the
//! process has ended.

use std::fs::OpenOptions;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use elastic_protocol::messages::{AgentToDriver, ProgramError};
use serde_json::Value;

/// The most bytes of an error file that are read.
const FILE_BYTES_MAX: u64 = 256 << 10;

/// The error that a program wrote, if it wrote one. Only a plain file is read: a program may have put a pipe there, and
/// a reader of the pipe would wait.
pub(super) fn read(path: &Path) -> Option<ProgramError> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        tracing::warn!(path = %path.display(), "an error file is not read: it is no plain file");
        return None;
    }
    let mut text = String::new();
    match file.take(FILE_BYTES_MAX).read_to_string(&mut text) {
        Ok(_) => parse(&text),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "an error file cannot be read");
            None
        }
    }
}

/// Parses `{"message": {"message": …, "extraInfo": {"py_callstack": …, "timestamp": …}}}`; the outer message
/// may be a plain text. The traceback is preferred to the message. The time may be a number or a text.
fn parse(text: &str) -> Option<ProgramError> {
    let whole: Value = serde_json::from_str(text).ok()?;
    let outer = whole.get("message")?;
    let extra = outer.get("extraInfo");
    let traceback = extra.and_then(|extra| extra.get("py_callstack")).and_then(Value::as_str);
    let inner = outer.get("message").or(Some(outer)).and_then(Value::as_str);
    let message = traceback.filter(|it| !it.trim().is_empty()).or(inner)?.trim();
    let at =
        [extra, Some(&whole)].into_iter().flatten().find_map(|it| match it.get("timestamp")? {
            Value::String(text) => text.trim().parse::<f64>().ok(),
            number => number.as_f64(),
        });
    let at = at.filter(|at| at.is_finite() && *at >= 0.0);
    Some(ProgramError { message: last_bytes(message), at: at.map(|at| at as u64) })
}

/// The end of the message, which holds the error.
fn last_bytes(message: &str) -> String {
    let mut from = message.len().saturating_sub(AgentToDriver::TAIL_BYTES_MAX);
    while !message.is_char_boundary(from) {
        from += 1;
    }
    message[from..].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t_3_what_torch_records_is_read() {
        let text = r#"{"message": {"message": "ValueError: no", "extraInfo":
            {"py_callstack": "Traceback …\nValueError: no\n", "timestamp": "1700000000"}}}"#;
        let message = "Traceback …\nValueError: no".to_owned();
        assert_eq!(parse(text), Some(ProgramError { message, at: Some(1_700_000_000) }));
    }

    #[test]
    fn g_9_a_pipe_in_the_place_of_an_error_file_is_not_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("error.json");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("ours");
        assert_eq!(read(&path), None);
        std::fs::remove_file(&path).expect("ours");
        std::fs::write(&path, r#"{"message": "it broke"}"#).expect("ours");
        assert!(read(&path).is_some(), "a plain file is read");
    }

    #[test]
    fn other_forms_are_read_too() {
        let plain = |text: &str| parse(text).map(|error| (error.message, error.at));
        let expected = |at| Some(("it broke".to_owned(), at));
        assert_eq!(plain(r#"{"message": "it broke"}"#), expected(None));
        assert_eq!(plain(r#"{"message": "it broke", "timestamp": 5}"#), expected(Some(5)));
        let number = r#"{"message": {"message": "it broke", "extraInfo": {"timestamp": 7}}}"#;
        assert_eq!(plain(number), expected(Some(7)));
        for wrong in ["", "{}", "[1]", r#"{"message": 3}"#, r#"{"message": {"extraInfo": {}}}"#] {
            assert_eq!(plain(wrong), None, "{wrong}");
        }
    }
}
