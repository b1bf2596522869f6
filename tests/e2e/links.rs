//! Slow links between hosts, on real processes in network namespaces: the link is named, and neither its hosts nor a slow rank is.

use serde_json::Value;

use crate::data_path::agent_at;
use crate::network::Network;
use crate::observe::run_explain;
use crate::stragglers::DutyCycle;
use crate::support::Job;

/// Numbers of a step's collective. A part of it for each rank takes longer over the slow link than a receiver waits for its
/// processor on a busy machine.
const SAMPLES: &str = "131072";
/// A batch of which an epoch has 86 steps: the trainers finish at the end of one.
const BATCH_SIZE: &str = "512";
const FLAGS: [&str; 8] =
    ["--samples", SAMPLES, "--batch-size", BATCH_SIZE, "--step-ms", "20", "--commit-every", "2"];

/// Three hosts with a worker each, and the driver at a fourth place.
fn job(network: &Network) -> Job {
    let mut job = Job::start_trainer_at(network.place(0), &["-n", "3"], &FLAGS);
    for (host, number) in [("a", 1), ("b", 2), ("c", 3)] {
        agent_at(&mut job, host, network.place(number));
    }
    job.wait_for_sizes(&[3]);
    job.wait_for_steps();
    job
}

fn slow_links(job: &Job) -> Option<Vec<Value>> {
    Some(job.status()?["slow_links"].as_array()?.clone())
}

#[test]
fn a_slow_link_is_named_with_both_of_its_hosts_and_no_host_is() {
    let Some(network) = Network::enter(4) else { return };
    let mut job = job(&network);
    assert_eq!(slow_links(&job), Some(vec![]));
    network.place(1).limit_rate_to(network.place(2), 20);
    let found = job.wait("the slow link", |job| slow_links(job)?.first().cloned());
    assert_eq!((&found["from"], &found["to"]), (&"a".into(), &"b".into()), "{found}");
    // 20 megabits a second. A receiver that gets its processor late finds a part there already, and sees a higher rate: how
    // much higher depends on the machine.
    let rate = |name: &str| found[name].as_f64().expect("a rate");
    assert!(rate("rate_mb_per_s") > 1.0, "{found}");
    assert!(rate("rate_mb_per_s") * 4.0 < rate("others_mb_per_s"), "{found}");
    assert!(
        found["factor"].as_f64() > Some(4.0) && found["loss_ms"].as_f64() > Some(10.0),
        "{found}"
    );
    assert_eq!(found["host"], Value::Null, "{found}");
    let event = job.wait("its event", |job| job.events_of("slow_link_found").into_iter().next());
    assert_eq!((&event["from"], &event["to"]), (&"a".into(), &"b".into()), "{event}");
    assert!(event.get("host").is_none(), "{event}");
    assert!(job.stderr().contains("the link from a to b is SLOW: it carries "), "{}", job.stderr());
    let (code, text, stderr) = run_explain(&job, &["now"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(text.contains("Slow: the link from a to b carries "), "{text}");

    network.place(1).lift_limits();
    job.wait("its end", |job| job.events_of("slow_link_recovered").into_iter().next());
    assert_eq!(slow_links(&job), Some(vec![]));
    assert_eq!(job.events_of("slow_link_found").len(), 1, "no other link was named");
    assert_eq!(job.events_of("straggler_found"), Vec::<Value>::new(), "nor a worker");
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn a_slow_rank_is_named_and_none_of_the_links_over_which_it_sends_and_receives() {
    let Some(network) = Network::enter(4) else { return };
    let mut job = job(&network);
    let cycle = DutyCycle::begin(job.pid("b", 0));
    job.wait("the straggler", |job| job.events_of("straggler_found").into_iter().next());
    // For as long again as it takes to name somebody.
    let step = |job: &Job| job.status()?["workers"][0]["step"].as_u64();
    let before = job.wait("its step", |job| step(job));
    job.wait("more commits", |job| step(job).filter(|now| *now >= before + 15));
    assert_eq!(job.events_of("slow_link_found"), Vec::<Value>::new());
    drop(cycle);
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}
