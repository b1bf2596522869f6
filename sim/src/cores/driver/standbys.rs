//! Standby drivers: their addresses, which the driver tells its nodes, and the handover of the job to one of them. They exist
//! only if the driver consists of cores. Called for faults and at looks in time.

use std::collections::BTreeSet;

use elastic_driver::DriverInput;
use elastic_protocol::messages::{DriverStatus, KnownDrivers};
use elastic_protocol::{JobOutcome, NodeId};

use super::super::{Happening, MS, World};

/// Time within which a welcome agent is told of the standbys: a hop, and delays on the way.
const TOLD_WITHIN_NS: u64 = 2_000 * MS;

/// The standbys of a driver's life, as it has been told of them.
#[derive(Debug, Default)]
pub(in crate::cores) struct Standbys {
    /// Addresses of the drivers that stand by now.
    addresses: Vec<String>,
    /// The lists before each change: messages that wait for the journal are late.
    before: Vec<Vec<String>>,
    /// World time at which they last changed.
    since: u64,
    /// Nodes that were told so.
    told: BTreeSet<NodeId>,
    /// Time from the handover under way to the start of the next driver, in microseconds.
    hands_over: Option<u64>,
}

impl World {
    /// Another driver begins to stand by, or ends.
    pub(in crate::cores) fn set_standby(&mut self, number: u32, is_there: bool) {
        let driver = &mut self.driver;
        if !driver.runs() || driver.cores().is_none() {
            return;
        }
        let address = format!("standby{number}:7070");
        if driver.standbys.addresses.contains(&address) == is_there {
            return;
        }
        driver.standbys.before.push(driver.standbys.addresses.clone());
        driver.standbys.addresses.retain(|other| *other != address);
        if is_there {
            driver.standbys.addresses.push(address);
        }
        driver.standbys.since = self.now;
        driver.standbys.told.clear();
        let status =
            |address: &String| DriverStatus { address: address.clone(), version: String::new() };
        let standbys = self.driver.standbys.addresses.iter().map(status).collect();
        self.driver_takes(DriverInput::Standbys(standbys));
    }

    /// SIGTERM to a driver for which another one stands by. That one begins to lead so many microseconds later.
    pub(in crate::cores) fn ask_to_hand_over(&mut self, number: u32, for_us: u64) {
        // The driver's core itself is asked, since its message of the job's end may wait for the journal.
        let is_over =
            self.driver.cores().is_none_or(|cores| cores.driver.result_so_far().is_some());
        if !self.driver.runs() || self.driver.is_asked_to_stop || is_over {
            return;
        }
        self.set_standby(number, true);
        self.driver.standbys.hands_over = Some(for_us);
        self.stop_job();
        // A job that was about to fail ends so, with the reason that it had.
        let result = self.driver.cores().and_then(|cores| cores.driver.result_so_far().cloned());
        if result.is_some_and(|result| result.outcome == JobOutcome::Stopped) {
            self.fail_safety(
                "D-3: SIGTERM ends a job for which another driver stands by".to_owned(),
            );
        }
    }

    /// Whether SIGTERM ends the driver, and not its job.
    pub(in crate::cores) fn has_standby(&self) -> bool {
        !self.driver.standbys.addresses.is_empty()
    }

    /// Checks the addresses of drivers that nodes are told.
    pub(super) fn check_told_of_drivers(
        &mut self,
        to: Vec<NodeId>,
        message: &KnownDrivers,
    ) -> Result<(), String> {
        let standbys = &mut self.driver.standbys;
        let leads = &self.scenario.driver.driver_address;
        let told = message.addresses.split_first().filter(|(first, _)| *first == leads);
        match told {
            Some((_, told)) if *told == standbys.addresses => standbys.told.extend(to),
            Some((_, told)) if standbys.before.iter().any(|before| *told == *before) => {}
            _ => {
                return Err(format!(
                    "drivers: nodes are told of {}, and those that stand by are {:?}",
                    message.addresses.join(", "),
                    standbys.addresses
                ));
            }
        }
        Ok(())
    }

    /// Checks at a look in time, while nothing is out of order, that each agent knows the drivers.
    pub(in crate::cores) fn check_standbys_told(&self) -> Result<(), String> {
        let standbys = &self.driver.standbys;
        // The addresses wait for the journal, as other messages do.
        let is_held = self.driver.refused_since.is_some();
        if is_held || standbys.addresses.is_empty() || self.now < standbys.since + TOLD_WITHIN_NS {
            return Ok(());
        }
        let mut agents = self.hosts.iter().filter_map(|host| host.agent.as_ref());
        let untold = agents.find_map(|agent| {
            let link = &self.links[agent.link as usize];
            let node = link.node.as_ref()?;
            let runs = agent.has_run_for(TOLD_WITHIN_NS, self.now);
            let is_welcome =
                agent.in_session_since.is_some_and(|since| since + TOLD_WITHIN_NS <= self.now);
            let is_known = runs && agent.is_welcomed && is_welcome && link.is_in_touch();
            (is_known && !standbys.told.contains(node)).then_some(node)
        });
        match untold {
            Some(node) => Err(format!("drivers: {node} does not know who stands by")),
            None => Ok(()),
        }
    }

    /// The driver has handed its job over: its process ends, and the next one begins.
    pub(super) fn handed_over(&mut self) {
        let life = self.driver.life;
        let Some(for_us) = self.driver.standbys.hands_over else {
            return self.fail_safety(
                "the driver hands its job over, and nobody has asked it to".to_owned(),
            );
        };
        self.driver_decides(|| "the driver hands over".to_owned());
        self.end_for_standby();
        self.driver.comes_back = true;
        self.agenda.push(self.now + for_us * 1_000, Happening::DriverBoot { life });
    }
}
