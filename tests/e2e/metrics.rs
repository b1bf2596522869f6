//! The job's metrics, read by the real Prometheus. If it is not installed, these tests say so and pass, unless
//! `ELASTIC_REQUIRE_PROMETHEUS` is set, as the project's checks do.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Job, PATIENCE, signal, wait_until};

/// Whether Prometheus and promtool are here.
#[expect(clippy::print_stderr, reason = "a test that shows nothing must say so")]
fn is_prometheus_here() -> bool {
    let Err(error) = Command::new("promtool").arg("--version").output() else { return true };
    let hint = format!("promtool cannot be run ({error}); install Debian's prometheus");
    assert!(std::env::var_os("ELASTIC_REQUIRE_PROMETHEUS").is_none(), "{hint}");
    eprintln!("not shown: {hint}");
    false
}

pub(crate) fn observed(flags: &[&str]) -> (Job, SocketAddr) {
    let (mut job, address) = observed_on("a:1,b:1", flags, &[]);
    job.wait_for_sizes(&[2]);
    (job, address)
}

/// A job with a dashboard on these hosts, and the dashboard's address.
pub(crate) fn observed_on(
    hosts: &str,
    flags: &[&str],
    trainer_flags: &[&str],
) -> (Job, SocketAddr) {
    let mut all = vec!["-H", hosts, "--launcher", "local", "--min-np", "1"];
    all.extend(["--dashboard", "127.0.0.1:0"]);
    all.extend(flags);
    let mut job = Job::start(&all, trainer_flags);
    let address = job.wait("the dashboard's address", |job| {
        dashboard(job)?.strip_prefix("http://")?.strip_suffix('/')?.parse().ok()
    });
    (job, address)
}

/// The address of the job's page, as its status says it.
fn dashboard(job: &Job) -> Option<String> {
    Some(job.status()?["dashboard"].as_str()?.to_owned())
}

/// An answer: its head and its body.
fn get(address: SocketAddr, path: &str, headers: &str) -> Option<(String, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.to_owned(), body.to_owned()))
}

pub(crate) fn metrics(address: SocketAddr) -> String {
    wait_until("metrics", || {
        let (head, body) = get(address, "/metrics", &format!("Host: {address}\r\n"))?;
        head.starts_with("HTTP/1.1 200").then_some(body)
    })
}

/// A Prometheus of the test's own.
struct Prometheus {
    process: Child,
    address: SocketAddr,
    _folder: TempDir,
}

impl Prometheus {
    /// Scrapes one target.
    fn start(target: SocketAddr) -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        let config = format!(
            "global:\n  scrape_interval: 1s\nscrape_configs:\n  - job_name: elastic-node\n    \
             static_configs:\n      - targets: ['{target}']\n"
        );
        let file = folder.path().join("prometheus.yml");
        fs::write(&file, config).expect("a file");
        // Another process may take the port between its choice and Prometheus's start.
        let (process, address) = wait_until("a Prometheus", || {
            let listener = TcpListener::bind("127.0.0.1:0").ok()?;
            let address = listener.local_addr().ok()?;
            drop(listener);
            let mut process = serve(&file, folder.path(), address);
            let ready = || {
                let (head, _) = get(address, "/-/ready", &format!("Host: {address}\r\n"))?;
                head.starts_with("HTTP/1.1 200").then_some(())
            };
            wait_until("an answer", || {
                ready().map(|()| true).or_else(|| process.try_wait().ok()?.map(|_| false))
            })
            .then_some((process, address))
        });
        Self { process, address, _folder: folder }
    }

    /// The value of an expression, once Prometheus has one.
    fn query(&self, expression: &str) -> Option<f64> {
        let encoded: String = expression.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let path = format!("/api/v1/query?query={encoded}");
        let (_, body) = get(self.address, &path, &format!("Host: {}\r\n", self.address))?;
        // The body may come in chunks; the object is on one line of it.
        let start = body.find('{')?;
        let end = body.rfind('}')?;
        let answer: Value = serde_json::from_str(&body[start..=end]).ok()?;
        answer["data"]["result"][0]["value"][1].as_str()?.parse().ok()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn serve(config: &Path, folder: &Path, address: SocketAddr) -> Child {
    Command::new("prometheus")
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
        .arg(format!("--web.listen-address={address}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("prometheus starts")
}

#[test]
fn prometheus_scrapes_a_job_and_sees_what_happens_to_it() {
    if !is_prometheus_here() {
        return;
    }
    let (mut job, address) = observed(&[]);
    let prometheus = Prometheus::start(address);
    let wait_for = |expression: &str, is_it: &dyn Fn(f64) -> bool| {
        wait_until(expression, || prometheus.query(expression).filter(|value| is_it(*value)))
    };
    wait_for("elastic_node_world_size", &|size| size == 2.0);
    wait_for("elastic_node_slots{bucket=\"training\"}", &|slots| slots == 2.0);
    wait_for("elastic_node_goodput_ratio{window=\"start\"}", &|share| share > 0.0 && share < 1.0);
    wait_for("avg by (name) (elastic_node_reported_value{name=\"loss\"})", &|loss| loss > 0.0);
    signal(job.pid("b", 0), Signal::SIGKILL);
    wait_for("sum(elastic_node_resets_total{way=\"abort\"})", &|resets| resets >= 1.0);
    wait_for("elastic_node_reset_duration_seconds_count{phase=\"total\"}", &|count| count >= 1.0);
    wait_for("elastic_node_worker_failures_total", &|failures| failures >= 1.0);
    // Prometheus has stored the values that the status shows.
    let sum = wait_for("sum(elastic_node_slot_time_seconds)", &|seconds| seconds > 0.0);
    let status = job.wait("a status", |job| job.status());
    assert!(status["goodput"]["slot_seconds"].as_f64() >= Some(sum), "{sum}: {status}");
    assert_eq!(job.finish(), 0);
}

#[test]
fn promtool_has_nothing_to_say_about_the_metrics() {
    if !is_prometheus_here() {
        return;
    }
    let (mut job, address) = observed(&[]);
    signal(job.pid("b", 0), Signal::SIGKILL);
    let text = wait_until("metrics of a reset", || {
        let text = metrics(address);
        text.contains("elastic_node_reset_duration_seconds_bucket").then_some(text)
    });
    let accept = format!("Host: {address}\r\nAccept: application/openmetrics-text\r\n");
    let (head, open) = get(address, "/metrics", &accept).expect("an answer");
    assert!(head.contains("application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(open.ends_with("# EOF\n"), "{open}");
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool starts");
    promtool.stdin.take().expect("piped").write_all(text.as_bytes()).expect("it reads");
    let output = promtool.wait_with_output().expect("it ends");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success() && said.is_empty(), "{said}\n{text}");
    assert_eq!(job.finish(), 0);
}

#[test]
fn each_alert_fires_on_its_incident() {
    if !is_prometheus_here() {
        return;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/observability");
    for arguments in [["check", "rules", "alerts.yaml"], ["test", "rules", "alerts.test.yaml"]] {
        let output = Command::new("promtool")
            .args(arguments)
            .current_dir(&folder)
            .output()
            .expect("it runs");
        let said = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
    }
    // Each rule has a test that names it.
    let read = |name: &str| fs::read_to_string(folder.join(name)).expect("a file");
    let (rules, tests) = (read("alerts.yaml"), read("alerts.test.yaml"));
    let alerts = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    for alert in alerts {
        assert!(tests.contains(&format!("alertname: {alert}")), "{alert} has no test");
    }
}

#[test]
fn dashboard_and_rules_name_only_metrics_that_there_are() {
    let (mut job, address) = observed(&[]);
    signal(job.pid("b", 0), Signal::SIGKILL);
    let text = wait_until("metrics of a reset", || {
        let text = metrics(address);
        text.contains("elastic_node_reset_duration_seconds_bucket").then_some(text)
    });
    let folder: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/observability");
    for name in ["alerts.yaml", "grafana.json"] {
        let file = fs::read_to_string(folder.join(name)).expect("a file");
        let words = file.split(|it: char| !it.is_ascii_alphanumeric() && it != '_');
        for metric in words.filter(|word| word.starts_with("elastic_node_")) {
            let is_there = text.lines().any(|line| {
                line.strip_prefix(metric).is_some_and(|rest| rest.starts_with([' ', '{']))
                    || line.starts_with(&format!("# TYPE {metric} "))
            });
            assert!(is_there, "{name} names {metric}, which is not there:\n{text}");
        }
    }
    assert_eq!(job.finish(), 0);
}

#[test]
fn s_2_a_driver_whose_page_s_address_was_taken_goes_on_with_its_job_and_has_the_page_later() {
    let reserved = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = reserved.local_addr().expect("it is bound");
    drop(reserved);
    let flags = ["-n", "1", "--dashboard", &address.to_string()];
    let mut job = Job::start(&flags, &[]);
    job.agent("a", 1);
    job.wait_for_sizes(&[1]);
    assert!(metrics(address).contains("elastic_"));
    job.kill_driver();
    let stranger = TcpListener::bind(address).expect("the driver is gone");
    job.start_driver_again();
    job.wait("the takeover", |job| job.events_of("takeover_done").pop());
    let told = "the job goes on without its dashboard until this address is free";
    job.wait("the warning", |job| job.stderr().contains(told).then_some(()));
    job.wait_for_steps();
    drop(stranger);
    assert!(metrics(address).contains("elastic_"));
    assert_eq!(job.finish(), 0);
    assert_eq!(job.sizes(), [1], "no reset");
    job.assert_exact();
}

#[test]
fn the_dashboard_changes_nothing_and_answers_no_other_site() {
    let (mut job, address) = observed(&[]);
    metrics(address);
    let (head, _) = get(address, "/metrics", "Host: evil.example\r\n").expect("an answer");
    assert!(head.starts_with("HTTP/1.1 421"), "{head}");
    let (head, _) = get(address, "/kill", &format!("Host: {address}\r\n")).expect("an answer");
    assert!(head.starts_with("HTTP/1.1 404"), "{head}");
    assert!(head.contains("content-security-policy: default-src 'none'"), "{head}");
    let mut stream = TcpStream::connect(address).expect("it listens");
    let request = format!("POST /metrics HTTP/1.1\r\nHost: {address}\r\nContent-Length: 0\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("sent");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 405");
    assert_eq!(job.finish(), 0);
}

#[test]
fn readers_that_stand_still_cost_the_job_nothing_and_are_cut_off() {
    let (mut job, address) = observed(&[]);
    // More than the server takes, each in the middle of its request.
    let stuck: Vec<TcpStream> = (0..100)
        .filter_map(|_| {
            let mut stream = TcpStream::connect(address).ok()?;
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: ").ok()?;
            Some(stream)
        })
        .collect();
    assert!(!stuck.is_empty());
    job.wait_for_steps();
    assert_eq!(job.sizes(), [2], "nobody was reset");
    // Their places are free once their heads are overdue.
    metrics(address);
    let mut first = stuck.into_iter().next().expect("one");
    first.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut rest = Vec::new();
    let ended = first.read_to_end(&mut rest);
    assert!(
        ended.is_ok() || ended.is_err_and(|error| error.kind() != std::io::ErrorKind::WouldBlock)
    );
    assert_eq!(job.finish(), 0);
}

#[test]
fn beyond_loopback_only_the_jobs_token_opens() {
    let flags = ["-n", "1", "--min-np", "1", "--dashboard", "0.0.0.0:0"];
    let mut job = Job::start(&flags, &[]);
    job.agent("a", 1);
    job.wait_for_sizes(&[1]);
    let port = job.wait("the dashboard's address", |job| {
        dashboard(job)?.strip_suffix('/')?.rsplit(':').next()?.parse::<u16>().ok()
    });
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let (head, body) = get(address, "/metrics", "Host: x\r\n").expect("an answer");
    assert!(head.starts_with("HTTP/1.1 401") && !body.contains("elastic_node"), "{head}");
    let token = fs::read_to_string(job.path("state/token")).expect("a token");
    let headers = format!("Host: x\r\nAuthorization: Bearer {}\r\n", token.trim());
    wait_until("metrics", || {
        let (head, body) = get(address, "/metrics", &headers)?;
        (head.starts_with("HTTP/1.1 200") && body.contains("elastic_node_world_size")).then_some(())
    });
    assert_eq!(job.finish(), 0);
}
