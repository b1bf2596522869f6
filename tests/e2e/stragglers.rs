//! Slow members, on real processes: the times of steps are shown, a slow member is named, and no other one is.

use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::browser::{Browser, is_browser_here};
use crate::metrics::{metrics, observed_on};
use crate::observe::run_explain;
use crate::support::{Job, wait_until};

/// Stops and continues a process in turns, so that it gets a part of the time, until it is dropped.
pub(crate) struct DutyCycle {
    shell: Child,
    pid: i32,
}

impl DutyCycle {
    pub(crate) fn begin(pid: i32) -> Self {
        Self::of(pid, "0.2", "0.01")
    }

    /// A process that gets half of the time, in turns that are much shorter than its steps.
    pub(crate) fn half(pid: i32) -> Self {
        Self::of(pid, "0.005", "0.005")
    }

    fn of(pid: i32, stopped_s: &str, runs_s: &str) -> Self {
        let script = format!(
            "while kill -STOP $0; do sleep {stopped_s}; kill -CONT $0; sleep {runs_s}; done"
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script, &pid.to_string()]).stderr(Stdio::null());
        Self { shell: command.spawn().expect("a shell"), pid }
    }
}

impl Drop for DutyCycle {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
        let _ = kill(Pid::from_raw(self.pid), Signal::SIGCONT);
    }
}

/// The step times of the worker on a host, which has one: of the whole step, of computation, of waiting.
fn times(job: &Job, host: &str) -> Option<[f64; 3]> {
    let status = job.status()?;
    let worker = status["workers"].as_array()?.iter().find(|worker| worker["host"] == host)?;
    let [step, compute, waiting] =
        ["step_ms", "compute_ms", "waiting_ms"].map(|name| worker[name].as_f64());
    Some([step?, compute?, waiting?])
}

fn straggler(job: &Job) -> Option<Value> {
    job.status()?["stragglers"].as_array()?.first().cloned()
}

#[test]
fn a_worker_that_gets_a_part_of_the_time_is_named_and_the_others_wait_for_it() {
    let (mut job, address) = observed_on("a:1,b:1,c:1", &[], &["--step-ms", "20"]);
    job.wait_for_sizes(&[3]);
    for host in ["a", "b", "c"] {
        // Each sleeps for as long, and the rest is small.
        job.wait("step times", |job| {
            times(job, host).filter(|[step, compute, _]| {
                (20.0..100.0).contains(step) && (20.0..=*step).contains(compute)
            })
        });
    }
    assert_eq!(straggler(&job), None);

    let cycle = DutyCycle::begin(job.pid("b", 0));
    // A busy machine may have slowed it a little before.
    let is_held = |found: &Value| found["factor"].as_f64() > Some(3.0);
    let found = job.wait("the straggler", |job| straggler(job).filter(is_held));
    assert_eq!(found["host"], "b", "{found}");
    assert_eq!(found["is_host"], false, "{found}");
    let event = job.wait("its event", |job| job.events_of("straggler_found").into_iter().next());
    assert_eq!(
        (&event["rank"], event["ranks"].as_array().map(Vec::len)),
        (&found["rank"], Some(1))
    );
    assert!(event["worker"].as_str().is_some_and(|it| it.starts_with("b[0]#")), "{event}");
    assert!(found["compute_ms"].as_f64() > Some(150.0), "as long as it is stopped: {found}");

    let [step, compute, waiting] = times(&job, "b").expect("it trains");
    assert!(compute > 0.8 * step && waiting < 0.2 * step, "{step} {compute} {waiting}");
    let [step, compute, waiting] = times(&job, "a").expect("it trains");
    assert!(compute < 0.5 * step && waiting > 0.5 * step, "{step} {compute} {waiting}");
    let (code, text, stderr) = run_explain(&job, &["now"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(text.contains("Slow: rank") && text.contains("(b:0) computes"), "{text}");
    let is_measured = |line: &str| {
        line.starts_with("elastic_node_worker_step_compute_seconds{") && line.contains("host=\"b\"")
    };
    wait_until("the metric", || metrics(address).lines().any(is_measured).then_some(()));
    let is_named = |line: &str| line.starts_with("elastic_node_worker_straggling_ratio{");
    wait_until("the metric", || metrics(address).lines().any(is_named).then_some(()));

    drop(cycle);
    job.wait("its end", |job| job.events_of("straggler_recovered").into_iter().next());
    assert_eq!(straggler(&job), None);
    assert_eq!(job.events_of("straggler_found").len(), 1, "nobody else was named");
    assert_eq!(job.finish(), 0);
    job.assert_exact();
    let told = job.events_of("steps_measured");
    let last = told.last().expect("what steps waited for is told at the end");
    let waited = told.iter().find(|told| told["straggler"].as_f64() > Some(0.1));
    let waited = waited.unwrap_or_else(|| panic!("{told:?}"));
    assert_eq!(
        waited["slowest"][0].as_str().map(|it| it.starts_with("b[0]#")),
        Some(true),
        "{waited}"
    );
    assert!(last["commit"].as_f64().is_some_and(|share| share < 1.0), "{last}");
}

#[test]
fn the_page_shows_who_is_slow_as_a_heat_map_and_in_words() {
    if !is_browser_here() {
        return;
    }
    let (mut job, address) = observed_on("a:1,b:1,c:1", &[], &["--step-ms", "20"]);
    job.wait_for_sizes(&[3]);
    let browser = Browser::start();
    browser.show_on(1400, "light");
    browser.open(&format!("http://{address}/"));
    browser.wait_for("!document.getElementById('paces-card').hidden");
    browser.wait_for("document.querySelectorAll('#paces-table tr').length === 3");
    assert_eq!(browser.run("return document.querySelectorAll('#paces-table .slow').length"), 0);

    let cycle = DutyCycle::begin(job.pid("b", 0));
    browser.wait_for("document.querySelectorAll('#paces-table .slow').length === 1");
    let slow = "document.querySelector('#paces-table .slow').cells";
    browser.wait_for(&format!(
        "{slow}[1].textContent === 'b' && parseFloat({slow}[2].textContent) > 3"
    ));
    browser.wait_for(
        "/^now slowest: rank \\d \\(b\\), \\d+\\.\\d times/.test(document.getElementById('paces-readout').textContent)",
    );
    // By the keyboard alone: a cell of the chosen row is read out.
    browser.run("document.getElementById('paces').focus()");
    browser.type_into("#paces", "\u{e013}\u{e015}");
    browser.wait_for(
        "/^[0-9:]+, rank 1: \\d+\\.\\d times the median$/.test(document.getElementById('paces-readout').textContent)",
    );
    browser.type_into("#paces", "\u{e015}\u{e012}");
    browser.wait_for("document.getElementById('paces-readout').textContent.includes(', rank 2: ')");
    browser.run("document.getElementById('paces').blur()");

    // Once it has lasted, it is among the warnings and the events.
    browser.wait_for(
        "/Warning:.*\\(b:0\\) computes/.test(document.getElementById('notices').textContent)",
    );
    browser.wait_for("document.getElementById('events').textContent.includes('is SLOW')");
    // The colour of a cell: the slow row's last one is another than those of the others.
    let colours = "const it = document.querySelector('#paces canvas'); const { data } = \
                   it.getContext('2d').getImageData(it.width - 3, 0, 1, it.height); const all = [0, 1, 2].map(row => \
                   data.slice(4 * Math.floor((row + 0.2) * (it.height - 16) / 3)).slice(0, 4).join()); return all";
    let colours = browser.run(colours);
    let colours = colours.as_array().expect("of each row").iter().filter_map(Value::as_str);
    let colours: Vec<&str> = colours.filter(|it| it.ends_with(",255")).collect();
    let [a, b, c] = colours[..] else { panic!("each row is drawn: {colours:?}") };
    // Those of the others may differ by what the machine does beside.
    assert!(b != a && b != c, "{colours:?}");
    browser.keep_picture("stragglers-light");
    browser.show_on(1400, "dark");
    browser.keep_picture("stragglers-dark");
    browser.show_on(360, "light");
    browser.wait_for(
        "innerWidth === 360 && document.querySelector('#paces canvas').clientWidth < 340",
    );
    let width = browser.run("return document.documentElement.scrollWidth");
    assert!(width.as_u64().is_some_and(|width| width <= 360), "{width}");
    assert_eq!(browser.complaints(), Vec::<String>::new());
    drop(cycle);
    assert_eq!(job.finish(), 0);
}

#[test]
fn two_slow_ranks_of_one_host_are_the_hosts_fault() {
    let flags = ["--step-ms", "20"];
    let mut job = Job::start(&["-n", "4"], &flags);
    for host in ["a", "b"] {
        job.agent(host, 2);
    }
    job.wait_for_sizes(&[4]);
    job.wait_for_steps();
    let cycles = [0, 1].map(|slot| DutyCycle::begin(job.pid("b", slot)));
    let found = job.wait("the host", |job| {
        job.events_of("straggler_found").into_iter().find(|found| found["is_host"] == true)
    });
    assert!(found["worker"].as_str().is_some_and(|it| it.starts_with("b[")), "{found}");
    assert_eq!(found["ranks"].as_array().map(Vec::len), Some(2), "{found}");
    let shown = job
        .wait("the status", |job| straggler(job).filter(|straggler| straggler["is_host"] == true));
    assert_eq!(shown["host"], "b", "{shown}");
    let others = job.events_of("straggler_found");
    let is_of_b = |found: &Value| found["worker"].as_str().is_some_and(|it| it.starts_with("b["));
    assert!(others.iter().all(is_of_b), "nobody of the other host: {others:?}");
    drop(cycles);
    job.wait("its end", |job| job.events_of("straggler_recovered").into_iter().next());
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}
