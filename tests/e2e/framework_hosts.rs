//! Frameworks over two hosts, each a network namespace, by restart: a rank is killed, the next start goes on from the last
//! checkpoint, and the losses are those on one host. Needs root, and an interpreter in `ELASTIC_TEST_PYTHON` with the
//! framework.

use serde_json::Value;

use crate::hosts::{interpreter_with, train};
use crate::network::Network;

const JAX: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/programs/jax_hosts.py");
const DEEPSPEED: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/programs/deepspeed_hosts.py");

/// The step of the last checkpoint before the one in which rank 2 is killed.
const BEFORE_THE_KILL: u64 = 10;

fn assert_goes_on_across_hosts_as_on_one(imports: &str, program: &str) {
    let Some(python) = interpreter_with(imports) else { return };
    let Some(network) = Network::enter(3) else { return };
    let command = [&python, program, "LOG", "CONTROL"];
    let on_one = train(&network, 1, &command, false);
    let on_two = train(&network, 2, &command, true);
    for result in &on_two {
        assert_eq!(result["losses"], on_one[0]["losses"], "{result}");
        assert_eq!(result["losses"].as_array().map(Vec::len), Some(20), "{result}");
        assert_eq!(result["restarts"], 1, "one was killed: {result}");
        assert_eq!(result["began_at"], BEFORE_THE_KILL, "{result}");
        let hosts = [0, 1].map(|place| Value::from(network.place(place).address.to_string()));
        assert!(hosts.contains(&result["coordinator"]), "an address that all reach: {result}");
    }
}

#[test]
fn t_12_jax_trains_across_hosts_as_on_one_and_goes_on_after_a_kill() {
    assert_goes_on_across_hosts_as_on_one("import jax, elastic_node", JAX);
}

#[test]
fn t_12_deepspeed_zero_1_trains_across_hosts_as_on_one_and_goes_on_after_a_kill() {
    assert_goes_on_across_hosts_as_on_one("import deepspeed", DEEPSPEED);
}
