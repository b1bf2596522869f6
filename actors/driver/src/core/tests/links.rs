//! Tests of slow links between hosts: conditions and time of naming, the host at fault, and the lines of the status.

use std::collections::BTreeMap;
use std::time::Duration;

use elastic_protocol::messages::{LinkPace, SlowLink};
use elastic_protocol::{HostName, Time, WorkerId};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::hangs::seconds;
use super::stragglers::{PacedJob, slow_on};
use crate::core::{DriverConfig, EventKind, OnStraggler};

const MB: u64 = 1_000_000;

/// The rate of a healthy link, in MB a second, and its load. At a tenth of the rate, the load takes a sixth of the time.
const USUAL: u64 = 300;
const LOAD: u64 = 5;

/// Longest time from the first slow step to the event: the spell, the looks that do not count, and a review.
const NAMED_WITHIN: Duration = Duration::from_secs(15);

const THREE: [(&str, u32); 3] = [("a", 1), ("b", 1), ("c", 1)];

fn begin(hosts: &[(&str, u32)], change: impl FnOnce(&mut DriverConfig)) -> PacedJob {
    let mut job = PacedJob::begin(hosts, change);
    job.waiting_ms = 40;
    job
}

fn name(host: &str) -> HostName {
    HostName::new(host).expect("a name")
}

/// Seconds in which everybody computes alike, and data comes in at these rates, in MB a second: by sender and receiver.
fn pass(job: &mut PacedJob, count: u64, rate: impl Fn(&str, &str) -> u64) {
    for _ in 0..count {
        second(job, |_| 100, &rate);
    }
}

fn second(
    job: &mut PacedJob,
    compute_ms: impl FnMut(&WorkerId) -> u64,
    mut rate: impl FnMut(&str, &str) -> u64,
) {
    let members = job.cluster.members();
    let hosts: std::collections::BTreeSet<HostName> =
        members.iter().map(|member| member.host.clone()).collect();
    job.second_over(compute_ms, |worker| {
        let others = hosts.iter().filter(|host| **host != worker.host);
        let pace = |from: &HostName| {
            let rate = rate(from.as_str(), worker.host.as_str()) * MB;
            LinkPace { from: from.clone(), rate, load: LOAD * MB }
        };
        others.map(pace).collect()
    });
}

/// Rates of which those of some links are a tenth, each written as `from-to`.
fn slow(links: &'static [&'static str]) -> impl Fn(&str, &str) -> u64 {
    move |from, to| match links.contains(&format!("{from}-{to}").as_str()) {
        true => USUAL / 10,
        false => USUAL,
    }
}

/// The links that were named, each with the host at fault.
fn named(job: &PacedJob) -> Vec<(String, Option<String>)> {
    let found = job.cluster.stragglers.iter().filter_map(|event| match event {
        EventKind::SlowLinkFound { from, to, host, .. } => {
            Some((format!("{from}-{to}"), host.as_ref().map(ToString::to_string)))
        }
        _ => None,
    });
    found.collect()
}

fn recovered(job: &PacedJob) -> Vec<String> {
    let told = job.cluster.stragglers.iter().filter_map(|event| match event {
        EventKind::SlowLinkRecovered { from, to, .. } => Some(format!("{from}-{to}")),
        _ => None,
    });
    told.collect()
}

fn shown(job: &PacedJob) -> Vec<SlowLink> {
    job.cluster.core.status(job.cluster.now, &|_| String::new()).slow_links
}

#[test]
fn a_slow_link_is_named_by_both_of_its_hosts_and_told_when_it_is_over() {
    let mut job = begin(&THREE, |_| {});
    pass(&mut job, 30, slow(&[]));
    assert_eq!(named(&job), []);
    pass(&mut job, 9, slow(&["a-b"]));
    assert_eq!(named(&job), [], "not for long enough");
    pass(&mut job, NAMED_WITHIN.as_secs() - 9, slow(&["a-b"]));
    assert_eq!(named(&job), [("a-b".to_owned(), None)]);
    let Some(EventKind::SlowLinkFound {
        factor,
        rate_mb_per_s,
        others_mb_per_s,
        loss_ms,
        slow_ms,
        ..
    }) = job.cluster.stragglers.first()
    else {
        panic!("{:?}", job.cluster.stragglers);
    };
    assert_eq!((*factor, *rate_mb_per_s, *others_mb_per_s), (10.0, 30.0, 300.0));
    // A sixth of a step of 140 ms, less the sixtieth that the load takes at the usual rate.
    assert!((*loss_ms - 21.0).abs() < 0.01, "{loss_ms}");
    assert!((10_000.0..15_000.0).contains(slow_ms), "{slow_ms}");
    let told = shown(&job);
    assert_eq!(told.len(), 1);
    assert_eq!((&told[0].from, &told[0].to, &told[0].host), (&name("a"), &name("b"), &None));
    assert!((told[0].loss_ms - 21.0).abs() < 0.01, "{}", told[0].loss_ms);

    pass(&mut job, 60, slow(&["a-b"]));
    assert_eq!(named(&job).len(), 1, "it is told once");
    pass(&mut job, 9, slow(&[]));
    assert_eq!(recovered(&job), Vec::<String>::new());
    pass(&mut job, 6, slow(&[]));
    assert_eq!(recovered(&job), ["a-b"]);
    assert_eq!(shown(&job), []);
    assert_eq!(job.cluster.sizes.len(), 1, "nobody was replaced for it");
}

#[test]
fn both_directions_of_a_pair_are_the_links_and_all_links_of_a_host_are_the_hosts_fault() {
    let mut job = begin(&THREE, |_| {});
    pass(&mut job, 20, slow(&["a-b", "b-a"]));
    assert_eq!(named(&job), [("a-b".to_owned(), None), ("b-a".to_owned(), None)]);

    let hosts = [("a", 1), ("b", 1), ("c", 1), ("d", 1)];
    let mut job = begin(&hosts, |_| {});
    pass(&mut job, 20, slow(&["b-a", "b-c", "b-d"]));
    assert_eq!(named(&job), [("b-a".to_owned(), Some("b".to_owned()))]);
    assert_eq!(shown(&job).len(), 3, "each is shown");
    pass(&mut job, 20, slow(&[]));
    assert_eq!(recovered(&job), ["b-a", "b-c", "b-d"]);

    let mut job = begin(&hosts, |_| {});
    pass(&mut job, 20, slow(&["a-b", "c-b", "d-b"]));
    assert_eq!(named(&job), [("a-b".to_owned(), Some("b".to_owned()))]);
}

#[test]
fn a_host_whose_links_are_slow_for_a_moment_is_not_at_fault_for_the_one_that_is_slow_for_long() {
    let hosts = [("a", 1), ("b", 1), ("c", 1), ("d", 1)];
    let mut job = begin(&hosts, |_| {});
    while named(&job).is_empty() {
        let is_about_to_be_named = job.cluster.now.since(Time::ZERO) >= Duration::from_secs(9);
        let links: &[&str] = match is_about_to_be_named {
            true => &["a-b", "c-b", "d-b"],
            false => &["a-b"],
        };
        pass(&mut job, 1, slow(links));
    }
    assert_eq!(named(&job), [("a-b".to_owned(), None)]);
}

#[test]
fn the_links_of_a_host_that_computes_slowly_are_not_named() {
    let mut job = begin(&THREE, |_| {});
    let rate = slow(&["a-b", "b-a"]);
    for _ in 0..60 {
        second(&mut job, slow_on("b", 300), &rate);
    }
    assert_eq!(named(&job), []);
    assert!(matches!(job.cluster.stragglers.first(), Some(EventKind::StragglerFound { .. })));
    // It computes as fast as the others again, and its link is as slow as before.
    pass(&mut job, 30, &rate);
    assert_eq!(named(&job).len(), 2);
}

#[test]
fn of_several_ranks_of_a_host_the_one_that_a_link_serves_best_counts() {
    let mut job = begin(&[("a", 2), ("b", 2), ("c", 2)], |_| {});
    let members = job.cluster.members();
    for _ in 0..30 {
        job.second_over(
            |_| 100,
            |worker| {
                let others = members.iter().filter(|member| member.host != worker.host);
                let hosts: BTreeMap<HostName, ()> =
                    others.map(|member| (member.host.clone(), ())).collect();
                let pace = |from: HostName| {
                    let is_slow = worker.slot == 1 && from == name("a") && worker.host == name("b");
                    let rate = if is_slow { USUAL / 10 } else { USUAL } * MB;
                    LinkPace { from, rate, load: LOAD * MB }
                };
                hosts.into_keys().map(pace).collect()
            },
        );
    }
    assert_eq!(named(&job), [], "one of two ranks is late to read");
}

#[test]
fn what_a_worker_says_of_hosts_that_are_not_there_is_dropped_and_with_off_nothing_is_compared() {
    let mut job = begin(&THREE, |_| {});
    for _ in 0..30 {
        job.second_over(
            |_| 100,
            |worker| {
                let links = ["a", "b", "c", "x", "y"].map(|from| {
                    let rate = if from == "x" { USUAL / 10 } else { USUAL } * MB;
                    LinkPace { from: name(from), rate, load: LOAD * MB }
                });
                links.into_iter().filter(|link| link.from != worker.host).collect()
            },
        );
    }
    assert_eq!(named(&job), []);
    let mut job = begin(&THREE, |config| config.on_straggler = OnStraggler::Off);
    pass(&mut job, 60, slow(&["a-b"]));
    assert_eq!(named(&job), []);
}

#[test]
fn a_link_that_remains_slow_in_the_next_generation_is_not_named_again() {
    let mut job = begin(&THREE, |_| {});
    pass(&mut job, 20, slow(&["a-b"]));
    let other = job.cluster.worker("c", 0);
    job.cluster.kill(&other);
    job.cluster.pass(seconds(30));
    assert_eq!(shown(&job), [], "none is measured yet");
    pass(&mut job, 20, slow(&["a-b"]));
    assert_eq!((named(&job).len(), shown(&job).len()), (1, 1));
}

#[test]
fn l_3_a_day_of_noise_names_no_link() {
    let mut job = begin(&THREE, |_| {});
    let mut random = ChaCha8Rng::seed_from_u64(9);
    // The hosts between which data is slow for a while, as beside a checkpoint or another job's burst, and the end of that
    // while. After it, all links are fast for the same time again.
    let (mut busy, mut until, mut quiet_until) = (None, 0, 0);
    for second_number in 0..24 * 3_600_u64 {
        if second_number >= until {
            busy = None;
        }
        if second_number >= quiet_until && random.random_range(0..60) == 0 {
            let lasts = random.random_range(1..9);
            let hosts = ["a", "b", "c"];
            let from = hosts[random.random_range(0..3)];
            let to = Some(hosts[random.random_range(0..3)]).filter(|_| random.random_bool(0.5));
            (busy, until) = (Some((from, to)), second_number + lasts);
            quiet_until = second_number + 2 * lasts;
        }
        if second_number % 7_200 == 7_199 {
            let members = job.cluster.members();
            let killed = members[random.random_range(0..members.len())].clone();
            job.cluster.kill(&killed);
            job.cluster.pass(seconds(30));
        }
        let mut noise = ChaCha8Rng::seed_from_u64(second_number);
        second(
            &mut job,
            |_| random.random_range(80..115),
            |from, to| {
                let usual = USUAL * noise.random_range(60..140) / 100;
                let is_busy = busy.is_some_and(|(sender, receiver)| {
                    sender == from && receiver.is_none_or(|receiver| receiver == to)
                });
                if is_busy { usual / 20 } else { usual }
            },
        );
    }
    assert_eq!((named(&job), job.cluster.stragglers.len()), (Vec::new(), 0));
}

#[test]
fn five_hundred_planted_slow_links_are_all_named_within_their_bound() {
    let mut job = begin(&THREE, |_| {});
    let mut random = ChaCha8Rng::seed_from_u64(10);
    let pairs = ["a-b", "b-a", "a-c", "c-a", "b-c", "c-b"];
    for planted in 0..500 {
        let slow = pairs[random.random_range(0..pairs.len())];
        let factor = random.random_range(10..100);
        for is_slow in [true, false] {
            for _ in 0..NAMED_WITHIN.as_secs() {
                let rate = |from: &str, to: &str| {
                    let usual = USUAL * random.random_range(90..110) / 100;
                    let is_it = is_slow && slow == format!("{from}-{to}");
                    if is_it { usual / factor } else { usual }
                };
                second(&mut job, |_| 100, rate);
            }
            let told = named(&job);
            assert_eq!((told.len(), &told[planted].0[..]), (planted + 1, slow));
        }
        assert_eq!(recovered(&job).len(), planted + 1);
    }
}
