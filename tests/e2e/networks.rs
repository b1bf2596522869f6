//! Networks that are not the usual one: IPv6 alone, and packets that are too short for the protocol.

use nix::sys::signal::Signal;

use crate::data_path::agent_at;
use crate::network::Network;
use crate::support::{Job, signal};

#[test]
fn s_14_a_network_of_ipv6_alone_is_enough() {
    let Some(network) = Network::enter(2) else { return };
    let bind = format!("[{}]:0", network.use_ipv6_alone());
    let mut job = Job::start(&["-n", "2", "--min-np", "1", "--bind", &bind], &[]);
    agent_at(&mut job, "a", network.place(0));
    agent_at(&mut job, "b", network.place(1));
    job.wait_for_sizes(&[2]);
    let victim = job.pid("b", 0);
    signal(victim, Signal::SIGKILL);
    job.wait("both train again", |job| {
        let status = job.status()?;
        let is_back = status["phase"] == "run" && status["world_size"] == 2;
        (is_back && status["resets"].as_u64() > Some(0)).then_some(())
    });
    job.wait_for_steps();
    assert_eq!(job.finish(), 0);
    job.assert_exact();
}

#[test]
fn s_14_an_interface_whose_packets_are_too_short_is_named() {
    let Some(network) = Network::enter(2) else { return };
    let job = Job::start_at(network.place(1), &["-n", "1"]);
    network.place(0).set_mtu(1_200);
    let agent = job.agent_command("a", 1);
    let wrapper = network.place(0).wrapper();
    let mut command = std::process::Command::new(&wrapper[0]);
    command.args(&wrapper[1..]).arg(crate::support::binary()).args(agent.get_args());
    // It looks for a driver for as long as it may.
    let output = command.output().expect("the agent starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.contains("MTU of 1200"), "{stderr}");
}
