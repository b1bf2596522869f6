//! The live line of progress, on a real terminal.

use std::fs;
use std::process::{Command, Stdio};

use crate::support::{binary, program, wait_until};

/// The bytes with which every other line begins.
const FRESH_LINE: &str = "\r\u{1b}[2K";

#[test]
fn on_a_terminal_one_line_says_how_the_job_stands_and_no_line_of_others_is_torn() {
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    for name in ["control", "log", "state"] {
        fs::create_dir(folder.path().join(name)).expect("a folder");
    }
    let at = |name: &str| folder.path().join(name).display().to_string();
    let command = format!(
        "{} run -n 1 --mode in-process --bind 127.0.0.1:0 --state-dir {} -- {} --control {} --log {}",
        binary(),
        at("state"),
        program("trainer").display(),
        at("control"),
        at("log")
    );
    // `script` gives its command a terminal.
    let mut job = Command::new("script")
        .args(["-qefc", &command, &at("typescript")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("util-linux is installed");
    let shown =
        || String::from_utf8_lossy(&fs::read(at("typescript")).unwrap_or_default()).into_owned();
    let steps = || {
        let text = shown();
        let line = "run: generation 1, 1 worker, step ";
        let steps = text
            .split(line)
            .skip(1)
            .filter_map(|rest| rest.split(|it: char| !it.is_ascii_digit()).next()?.parse().ok());
        steps.collect::<Vec<u64>>()
    };
    wait_until("two steps on the live line", || {
        let steps = steps();
        (steps.last()? > steps.first()?).then_some(())
    });
    fs::write(folder.path().join("control/finish"), "").expect("a file");
    let status = wait_until("the end of the job", || job.try_wait().expect("ours"));
    let text = shown();
    assert_eq!(status.code(), Some(0), "{text}");
    for line in text.lines().filter(|line| line.contains("INFO") || line.contains("[localhost:0]"))
    {
        let fresh = line.rsplit(FRESH_LINE).next().unwrap_or_default();
        assert!(line.contains(FRESH_LINE) && !fresh.contains("generation 1, 1 worker"), "{line:?}");
    }
    assert!(text.contains("[localhost:0]"), "the worker's own output is there: {text}");
}
