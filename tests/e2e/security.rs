//! Authentication: clients that get in, and clients that do not.

use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::support::{Job, binary};

fn running() -> Job {
    let mut job = Job::start(&["-n", "1"], &[]);
    job.agent("a", 1);
    job.wait_for_sizes(&[1]);
    job
}

#[test]
fn the_token_is_the_owners_alone() {
    let job = running();
    let mode = fs::metadata(job.path("state/token")).expect("a token").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// Modes of the token, the event log, the output folder and an output file of a job.
fn modes_of_files(flags: &[&str]) -> [u32; 4] {
    let flags = [&["-n", "1", "--output-dir", "DIR/output"], flags].concat();
    let mut job = Job::start(&flags, &[]);
    job.agent("a", 1);
    job.wait_for_sizes(&[1]);
    let names = ["state/token", "state/events.jsonl", "output", "output/a.0.1.stderr"];
    let modes = names.map(|name| {
        fs::metadata(job.path(name)).expect("it is there").permissions().mode() & 0o777
    });
    assert_eq!(job.finish(), 0);
    modes
}

#[test]
fn s_12_events_and_output_are_the_owner_s_alone_unless_umask_opens_them() {
    assert_eq!(modes_of_files(&[]), [0o600, 0o600, 0o700, 0o600]);
    assert_eq!(modes_of_files(&["--umask", "027"]), [0o600, 0o640, 0o750, 0o640]);
    assert_eq!(modes_of_files(&["--umask", "022"]), [0o600, 0o644, 0o755, 0o644]);
}

#[test]
fn x_13_a_wrong_token_is_refused() {
    let mut job = running();
    let other = Job::start(&["-n", "1"], &[]);
    let output = Command::new(binary())
        .args(["--role", "worker", "--join", &job.address, "--host", "x", "--token-file"])
        .arg(other.path("state/token"))
        .output()
        .expect("it runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(stderr.contains("error:"), "{stderr}");
    job.wait_for_progress();
    assert_eq!(job.finish(), 0, "the job is not disturbed");
    assert!(job.events_of("reset_decided").is_empty());
}

#[test]
fn x_13_a_token_that_is_none() {
    let job = running();
    let output = Command::new(binary())
        .args(["--role", "worker", "--join", &job.address, "--token", "en1-nonsense"])
        .output()
        .expect("it runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("token"), "{stderr}");
}

#[test]
fn x_13_garbage_on_the_port() {
    let mut job = running();
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    for length in [0usize, 1, 20, 300, 1200, 1400] {
        for first in [0x00u8, 0x40, 0xc0, 0xff] {
            let mut datagram = vec![first; length];
            for (at, byte) in datagram.iter_mut().enumerate().skip(1) {
                *byte = u8::try_from(at * 31 % 251).unwrap_or(0);
            }
            socket.send_to(&datagram, &job.address).expect("it is sent");
        }
    }
    job.wait_for_progress();
    assert_eq!(job.finish(), 0);
    assert!(job.events_of("reset_decided").is_empty());
}

#[test]
fn x_13_a_public_address_demands_a_token() {
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    let output = Command::new(binary())
        .args(["--role", "worker", "--join", "192.0.2.1:7070", "--host", "x"])
        .env("XDG_STATE_HOME", folder.path())
        .output()
        .expect("it runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(stderr.contains("error: there is no token"), "{stderr}");
    assert!(stderr.contains("hint:") && stderr.contains("--token-file"), "{stderr}");
}

#[test]
fn no_secret_on_a_command_line_or_in_a_log() {
    let mut job = running();
    let token = fs::read_to_string(job.path("state/token")).expect("a token");
    let secret = token.trim();
    let worker = job.pid("a", 0);
    for pid in [worker, i32::try_from(job.agents["a"].id()).expect("a pid")] {
        let line = fs::read(format!("/proc/{pid}/cmdline")).expect("the process is there");
        let line = String::from_utf8_lossy(&line).into_owned();
        assert!(!line.contains("en1-") && !line.contains(secret), "{line}");
    }
    assert_eq!(job.finish(), 0);
    for file in ["driver.stderr", "agent.a.stderr", "state/events.jsonl"] {
        let text = fs::read_to_string(job.path(file)).expect("a file");
        assert!(!text.contains(secret) && !text.contains("en1-"), "{file}");
    }
}

#[test]
fn x_20_names_of_hosts() {
    let mut job = Job::start(&["-n", "3", "--output-dir", "DIR/output"], &[]);
    let names = ["../x", "grüße an alle", &"n".repeat(255)];
    for name in names {
        job.agent_named(name);
    }
    job.wait_for_sizes(&[3]);
    assert_eq!(job.finish(), 0);
    let output = fs::read_dir(job.path("output")).expect("the output folder");
    assert_eq!(output.count(), 7, "stdout and stderr of three workers, and whose they are");
    assert!(!job.path("x.0.1.stdout").exists());
    let refused = job.agent_command(&"n".repeat(256), 1).output().expect("it runs");
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
#[expect(clippy::print_stderr, reason = "a test that shows nothing must say so")]
fn s_12_the_page_shows_output_to_the_user_of_the_job_alone() {
    if !nix::unistd::geteuid().is_root() {
        return eprintln!("not shown: another user's process needs root");
    }
    let program =
        ["/bin/sh", "-c", "echo said; while [ ! -e CONTROL/finish ]; do sleep 0.05; done"];
    let flags = ["-n", "1", "--dashboard", "127.0.0.1:0", "--output-dir", "DIR/out"];
    let mut job = Job::start_program(&flags, &program.map(ToOwned::to_owned));
    job.agent("a", 1);
    let url =
        job.wait("the page's address", |job| Some(job.status()?["dashboard"].as_str()?.to_owned()));
    let server = url.trim_start_matches("http://").trim_end_matches('/').to_owned();
    let (host, port) = server.split_once(':').expect("an address");
    let read = |user: &str, path: &str| {
        let fetch = format!(
            "exec 3<>/dev/tcp/{host}/{port}; printf 'GET /{path} HTTP/1.1\\r\\nHost: {server}\\r\\n\\r\\n' >&3; cat <&3"
        );
        let output = Command::new("setpriv")
            .args([&format!("--reuid={user}"), "--clear-groups", "/bin/bash", "-c", &fetch])
            .output()
            .expect("util-linux");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let path = "output?rank=0&stream=stdout";
    job.wait("the output", |_| read("0", path).contains("said").then_some(()));
    let refused = read("65534", path);
    assert!(refused.starts_with("HTTP/1.1 403 ") && !refused.contains("said"), "{refused}");
    assert!(read("65534", "metrics").contains("elastic_node"), "as for Prometheus");
    assert_eq!(job.finish(), 0);
}
