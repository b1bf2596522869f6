//! Seeds that every change must pass: a sweep, double runs, and those that once failed.

use sim::{Options, Recording, Verdict};

fn passes(options: &Options) -> sim::Report {
    let report = sim::run(options, Recording::default());
    if report.verdict() != Verdict::Ok {
        let again = sim::run(options, Recording { keep: 60, words: true, file: None });
        panic!(
            "{}\nseed {} failed ({}): {}\nrepeat: {}",
            again.last_events.join("\n"),
            options.seed,
            report.verdict().name(),
            report.reason().unwrap_or_default(),
            options.command()
        );
    }
    report
}

#[test]
fn two_hundred_seeds() {
    let mut resets = 0;
    let mut commits = 0;
    for seed in 0..200 {
        let report = passes(&Options { seconds: 15, ..Options::new(seed) });
        resets += report.resets;
        commits += report.commits;
    }
    assert!(resets > 200, "the faults do something: {resets} resets");
    assert!(commits > 10_000, "and the jobs train: {commits} commits");
}

#[test]
fn a_calm_cluster_resets_only_to_grow() {
    for seed in 0..20 {
        let report = passes(&Options { calm: true, seconds: 10, ..Options::new(seed) });
        assert!(report.resets <= report.generations, "{report:?}");
    }
}

#[test]
fn a_larger_cluster() {
    for seed in 0..3 {
        passes(&Options { hosts: 20, slots: 4, seconds: 10, ..Options::new(seed) });
    }
}

#[test]
fn two_runs_of_a_seed_are_one() {
    let mut hashes = std::collections::BTreeSet::new();
    for seed in 0..20 {
        let options = Options { seconds: 10, ..Options::new(seed) };
        let report = sim::run_twice(&options);
        assert_ne!(report.verdict(), Verdict::Nondeterministic, "{:?}", report.reason());
        hashes.insert(report.hash);
    }
    assert_eq!(hashes.len(), 20, "different seeds are different runs");
}

/// Everybody was late to form, because hosts could not reach each other: all of them were put out, and the
/// last commit with them.
#[test]
fn g_5_late_holders_were_all_evicted() {
    passes(&Options { keep: Some(vec![4, 17]), ..Options::new(121) });
}

/// One death by signal, after another worker's silence, counted as "every worker failed".
#[test]
fn g_10_a_death_by_signal_ended_the_job() {
    passes(&Options::new(44));
}

/// A worker that came back with its host and then left with code 0 counted as a program that is done, and its
/// slot stayed empty.
#[test]
fn g_7_a_slot_was_closed_by_a_clean_exit() {
    passes(&Options::new(65));
}

/// A worker that had said it rests while it was on its way out, and came back with its host, was never asked
/// to take part again.
#[test]
fn g_7_a_worker_at_rest_was_forgotten() {
    passes(&Options { keep: Some(vec![7, 18]), ..Options::new(676) });
}

/// SIGTERM between a process's start and its first word closed its slot for ever.
#[test]
fn g_7_a_slot_was_closed_before_it_attached() {
    passes(&Options::new(92));
}

/// The holder of the commit was in reach and its agent was not: newcomers began from nothing.
#[test]
fn g_5_a_holder_without_its_agent_was_left_behind() {
    passes(&Options { keep: Some(vec![6, 12, 13, 14]), ..Options::new(580) });
}

/// A host was lost while one of its workers was told to end; when it was back it had forgotten, and what the
/// worker said on its way out closed the slot.
#[test]
fn g_7_an_order_to_end_was_forgotten() {
    passes(&Options { keep: Some(vec![2, 3, 6, 16, 17, 18]), ..Options::new(1152) });
}

/// A generation was formed while only some workers of a lost host were known to be lost.
#[test]
fn g_5_half_of_a_lost_host() {
    passes(&Options::new(2689));
}
