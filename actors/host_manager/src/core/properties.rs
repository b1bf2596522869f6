//! Property tests of the host manager's core: random sequences of polls, arrivals, failures and time, against a
//! simple model of ages and stays.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use rand::SeedableRng;

use super::*;

const MIN: Duration = Duration::from_secs(1);
const MAX: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
enum Event {
    /// A poll prints these hosts with these slots.
    Poll(Vec<(u8, u32)>),
    /// A poll fails.
    PollFails,
    Failure(u8),
    Drain(u8),
    Readmit(u8),
    Pass(u64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let list = prop::collection::vec((0..6_u8, 1..3_u32), 0..6);
    let event = prop_oneof![
        6 => list.prop_map(Event::Poll),
        1 => Just(Event::PollFails),
        3 => (0..6_u8).prop_map(Event::Failure),
        1 => (0..6_u8).prop_map(Event::Drain),
        1 => (0..6_u8).prop_map(Event::Readmit),
        6 => (0..3_000_u64).prop_map(Event::Pass),
    ];
    prop::collection::vec(event, 1..60)
}

fn name(number: u8) -> HostName {
    HostName::new(&format!("h{number}")).expect("a short name")
}

/// First line of a host counts.
fn unique(list: &[(u8, u32)]) -> Vec<(u8, u32)> {
    let mut seen = Vec::new();
    for (host, slots) in list {
        if seen.iter().all(|(other, _)| other != host) {
            seen.push((*host, *slots));
        }
    }
    seen
}

#[derive(Default)]
struct Model {
    hosts: Vec<(u8, u32)>,
    /// The times at which each host was blacklisted.
    failures: BTreeMap<u8, Vec<Time>>,
    drained: BTreeSet<u8>,
}

impl Model {
    fn poll(&mut self, list: &[(u8, u32)]) {
        let list = unique(list);
        let slots_of =
            |host: u8| list.iter().find(|(other, _)| *other == host).map(|(_, slots)| *slots);
        let old: Vec<u8> = self.hosts.iter().map(|(host, _)| *host).collect();
        let kept = old.iter().filter_map(|host| slots_of(*host).map(|slots| (*host, slots)));
        let new = list.iter().filter(|(host, _)| !old.contains(host)).copied();
        self.hosts = kept.chain(new).collect();
    }

    /// The least and the longest stay that the failures so far allow.
    fn stay(&self, host: u8) -> Option<(Time, Time)> {
        let failures = self.failures.get(&host)?;
        let last = *failures.last()?;
        let doublings = u32::try_from(failures.len() - 1).expect("few failures");
        let least = (MIN * 2_u32.pow(doublings.min(8))).min(MAX);
        Some((last + least, last + (least * 11 / 10).min(MAX)))
    }
}

proptest! {
    #[test]
    fn the_snapshot_is_the_models(events in events(), seed in any::<u64>()) {
        let mut config = HostManagerConfig::new(HostSource::Script);
        config.cooldown = Some(CooldownRange { min: MIN, max: MAX });
        let rng = ChaCha8Rng::seed_from_u64(seed);
        let mut core = HostManagerCore::new(config, rng, Time::ZERO);
        let mut model = Model::default();
        let mut now = Time::ZERO;
        let mut given = HostsSnapshot::default();
        core.handle_discovery(now, Ok(String::new()));

        for event in events {
            match event {
                Event::Poll(list) => {
                    now = now + Duration::from_secs(1);
                    core.handle_timeout(now);
                    let line = |(host, slots): &(u8, u32)| format!("h{host}:{slots}\n");
                    core.handle_discovery(now, Ok(list.iter().map(line).collect()));
                    model.poll(&list);
                }
                Event::PollFails => {
                    now = now + Duration::from_secs(1);
                    core.handle_timeout(now);
                    let limit = Duration::from_secs(10);
                    let error = DiscoveryError::TimedOut {
                        command: "script".to_owned(),
                        limit,
                        stderr: String::new(),
                    };
                    core.handle_discovery(now, Err(error));
                }
                Event::Failure(host) => {
                    match core.handle_failure(now, &name(host), HostFault::Failed, "it failed") {
                        FailureDecision::Blacklisted { until, .. } => {
                            // A host is blacklisted again only if its previous stay has ended: never earlier,
                            // and never twice at once.
                            if let Some((least, _)) = model.stay(host) {
                                prop_assert!(now >= least, "H-14: back too early");
                            }
                            model.failures.entry(host).or_default().push(now);
                            let (least, most) = model.stay(host).expect("it just failed");
                            let until = until.expect("there is a cooldown");
                            prop_assert!(least <= until && until <= most);
                        }
                        FailureDecision::OutAlready { .. } => {
                            let (_, most) = model.stay(host).expect("it is out");
                            prop_assert!(now < most, "out for longer than it may be");
                        }
                    }
                }
                Event::Drain(host) => {
                    let is_listed = model.hosts.iter().any(|(other, _)| *other == host);
                    let expected = match (model.drained.contains(&host), is_listed) {
                        (true, _) => DrainDecision::OutAlready,
                        (false, false) => DrainDecision::NotListed,
                        (false, true) => DrainDecision::Drained,
                    };
                    prop_assert_eq!(core.handle_drain(now, &name(host)), expected);
                    if expected == DrainDecision::Drained {
                        model.drained.insert(host);
                    }
                }
                Event::Readmit(host) => {
                    let decision = core.handle_readmit(now, &name(host));
                    if model.drained.remove(&host) {
                        prop_assert_eq!(decision, ReadmitDecision::Readmitted);
                    }
                    model.failures.remove(&host);
                }
                Event::Pass(ms) => {
                    now = now + Duration::from_millis(ms);
                    core.handle_timeout(now);
                }
            }

            let seen = core.snapshot();
            let listed: Vec<_> =
                seen.hosts.iter().map(|host| (host.name.clone(), host.slots)).collect();
            let expected: Vec<_> =
                model.hosts.iter().map(|(host, slots)| (name(*host), *slots)).collect();
            prop_assert_eq!(listed, expected, "H-17: order and slots");
            for (host, entry) in model.hosts.iter().map(|(host, _)| *host).zip(&seen.hosts) {
                if model.drained.contains(&host) {
                    prop_assert_eq!(entry.state, HostState::Drained);
                    continue;
                }
                match (model.stay(host), entry.state) {
                    (_, HostState::Drained) => prop_assert!(false, "h{} is not drained", host),
                    (None, state) => prop_assert_eq!(state, HostState::Listed),
                    (Some((least, _)), HostState::Listed) => prop_assert!(now >= least, "H-14"),
                    (Some((_, most)), HostState::Blacklisted { .. }) => prop_assert!(now < most),
                }
            }
            let is_listed = |host: &u8| model.hosts.iter().any(|(other, _)| other == host);
            let is_out = |host: &u8| seen.unlisted.iter().any(|entry| entry.name == name(*host));
            for host in model.drained.iter().filter(|host| !is_listed(host)) {
                prop_assert!(is_out(host), "D-4: the next driver knows nothing of h{}", host);
            }
            for host in model.hosts.iter().map(|(host, _)| *host) {
                prop_assert!(!is_out(&host), "h{} is listed", host);
            }
            while let Some(output) = core.poll_output() {
                let HostManagerOutput::HostsChanged(snapshot) = output else { continue };
                prop_assert!(
                    snapshot.hosts != given.hosts
                        || snapshot.unlisted != given.unlisted
                        || snapshot.warnings != given.warnings,
                    "H-19: told although nothing changed"
                );
                let update = HostUpdate::between(&given.hosts, &snapshot.hosts);
                prop_assert_eq!(snapshot.update, update);
                given = snapshot;
            }
            prop_assert_eq!(&given.hosts, &seen.hosts, "G-7: the driver knows what is");
            prop_assert_eq!(&given.unlisted, &seen.unlisted, "G-7: the driver knows who is out");
            prop_assert!(core.poll_timeout().is_none_or(|at| at > now), "nothing is overdue");
        }
    }
}
