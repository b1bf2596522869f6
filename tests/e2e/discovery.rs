//! Hosts by DNS (`--discovery dns://…`), against a real name server on the loopback.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::ports::free_port;
use crate::support::{Job, signal, wait_until};

/// A dnsmasq of the test's own, which answers with the names in a file.
struct NameServer {
    folder: TempDir,
    port: u16,
    process: Child,
}

impl NameServer {
    /// Starts a server with the addresses of `workers.test`; none if this machine has no dnsmasq.
    #[expect(clippy::print_stderr, reason = "a test that shows nothing must say so")]
    fn start(addresses: &[&str]) -> Option<Self> {
        if let Err(error) = Command::new("dnsmasq").arg("--version").output() {
            let hint = format!("dnsmasq cannot be run ({error}); install Debian's dnsmasq-base");
            assert!(std::env::var_os("ELASTIC_REQUIRE_DNSMASQ").is_none(), "{hint}");
            eprintln!("not shown: {hint}");
            return None;
        }
        let folder = TempDir::new().expect("a temporary folder");
        let file = folder.path().join("hosts");
        // Another test may take a port between its choice and dnsmasq's start.
        let (port, process) = wait_until("a name server", || {
            let port = free_port(Ipv4Addr::LOCALHOST);
            Some((port, serve(&file, port, addresses)?))
        });
        Some(Self { folder, port, process })
    }

    /// Replaces the addresses.
    fn change(&self, addresses: &[&str]) {
        write(&self.file(), addresses);
        let pid = i32::try_from(self.process.id()).expect("a process id");
        signal(pid, Signal::SIGHUP);
    }

    fn stop(&mut self) {
        self.process.kill().expect("it runs");
        self.process.wait().expect("it was ours");
    }

    /// Stops the process: the system goes on to take its connections, and nobody answers.
    fn freeze(&self) {
        let pid = i32::try_from(self.process.id()).expect("a process id");
        signal(pid, Signal::SIGSTOP);
    }

    fn start_again(&mut self, addresses: &[&str]) {
        self.process = wait_until("the name server", || serve(&self.file(), self.port, addresses));
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("hosts")
    }

    fn url(&self) -> String {
        format!("dns://127.0.0.1:{}/workers.test", self.port)
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        // The process may have been stopped already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn write(file: &std::path::Path, addresses: &[&str]) {
    let lines: Vec<String> = addresses.iter().map(|it| format!("{it} workers.test\n")).collect();
    fs::write(file, lines.concat()).expect("a file");
}

/// Starts a name server; `None` if it ends instead of listening.
fn serve(file: &std::path::Path, port: u16, addresses: &[&str]) -> Option<Child> {
    write(file, addresses);
    let mut process = Command::new("dnsmasq")
        .args(["--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts"])
        .args(["--listen-address=127.0.0.1", "--bind-interfaces", "--pid-file="])
        // dnsmasq reads the file again later as this user, who owns it.
        .args(["--local=/test/", &format!("--user={}", user())])
        .args([format!("--port={port}"), format!("--addn-hosts={}", file.display())])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it could be run just now");
    let listens = wait_until("dnsmasq listens", || {
        if process.try_wait().expect("it is ours").is_some() {
            return Some(false);
        }
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok().map(|_| true)
    });
    listens.then_some(process)
}

fn user() -> String {
    let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).expect("a user database");
    user.expect("this user stands in it").name
}

fn has_warning(job: &Job) -> Option<bool> {
    Some(!job.status()?["warnings"].as_array()?.is_empty())
}

#[test]
fn addresses_of_a_name_are_hosts_and_a_change_of_the_answer_is_a_change_of_hosts() {
    let Some(server) = NameServer::start(&[]) else { return };
    let mut job = Job::start(&["--discovery", &server.url(), "--min-np", "1"], &[]);
    job.agent("10.9.0.1", 4);
    job.wait("a poll without hosts", |job| {
        (job.status()?["phase"] == "gather" && has_warning(job) == Some(false)).then_some(())
    });
    server.change(&["10.9.0.1"]);
    job.wait_for_sizes(&[1]);
    server.change(&["10.9.0.2", "10.9.0.1"]);
    job.agent("10.9.0.2", 1);
    job.wait_for_sizes(&[1, 2]);
    server.change(&["10.9.0.2"]);
    job.wait_for_sizes(&[1, 2, 1]);
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn h_15_failures_of_dns_change_nothing_and_are_seen() {
    let Some(mut server) = NameServer::start(&["10.9.0.1", "10.9.0.2"]) else { return };
    let mut job = Job::start(&["--discovery", &server.url(), "--min-np", "1"], &[]);
    job.agent("10.9.0.1", 1);
    job.agent("10.9.0.2", 1);
    job.wait_for_sizes(&[2]);
    server.stop();
    job.wait("a warning", |job| has_warning(job).filter(|is_there| *is_there));
    server.start_again(&["10.9.0.2", "10.9.0.1"]);
    job.wait("no warning", |job| has_warning(job).filter(|is_there| !*is_there));
    // A server without the name counts as a failing server.
    server.change(&[]);
    job.wait("a warning", |job| has_warning(job).filter(|is_there| *is_there));
    job.wait_for_progress();
    assert_eq!(job.finish(), 0);
    assert_eq!(job.sizes(), [2]);
}

#[test]
fn s_5_a_name_server_that_hangs_stops_neither_forming_nor_the_end() {
    let Some(server) = NameServer::start(&["10.9.0.1", "10.9.0.2"]) else { return };
    let mut job = Job::start(&["--discovery", &server.url(), "-n", "2"], &[]);
    job.agent("10.9.0.1", 1);
    job.agent("10.9.0.2", 1);
    job.wait_for_sizes(&[2]);
    server.freeze();
    job.wait("a warning", |job| has_warning(job).filter(|is_there| *is_there));
    signal(job.pid("10.9.0.2", 0), Signal::SIGKILL);
    job.wait_for_sizes(&[2, 2]);
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn h_15_the_first_answer_is_needed() {
    let Some(mut server) = NameServer::start(&[]) else { return };
    server.stop();
    let mut job = Job::start(&["--discovery", &server.url()], &[]);
    assert_eq!(job.end(), 1);
    let stderr = job.stderr();
    assert!(stderr.contains(&server.url()) && stderr.contains("hint:"), "{stderr}");
}
