//! A real etcd for a test: one member, its own folder and ports, gone when dropped.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use elastic_journal::etcd::EtcdAddress;
use tempfile::TempDir;

/// How long etcd may take to start.
const START: Duration = Duration::from_secs(30);

pub(crate) struct Etcd {
    process: Child,
    port: u16,
    _folder: TempDir,
}

/// The time since the first call.
#[expect(clippy::disallowed_methods, reason = "a real etcd keeps real time")]
pub(crate) fn clock() -> Duration {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

/// What `probe` finds, asked until it does.
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

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    listener.local_addr().expect("it is bound").port()
}

impl Etcd {
    /// None if this machine has none.
    #[expect(clippy::print_stderr, reason = "a test that shows nothing must say so")]
    pub(crate) fn start() -> Option<Self> {
        if let Err(error) = Command::new("etcd").arg("--version").output() {
            assert!(
                std::env::var_os("ELASTIC_REQUIRE_ETCD").is_none(),
                "etcd cannot be run ({error}): install Debian's etcd-server"
            );
            eprintln!("not shown: etcd cannot be run ({error}); install Debian's etcd-server");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder is to be had");
        let (port, peer) = (free_port(), free_port());
        let (client, peer) =
            (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peer}"));
        let process = Command::new("etcd")
            .arg("--data-dir")
            .arg(folder.path())
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}")])
            // The least duration of a lease follows from these: one second.
            .args(["--heartbeat-interval", "20", "--election-timeout", "200"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it could be run just now");
        let etcd = Self { process, port, _folder: folder };
        within(START, "etcd starts", || etcd.ask("/v3/kv/range", r#"{"key":"YQ=="}"#));
        Some(etcd)
    }

    pub(crate) fn member(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn address(&self) -> EtcdAddress {
        format!("etcd://{}", self.member()).parse().expect("it is one")
    }

    /// The body of an answer, once there is one.
    fn ask(&self, path: &str, body: &str) -> Option<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).ok()?;
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

    /// How many keys begin with this.
    pub(crate) fn keys_below(&self, prefix: &str) -> usize {
        let output = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.member(), "get", "--prefix", "--keys-only", prefix])
            .output()
            .expect("etcdctl comes with etcd");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).lines().filter(|line| !line.is_empty()).count()
    }

    /// A member that carries out what it is asked, and hangs up instead of answering the first call of this path.
    pub(crate) fn deaf_member(&self, path: &'static str) -> String {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let upstream = self.port;
        std::thread::Builder::new()
            .spawn(move || {
                for client in listener.incoming().flatten() {
                    let hung_up = relay(client, upstream, path).unwrap_or(false);
                    if hung_up {
                        return;
                    }
                }
            })
            .expect("a thread is to be had");
        address.to_string()
    }

    /// SIGSTOP: connections stand, nobody answers.
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

/// Passes one connection's calls on, until the one of this path, which it leaves without an answer.
fn relay(mut client: TcpStream, upstream: u16, path: &str) -> std::io::Result<bool> {
    loop {
        let request = read_message(&mut client)?;
        if request.is_empty() {
            return Ok(false);
        }
        let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, upstream))?;
        server.write_all(&request)?;
        let answer = read_message(&mut server)?;
        if request.starts_with(format!("POST {path} ").as_bytes()) {
            return Ok(true);
        }
        client.write_all(&answer)?;
    }
}

/// A message of HTTP with its `Content-Length` bytes of body; nothing if the connection ends before one.
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
