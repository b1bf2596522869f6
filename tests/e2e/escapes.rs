//! Terminal escapes in the output of workers reach no terminal unchanged (S-9): neither by the driver's log, nor by
//! the commands that show it, nor by the page.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use crate::support::{Job, PATIENCE, binary};

/// Clears the screen, and names the terminal's window.
const ESCAPES: &str = "\\033[2J\\033]0;owned\\007";

/// The same as it is shown.
const SHOWN: &str = "\\u{1b}[2J\\u{1b}]0;owned\\u{7}";

/// The same in JSON.
const IN_JSON: &str = "\\u001b[2J\\u001b]0;owned\\u0007";

fn assert_shown(text: &str, of: &str) {
    assert!(text.contains(SHOWN), "{of}: {text:?}");
    assert_harmless(text, of);
}

fn assert_harmless(text: &str, of: &str) {
    assert!(!text.contains(['\u{1b}', '\u{7}']), "{of}: {text:?}");
}

/// The output of a command to a pipe, on both streams.
fn printed(job: &Job, arguments: &[&str]) -> String {
    let mut command = Command::new(binary());
    // The list of jobs is the driver's.
    let output = command.args(arguments).env("XDG_STATE_HOME", job.path("user")).output();
    let output = output.expect("it runs");
    let streams = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&streams).into_owned()
}

/// The output of a command to a terminal.
fn printed_to_terminal(job: &Job, arguments: &str) -> String {
    let typescript = job.path("typescript");
    // `script` gives its command a terminal.
    let status = Command::new("script")
        .args(["-qefc", &format!("{} {arguments}", binary())])
        .arg(&typescript)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status();
    assert!(status.expect("util-linux").success());
    fs::read_to_string(typescript).expect("it is written")
}

/// The answer to a request for the page's data, as far as this word.
fn fetched(server: &str, path: &str, until: &str) -> String {
    let mut stream = TcpStream::connect(server).expect("the page is served");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {server}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it listens");
    let (mut text, mut part) = (String::new(), [0; 4096]);
    while !text.contains(until) {
        let length = stream.read(&mut part).expect("an answer");
        assert!(length > 0, "{path} has no {until}: {text}");
        text.push_str(&String::from_utf8_lossy(&part[..length]));
    }
    text
}

/// The driver's own lines: the output of workers is passed on as it is, as other launchers do.
fn own_lines(stderr: &str) -> String {
    let own = stderr.lines().filter(|line| !line.starts_with("[a:0] "));
    own.collect::<Vec<&str>>().join("\n")
}

#[test]
fn s_9_what_a_worker_writes_for_a_terminal_is_shown_escaped_everywhere() {
    // The error file is what torch's decorator writes.
    let error = IN_JSON.replace('\\', "\\\\");
    let text = format!(
        "printf 'live {ESCAPES}\n'; printf 'live {ESCAPES}\n' >&2; touch DIR/live; \
         while [ ! -e CONTROL/die ]; do sleep 0.05; done; \
         printf '{{\"message\": {{\"message\": \"{error}\", \"extraInfo\": {{\"py_callstack\": \"\", \
         \"timestamp\": \"1\"}}}}}}' > \"$TORCHELASTIC_ERROR_FILE\"; exit 7"
    );
    let program = ["/bin/sh", "-c", &text].map(ToOwned::to_owned);
    let flags = ["-H", "a:1", "--launcher", "local", "--max-restarts", "0"];
    let places = ["--dashboard", "127.0.0.1:0", "--output-dir", "DIR/out"];
    let mut job = Job::start_program(&[&flags[..], &places].concat(), &program);
    let live = job.path("live");
    job.wait("the worker", |_| live.exists().then_some(()));
    let state = job.path("state").display().to_string();
    assert_shown(&printed_to_terminal(&job, &format!("logs {state}")), "logs");
    let url =
        job.wait("the page's address", |job| Some(job.status()?["dashboard"].as_str()?.to_owned()));
    let server = url.trim_start_matches("http://").trim_end_matches('/');
    for stream in ["stdout", "stderr"] {
        let path = format!("/output?rank=0&stream={stream}");
        let output = fetched(server, &path, "owned");
        assert!(output.contains(IN_JSON), "{output}");
        assert_harmless(&output, "the page's output");
    }
    job.control("die");
    assert_eq!(job.end(), 1);
    assert_shown(&own_lines(&job.stderr()), "the log");
    let json = printed(&job, &["status", "--json"]);
    assert!(json.contains(IN_JSON), "{json}");
    assert_harmless(&json, "status --json");
    assert_shown(&printed(&job, &["status"]), "status");
    assert_shown(&printed(&job, &["explain", "last", &state]), "explain");
    let events = fs::read_to_string(job.path("state/events.jsonl")).expect("the event log");
    assert!(events.contains(IN_JSON), "{events}");
    assert_harmless(&events, "the event log");
}
