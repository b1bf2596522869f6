//! Tests of the host manager's actor on a paused clock, with a scripted discovery: wiring, polling, time
//! limits. The core's own tests cover the list of hosts.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use actix::Addr;
use elastic_protocol::{Incarnation, NodeId, NodeName};
use elastic_runtime::{spawn_child, system};
use tokio::sync::mpsc;

use super::*;
use crate::core::{CooldownRange, HostFault, HostSlots, HostSource, HostState};
use crate::discovery::DiscoveryRun;

const DEADLINE: Duration = Duration::from_secs(60);

struct Driver(mpsc::UnboundedSender<HostReport>);

impl Actor for Driver {
    type Context = Context<Self>;
}

impl Handler<HostReport> for Driver {
    type Result = ();

    fn handle(&mut self, report: HostReport, _: &mut Context<Self>) {
        // The test may have ended.
        let _ = self.0.send(report);
    }
}

/// Prepared results of polls, in order: `None` never ends, the last one repeats.
#[derive(Clone)]
struct Prepared {
    clock: Clock,
    says: Rc<RefCell<VecDeque<Option<&'static str>>>>,
    asked_at: Rc<RefCell<Vec<Time>>>,
}

impl Discovery for Prepared {
    fn run(&mut self, _limit: Duration) -> DiscoveryRun {
        self.asked_at.borrow_mut().push(self.clock.now());
        let mut says = self.says.borrow_mut();
        let next = if says.len() > 1 { says.pop_front() } else { says.front().copied() };
        match next.flatten() {
            Some(output) => Box::pin(std::future::ready(Ok(output.to_owned()))),
            None => Box::pin(std::future::pending()),
        }
    }
}

struct Room {
    node: NodeHandle,
    manager: Addr<HostManager>,
    reports: mpsc::UnboundedReceiver<HostReport>,
    asked_at: Rc<RefCell<Vec<Time>>>,
}

impl Room {
    fn new(config: HostManagerConfig, says: &[Option<&'static str>]) -> Self {
        let local = NodeId { name: NodeName::Driver, incarnation: Incarnation(1) };
        let node = NodeHandle::new(local, 1);
        let (sender, reports) = mpsc::unbounded_channel();
        let driver = spawn_child(|_| Driver(sender), |_| {});
        let discovery = Prepared {
            clock: node.clock(),
            says: Rc::new(RefCell::new(says.iter().copied().collect())),
            asked_at: Rc::default(),
        };
        let asked_at = discovery.asked_at.clone();
        let manager = HostManager::new(&node, config, Box::new(discovery), driver.recipient());
        let manager = spawn_child(|_| manager, |_| {});
        Self { node, manager, reports, asked_at }
    }

    async fn next(&mut self) -> HostReport {
        let report = timeout(DEADLINE, self.reports.recv()).await;
        report.expect("a report in time").expect("the driver lives")
    }

    async fn hosts(&mut self) -> HostsSnapshot {
        match self.next().await {
            HostReport::Changed(snapshot) => snapshot,
            other => panic!("not a snapshot: {other:?}"),
        }
    }
}

fn name(name: &str) -> HostName {
    HostName::new(name).expect("a literal")
}

fn script() -> HostManagerConfig {
    HostManagerConfig::new(HostSource::Script)
}

#[test]
fn it_polls_a_second_after_the_last_poll_ended() {
    system::run_paused(async {
        let mut room = Room::new(script(), &[Some("a:1"), Some("a:1"), Some("a:1\nb:1")]);
        assert_eq!(room.hosts().await.hosts.len(), 1);
        assert_eq!(room.hosts().await.hosts.len(), 2);
        let asked_at = room.asked_at.borrow();
        assert_eq!(asked_at.len(), 3);
        for pair in asked_at.windows(2) {
            assert!(pair[1].since(pair[0]) >= Duration::from_secs(1));
        }
    });
}

#[test]
fn x_7_a_discovery_that_hangs_is_given_up_and_the_hosts_stay() {
    system::run_paused(async {
        let mut room = Room::new(script(), &[Some("a:1"), None, Some("a:1")]);
        room.hosts().await;
        let began = room.node.now();
        let warned = room.hosts().await;
        assert!(warned.warnings[0].contains("longer than 10s"), "{:?}", warned.warnings);
        assert_eq!(warned.hosts.len(), 1, "H-15");
        let limit = Duration::from_secs(1 + 10) + DISCOVERY_GRACE + Duration::from_secs(1);
        assert!(room.node.now().since(began) < limit);
        assert!(room.hosts().await.warnings.is_empty(), "it works again");
    });
}

#[test]
fn h_15_the_first_discoverys_failure_is_told() {
    system::run_paused(async {
        let mut room = Room::new(script(), &[None]);
        let HostReport::DiscoveryFailed(failure) = room.next().await else { panic!("not told") };
        assert!(failure.to_string().contains("took longer than"));
    });
}

#[test]
fn h_14_a_blacklisted_host_comes_back_by_itself() {
    system::run_paused(async {
        let second = Duration::from_secs(1);
        let hosts = vec![HostSlots { name: name("a"), slots: 2 }];
        let mut config = HostManagerConfig::new(HostSource::Fixed(hosts));
        config.cooldown = Some(CooldownRange { min: second, max: 2 * second });
        let mut room = Room::new(config, &[None]);
        room.hosts().await;
        room.manager.do_send(HostFailed {
            host: name("a"),
            fault: HostFault::Failed,
            reason: "it failed".to_owned(),
        });
        let out = room.hosts().await;
        let at = room.node.now();
        let HostState::Blacklisted { until: Some(until) } = out.hosts[0].state else {
            panic!("not blacklisted with an end")
        };
        assert_eq!(room.hosts().await.hosts[0].state, HostState::Listed);
        assert!(room.node.now() >= until && until.since(at) <= 2 * second);
        assert!(room.asked_at.borrow().is_empty(), "nothing is discovered for fixed hosts");
    });
}

#[test]
fn whoever_joins_is_a_host_or_hears_why_not() {
    system::run_paused(async {
        let mut room = Room::new(HostManagerConfig::new(HostSource::Joined), &[None]);
        room.manager.do_send(HostJoined { host: name("a"), slots: 1 });
        assert_eq!(room.hosts().await.hosts.len(), 1);
        room.manager.do_send(HostJoined { host: name("b"), slots: 0 });
        let HostReport::Refused { host, reason } = room.next().await else { panic!("taken") };
        assert_eq!(host, name("b"));
        assert!(reason.contains("0 slots"), "{reason}");
        room.manager.do_send(HostLeft { host: name("a") });
        assert_eq!(room.hosts().await.hosts, []);
    });
}
