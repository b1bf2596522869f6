//! A path between workers that carries no data, while both workers are well and the driver hears them (section S-3).

use std::net::Ipv4Addr;
use std::process::Command;

use crate::network::{Network, Place};
use crate::support::Job;

/// Starts an agent of one slot at a place.
pub(crate) fn agent_at(job: &mut Job, host: &str, place: &Place) {
    agent_of(job, host, 1, place);
}

/// Starts an agent at a place, with so many slots.
pub(crate) fn agent_of(job: &mut Job, host: &str, slots: u32, place: &Place) {
    agent_in(job, host, slots, &place.wrapper());
}

/// Starts an agent with this command before its own.
pub(crate) fn agent_in(job: &mut Job, host: &str, slots: u32, wrapper: &[String]) {
    let command = job.agent_command(host, slots);
    let mut wrapped = Command::new(&wrapper[0]);
    let wrapped = wrapped.args(&wrapper[1..]).arg(command.get_program());
    let child = wrapped.args(command.get_args()).spawn();
    job.agents.insert(host.to_owned(), child.expect("the agent starts"));
}

/// Two workers at two places, and the driver at a third. The job goes on with at least `min_np` workers.
fn job(network: &Network, min_np: &str, samples: &str) -> Job {
    job_over("tcp", network, min_np, samples)
}

fn job_over(plane: &str, network: &Network, min_np: &str, samples: &str) -> Job {
    let flags = ["-n", "2", "--min-np", min_np, "--data-plane", plane];
    let mut job = Job::start_trainer_at(network.place(0), &flags, &["--samples", samples]);
    agent_at(&mut job, "a", network.place(1));
    agent_at(&mut job, "b", network.place(2));
    job.wait_for_sizes(&[2]);
    // A path that is cut while the group still forms ends the generation for another cause.
    job.wait_for_steps();
    job
}

/// Waits until one end has told that it ended the generation for the silence. The engine and the kernel's probes have the
/// same bound; whichever is first is told in the same words. The reset's cause may be the report of the other end, whose
/// connection was reset a moment before it would have found the same.
fn wait_for_silence_to_be_told(job: &mut Job) {
    job.wait("the end of the generation whose path is silent", |job| {
        let told = "the path to it is silent: nothing was acknowledged for";
        let of_kind = |kind, field: &str| {
            let events = job.events_of(kind);
            events.iter().any(|event| event[field].as_str().is_some_and(|it| it.contains(told)))
        };
        let is_told = of_kind("reset_decided", "cause") || of_kind("host_unreachable", "error");
        is_told.then_some(())
    })
}

#[test]
fn s_3_a_cut_of_the_data_alone_ends_the_generation_within_its_deadline() {
    let Some(network) = Network::enter(3) else { return };
    // Neither host can be spared, so both train again once the path is whole.
    let mut job = job(&network, "2", "96");
    network.place(2).silence("tcp");
    wait_for_silence_to_be_told(&mut job);
    let told = job.wait("who does not reach whom", |job| {
        let told = job.status()?["unreachable"].as_array()?.first()?.clone();
        Some([told["from"].as_str()?.to_owned(), told["to"].as_str()?.to_owned()])
    });
    assert!([["a", "b"], ["b", "a"]].contains(&[&*told[0], &*told[1]]), "{told:?}");
    assert!(!job.events_of("host_unreachable").is_empty());
    network.place(2).hear("tcp");
    job.wait("both train again", |job| {
        let status = job.status()?;
        (status["phase"] == "run" && status["world_size"] == 2).then_some(())
    });
    job.wait_for_steps();
    job.wait("all reach each other", |job| {
        job.status()?["unreachable"].as_array()?.is_empty().then_some(())
    });
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn s_3_a_host_whose_data_path_stays_cut_is_left_out_after_one_more_attempt() {
    let Some(network) = Network::enter(3) else { return };
    let mut job = job(&network, "1", "96");
    network.place(2).silence("tcp");
    job.wait("the other host trains alone", |job| (job.sizes() == [2, 1]).then_some(()));
    job.wait_for_steps();
    let formed = job.events_of("generation_formed");
    assert_eq!(formed.len(), 3, "the second did not form, and there was none besides: {formed:?}");
    assert!(job.stderr().contains("do not reach each other"), "{}", job.stderr());
    network.place(2).hear("tcp");
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn s_3_a_path_that_drops_long_packets_ends_the_generation_within_its_deadline() {
    let Some(network) = Network::enter(3) else { return };
    let mut job = job(&network, "1", "8192");
    network.place(1).drop_longer_than(1_300);
    network.place(2).drop_longer_than(1_300);
    wait_for_silence_to_be_told(&mut job);
}

#[test]
fn s_3_a_host_that_was_renumbered_is_taken_with_its_new_address() {
    let Some(network) = Network::enter(3) else { return };
    let mut job = job(&network, "1", "96");
    let pids = [job.pid("a", 0), job.pid("b", 0)];
    network.place(2).renumber(Ipv4Addr::new(10, 231, 78, 99));
    wait_for_silence_to_be_told(&mut job);
    job.wait_for_sizes(&[2, 2]);
    job.wait_for_steps();
    assert_eq!([job.pid("a", 0), job.pid("b", 0)], pids, "no worker was started again");
    assert_eq!(job.finish(), 0);
    job.assert_exact();
    let log = std::fs::read_to_string(job.path("agent.b.stderr")).unwrap_or_default();
    assert!(!log.contains("blacklisted"), "{log}");
}

#[test]
fn s_3_over_quic_a_cut_of_the_data_alone_ends_the_generation_within_the_same_deadline() {
    let Some(network) = Network::enter(3) else { return };
    let mut job = job_over("quic", &network, "2", "96");
    // Only one direction is cut: the other host still receives.
    network.place(2).lose(network.place(1));
    wait_for_silence_to_be_told(&mut job);
    network.place(2).know(network.place(1));
    job.wait("both train again", |job| {
        let status = job.status()?;
        (status["phase"] == "run" && status["world_size"] == 2).then_some(())
    });
    job.wait_for_steps();
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn s_3_over_quic_a_path_that_drops_long_packets_ends_the_generation_within_its_deadline() {
    let Some(network) = Network::enter(3) else { return };
    let mut job = job_over("quic", &network, "1", "8192");
    // Below QUIC's least packet, which keep-alives and acknowledgements do not fill.
    network.place(1).drop_longer_than(1_100);
    network.place(2).drop_longer_than(1_100);
    wait_for_silence_to_be_told(&mut job);
}

#[test]
fn s_3_over_quic_a_firewall_that_drops_what_one_send_joins_ends_the_generation_within_its_deadline()
{
    let Some(network) = Network::enter(3) else { return };
    let mut job = job_over("quic", &network, "1", "8192");
    if !network.place(1).drop_datagrams_longer_than(1_300)
        || !network.place(2).drop_datagrams_longer_than(1_300)
    {
        return;
    }
    wait_for_silence_to_be_told(&mut job);
}

#[test]
fn s_3_over_quic_a_host_whose_data_path_stays_cut_is_left_out_after_one_more_attempt() {
    let Some(network) = Network::enter(3) else { return };
    let mut job = job_over("quic", &network, "1", "96");
    network.place(1).lose(network.place(2));
    network.place(2).lose(network.place(1));
    job.wait("the other host trains alone", |job| (job.sizes() == [2, 1]).then_some(()));
    job.wait_for_steps();
    let formed = job.events_of("generation_formed");
    assert_eq!(formed.len(), 3, "the second did not form, and there was none besides: {formed:?}");
    assert!(job.stderr().contains("do not reach each other"), "{}", job.stderr());
    network.place(1).know(network.place(2));
    network.place(2).know(network.place(1));
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}
