//! The death of every process that holds the training state: the job ends, or begins again, and says how many steps
//! are lost.

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{Job, signal};

/// Two workers that have committed for a while and stand still now. Returns the number of their commits.
fn job(on_total_loss: &str) -> (Job, u64) {
    // An epoch of many steps: the commit at its end would be one more than there are steps.
    let flags = ["-n", "2", "--on-total-loss", on_total_loss];
    let mut job = Job::start(&flags, &["--samples", "8192"]);
    job.agent("a", 1);
    job.agent("b", 1);
    job.wait_for_sizes(&[2]);
    job.wait_for_steps();
    job.control("hold");
    let steps = job.wait("a step that both have committed, and that the driver knows", |job| {
        let steps = last_commits(job);
        let status = job.status()?;
        let known = status["workers"].as_array()?.iter().map(|it| it["step"].as_u64());
        let known = known.collect::<Option<Vec<_>>>()?;
        (steps.len() == 2 && steps[0] == steps[1] && known == steps).then(|| steps[0])
    });
    assert!(steps > 0, "there is something to lose");
    (job, steps)
}

/// The last commit of each process, as the training program has logged it.
fn last_commits(job: &Job) -> Vec<u64> {
    let mut last = std::collections::BTreeMap::new();
    for line in job.log().iter().filter(|line| line["event"] == "commit") {
        last.insert(line["pid"].as_u64(), line["steps"].as_u64().unwrap_or_default());
    }
    last.into_values().collect()
}

/// The processes of all holders, as the driver knows them.
fn holders(job: &mut Job) -> [i32; 2] {
    [job.pid("a", 0), job.pid("b", 0)]
}

/// Kills all holders at once.
fn kill_all(holders: [i32; 2]) {
    for pid in holders {
        signal(pid, Signal::SIGKILL);
    }
}

/// The reset after the loss.
fn lost(job: &mut Job) -> Value {
    job.wait("the loss in the event log", |job| job.events_of("state_lost").pop())
}

#[test]
fn l_1_a_job_that_may_not_begin_again_ends_with_the_count_of_lost_steps() {
    let (mut job, steps) = job("fail");
    kill_all(holders(&mut job));
    assert_ne!(job.end(), 0);
    let stderr = job.stderr();
    let reason = format!(
        "every worker that held the training state is gone: at least {steps} steps, committed in"
    );
    assert!(stderr.contains(&reason), "{reason}\n{stderr}");
    assert!(stderr.contains("--on-total-loss restart"), "the way out: {stderr}");
    assert_eq!(job.sizes(), [2], "no generation began from the start");
    for host in ["a", "b"] {
        assert!(!job.agent_end(host).success(), "agent {host} ends with the job's failure");
    }
}

#[test]
fn l_1_a_job_that_begins_again_tells_how_many_steps_are_lost() {
    let (mut job, steps) = job("restart");
    kill_all(holders(&mut job));
    let lost = lost(&mut job);
    assert_eq!(lost["committed"], steps);
    assert_eq!(lost["begins_at"], 0);
    assert_eq!(lost["steps_lost"], steps);
    job.wait("the next generation", |job| (job.sizes() == [2, 2]).then_some(()));
    let status = job.status().expect("a status");
    assert_eq!(status["steps_lost"], steps, "{status}");
    let warning = format!("began again at step 0, and step {steps} had been committed");
    assert!(status["warnings"].to_string().contains(&warning), "{status}");
    let told = format!("{steps} steps are lost");
    assert!(job.stderr().contains(&told), "{told}\n{}", job.stderr());
    std::fs::remove_file(job.path("control/hold")).expect("it is there");
    job.wait_for_progress();
}

#[test]
fn l_1_steps_that_no_driver_has_seen_are_not_told_as_none() {
    let (mut job, steps) = job("restart");
    let holders = holders(&mut job);
    job.kill_driver();
    std::fs::remove_file(job.path("control/hold")).expect("it is there");
    job.wait("steps without a driver", |job| {
        last_commits(job).iter().all(|last| *last > steps).then_some(())
    });
    kill_all(holders);
    job.start_driver_again();
    let lost = lost(&mut job);
    assert_eq!((&lost["unseen"], &lost["begins_at"]), (&Value::Bool(true), &Value::from(0)));
    let least = lost["steps_lost"].as_u64().expect("a number");
    assert!(least <= steps, "the driver cannot know of more: {lost}");
    job.wait_for_progress();
    assert_eq!(job.finish(), 0);
    let stderr = job.stderr();
    assert!(stderr.contains("the workers may have trained on without one"), "{stderr}");
    assert!(stderr.contains("at least"), "{stderr}");
}
