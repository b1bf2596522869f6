//! Workers that hang or are slow, and are replaced by one on a spare slot (L-2, L-4, G-11).

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::observe::run_explain;
use crate::stragglers::DutyCycle;
use crate::support::{Job, signal};

/// Three workers train, and the fourth slot is spare. Returns the second one's host as well, and that of the spare slot: on a
/// busy machine any host may come last.
fn with_a_spare(answer: &[&str]) -> (Job, String, String) {
    let mut flags = vec!["-H", "a:1,b:1,c:1,d:1", "--launcher", "local"];
    flags.extend(["--np", "3", "--min-np", "3", "--max-np", "3"]);
    flags.extend(answer);
    let mut job = Job::start(&flags, &["--step-ms", "20"]);
    job.wait_for_sizes(&[3]);
    let members = hosts(&job);
    let spare = ["a", "b", "c", "d"].into_iter().find(|host| !members.contains(&(*host).into()));
    let (second, spare) = (members[1].clone(), spare.expect("one is spare").to_owned());
    (job, second, spare)
}

/// The hosts of the job after one has taken another's place.
fn hosts_after(job: &Job, gone: &str, new: &str) -> Option<()> {
    let members = hosts(job);
    let has = |host: &str| members.iter().any(|member| member == host);
    (members.len() == 3 && has(new) && !has(gone)).then_some(())
}

/// The condition of a host of one slot, and that of its slot.
fn conditions(job: &Job, name: &str) -> Option<[String; 2]> {
    let status = job.status()?;
    let of = |list: &str, key: &str| {
        let entry = status[list].as_array()?.iter().find(|entry| entry[key] == name)?;
        entry["state"].as_str().map(ToOwned::to_owned)
    };
    Some([of("hosts", "name")?, of("workers", "host")?])
}

/// The hosts of the last generation.
fn hosts(job: &Job) -> Vec<String> {
    let formed = job.events_of("generation_formed");
    let members = formed.last().and_then(|event| event["members"].as_array());
    let names = members.into_iter().flatten().filter_map(Value::as_str);
    names.filter_map(|name| Some(name.split_once('[')?.0.to_owned())).collect()
}

#[test]
fn l_4_a_slow_worker_is_replaced_as_planned_and_the_job_goes_on_at_full_speed() {
    let (mut job, slow, spare) = with_a_spare(&["--on-straggler", "replace"]);
    let cycle = DutyCycle::begin(job.pid(&slow, 0));
    let replaced = job.wait("the replacement", |job| job.events_of("worker_replaced").pop());
    assert!(replaced["worker"].as_str().is_some_and(|it| it.starts_with(&format!("{slow}[0]#"))));
    assert_eq!((&replaced["why"], &replaced["spares"]), (&"slow".into(), &1.into()), "{replaced}");
    job.wait_for_sizes(&[3, 3]);
    assert_eq!(hosts_after(&job, &slow, &spare), Some(()), "never fewer than three");

    let decided = job.events_of("reset_decided").pop().expect("a reset");
    assert_eq!(decided["way"], "interrupt", "{decided}");
    let exited = job.wait("its end", |job| job.events_of("worker_exited").pop());
    assert_eq!((&exited["expected"], &exited["killed_after_grace"]), (&true.into(), &false.into()));
    assert!(exited["status"].as_str().is_some_and(|it| it.contains("code 0")), "G-11: {exited}");
    drop(cycle);

    let effect = job.wait("the effect", |job| job.events_of("replacement_took").pop());
    let ms = ["before_ms", "after_ms"].map(|name| effect[name].as_f64().unwrap_or_default());
    assert!(ms[0] > 150.0 && ms[1] < 100.0, "{effect}");
    let resting = ["resting", "resting"].map(ToOwned::to_owned);
    assert_eq!(conditions(&job, &slow), Some(resting));
    let (code, text, stderr) = run_explain(&job, &["last"]);
    assert_eq!(code, Some(0), "{stderr}");
    let words = format!("replaced, since it is slow; {spare}:0 takes its place");
    assert!(text.contains(&words), "{text}");
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn the_host_of_a_replaced_worker_goes_to_the_operators_health_check() {
    let check = "echo looks at $PWD; cat DIR/well >&2";
    let (mut job, late, spare) = with_a_spare(&[
        "--on-hang",
        "replace",
        "--health-check",
        check,
        "--health-check-timeout",
        "20",
    ]);
    signal(job.pid(&late, 0), Signal::SIGSTOP);
    job.wait("the others", |job| hosts_after(job, &late, &spare));
    let failed = job.wait("the check", |job| job.events_of("health_check_failed").pop());
    assert_eq!(
        (&failed["host"], &failed["reason"]),
        (&(&*late).into(), &"exit code 1".into()),
        "{failed}"
    );
    let said = failed["output"].as_str().unwrap_or_default();
    assert!(said.starts_with("looks at /") && said.contains("/well: No such file"), "{failed}");
    let host = |job: &Job| {
        let status = job.status()?;
        status["hosts"].as_array()?.iter().find(|host| host["name"] == *late).cloned()
    };
    let shown = host(&job).expect("the host");
    assert_eq!(
        (&shown["state"], &shown["health_check"]),
        (&"resting".into(), &"failed".into()),
        "{shown}"
    );
    assert!(
        shown["health_failure"].as_str().is_some_and(|it| it.starts_with("exit code 1: cat: ")),
        "{shown}"
    );
    let (code, text, stderr) = run_explain(&job, &["now"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(text.contains("its health check has failed (exit code 1: cat: "), "{text}");

    std::fs::write(job.path("well"), "all is well").expect("a file");
    job.wait("the next check", |job| job.events_of("health_check_passed").pop());
    let shown = host(&job).expect("the host");
    assert_eq!(
        (&shown["state"], &shown["health_check"]),
        (&"resting".into(), &"passed".into()),
        "{shown}"
    );
    assert_eq!(job.events_of("health_check_failed").len(), 1, "told once");
    job.wait_for_progress();
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn l_2_a_stopped_worker_is_replaced_on_a_spare_slot() {
    let (mut job, late, spare) = with_a_spare(&["--on-hang", "replace"]);
    signal(job.pid(&late, 0), Signal::SIGSTOP);
    let replaced = job.wait("the replacement", |job| job.events_of("worker_replaced").pop());
    assert_eq!((&replaced["why"], &replaced["spares"]), (&"hang".into(), &1.into()), "{replaced}");
    job.wait("the others", |job| hosts_after(job, &late, &spare));
    job.wait("the host's rest", |job| conditions(job, &late).filter(|[host, _]| host == "resting"));
    job.wait_for_progress();
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}
