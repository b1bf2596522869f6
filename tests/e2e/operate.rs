//! Requests of the operator to a job that runs: `stop`, `drain`, `readmit`; its past: `history`, `forget`.

use std::fs;
use std::process::{Child, Command, Output};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{Job, binary, signal};

/// Gives a command to the driver of a job.
pub(crate) fn operate(job: &Job, line: &[&str]) -> Output {
    let output = Command::new(binary())
        .args(line)
        .args(["--driver", &job.address, "--token-file"])
        .arg(job.path("state/token"))
        .output();
    output.expect("it runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The state of a host, as the status names it.
fn state_of(job: &Job, host: &str) -> Option<String> {
    let status = job.status()?;
    let hosts = status["hosts"].as_array()?;
    let entry = hosts.iter().find(|entry| entry["name"] == host)?;
    Some(entry["state"].as_str()?.to_owned())
}

#[test]
fn a_host_that_is_drained_leaves_without_loss_and_comes_back_when_it_is_readmitted() {
    let mut job = Job::start(&["-n", "2", "--min-np", "1"], &[]);
    job.agent("a", 1);
    job.agent("b", 1);
    job.wait_for_sizes(&[2]);

    let drained = operate(&job, &["drain", "b"]);
    assert_eq!(drained.status.code(), Some(0), "{}", String::from_utf8_lossy(&drained.stderr));
    assert!(stdout(&drained).contains("host b is drained"), "{}", stdout(&drained));
    job.wait_for_sizes(&[2, 1]);
    assert_eq!(state_of(&job, "b").as_deref(), Some("drained"));
    assert!(stdout(&operate(&job, &["drain", "b"])).contains("already"));
    for request in ["drain", "readmit"] {
        let unknown = operate(&job, &[request, "nowhere"]);
        assert_eq!(unknown.status.code(), Some(1));
        let stderr = String::from_utf8_lossy(&unknown.stderr).into_owned();
        assert!(stderr.contains("no host nowhere") && stderr.contains("hint:"), "{stderr}");
    }

    // D-1: what the operator has decided outlives the driver.
    job.kill_driver();
    job.start_driver_again();
    job.wait("the next driver knows", |job| {
        (state_of(job, "b").as_deref() == Some("drained")).then_some(())
    });
    job.wait_for_steps();
    let status = job.status().expect("a status");
    assert_eq!(status["world_size"], 1);
    let buckets = &status["goodput"]["buckets"];
    assert!(buckets["drained"].as_f64() > Some(0.0), "{buckets}");
    assert!(buckets["blacklisted"].is_null(), "{buckets}");
    assert!(buckets["importing"].as_f64() > Some(0.0), "{buckets}");

    let readmitted = operate(&job, &["readmit", "b"]);
    assert!(stdout(&readmitted).contains("may have workers again"), "{}", stdout(&readmitted));
    job.wait("both train again", |job| (job.sizes().last() == Some(&2)).then_some(()));
    job.wait_for_steps();
    assert!(stdout(&operate(&job, &["readmit", "b"])).contains("neither drained nor blacklisted"));
    assert_eq!(job.finish(), 0);
    job.assert_exact();
    let hosts = |kind: &str| -> Vec<String> {
        job.events_of(kind).iter().filter_map(|it| Some(it["host"].as_str()?.to_owned())).collect()
    };
    assert_eq!(
        (hosts("host_drained"), hosts("host_readmitted")),
        (vec!["b".into()], vec!["b".into()])
    );

    let history = Command::new(binary())
        .args(["history", "--json", "--state-dir"])
        .arg(job.path("state"))
        .output()
        .expect("it runs");
    let resets: Vec<Value> = serde_json::from_slice(&history.stdout).expect("a list");
    assert!(resets.len() >= 2, "{resets:?}");
    assert!(resets.iter().all(|reset| reset["steps_lost"] == 0), "{resets:?}");
    assert!(resets[0]["cause"].to_string().contains("b[0]"), "{resets:?}");
}

/// Starts the driver again while host b, which is drained, is not listed; it is drained when it is back.
fn stays_drained(mut job: Job, leaves: impl FnOnce(&mut Job), comes_back: impl FnOnce(&mut Job)) {
    job.agent("a", 1);
    job.agent("b", 1);
    job.wait_for_sizes(&[2]);
    assert_eq!(operate(&job, &["drain", "b"]).status.code(), Some(0));
    job.wait_for_sizes(&[2, 1]);
    leaves(&mut job);
    // A host off the list whose agent is in session is in the status, too.
    let listed = |job: &Job| state_of(job, "b").filter(|state| state != "unlisted");
    job.wait("b is off the list", |job| {
        (job.status().is_some() && listed(job).is_none()).then_some(())
    });
    job.kill_driver();
    job.start_driver_again();
    job.wait("the takeover", |job| job.events_of("takeover_done").pop());
    comes_back(&mut job);
    let state = job.wait("b is listed again", |job| listed(job));
    assert_eq!(state, "drained");
    job.wait_for_steps();
    assert_eq!(state_of(&job, "b").as_deref(), Some("drained"));
    assert_eq!(operate(&job, &["readmit", "b"]).status.code(), Some(0));
    job.wait("both train again", |job| (job.sizes().last() == Some(&2)).then_some(()));
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn d_4_a_drained_host_off_the_list_is_drained_under_the_next_driver() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("hosts");
    let list = |hosts: &str| {
        // The file is read while it is written otherwise.
        let next = folder.path().join("next");
        fs::write(&next, hosts).expect("a file");
        fs::rename(&next, &file).expect("in one folder");
    };
    list("a:1\nb:1\n");
    let named = file.display().to_string();
    let job = Job::start(&["--hostfile", &named, "-n", "2", "--min-np", "1"], &[]);
    stays_drained(job, |_| list("a:1\n"), |_| list("a:1\nb:1\n"));
}

#[test]
fn d_4_a_drained_host_whose_agent_is_away_is_drained_under_the_next_driver() {
    let job = Job::start(&["-n", "2", "--min-np", "1"], &[]);
    let leaves = |job: &mut Job| {
        let mut agent = job.agents.remove("b").expect("it was started");
        signal(i32::try_from(agent.id()).expect("a pid"), Signal::SIGTERM);
        agent.wait().expect("it ends");
    };
    stays_drained(job, leaves, |job| job.agent("b", 1));
}

#[test]
fn h_14_a_host_that_is_blacklisted_is_let_in_again_by_the_operator_and_the_log_has_both() {
    let mut job = Job::start(&["-n", "2", "--min-np", "1", "--on-failure", "blacklist"], &[]);
    job.agent("a", 1);
    job.agent("b", 1);
    job.wait_for_sizes(&[2]);
    signal(job.pid("b", 0), Signal::SIGKILL);
    job.wait("the host is out", |job| {
        (state_of(job, "b").as_deref() == Some("blacklisted")).then_some(())
    });
    let event = job.events_of("host_blacklisted").remove(0);
    assert_eq!((&event["host"], &event["for_ms"]), (&"b".into(), &Value::Null), "{event}");
    assert!(event["reason"].as_str().is_some_and(|it| it.contains("b[0]")), "{event}");
    assert_eq!(operate(&job, &["readmit", "b"]).status.code(), Some(0));
    job.wait("both train again", |job| (job.sizes().last() == Some(&2)).then_some(()));
    assert_eq!(job.finish(), 0);
    assert_eq!(job.events_of("host_readmitted").len(), 1);
}

#[test]
fn d_1_status_watch_goes_on_under_a_driver_that_is_started_again() {
    let mut job = Job::start(&["-n", "1"], &[]);
    job.agent("a", 1);
    job.wait_for_sizes(&[1]);
    let file = |job: &Job, name: &str| fs::File::create(job.path(name)).expect("ours");
    let text = |job: &Job, name: String| fs::read_to_string(job.path(&name)).expect("ours");
    // One is told where the job's folder is, and one finds the job in the list.
    let state = job.path("state").display().to_string();
    let mut watchers: Vec<Child> = [&["--state-dir", &state][..], &[]]
        .iter()
        .enumerate()
        .map(|(index, source)| {
            let mut command = Command::new(binary());
            command.args(["status", "--json", "--watch"]).args(*source);
            command.env("XDG_STATE_HOME", job.path("user"));
            command.stdout(file(&job, &format!("watched{index}")));
            command.stderr(file(&job, &format!("told{index}")));
            command.spawn().expect("it runs")
        })
        .collect();
    let wait_for = |job: &mut Job, name: &str, words: &str| {
        job.wait(words, |job| {
            let has = |index| text(job, format!("{name}{index}")).contains(words);
            (has(0) && has(1)).then_some(())
        });
    };
    wait_for(&mut job, "watched", "\"term\":1");
    job.kill_driver();
    wait_for(&mut job, "told", "warning: the driver does not answer");
    // The next driver has another port.
    job.start_driver_again();
    wait_for(&mut job, "watched", "\"term\":2");
    assert_eq!(job.finish(), 0);
    for (index, watcher) in watchers.iter_mut().enumerate() {
        let ended = job.wait("the watcher's end", |_| watcher.try_wait().expect("it is ours"));
        let told = text(&job, format!("told{index}"));
        assert_eq!(ended.code(), Some(0), "{told}");
        // Its transport may have words of its own.
        let lines: Vec<&str> = told.lines().filter(|it| !it.contains("WARN")).collect();
        let [silent, again] = &lines[..] else { panic!("each is told once: {told}") };
        assert!(silent.ends_with("it is asked again for 30 s"), "{told}");
        assert!(again.starts_with("the driver answers again, after "), "{told}");
    }
}

#[test]
fn a_job_is_stopped_from_another_shell() {
    let mut job = Job::start(&["-n", "1"], &[]);
    job.agent("a", 1);
    job.wait_for_sizes(&[1]);
    let stopped = operate(&job, &["stop"]);
    assert_eq!(stopped.status.code(), Some(0), "{}", String::from_utf8_lossy(&stopped.stderr));
    assert_eq!(job.end(), 130, "as by Ctrl-C: {}", job.stderr());
    assert_eq!(job.events_of("job_ended")[0]["result"]["outcome"], "stopped");
}

#[test]
fn a_job_that_is_over_can_be_forgotten_and_one_that_runs_cannot() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = |line: &[&str]| {
        let mut command = Command::new(binary());
        command.args(line).env("XDG_STATE_HOME", folder.path()).output().expect("it runs")
    };
    let job = |shell: &str| run(&["run", "-n", "1", "--", "sh", "-c", shell]);
    let listed = || -> Vec<Value> {
        serde_json::from_slice(&run(&["list", "--json"]).stdout).expect("a list")
    };
    let itself = format!(
        "id=$({0} list | sed -n 's/ *\\([0-9a-f]*\\) .*running.*/\\1/p'); {0} forget $id 2>&1 | grep -q 'still runs'",
        binary()
    );
    let output = job(&itself);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let [entry] = &listed()[..] else { panic!("one job") };
    let (id, state) = (entry["job"].as_str().expect("an id"), entry["state_dir"].as_str());
    let state = std::path::Path::new(state.expect("a folder"));
    assert!(state.exists());
    let text = stdout(&run(&["history", id]));
    assert!(text.contains("has had no reset") && text.contains("is over"), "{text}");
    let forgotten = run(&["forget", &id[..8]]);
    assert!(stdout(&forgotten).contains("is forgotten"), "{forgotten:?}");
    assert!(!state.exists() && listed().is_empty());
    let again = run(&["forget", &id[..8]]);
    assert_eq!(again.status.code(), Some(2), "{again:?}");
}
