//! Property tests of a node's peers: the invariants hold for any order of events.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use elastic_protocol::{Deadlines, HostName, Incarnation, NodeId, NodeName, Time};
use elastic_runtime::session::{
    Ack, Resume, SessionHello, SessionId, SessionLimits, SessionWelcome,
};
use elastic_runtime::transport::{Conversation, LinkEvent, LossReason, TransportEvent};
use proptest::prelude::*;

use super::*;

const BEAT: Duration = Duration::from_millis(100);
const NODES: usize = 3;

fn node(number: usize) -> NodeId {
    let name = match number {
        0 => NodeName::Driver,
        _ => NodeName::Agent(HostName::new(&format!("h{number}")).expect("a host name")),
    };
    NodeId { name, incarnation: Incarnation(1) }
}

#[derive(Clone, Debug)]
enum Step {
    /// A hello of a node, which remembers its session or not.
    Hello {
        node: usize,
        resumes: bool,
    },
    /// This end has dialled the driver.
    Dial {
        is_answered: bool,
    },
    Heard {
        node: usize,
    },
    Send {
        node: usize,
    },
    Acknowledged {
        node: usize,
        frames: u64,
    },
    LinkEnds {
        node: usize,
        closes: bool,
    },
    Close {
        node: usize,
    },
    Wait {
        ms: u64,
    },
    /// This process is paused.
    Pause {
        ms: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let node = 1..NODES;
    prop_oneof![
        4 => (node.clone(), any::<bool>()).prop_map(|(node, resumes)| Step::Hello { node, resumes }),
        2 => any::<bool>().prop_map(|is_answered| Step::Dial { is_answered }),
        4 => (0..NODES).prop_map(|node| Step::Heard { node }),
        3 => (0..NODES).prop_map(|node| Step::Send { node }),
        2 => (0..NODES, 0_u64..4).prop_map(|(node, frames)| Step::Acknowledged { node, frames }),
        2 => (0..NODES, any::<bool>()).prop_map(|(node, closes)| Step::LinkEnds { node, closes }),
        1 => node.prop_map(|node| Step::Close { node }),
        4 => (1_u64..3000).prop_map(|ms| Step::Wait { ms }),
        1 => (1_u64..160_000).prop_map(|ms| Step::Pause { ms }),
    ]
}

/// An observer's knowledge of a peer.
#[derive(Default)]
struct Seen {
    is_up: bool,
    heard_at: Time,
    /// Total pause of this process since then.
    paused: Duration,
    /// The session that is being closed, and the time of its end.
    closes: Option<(SessionId, Time)>,
}

struct Life {
    now: Time,
    core: PeersCore,
    seen: BTreeMap<NodeId, Seen>,
    sessions: u64,
    drained_at: Option<Time>,
}

impl Life {
    fn new(is_dialler: bool) -> Self {
        let mut core = PeersCore::new(Deadlines::default(), BEAT);
        if is_dialler {
            core.add_dialled(Time::ZERO, &node(0));
        }
        let seen = (0..NODES).map(|number| (node(number), Seen::default())).collect();
        Self { now: Time::ZERO, core, seen, sessions: 0, drained_at: None }
    }

    fn fresh(&mut self) -> SessionId {
        self.sessions += 1;
        SessionId(self.sessions)
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Hello { node: number, resumes } => self.hello(number, resumes),
            Step::Dial { is_answered } => self.dial(is_answered),
            Step::Heard { node: number } => {
                if let Some(link) = self.core.link(&node(number)) {
                    self.core.handle_heard(link, self.now);
                    self.note_heard(&node(number));
                }
            }
            Step::Send { node: number } => {
                let _ = self.core.send(&node(number), Conversation::Control, Bytes::from("x"));
            }
            Step::Acknowledged { node: number, frames } => {
                if let Some(link) = self.core.link(&node(number)) {
                    while let Ok(Some(_)) = self.core.poll_transmit(link, Conversation::Control) {}
                    let ack = Ack { conversation: Conversation::Control, frames };
                    let _ = self.core.handle_ack(link, ack);
                }
            }
            Step::LinkEnds { node: number, closes } => {
                if let Some(link) = self.core.link(&node(number)) {
                    let end =
                        if closes { LinkEnd::Closed("x".to_owned()) } else { LinkEnd::Broken };
                    self.core.handle_link_end(self.now, link, end);
                }
            }
            Step::Close { node: number } => {
                let session = self.core.session(&node(number));
                self.core.close(self.now, &node(number), "enough", None);
                let at = self.drained_at.unwrap_or(self.now + CLOSE_GRACE);
                let seen = self.seen.get_mut(&node(number)).expect("all are known");
                let is_closing = seen.closes.is_some_and(|(closing, _)| Some(closing) == session);
                if let Some(session) = session.filter(|_| !is_closing) {
                    seen.closes = Some((session, at));
                }
            }
            Step::Wait { ms } => self.wait_until(self.now + Duration::from_millis(ms)),
            Step::Pause { ms } => self.pause(Duration::from_millis(ms)),
        }
        self.observe();
    }

    fn hello(&mut self, number: usize, resumes: bool) {
        let node = node(number);
        let fresh = self.fresh();
        let session = self.core.session(&node).filter(|_| resumes);
        let resume = session.map(|session| Resume { session, delivered: Vec::new() });
        let answer = self.core.handle_hello(self.now, &node, &SessionHello { resume, fresh });
        assert_eq!(answer.is_err(), self.drained_at.is_some(), "a draining node refuses hellos");
        if answer.is_ok() {
            self.note_heard(&node);
        }
    }

    fn dial(&mut self, is_answered: bool) {
        let fresh = self.fresh();
        let Some(hello) = self.core.hello(&node(0), fresh) else { return };
        if is_answered {
            let session = hello.resume.map_or(hello.fresh, |resume| resume.session);
            let welcome = SessionWelcome(Resume { session, delivered: Vec::new() });
            if self.core.handle_welcome(self.now, &node(0), &welcome).is_ok() {
                self.note_heard(&node(0));
            }
        }
    }

    fn note_heard(&mut self, node: &NodeId) {
        let seen = self.seen.get_mut(node).expect("all are known");
        (seen.heard_at, seen.paused) = (self.now, Duration::ZERO);
    }

    fn wait_until(&mut self, at: Time) {
        while let Some(due) = self.core.poll_timeout().filter(|due| *due <= at) {
            self.now = self.now.max(due);
            assert_eq!(self.core.handle_timeout(self.now), None, "on time is no pause");
            self.observe();
        }
        self.now = at;
    }

    fn pause(&mut self, pause: Duration) {
        self.now = self.now + pause;
        let counted = self.core.handle_timeout(self.now);
        assert!(counted.is_none_or(|counted| counted <= pause));
        for seen in self.seen.values_mut() {
            seen.paused += counted.unwrap_or_default();
        }
    }

    /// Checks that the node was told the truth.
    fn observe(&mut self) {
        assert_eq!(self.core.check(), Ok(()));
        let Deadlines { suspect, lost, .. } = Deadlines::default();
        while self.core.poll_output().is_some() {}
        while let Some(event) = self.core.poll_event() {
            let TransportEvent::Link { peer, event } = event else { continue };
            let seen = self.seen.get_mut(&peer).expect("all are known");
            let silence = self.now.since(seen.heard_at).saturating_sub(seen.paused);
            match event {
                LinkEvent::Up => {
                    assert!(!seen.is_up, "TR-2");
                    (seen.is_up, seen.heard_at, seen.paused) = (true, self.now, Duration::ZERO);
                }
                LinkEvent::Silent { .. } => assert!(silence >= suspect, "{peer}: {silence:?}"),
                LinkEvent::Heard => assert!(seen.is_up),
                LinkEvent::Lost { reason, .. } => {
                    assert!(std::mem::take(&mut seen.is_up), "TR-2");
                    if let LossReason::Silence { .. } = reason {
                        let keep = if peer == node(0) { RESUME_WITHIN } else { lost };
                        assert!(silence >= keep, "TR-5: {peer} after {silence:?}");
                    }
                }
            }
        }
        self.check();
    }

    fn check(&self) {
        for (node, seen) in &self.seen {
            let session = self.core.session(node);
            assert_eq!(session.is_some(), seen.is_up, "TR-2: {node}");
            if session.is_some() {
                assert!(self.core.poll_timeout().is_some(), "{node} has no deadline");
            }
            if let Some((closed, at)) = seen.closes {
                let is_kept = session == Some(closed) && self.now > at;
                let is_due = self.core.poll_timeout().is_some_and(|due| due <= self.now);
                assert!(!is_kept || is_due, "{node} is kept alive after its end");
            }
        }
        if let Some(until) = self.drained_at.filter(|until| *until <= self.now) {
            let is_due = self.core.poll_timeout().is_some_and(|due| due <= self.now);
            assert!(
                is_due || self.core.stage() == TransportStage::Closed,
                "still there after {until:?}"
            );
        }
        if self.core.stage() == TransportStage::Closed {
            assert_eq!(self.core.peer_count(), 0);
        }
    }
}

proptest! {
    #[test]
    fn no_peer_is_judged_early_or_kept_without_a_deadline(
        is_dialler: bool,
        steps in prop::collection::vec(step(), 0..120),
    ) {
        let mut life = Life::new(is_dialler);
        steps.iter().for_each(|step| life.step(step));
        // Every session that is left ends by silence.
        life.wait_until(life.now + RESUME_WITHIN * 3);
        life.observe();
        prop_assert!(life.seen.values().all(|seen| !seen.is_up), "a silent peer is never lost");
        prop_assert!(life.core.peer_count() <= usize::from(is_dialler));
    }

    #[test]
    fn a_draining_node_ends_in_time_whatever_comes(
        is_dialler: bool,
        before in prop::collection::vec(step(), 0..40),
        grace_ms in 0_u64..5000,
        after in prop::collection::vec(step(), 0..80),
    ) {
        let mut life = Life::new(is_dialler);
        before.iter().for_each(|step| life.step(step));
        let grace = Duration::from_millis(grace_ms);
        life.drained_at = Some(life.now + grace);
        life.core.drain(life.now, "done", grace);
        life.observe();
        after.iter().for_each(|step| life.step(step));
        if let Some(until) = life.drained_at.filter(|until| *until > life.now) {
            life.wait_until(until);
            life.observe();
        }
        life.wait_until(life.now);
        life.observe();
        prop_assert_eq!(life.core.stage(), TransportStage::Closed);
        prop_assert!(life.seen.values().all(|seen| !seen.is_up));
        prop_assert_eq!(life.core.poll_timeout(), None);
    }
}

#[test]
fn a_closed_peer_that_dials_again_gets_a_session_of_its_own() {
    let mut life = Life::new(false);
    life.hello(1, false);
    let first = life.core.session(&node(1)).expect("greeted");
    life.core.send(&node(1), Conversation::Control, Bytes::from("last words")).expect("taken");
    life.core.close(life.now, &node(1), "enough", None);
    life.hello(1, true);
    assert_eq!(life.core.session(&node(1)), Some(first), "what is queued may still leave");
    life.hello(1, false);
    let second = life.core.session(&node(1)).expect("greeted");
    assert_ne!(first, second);
    life.observe();
    life.wait_until(life.now + CLOSE_GRACE * 2);
    assert_eq!(life.core.session(&node(1)), Some(second), "the end was the first one's");
}

#[test]
fn after_a_pause_of_its_own_a_node_waits_for_its_peers_to_come_back() {
    let mut life = Life::new(false);
    life.hello(1, false);
    let session = life.core.session(&node(1));
    life.wait_until(Time::from_ms(500));
    let link = life.core.link(&node(1)).expect("attached");
    life.pause(Duration::from_secs(20));
    life.core.handle_link_end(life.now, link, LinkEnd::Broken);
    life.wait_until(life.now + Duration::from_secs(4));
    life.hello(1, true);
    life.observe();
    assert_eq!(life.core.session(&node(1)), session, "D-3: gone on with");
}

#[test]
fn a_core_that_stops_closes_every_connection() {
    let mut life = Life::new(false);
    life.hello(1, false);
    life.hello(2, false);
    let mut links: Vec<_> = [1, 2].map(|number| life.core.link(&node(number))).into();
    while life.core.poll_output().is_some() {}
    life.core.stop("its process ends");
    let mut closed = Vec::new();
    while let Some(output) = life.core.poll_output() {
        let LinkOutput::Close { link, code, .. } = output else { panic!("{output:?}") };
        assert_eq!(code, CloseCode::Closed);
        closed.push(Some(link));
    }
    links.sort_unstable();
    closed.sort_unstable();
    assert_eq!(closed, links);
    assert_eq!(life.core.stage(), TransportStage::Closed);
    assert_eq!((life.core.peer_count(), life.core.check()), (0, Ok(())));
}

#[test]
fn each_session_that_is_closing_ends_in_its_own_time() {
    let mut life = Life::new(false);
    let ms = Duration::from_millis;
    for (number, grace) in [(1, ms(50)), (2, ms(150))] {
        life.hello(number, false);
        let frame = Bytes::from("unanswered");
        life.core.send(&node(number), Conversation::Control, frame).expect("taken");
        life.core.close(life.now, &node(number), "enough", Some(grace));
    }
    life.wait_until(life.now);
    life.wait_until(Time::from_ms(50));
    let has_session = |life: &Life| [1, 2].map(|it| life.core.session(&node(it)).is_some());
    assert_eq!(has_session(&life), [false, true]);
    life.wait_until(Time::from_ms(150));
    assert_eq!(has_session(&life), [false, false]);
}

#[test]
fn a_node_that_drains_waits_for_no_session_that_was_closing_for_longer() {
    let mut life = Life::new(false);
    life.hello(1, false);
    life.core.send(&node(1), Conversation::Control, Bytes::from("unanswered")).expect("taken");
    life.core.close(life.now, &node(1), "enough", Some(CLOSE_GRACE));
    life.core.drain(life.now, "done", CLOSE_GRACE / 5);
    life.wait_until(life.now + CLOSE_GRACE / 5);
    assert_eq!(life.core.stage(), TransportStage::Closed);
}

#[test]
fn tr_5_a_refusal_is_judged_when_it_is_due_and_not_at_the_next_look() {
    let look_every = Deadlines::default().suspect;
    let mut core = PeersCore::<Bytes>::new(Deadlines::default(), look_every);
    let hello = SessionHello { resume: None, fresh: SessionId(1) };
    let (link, _) = core.handle_hello(Time::ZERO, &node(1), &hello).expect("open");
    core.handle_refused(Time::ZERO, link);
    let due = core.poll_timeout().expect("it has a session");
    assert!(due < Time::ZERO + look_every, "{due:?}");
    core.handle_timeout(due);
    assert_eq!(core.session(&node(1)), None, "its port is closed");
}

#[test]
fn only_a_peer_that_this_end_connects_with_is_dialled() {
    let mut life = Life::new(true);
    life.hello(1, false);
    assert!(life.core.is_dialled(&node(0)));
    assert!(!life.core.is_dialled(&node(1)), "it has made the connection itself");
    assert!(!life.core.is_dialled(&node(2)), "it is not known");
}

#[test]
fn another_node_at_the_same_address_ends_the_session_with_the_one_before() {
    let mut life = Life::new(true);
    life.dial(true);
    life.observe();
    let another = NodeId { incarnation: Incarnation(2), ..node(0) };
    life.core.replace_dialled(life.now, &node(0), &another);
    let event = life.core.poll_event().expect("the node is told");
    let TransportEvent::Link { peer, event: LinkEvent::Lost { reason, .. } } = event else {
        panic!("{event:?}");
    };
    assert_eq!((peer, reason), (node(0), LossReason::Forgotten));
    assert_eq!(life.core.session(&node(0)), None);
    assert!(life.core.is_dialled(&another) && !life.core.is_dialled(&node(0)));
}

#[test]
fn a_session_that_is_closing_ends_with_its_last_acknowledgement() {
    let mut life = Life::new(false);
    life.hello(1, false);
    life.core.send(&node(1), Conversation::Control, Bytes::from("last words")).expect("taken");
    let link = life.core.link(&node(1)).expect("attached");
    life.core.poll_transmit(link, Conversation::Control).expect("attached").expect("one frame");
    life.core.close(life.now, &node(1), "enough", None);
    life.wait_until(life.now + CLOSE_GRACE / 4);
    assert!(life.core.session(&node(1)).is_some(), "a frame is on its way");
    let ack = Ack { conversation: Conversation::Control, frames: 1 };
    life.core.handle_ack(link, ack).expect("it was on its way");
    life.wait_until(life.now);
    assert_eq!(life.core.session(&node(1)), None, "nothing is left to wait for");
}

#[test]
fn a_session_that_is_closing_ends_when_a_new_connection_tells_of_its_last_delivery() {
    let mut life = Life::new(false);
    life.hello(1, false);
    let session = life.core.session(&node(1)).expect("greeted");
    life.core.send(&node(1), Conversation::Control, Bytes::from("last words")).expect("taken");
    let link = life.core.link(&node(1)).expect("attached");
    life.core.poll_transmit(link, Conversation::Control).expect("attached").expect("one frame");
    life.core.close(life.now, &node(1), "enough", None);
    life.wait_until(life.now);
    life.core.handle_link_end(life.now, link, LinkEnd::Broken);
    let delivered = vec![Ack { conversation: Conversation::Control, frames: 1 }];
    let resume = Some(Resume { session, delivered });
    let hello = SessionHello { resume, fresh: SessionId(9) };
    life.core.handle_hello(life.now, &node(1), &hello).expect("open");
    life.wait_until(life.now);
    assert_eq!(life.core.session(&node(1)), None, "nothing is left to wait for");
}

#[test]
fn a_write_takes_acknowledgements_along_and_asks_for_none_where_nothing_was_delivered() {
    let mut life = Life::new(false);
    life.hello(1, false);
    let link = life.core.link(&node(1)).expect("attached");
    life.observe();
    life.core.handle_written(link);
    assert!(life.core.poll_output().is_none(), "nothing is to be acknowledged");
}

#[test]
fn bulk_is_sent_on_once_an_acknowledgement_has_opened_its_window_again() {
    let mut life = Life::new(false);
    life.hello(1, false);
    let link = life.core.link(&node(1)).expect("attached");
    let bulk = Conversation::Bulk(0);
    let frame = Bytes::from(vec![0; SessionLimits::DEFAULT.flight_bytes / 4]);
    let mut sent = 0;
    while life.core.send(&node(1), bulk, frame.clone()).is_ok() {
        sent += 1;
    }
    let mut on_their_way = 0;
    while let Ok(Some(_)) = life.core.poll_transmit(link, bulk) {
        on_their_way += 1;
    }
    assert!(0 < on_their_way && on_their_way < sent, "{on_their_way} of {sent}");
    let wakes = |life: &mut Life| {
        let outputs = std::iter::from_fn(|| life.core.poll_output());
        outputs.filter(|output| matches!(output, LinkOutput::Wake { .. })).count()
    };
    wakes(&mut life);
    let ack = |frames| Ack { conversation: bulk, frames };
    life.core.handle_ack(link, ack(on_their_way)).expect("they were on their way");
    assert_eq!(wakes(&mut life), 1, "the shell is told to go on");
    life.core.poll_transmit(link, bulk).expect("attached").expect("the next one");
    life.core.handle_ack(link, ack(on_their_way + 1)).expect("it was on its way");
    assert_eq!(wakes(&mut life), 0, "the window was open");
}
