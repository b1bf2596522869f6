//! Tests of the launcher's core, without processes and without a clock.

use rand::SeedableRng as _;

use super::*;

const REMOTE: RemoteRules = RemoteRules {
    failures_max: 3,
    join_within: Duration::from_secs(60),
    back_within: Duration::from_secs(5),
};
const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(1000);

fn host(name: &str) -> HostName {
    HostName::new(name).expect("a literal")
}

/// A launcher's core with the host `a`, and the current time.
struct Launcher {
    core: LauncherCore,
    now: Time,
}

impl Launcher {
    fn new(remote: Option<RemoteRules>) -> Self {
        let backoff = RestartBackoff { base: SECOND, cap: 30 * SECOND };
        let core =
            LauncherCore::new(LauncherRules { backoff, remote }, ChaCha8Rng::seed_from_u64(1));
        Self { core, now: Time::from_ms(1000) }
    }

    fn list(&mut self, is_listed: Option<bool>) -> Vec<LauncherOutput> {
        let listed = is_listed.map(|is_listed| (host("a"), is_listed)).into_iter().collect();
        self.core.handle_hosts(self.now, &listed);
        self.outputs()
    }

    fn joined(&mut self, is_joined: bool) {
        self.core.handle_joined(self.now, &host("a"), is_joined);
    }

    fn ended(&mut self, kind: EndKind) -> Vec<LauncherOutput> {
        let end = AgentProcessEnd { kind, reason: format!("{kind:?}") };
        self.core.handle_ended(self.now, &host("a"), end);
        self.outputs()
    }

    /// The outputs of the next moment at which there are any, if there is one.
    fn next(&mut self) -> Vec<LauncherOutput> {
        while let Some(at) = self.core.poll_timeout() {
            assert!(at > self.now, "a time that has passed makes no progress");
            self.now = at;
            self.core.handle_timeout(at);
            let outputs = self.outputs();
            if !outputs.is_empty() {
                return outputs;
            }
        }
        Vec::new()
    }

    fn outputs(&mut self) -> Vec<LauncherOutput> {
        std::iter::from_fn(|| self.core.poll_output()).collect()
    }
}

fn start() -> LauncherOutput {
    LauncherOutput::Start(host("a"))
}

fn reason_of(outputs: &[LauncherOutput]) -> Option<&str> {
    outputs.iter().find_map(|output| match output {
        LauncherOutput::Failed { reason, .. } => Some(reason.as_str()),
        _ => None,
    })
}

#[test]
fn a_listed_host_has_an_agent_and_one_that_left_is_asked_to_go_once_it_is_idle() {
    let mut launcher = Launcher::new(None);
    assert_eq!(launcher.list(Some(true)), [start()]);
    launcher.joined(true);
    launcher.core.handle_busy(launcher.now, &host("a"), true);
    assert_eq!(launcher.list(Some(false)), [], "blacklisted hosts keep theirs");
    assert_eq!(launcher.list(None), [], "it has workers");
    launcher.core.handle_busy(launcher.now, &host("a"), false);
    assert_eq!(launcher.outputs(), [LauncherOutput::AskToGo(host("a"))]);
    assert_eq!(launcher.ended(EndKind::Ended), []);
    assert_eq!(launcher.next(), [], "it is not listed");
    assert_eq!(launcher.list(Some(true)).len() + launcher.next().len(), 1, "it is back");
}

#[test]
fn an_agent_that_dies_is_started_again_after_waits_that_double() {
    let mut launcher = Launcher::new(None);
    launcher.list(Some(true));
    let mut waits = Vec::new();
    for _death in 0..8 {
        launcher.joined(true);
        let died = launcher.now;
        launcher.ended(EndKind::Ended);
        assert_eq!(launcher.next(), [start()]);
        waits.push(launcher.now.since(died));
    }
    assert!(waits[0] <= SECOND && waits[3] >= 4 * SECOND && waits[7] >= 15 * SECOND, "{waits:?}");
    launcher.joined(true);
    launcher.now = launcher.now + LONG;
    let died = launcher.now;
    launcher.ended(EndKind::Ended);
    launcher.next();
    assert!(launcher.now.since(died) <= SECOND, "it was well before");
}

#[test]
fn a_host_that_lets_no_agent_in_is_told_as_failing_and_tried_again_when_it_is_listed_anew() {
    let mut launcher = Launcher::new(Some(REMOTE));
    launcher.list(Some(true));
    for _failure in 0..REMOTE.failures_max {
        assert_eq!(reason_of(&launcher.ended(EndKind::Refused)), None);
        assert_eq!(launcher.next(), [start()]);
    }
    assert_eq!(reason_of(&launcher.ended(EndKind::Refused)), Some("Refused"));
    assert_eq!(launcher.next(), [], "nothing more is tried");
    assert_eq!(launcher.list(Some(false)), [], "it is blacklisted");
    launcher.now = launcher.now + LONG;
    assert_eq!(launcher.list(Some(true)), [start()], "its cooldown is over");
}

#[test]
fn a_host_that_was_there_and_cannot_be_reached_is_waited_for() {
    let mut launcher = Launcher::new(Some(REMOTE));
    launcher.list(Some(true));
    launcher.joined(true);
    launcher.joined(false);
    for _attempt in 0..50 {
        assert_eq!(reason_of(&launcher.ended(EndKind::Unreachable)), None);
        assert_eq!(launcher.next(), [start()]);
    }
    launcher.joined(true);
    assert_eq!(launcher.next(), [], "it is back");
}

#[test]
fn an_agent_that_is_still_joined_outlives_the_way_to_it() {
    let mut launcher = Launcher::new(Some(REMOTE));
    launcher.list(Some(true));
    launcher.joined(true);
    launcher.ended(EndKind::Unreachable);
    assert_eq!(launcher.next(), [], "another would be refused");
    launcher.joined(false);
    let mut outputs = launcher.outputs();
    outputs.extend(launcher.next());
    assert_eq!(outputs, [start()]);
}

#[test]
fn what_is_not_heard_of_is_given_up_where_nobody_sees_the_process() {
    let mut launcher = Launcher::new(Some(REMOTE));
    launcher.list(Some(true));
    let started = launcher.now;
    assert_eq!(launcher.next(), [LauncherOutput::Kill(host("a"))], "it never joined");
    assert_eq!(launcher.now.since(started), REMOTE.join_within);
    launcher.ended(EndKind::Unreachable);
    launcher.next();
    launcher.joined(true);
    assert_eq!(launcher.next(), []);
    launcher.joined(false);
    let lost = launcher.now;
    launcher.now = lost + SECOND;
    launcher.joined(true);
    assert_eq!(launcher.next(), [], "it was back in time");
    launcher.joined(false);
    assert_eq!(launcher.next(), [LauncherOutput::Kill(host("a"))]);
    let mut local = Launcher::new(None);
    local.list(Some(true));
    assert_eq!(local.next(), [], "here its end would be seen");
}

#[test]
fn agents_of_a_former_driver_have_the_time_to_come_back() {
    let mut launcher = Launcher::new(None);
    launcher.core.adopt(launcher.now, [host("a"), host("gone")].into_iter());
    assert_eq!(launcher.list(Some(true)), []);
    let began = launcher.now;
    assert_eq!(launcher.next(), [start()]);
    assert_eq!(launcher.now.since(began), BACK_WITHIN);
    let mut launcher = Launcher::new(None);
    launcher.core.adopt(launcher.now, [host("a")].into_iter());
    launcher.list(Some(true));
    launcher.joined(true);
    assert_eq!(launcher.next(), [], "it is back");
    launcher.joined(false);
    assert_eq!(launcher.outputs(), [start()]);
}

#[test]
fn when_the_job_is_over_nothing_is_started_and_who_is_left_is_killed_once() {
    let mut launcher = Launcher::new(Some(REMOTE));
    launcher.list(Some(true));
    launcher.core.start_no_more();
    launcher.core.kill_all();
    launcher.core.kill_all();
    assert_eq!(launcher.outputs(), [LauncherOutput::Kill(host("a"))]);
    assert_eq!(launcher.core.running(), 1);
    assert_eq!(launcher.ended(EndKind::Unreachable), []);
    assert_eq!((launcher.core.running(), launcher.next()), (0, vec![]));
}
