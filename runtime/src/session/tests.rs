//! Tests of a session over a pipe that loses, repeats, breaks and forgets (TR-1, TR-2, TR-6).

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::transport::{Conversation, LossReason, SendErrorReason};

const CONVERSATIONS: [Conversation; 3] =
    [Conversation::Control, Conversation::Bulk(0), Conversation::Bulk(7)];

#[derive(Clone, Debug)]
enum Wire {
    Frame(Conversation, u64, Bytes),
    Ack(Ack),
}

#[derive(Clone, Debug)]
enum Step {
    Send(usize, usize),
    Transmit(usize),
    Acknowledge(usize),
    Arrive(usize),
    Lose(usize),
    Repeat(usize),
    Break,
    Connect { welcome_arrives: bool },
    GiveUp(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let side = 0_usize..2;
    prop_oneof![
        8 => (side.clone(), 0_usize..3).prop_map(|(side, conversation)| Step::Send(side, conversation)),
        8 => side.clone().prop_map(Step::Transmit),
        4 => side.clone().prop_map(Step::Acknowledge),
        12 => side.clone().prop_map(Step::Arrive),
        1 => side.clone().prop_map(Step::Lose),
        1 => side.clone().prop_map(Step::Repeat),
        1 => Just(Step::Break),
        3 => any::<bool>().prop_map(|welcome_arrives| Step::Connect { welcome_arrives }),
        1 => side.prop_map(Step::GiveUp),
    ]
}

/// Observations at one end. Each frame is named by a number that is never used twice.
#[derive(Default)]
struct Seen {
    /// Frames that the session took from this end, and that are neither delivered nor handed back yet.
    open: BTreeMap<(SessionId, Conversation), VecDeque<u32>>,
    delivered: usize,
    handed_back: Vec<u32>,
    up: bool,
}

struct Pipe {
    ends: [SessionCore; 2],
    /// Messages on their way to each end.
    wires: [VecDeque<Wire>; 2],
    seen: [Seen; 2],
    next_name: u32,
    next_session: u64,
}

fn name_of(frame: &Bytes) -> u32 {
    u32::from_le_bytes(frame[..4].try_into().expect("every frame has four bytes"))
}

impl Pipe {
    fn new(limits: SessionLimits) -> Self {
        Self {
            ends: [SessionCore::new(limits), SessionCore::new(limits)],
            wires: Default::default(),
            seen: Default::default(),
            next_name: 0,
            next_session: 0,
        }
    }

    fn events(&mut self) {
        for end in &self.ends {
            assert_eq!(end.check(), Ok(()));
        }
        for (end, seen) in self.ends.iter_mut().zip(&mut self.seen) {
            while let Some(event) = end.poll_event() {
                match event {
                    SessionEvent::Up => {
                        assert!(!seen.up, "TR-2: Up within a session");
                        seen.up = true;
                    }
                    SessionEvent::Lost(_) => {
                        assert!(seen.up, "TR-2: Lost without a session");
                        seen.up = false;
                    }
                    SessionEvent::Undeliverable { frame, .. } => {
                        let name = name_of(&frame);
                        assert!(!seen.handed_back.contains(&name), "TR-2: handed back once");
                        seen.handed_back.push(name);
                        seen.open.values_mut().for_each(|open| open.retain(|it| *it != name));
                    }
                }
            }
        }
    }

    fn disconnect(&mut self) {
        self.wires.iter_mut().for_each(VecDeque::clear);
        self.ends.iter_mut().for_each(SessionCore::handle_disconnect);
    }

    fn connect(&mut self, welcome_arrives: bool) {
        self.disconnect();
        self.next_session += 1;
        let hello = self.ends[0].hello(SessionId(self.next_session));
        let hello = SessionHello::decode(&hello.encode().expect("small")).expect("just encoded");
        let welcome = self.ends[1].handle_hello(&hello);
        if welcome_arrives {
            let welcome =
                SessionWelcome::decode(&welcome.encode().expect("small")).expect("just encoded");
            self.ends[0].handle_welcome(&welcome).expect("an honest answer");
        } else {
            self.disconnect();
        }
    }

    fn send(&mut self, side: usize, conversation: Conversation, bytes: usize) {
        let name = self.next_name;
        self.next_name += 1;
        let mut frame = name.to_le_bytes().to_vec();
        frame.resize(bytes.max(4), 0);
        match self.ends[side].send(conversation, Bytes::from(frame)) {
            Ok(()) => {
                let session = self.ends[side].session().expect("it was taken");
                self.seen[side].open.entry((session, conversation)).or_default().push_back(name);
            }
            Err(refused) => assert_eq!(name_of(&refused.frame), name, "TR-6: given back"),
        }
    }

    fn transmit(&mut self, side: usize) {
        for conversation in CONVERSATIONS {
            while let Some(transmit) = self.ends[side].poll_transmit(conversation) {
                let wire = Wire::Frame(conversation, transmit.sequence, transmit.frame);
                self.wires[1 - side].push_back(wire);
            }
        }
    }

    fn acknowledge(&mut self, side: usize) {
        while let Some(ack) = self.ends[side].poll_ack() {
            self.wires[1 - side].push_back(Wire::Ack(ack));
        }
    }

    fn arrive(&mut self, side: usize) {
        let Some(wire) = self.wires[side].pop_front() else { return };
        let end = &mut self.ends[side];
        let outcome = match wire {
            Wire::Ack(ack) => end.handle_ack(ack),
            Wire::Frame(conversation, sequence, frame) => {
                end.handle_frame(conversation, sequence, frame.len()).map(|arrival| {
                    if arrival == Arrival::Deliver {
                        let session = end.session().expect("TR-2: nothing outside of a session");
                        let open = self.seen[1 - side].open.get_mut(&(session, conversation));
                        let next = open.and_then(VecDeque::pop_front);
                        assert_eq!(next, Some(name_of(&frame)), "TR-1: in order, once, no gap");
                        self.seen[side].delivered += 1;
                    }
                })
            }
        };
        if outcome.is_err() {
            self.disconnect();
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Send(side, conversation) => self.send(side, CONVERSATIONS[conversation], 40),
            Step::Transmit(side) => self.transmit(side),
            Step::Acknowledge(side) => self.acknowledge(side),
            Step::Arrive(side) => self.arrive(side),
            Step::Lose(side) => drop(self.wires[side].pop_front()),
            Step::Repeat(side) => {
                if let Some(wire @ Wire::Frame(..)) = self.wires[side].front().cloned() {
                    self.wires[side].push_front(wire);
                }
            }
            Step::Break => self.disconnect(),
            Step::Connect { welcome_arrives } => self.connect(welcome_arrives),
            Step::GiveUp(side) => {
                self.disconnect();
                self.ends[side].end(LossReason::Silence { silent_ms: 2000 });
            }
        }
        self.events();
    }

    /// Makes a good connection and lets everything travel that can.
    fn settle(&mut self) {
        self.connect(true);
        for _ in 0..1000 {
            for side in [0, 1] {
                self.transmit(side);
                self.acknowledge(side);
                while !self.wires[side].is_empty() {
                    self.arrive(side);
                }
            }
        }
        self.events();
        assert!(self.ends.iter().all(SessionCore::is_flushed));
    }

    fn check(&self) {
        for seen in &self.seen {
            assert!(seen.open.values().all(VecDeque::is_empty), "TR-2: neither delivered nor back");
        }
    }
}

fn small() -> SessionLimits {
    SessionLimits {
        control_frames: 20,
        control_bytes: 500,
        bulk_frames: 20,
        bulk_bytes: 500,
        flight_bytes: 100,
        ..SessionLimits::DEFAULT
    }
}

proptest! {
    #[test]
    fn frames_are_delivered_once_and_in_order_or_handed_back(
        steps in prop::collection::vec(step(), 0..300)
    ) {
        let mut pipe = Pipe::new(small());
        steps.iter().for_each(|step| pipe.step(step));
        pipe.settle();
        pipe.check();
    }

    #[test]
    fn any_bytes_are_safe_as_greetings(bytes in prop::collection::vec(any::<u8>(), 0..5000)) {
        let _ = SessionHello::decode(&bytes);
        let _ = SessionWelcome::decode(&bytes);
    }

    #[test]
    fn a_lying_peer_does_no_harm(
        delivered in prop::collection::vec((0_usize..3, 0_u64..6), 0..8),
        acks in prop::collection::vec((0_usize..3, any::<u64>()), 0..8),
    ) {
        let mut pipe = Pipe::new(small());
        pipe.connect(true);
        for conversation in CONVERSATIONS {
            pipe.send(1, conversation, 8);
            pipe.send(1, conversation, 8);
        }
        pipe.transmit(1);
        for (conversation, frames) in acks {
            let ack = Ack { conversation: CONVERSATIONS[conversation], frames };
            let _ = pipe.ends[1].handle_ack(ack);
        }
        let delivered = delivered
            .into_iter()
            .map(|(index, frames)| Delivered { conversation: CONVERSATIONS[index], frames })
            .collect();
        let session = pipe.ends[1].session().expect("connected");
        let resume = Some(Resume { session, delivered });
        pipe.ends[1].handle_hello(&SessionHello { resume, fresh: SessionId(99) });
        pipe.events();
        prop_assert!(pipe.ends[1].queued_frames() <= 6);
    }
}

#[test]
fn a_broken_connection_is_resumed_unseen() {
    let mut pipe = Pipe::new(SessionLimits::DEFAULT);
    pipe.connect(true);
    let session = pipe.ends[0].session();
    for _ in 0..5 {
        pipe.send(0, Conversation::Control, 8);
    }
    pipe.transmit(0);
    pipe.arrive(1);
    pipe.arrive(1);
    pipe.connect(true);
    assert_eq!(pipe.ends[0].queued_frames(), 3, "the hello told of two");
    pipe.settle();
    pipe.check();
    assert_eq!(pipe.ends[0].session(), session);
    assert!(pipe.seen[0].handed_back.is_empty());
    assert_eq!(pipe.seen[1].delivered, 5);
}

#[test]
fn an_answer_that_was_lost_begins_no_second_session() {
    let mut pipe = Pipe::new(SessionLimits::DEFAULT);
    pipe.connect(false);
    let session = pipe.ends[1].session();
    pipe.send(1, Conversation::Control, 8);
    pipe.settle();
    assert_eq!(pipe.ends[1].session(), session);
    assert_eq!(pipe.seen[0].delivered, 1);
}

#[test]
fn an_end_that_forgot_begins_anew() {
    let mut pipe = Pipe::new(SessionLimits::DEFAULT);
    pipe.connect(true);
    pipe.send(0, Conversation::Control, 8);
    pipe.ends[1] = SessionCore::new(SessionLimits::DEFAULT);
    pipe.seen[1].up = false;
    pipe.connect(true);
    assert_eq!(pipe.ends[0].poll_event(), Some(SessionEvent::Up), "the first session");
    assert_eq!(pipe.ends[0].poll_event(), Some(SessionEvent::Lost(LossReason::Forgotten)));
    assert!(matches!(pipe.ends[0].poll_event(), Some(SessionEvent::Undeliverable { .. })));
    assert_eq!(pipe.ends[0].poll_event(), Some(SessionEvent::Up));
}

#[test]
fn queues_are_bounded_and_bulk_takes_nothing_from_control() {
    let limits = SessionLimits { reserve_bytes: 0, ..small() };
    let mut core = SessionCore::new(limits);
    let frame = || Bytes::from_static(&[0; 100]);
    let refused = core.send(Conversation::Control, frame()).expect_err("no session");
    assert_eq!(refused.reason, SendErrorReason::NoSession);
    core.handle_hello(&SessionHello { resume: None, fresh: SessionId(1) });
    for _ in 0..5 {
        core.send(Conversation::Bulk(0), frame()).expect("within 500 bytes");
    }
    let refused = core.send(Conversation::Bulk(1), frame()).expect_err("500 bytes are queued");
    assert_eq!(refused.reason, SendErrorReason::Full);
    core.send(Conversation::Control, frame()).expect("TR-3: control has its own bound");
    let large = Bytes::from(vec![0; limits.frame_bytes + 1]);
    let refused = core.send(Conversation::Control, large).expect_err("too large");
    assert_eq!(refused.reason, SendErrorReason::TooLarge);
    core.poll_transmit(Conversation::Bulk(0)).expect("the way is free");
    assert_eq!(core.poll_transmit(Conversation::Bulk(0)), None, "100 bytes are on their way");
    core.poll_transmit(Conversation::Control).expect("TR-3: control does not wait for bulk");
}

#[test]
fn what_was_acknowledged_makes_room() {
    let mut core = SessionCore::new(small());
    core.handle_hello(&SessionHello { resume: None, fresh: SessionId(1) });
    for frames in 1..=30 {
        let frame = Bytes::from_static(&[0; 100]);
        core.send(Conversation::Control, frame).expect("TR-6: nothing else is queued");
        core.poll_transmit(Conversation::Control).expect("the way is free");
        let ack = Ack { conversation: Conversation::Control, frames };
        core.handle_ack(ack).expect("it was on its way");
    }
}

#[test]
fn the_reserve_of_a_conversation_is_bounded_in_bytes_and_in_frames() {
    let limits = SessionLimits { bulk_frames: 0, bulk_bytes: 0, reserve_bytes: 2 << 10, ..small() };
    let mut core = SessionCore::new(limits);
    core.handle_hello(&SessionHello { resume: None, fresh: SessionId(1) });
    let large = Bytes::from(vec![0; limits.reserve_bytes + 1]);
    let refused = core.send(Conversation::Bulk(0), large).expect_err("TR-6: more than the reserve");
    assert_eq!(refused.reason, SendErrorReason::Full);
    let small = || Bytes::from_static(&[0; 4]);
    core.send(Conversation::Bulk(0), small()).expect("the first of two");
    core.send(Conversation::Bulk(0), small()).expect("the second of two");
    let refused = core.send(Conversation::Bulk(0), small()).expect_err("TR-6: a frame too many");
    assert_eq!(refused.reason, SendErrorReason::Full);
}

#[test]
fn an_acknowledgement_is_due_with_its_number_of_frames_and_not_before() {
    let limits = SessionLimits { ack_frames: 3, ..SessionLimits::DEFAULT };
    let mut core = SessionCore::<Bytes>::new(limits);
    core.handle_hello(&SessionHello { resume: None, fresh: SessionId(1) });
    for sequence in 0..3 {
        assert!(!core.is_ack_due(Conversation::Control), "{sequence} of 3 frames");
        core.handle_frame(Conversation::Control, sequence, 4).expect("in order");
    }
    assert!(core.is_ack_due(Conversation::Control));
    core.poll_ack().expect("something is untold");
    assert!(!core.is_ack_due(Conversation::Control), "all is told");
}

#[test]
fn a_session_of_another_name_is_not_resumed() {
    let mut core = SessionCore::<Bytes>::new(SessionLimits::DEFAULT);
    core.handle_hello(&SessionHello { resume: None, fresh: SessionId(1) });
    let resume = Some(Resume { session: SessionId(2), delivered: Vec::new() });
    core.handle_hello(&SessionHello { resume, fresh: SessionId(3) });
    assert_eq!(core.session(), Some(SessionId(3)));
    let events: Vec<_> = std::iter::from_fn(|| core.poll_event()).collect();
    let is_lost = |event: &SessionEvent<Bytes>| matches!(event, SessionEvent::Lost(_));
    assert_eq!(events.iter().filter(|event| is_lost(event)).count(), 1, "TR-2: {events:?}");
}

#[test]
fn a_bound_lets_in_what_fits_exactly_and_nothing_more() {
    let limits = SessionLimits {
        frame_bytes: 100,
        control_frames: 3,
        control_bytes: 200,
        bulk_frames: 2,
        bulk_bytes: 150,
        reserve_bytes: 0,
        conversations: 3,
        ..SessionLimits::DEFAULT
    };
    let connected = || {
        let mut core = SessionCore::new(limits);
        core.handle_hello(&SessionHello { resume: None, fresh: SessionId(1) });
        core
    };
    let frame = |bytes: usize| Bytes::from(vec![0; bytes]);
    let reason = |sent: Result<(), RefusedFrame>| sent.err().map(|refused| refused.reason);
    let (control, full) = (Conversation::Control, Some(SendErrorReason::Full));
    let bulk = Conversation::Bulk;

    let mut core = connected();
    assert_eq!(reason(core.send(control, frame(101))), Some(SendErrorReason::TooLarge));
    assert_eq!(reason(core.send(control, frame(100))), None);
    assert_eq!(reason(core.send(control, frame(100))), None, "200 bytes");
    assert_eq!(reason(core.send(control, frame(1))), full);
    assert_eq!(reason(core.send(control, frame(0))), None, "3 frames");
    assert_eq!(reason(core.send(control, frame(0))), full);

    let mut core = connected();
    assert_eq!(reason(core.send(bulk(0), frame(100))), None);
    assert_eq!(reason(core.send(bulk(0), frame(51))), full);
    assert_eq!(reason(core.send(bulk(1), frame(50))), None, "150 bytes of all bulk");
    assert_eq!(reason(core.send(bulk(1), frame(0))), full, "2 frames of all bulk");
    assert_eq!(reason(core.send(control, frame(0))), None, "3 conversations");
    let mut core = SessionCore::new(SessionLimits { bulk_frames: 9, ..limits });
    core.handle_hello(&SessionHello { resume: None, fresh: SessionId(1) });
    for number in 0..3 {
        assert_eq!(reason(core.send(bulk(number), frame(0))), None);
        assert_eq!(core.handle_frame(bulk(number), 0, 0), Ok(Arrival::Deliver));
    }
    assert_eq!(reason(core.send(bulk(3), frame(0))), full, "a fourth conversation");
    let many = Err(SessionError::TooManyConversations { limit: 3 });
    assert_eq!(core.handle_frame(bulk(3), 0, 0), many);
    assert_eq!(core.check(), Ok(()));
}

#[test]
fn an_acknowledgement_is_due_with_its_number_of_bytes_and_needs_a_connection() {
    let limits = SessionLimits { ack_bytes: 10, ..SessionLimits::DEFAULT };
    let mut core = SessionCore::<Bytes>::new(limits);
    core.handle_hello(&SessionHello { resume: None, fresh: SessionId(1) });
    core.handle_frame(Conversation::Control, 0, 9).expect("in order");
    assert!(!core.is_ack_due(Conversation::Control) && core.has_acks(), "9 of 10 bytes");
    core.handle_frame(Conversation::Control, 1, 1).expect("in order");
    assert!(core.is_ack_due(Conversation::Control));
    core.handle_disconnect();
    assert!(!core.has_acks(), "the next connection's greeting tells of them");
    assert_eq!(core.poll_ack(), None);
}

#[test]
fn an_acknowledgement_of_what_was_not_sent_breaks_the_connection_and_releases_nothing() {
    let mut core = SessionCore::new(small());
    core.handle_hello(&SessionHello { resume: None, fresh: SessionId(1) });
    core.send(Conversation::Control, Bytes::from_static(b"one")).expect("there is room");
    core.poll_transmit(Conversation::Control).expect("the way is free");
    for (conversation, frames) in [(Conversation::Control, 2), (CONVERSATIONS[1], 1)] {
        let refused = core.handle_ack(Ack { conversation, frames });
        assert_eq!(refused, Err(SessionError::ImpossibleAck { frames }));
        assert_eq!(core.queued_frames(), 1);
    }
    core.handle_ack(Ack { conversation: Conversation::Control, frames: 1 }).expect("it was sent");
    assert_eq!(core.queued_frames(), 0);
}

#[test]
fn a_greeting_that_acknowledges_what_was_not_sent_ends_the_session_and_releases_nothing() {
    let session = SessionId(1);
    let mut core = SessionCore::new(small());
    core.handle_hello(&SessionHello { resume: None, fresh: session });
    core.send(Conversation::Control, Bytes::from_static(b"one")).expect("there is room");
    core.poll_transmit(Conversation::Control).expect("the way is free");
    let sent = Ack { conversation: Conversation::Control, frames: 1 };
    let never_sent = Ack { conversation: CONVERSATIONS[1], frames: 1 };
    let resume = Some(Resume { session, delivered: vec![sent, never_sent] });
    core.handle_hello(&SessionHello { resume, fresh: SessionId(2) });
    assert_eq!(core.session(), Some(SessionId(2)));
    let events = std::iter::from_fn(|| core.poll_event());
    let is_handed_back =
        |event: &SessionEvent<Bytes>| matches!(event, SessionEvent::Undeliverable { .. });
    assert_eq!(events.filter(is_handed_back).count(), 1, "TR-2: the frame may not have arrived");
}

#[test]
fn only_a_conversation_with_frames_to_send_waits_and_only_while_there_is_a_connection() {
    let mut core = SessionCore::<Bytes>::new(SessionLimits::DEFAULT);
    core.handle_hello(&SessionHello { resume: None, fresh: SessionId(1) });
    let waiting = |core: &SessionCore<Bytes>| core.waiting().collect::<Vec<_>>();
    assert_eq!(waiting(&core), []);
    core.send(Conversation::Control, Bytes::from("x")).expect("within bounds");
    assert_eq!(waiting(&core), [Conversation::Control]);
    core.poll_transmit(Conversation::Control).expect("the way is free");
    assert_eq!(waiting(&core), [], "it is on its way");
    core.send(Conversation::Control, Bytes::from("y")).expect("within bounds");
    core.handle_disconnect();
    assert_eq!(waiting(&core), []);
}
