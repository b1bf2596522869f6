//! A real etcd for a test: one member with its own folder and ports, ended and removed when dropped.

#[path = "../../../tests/e2e/ports.rs"]
pub(crate) mod ports;

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use elastic_journal::etcd::EtcdAddress;
use tempfile::TempDir;

use self::ports::free_port;

/// Timeout for the start of etcd.
const START: Duration = Duration::from_secs(30);

pub(crate) struct Etcd {
    process: Child,
    ip: Ipv4Addr,
    port: u16,
    folder: TempDir,
    /// The command line.
    line: Vec<String>,
}

/// The time since the first call.
#[expect(clippy::disallowed_methods, reason = "a real etcd keeps real time")]
pub(crate) fn clock() -> Duration {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

/// Calls `probe` until it returns a value, and returns that.
pub(crate) fn within<T>(limit: Duration, what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let deadline = clock() + limit;
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(clock() < deadline, "waited in vain: {what}");
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

fn run(folder: &std::path::Path, line: &[String]) -> Child {
    Command::new("etcd")
        .arg("--data-dir")
        .arg(folder)
        .args(line)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it could be run just now")
}

fn copy_folder(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let to = to.join(entry.file_name());
        if entry.file_type().expect("it is there").is_dir() {
            copy_folder(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).expect("a copy");
        }
    }
}

impl Etcd {
    /// Starts an etcd; `None` if this machine has none.
    pub(crate) fn start() -> Option<Self> {
        Self::start_at(Ipv4Addr::LOCALHOST)
    }

    /// Starts an etcd at another address of this machine.
    pub(crate) fn start_at(ip: Ipv4Addr) -> Option<Self> {
        let etcd = Self::spawn(ip, "http", &[])?;
        within(START, "etcd starts", || etcd.ask("/v3/kv/range", r#"{"key":"YQ=="}"#));
        Some(etcd)
    }

    /// Starts an etcd that speaks TLS, and asks clients for a certificate. `folder` has `ca.pem`, `server.pem` and
    /// `server.key`.
    pub(crate) fn start_tls(folder: &std::path::Path) -> Option<Self> {
        let path = |name: &str| folder.join(name).display().to_string();
        let (ca, certificate, key) = (path("ca.pem"), path("server.pem"), path("server.key"));
        let flags = ["--client-cert-auth", "--trusted-ca-file", &ca];
        let flags = [&flags[..], &["--cert-file", &certificate, "--key-file", &key]].concat();
        let etcd = Self::spawn(Ipv4Addr::LOCALHOST, "https", &flags)?;
        within(START, "etcd starts", || TcpStream::connect((etcd.ip, etcd.port)).ok());
        Some(etcd)
    }

    #[expect(clippy::print_stderr, reason = "a test that shows nothing must say so")]
    fn spawn(ip: Ipv4Addr, scheme: &str, flags: &[&str]) -> Option<Self> {
        if let Err(error) = Command::new("etcd").arg("--version").output() {
            assert!(
                std::env::var_os("ELASTIC_REQUIRE_ETCD").is_none(),
                "etcd cannot be run ({error}): install Debian's etcd-server"
            );
            eprintln!("not shown: etcd cannot be run ({error}); install Debian's etcd-server");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder is to be had");
        let (port, peer) = (free_port(ip), free_port(ip));
        let (client, peer) = (format!("{scheme}://{ip}:{port}"), format!("http://{ip}:{peer}"));
        let cluster = format!("default={peer}");
        let own = [
            ["--listen-client-urls", &client],
            ["--advertise-client-urls", &client],
            ["--listen-peer-urls", &peer],
            ["--initial-advertise-peer-urls", &peer],
            ["--initial-cluster", &cluster],
            // These settings make one second the shortest lease.
            ["--heartbeat-interval", "20"],
            ["--election-timeout", "200"],
        ];
        let line: Vec<String> =
            own.as_flattened().iter().chain(flags).map(ToString::to_string).collect();
        Some(Self { process: run(folder.path(), &line), ip, port, folder, line })
    }

    /// A copy of its data, for which it is ended and started again.
    pub(crate) fn copy(&mut self) -> TempDir {
        let copy = tempfile::tempdir().expect("a folder is to be had");
        self.end();
        copy_folder(self.folder.path(), copy.path());
        self.start_again();
        copy
    }

    /// Puts a copy in the place of its data, and starts it again.
    pub(crate) fn put_back(&mut self, copy: &TempDir) {
        self.end();
        self.folder = tempfile::tempdir().expect("a folder is to be had");
        copy_folder(copy.path(), self.folder.path());
        self.start_again();
    }

    fn end(&mut self) {
        self.process.kill().and_then(|()| self.process.wait()).expect("it is ours");
    }

    fn start_again(&mut self) {
        self.process = run(self.folder.path(), &self.line);
        within(START, "etcd starts", || self.ask("/v3/kv/range", r#"{"key":"YQ=="}"#));
    }

    /// Deletes all keys.
    pub(crate) fn delete_keys(&self) {
        let output = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.member(), "del", "--prefix", ""])
            .output()
            .expect("etcdctl comes with etcd");
        assert!(output.status.success(), "{output:?}");
    }

    pub(crate) fn member(&self) -> String {
        format!("{}:{}", self.ip, self.port)
    }

    pub(crate) fn address(&self) -> EtcdAddress {
        format!("etcd://{}", self.member()).parse().expect("it is one")
    }

    /// The body of the answer to a call; `None` if there is no answer.
    fn ask(&self, path: &str, body: &str) -> Option<String> {
        let mut stream = TcpStream::connect((self.ip, self.port)).ok()?;
        stream.set_read_timeout(Some(START)).ok()?;
        let length = body.len();
        let head =
            format!("POST {path} HTTP/1.0\r\nHost: etcd\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all(format!("{head}{body}").as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        head.contains(" 200 ").then(|| body.to_owned())
    }

    /// The number of keys with this prefix.
    pub(crate) fn keys_below(&self, prefix: &str) -> usize {
        let output = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.member(), "get", "--prefix", "--keys-only", prefix])
            .output()
            .expect("etcdctl comes with etcd");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).lines().filter(|line| !line.is_empty()).count()
    }

    /// A member that carries out every call, but hangs up instead of answering the first call that contains
    /// `marker`.
    pub(crate) fn deaf_member(&self, marker: &'static str) -> String {
        let has_swallowed = AtomicBool::new(false);
        self.member_behind(move |request| {
            let is_meant = String::from_utf8_lossy(request).contains(marker);
            match is_meant && !has_swallowed.swap(true, Ordering::SeqCst) {
                true => Fate::Swallowed,
                false => Fate::Answered,
            }
        })
    }

    /// A member that is unreachable while the flag is set.
    pub(crate) fn member_that_can_be_cut_off(&self) -> (String, Arc<AtomicBool>) {
        let is_cut = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_cut);
        let member = self.member_behind(move |_| match seen.load(Ordering::SeqCst) {
            true => Fate::Lost,
            false => Fate::Answered,
        });
        (member, is_cut)
    }

    /// A member that takes so long for each call.
    pub(crate) fn member_that_is_slow(&self, each: Duration) -> String {
        self.member_behind(move |_| {
            std::thread::park_timeout(each);
            Fate::Answered
        })
    }

    /// A proxy of the member: `fate` decides what happens to each call.
    fn member_behind(&self, fate: impl Fn(&[u8]) -> Fate + Send + Sync + 'static) -> String {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let (upstream, fate) = ((self.ip, self.port), Arc::new(fate));
        let serve = move || {
            for client in listener.incoming().flatten() {
                let fate = Arc::clone(&fate);
                let relay = move || drop(relay(client, upstream, &*fate));
                std::thread::Builder::new().spawn(relay).expect("a thread is to be had");
            }
        };
        std::thread::Builder::new().spawn(serve).expect("a thread is to be had");
        address.to_string()
    }

    /// Stops etcd with SIGSTOP: connections stay open, but no call is answered.
    pub(crate) fn stop(&self) {
        self.signal("-STOP");
    }

    pub(crate) fn go_on(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.process.id().to_string()]).status();
        assert!(status.expect("kill can be run").success());
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The fate of a call.
enum Fate {
    /// The call is carried out and answered.
    Answered,
    /// The call is carried out, and the connection ends without an answer.
    Swallowed,
    /// The connection ends.
    Lost,
}

/// Passes one call on. etcd streams some answers, so the end of the connection is the end of the answer.
fn relay(
    mut client: TcpStream,
    upstream: (Ipv4Addr, u16),
    fate: &dyn Fn(&[u8]) -> Fate,
) -> std::io::Result<()> {
    let request = read_message(&mut client)?;
    let fate = fate(&request);
    let line_end = request.windows(2).position(|pair| pair == b"\r\n");
    let Some(line_end) = line_end.filter(|_| !matches!(fate, Fate::Lost)) else { return Ok(()) };
    let mut server = TcpStream::connect(upstream)?;
    let (line, rest) = request.split_at(line_end);
    server.write_all(&[line, b"\r\nConnection: close", rest].concat())?;
    let mut answer = Vec::new();
    server.read_to_end(&mut answer)?;
    match fate {
        Fate::Answered => client.write_all(&answer),
        Fate::Swallowed | Fate::Lost => Ok(()),
    }
}

/// Reads an HTTP request with its `Content-Length` bytes of body; empty if the connection ends before a
/// request.
fn read_message(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut message = Vec::new();
    let mut byte = [0];
    while !message.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte)? == 0 {
            return Ok(Vec::new());
        }
        message.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&message).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length = length.and_then(|length| length.trim().parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    message.extend(body);
    Ok(message)
}
