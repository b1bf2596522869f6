//! Clocks that jump. Debian's libfaketime gives the driver, or every process of the job, a wall clock that the test sets;
//! without it the test says so and passes, unless `ELASTIC_REQUIRE_FAKETIME` is set, as the project's checks do.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::support::Job;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The path of libfaketime, if this machine has it.
#[expect(clippy::print_stderr, reason = "a test that shows nothing must say so")]
pub(crate) fn faketime() -> Option<PathBuf> {
    let folders = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let libraries = folders.map(|folder| folder.path().join("faketime/libfaketime.so.1"));
    let found = libraries.into_iter().find(|library| library.exists());
    if found.is_none() {
        let hint = "there is no libfaketime: install Debian's faketime";
        assert!(std::env::var_os("ELASTIC_REQUIRE_FAKETIME").is_none(), "{hint}");
        eprintln!("not shown: {hint}");
    }
    found
}

/// The start of the driver of this term, by its wall clock.
fn began(job: &Job, term: u64) -> SystemTime {
    let events = job.events_of("driver_started");
    let event = events.into_iter().find(|event| event["term"] == term).unwrap_or_default();
    let text = event["t"].as_str().expect("every event has its time");
    humantime::parse_rfc3339(text).expect("RFC 3339")
}

/// Makes a new driver take over, so that every node connects anew and shows its certificate.
fn take_over(job: &mut Job, term: u64) -> Value {
    job.kill_driver();
    job.start_driver_again();
    job.wait(&format!("the takeover of term {term}"), |job| {
        job.events_of("takeover_done").into_iter().find(|event| event["term"] == term)
    })
}

#[test]
fn x_19_all_clocks_jump_by_days_either_way_and_nothing_happens() {
    the_clock_jumps(true);
}

#[test]
fn x_19_the_driver_s_clock_alone_jumps_by_days_either_way_and_nothing_happens() {
    the_clock_jumps(false);
}

fn the_clock_jumps(of_agents: bool) {
    let Some(library) = faketime() else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let offset = folder.path().join("offset");
    let jump = |by: &str| {
        // Replaced in one step: a process that read half of the file would use a wrong time.
        let next = folder.path().join("next");
        fs::write(&next, by).and_then(|()| fs::rename(&next, &offset)).expect("a file");
    };
    jump("+0");
    let text = |path: &Path| path.display().to_string();
    let (library, file) = (text(&library), text(&offset));
    let environment = [
        ("LD_PRELOAD", library.as_str()),
        ("FAKETIME_TIMESTAMP_FILE", &file),
        ("FAKETIME_NO_CACHE", "1"),
        // Decisions may use monotonic clocks only, so these stay real.
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ("DONT_FAKE_MONOTONIC", "1"),
    ];
    let mut job = Job::start_in(&environment, &["-n", "2"], &[]);
    for host in ["a", "b"] {
        let mut agent = job.agent_command(host, 1);
        if of_agents {
            agent.envs(environment);
        }
        job.agents.insert(host.to_owned(), agent.spawn().expect("the agent starts"));
    }
    job.wait_for_sizes(&[2]);
    let pids = [job.pid("a", 0), job.pid("b", 0)];
    jump("+3d");
    assert_eq!(take_over(&mut job, 2)["lost"], 0);
    jump("-3d");
    assert_eq!(take_over(&mut job, 3)["lost"], 0);
    let (first, second, third) = (began(&job, 1), began(&job, 2), began(&job, 3));
    assert!(second > first + DAY && third < first - DAY, "{first:?} {second:?} {third:?}");
    job.wait_for_steps();
    assert_eq!([job.pid("a", 0), job.pid("b", 0)], pids, "no worker was started again");
    assert_eq!(job.finish(), 0);
    assert_eq!(job.sizes(), [2], "no generation but the first");
    assert!(job.events_of("reset_decided").is_empty());
    job.assert_exact();
}
