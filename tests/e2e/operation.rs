//! Everyday operation: misbehaving scripts, output, sizes, idle cost (section X).

use std::fs;
use std::process::{Command, Stdio};

use crate::support::{Job, binary, make_executable, wait_until};

fn script(folder: &std::path::Path, text: &str) -> String {
    let file = folder.join("discover.sh");
    fs::write(&file, format!("#!/bin/sh\n{text}\n")).expect("a file");
    make_executable(&file);
    file.display().to_string()
}

#[test]
fn x_7_garbage_lines_are_named_by_number() {
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    let script = script(folder.path(), "printf 'a:1\\n:3\\nb:minus\\n# fine\\na:2\\n'");
    let mut job = Job::start(&["--host-discovery-script", &script, "--launcher", "local"], &[]);
    job.wait_for_sizes(&[1]);
    let warnings = job.status().expect("a status")["warnings"].to_string();
    for line in ["line 2", "line 3", "line 5"] {
        assert!(warnings.contains(line), "{line}: {warnings}");
    }
    assert_eq!(job.finish(), 0);
}

#[test]
fn x_7_a_script_that_hangs_later_does_not_disturb() {
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    let hang = folder.path().join("hang");
    let text = format!("test -e '{}' && sleep 1000\necho a:1", hang.display());
    let script = script(folder.path(), &text);
    let mut job = Job::start(&["--host-discovery-script", &script, "--launcher", "local"], &[]);
    job.wait_for_sizes(&[1]);
    fs::write(hang, "").expect("a file");
    job.wait("a warning", |job| (!job.status()?["warnings"].as_array()?.is_empty()).then_some(()));
    assert_eq!(job.finish(), 0);
    assert_eq!(job.sizes(), [1]);
}

#[test]
fn x_7_a_discovery_script_that_floods() {
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    let flood = script(folder.path(), "yes a:1 | head -c 100000000");
    let mut job = Job::start(&["--host-discovery-script", &flood, "--launcher", "local"], &[]);
    let code = job.end();
    let stderr = job.stderr();
    assert!(code != 0, "{stderr}");
    assert!(stderr.contains("error:") && stderr.contains(&flood), "{stderr}");
}

#[test]
fn x_13_a_driver_that_is_bound_to_all_addresses_is_found_by_its_state_directory() {
    for bind in ["0.0.0.0:0", "[::]:0"] {
        let folder = tempfile::TempDir::new().expect("a temporary folder");
        let state = folder.path().join("state").display().to_string();
        let mut driver = Command::new(binary())
            .args(["--role", "driver", "--bind", bind, "--state-dir", &state, "-n", "1"])
            .args(["--", "/bin/true"])
            .stderr(Stdio::null())
            .spawn()
            .expect("it runs");
        let of_state_dir = |command: &str| {
            let line = [command, "--state-dir", &state];
            Command::new(binary()).args(line).output().expect("it runs")
        };
        wait_until("a driver that answers", || {
            of_state_dir("status").status.success().then_some(())
        });
        let stopped = of_state_dir("stop");
        assert!(stopped.status.success(), "{}", String::from_utf8_lossy(&stopped.stderr));
        driver.wait().expect("it ends");
    }
}

#[test]
fn x_16_output_is_stored_whole() {
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    let output = folder.path().join("output");
    let text =
        "head -c 1000000 /dev/zero | tr '\\0' x; echo; printf '\\377\\376 bytes\\n'; seq 200000";
    let result = Command::new(binary())
        .args(["run", "-n", "1", "--bind", "127.0.0.1:0", "--output-dir"])
        .arg(&output)
        .arg("--state-dir")
        .arg(folder.path().join("state"))
        .args(["--", "/bin/sh", "-c", text])
        .output()
        .expect("it runs");
    assert_eq!(result.status.code(), Some(0), "{}", String::from_utf8_lossy(&result.stderr));
    let stored = fs::read(output.join("generation_1/0/stdout.log"));
    let expected = Command::new("/bin/sh").args(["-c", text]).output().expect("it runs").stdout;
    let stored = stored.expect("the worker's stdout was stored");
    assert_eq!(stored.len(), expected.len(), "byte for byte");
    assert!(stored == expected);
}

#[test]
fn x_18_many_workers_lose_half_of_them_at_once() {
    let mut job = Job::start(
        &["-H", "a:16,b:16,c:16,d:16", "--launcher", "local", "--min-np", "1"],
        &["--samples", "640", "--batch-size", "2", "--step-ms", "200"],
    );
    job.wait_for_sizes(&[64]);
    let status = job.wait("the status of 64 workers", |job| job.status());
    let victims: Vec<i32> = status["workers"]
        .as_array()
        .expect("workers")
        .iter()
        .filter(|worker| worker["host"] == "c" || worker["host"] == "d")
        .filter_map(|worker| i32::try_from(worker["pid"].as_i64()?).ok())
        .collect();
    assert_eq!(victims.len(), 32);
    for victim in victims {
        crate::support::signal(victim, nix::sys::signal::Signal::SIGKILL);
    }
    job.wait("all of them again", |job| {
        let sizes = job.sizes();
        (sizes.len() > 1 && sizes.last() == Some(&64)).then_some(())
    });
    job.wait_for_progress();
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn an_idle_agent_is_small() {
    let mut job = Job::start(&["-n", "2"], &[]);
    job.agent("a", 1);
    job.wait("the host", |job| (!job.events_of("host_joined").is_empty()).then_some(()));
    let pid = job.agents["a"].id();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the agent is there");
    // Only private memory counts: the pages of the executable depend on the build's profile.
    let anonymous_kib: u64 = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:")?.trim().split(' ').next()?.parse().ok())
        .expect("a resident size");
    assert!(anonymous_kib < 4 * 1024, "{anonymous_kib} KiB");
}

#[test]
fn x_10_commits_take_bounded_memory() {
    const STATE_BYTES: u64 = 64 << 20;
    let state = STATE_BYTES.to_string();
    let flags = ["--padding-bytes", &state, "--step-ms", "0", "--samples", "24"];
    let mut job = Job::start(&["-n", "1"], &flags);
    job.agent("a", 1);
    job.wait("forty commits", |job| {
        let commits = job.log().iter().filter(|line| line["event"] == "commit").count();
        (commits >= 40).then_some(())
    });
    let pid = job.pid("a", 0);
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the worker is there");
    let peak_kib: u64 = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.trim().split(' ').next()?.parse().ok())
        .expect("a peak size");
    let allowed_kib = (3 * STATE_BYTES + (64 << 20)) / 1024;
    assert!(peak_kib < allowed_kib, "live and two copies, and no more: {peak_kib} KiB");
    assert_eq!(job.finish(), 0);
}
