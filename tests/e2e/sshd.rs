//! A real sshd for a test: its own keys, port and configuration, and an `ssh` in PATH that uses them. Removed when
//! dropped. Used by the tests of `ssh`.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, setsockopt, socket, sockopt::ReuseAddr,
};
use tempfile::TempDir;

use crate::ports::free_port;
use crate::support::{make_executable, wait_until};

/// The path of Debian's sshd, which must be called by its absolute path.
const SSHD: &str = "/usr/sbin/sshd";

/// Host names for sshds on this machine, as in ssh's configuration.
pub(crate) struct Sshds {
    folder: TempDir,
    running: Vec<(u16, Child)>,
    /// The port of a stopped sshd: bound, so that no other test gets it meanwhile, and closed to connections.
    held: Option<OwnedFd>,
}

impl Sshds {
    /// A set without sshds; none if this machine has no sshd.
    #[expect(clippy::print_stderr, reason = "a test that shows nothing must say so")]
    pub(crate) fn new() -> Option<Self> {
        if !Path::new(SSHD).exists() {
            let hint = "install Debian's openssh-server and openssh-client";
            assert!(std::env::var_os("ELASTIC_REQUIRE_SSHD").is_none(), "there is no sshd: {hint}");
            eprintln!("not shown: there is no sshd; {hint}");
            return None;
        }
        let folder = TempDir::new().expect("a temporary folder");
        let sshds = Self { folder, running: Vec::new(), held: None };
        for key in ["host", "client", "stranger"] {
            let made = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(sshds.path(key))
                .status();
            assert!(made.expect("ssh-keygen").success());
        }
        fs::copy(sshds.path("client.pub"), sshds.path("authorized")).expect("a file");
        fs::write(sshds.path("config"), "").expect("a file");
        fs::write(sshds.path("known"), "").expect("a file");
        fs::create_dir(sshds.path("bin")).expect("a folder");
        let real = which("ssh");
        let config = sshds.path("config");
        let ssh = sshds.path("bin/ssh");
        let text = format!("#!/bin/sh\nexec {} -F {} \"$@\"\n", real.display(), config.display());
        fs::write(&ssh, text).expect("a file");
        make_executable(&ssh);
        // sshd needs this folder where it runs as root; only the distribution's service creates it.
        let _ = fs::create_dir_all("/run/sshd");
        Some(sshds)
    }

    /// PATH with the test's `ssh` first.
    pub(crate) fn search_path(&self) -> String {
        let rest = std::env::var("PATH").unwrap_or_default();
        format!("{}:{rest}", self.path("bin").display())
    }

    /// Starts an sshd, and a host name by which ssh reaches it.
    pub(crate) fn host(&mut self, name: &str) {
        let port = self.start(None);
        self.configure(name, port, "client", "known");
        let key = fs::read_to_string(self.path("host.pub")).expect("a key");
        let known = fs::read_to_string(self.path("known")).expect("a file");
        fs::write(self.path("known"), format!("{known}[127.0.0.1]:{port} {key}")).expect("a file");
    }

    /// Adds names of two hosts that ssh cannot log in to: the key of one is unknown, the other denies ours.
    pub(crate) fn hosts_that_refuse(&mut self, unknown: &str, denied: &str) {
        let port = self.start(None);
        self.configure(unknown, port, "client", "none-known");
        let port = self.running[0].0;
        self.configure(denied, port, "stranger", "known");
    }

    /// Stops the `number`th sshd; its open sessions go on.
    pub(crate) fn stop(&mut self, number: usize) {
        let (port, sshd) = &mut self.running[number];
        sshd.kill().expect("it runs");
        sshd.wait().expect("it was ours");
        self.held = Some(hold(*port));
    }

    /// Starts a stopped sshd again, at its former port.
    pub(crate) fn start_again(&mut self, number: usize) {
        let port = self.running[number].0;
        self.held = None;
        self.start(Some(port));
        self.running.swap_remove(number);
    }

    fn start(&mut self, port: Option<u16>) -> u16 {
        let port = port.unwrap_or_else(|| free_port(Ipv4Addr::LOCALHOST));
        let config = self.path(&format!("sshd.{port}"));
        let lines = [
            format!("Port {port}"),
            "ListenAddress 127.0.0.1".to_owned(),
            format!("HostKey {}", self.path("host").display()),
            format!("AuthorizedKeysFile {}", self.path("authorized").display()),
            "PidFile none".to_owned(),
            "StrictModes no".to_owned(),
            "UsePAM no".to_owned(),
            "PasswordAuthentication no".to_owned(),
            "PermitRootLogin yes".to_owned(),
        ];
        fs::write(&config, lines.join("\n") + "\n").expect("a file");
        let log = fs::OpenOptions::new().create(true).append(true).open(self.path("sshd.log"));
        let sshd = Command::new(SSHD)
            .args(["-D", "-e", "-f"])
            .arg(&config)
            .stdin(Stdio::null())
            .stderr(log.expect("a file"))
            .spawn()
            .expect("sshd starts");
        self.running.push((port, sshd));
        wait_until("sshd listens", || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok());
        port
    }

    fn configure(&self, name: &str, port: u16, key: &str, known: &str) {
        let lines = [
            format!("Host {name}"),
            "HostName 127.0.0.1".to_owned(),
            format!("Port {port}"),
            format!("IdentityFile {}", self.path(key).display()),
            "IdentitiesOnly yes".to_owned(),
            format!("UserKnownHostsFile {}", self.path(known).display()),
            "GlobalKnownHostsFile none".to_owned(),
            "StrictHostKeyChecking yes".to_owned(),
        ];
        let before = fs::read_to_string(self.path("config")).expect("a file");
        fs::write(self.path("config"), before + &lines.join("\n") + "\n").expect("a file");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

impl Drop for Sshds {
    fn drop(&mut self) {
        for (_, sshd) in &mut self.running {
            // The sshd may have been stopped already.
            let _ = sshd.kill();
            let _ = sshd.wait();
        }
    }
}

/// A socket that is bound to a port of the loopback and does not listen.
fn hold(port: u16) -> OwnedFd {
    let held = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None);
    let held = held.expect("a socket");
    // Connections of the sshd that listened there may still end.
    setsockopt(&held, ReuseAddr, &true).expect("an option of a socket");
    bind(held.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, port)).expect("the port is free");
    held
}

fn which(program: &str) -> PathBuf {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&folders).map(|folder| folder.join(program));
    found.into_iter().find(|path| path.is_file()).expect("openssh-client is installed")
}
