//! The harness of the loopback tests: drivers, clients, and waits for their events.

use std::cell::RefCell;
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use elastic_protocol::{HostName, Incarnation, JobId, NodeId, NodeName};
use elastic_runtime::transport::{
    Conversation, LinkEvent, Transport, TransportEvent, TransportSink,
};
use elastic_transport::{
    Authority, ConnectError, ConnectOptions, Credentials, JobSecrets, JoinToken, ListenOptions,
    QuicTransport, Validity,
};
use tokio::sync::Notify;
use uuid::Uuid;

pub(crate) const JOB: JobId = JobId(Uuid::from_u128(0xE1A5));

/// Runs a test on one thread, as a node does, for a minute at most: far more than any test needs.
pub(crate) fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let local = tokio::task::LocalSet::new();
    let limited = async { tokio::time::timeout(Duration::from_secs(60), test).await };
    local.block_on(&runtime, limited).expect("the test hangs");
}

/// The events of a node, in order.
#[derive(Clone, Default)]
pub(crate) struct Events {
    all: Rc<RefCell<Vec<TransportEvent>>>,
    more: Rc<Notify>,
}

impl Events {
    pub(crate) fn sink(&self) -> TransportSink {
        let events = self.clone();
        Rc::new(move |event| {
            events.all.borrow_mut().push(event);
            events.more.notify_one();
        })
    }

    pub(crate) fn all(&self) -> Vec<TransportEvent> {
        self.all.borrow().clone()
    }

    pub(crate) fn clear(&self) {
        self.all.borrow_mut().clear();
    }

    /// Waits until `seen` holds of all events so far.
    pub(crate) async fn until(&self, what: &str, seen: impl Fn(&[TransportEvent]) -> bool) {
        let waiting = async {
            while !seen(&self.all.borrow()) {
                self.more.notified().await;
            }
        };
        if tokio::time::timeout(Duration::from_secs(20), waiting).await.is_err() {
            panic!("waited in vain for {what}; links: {:?}", self.links());
        }
    }

    pub(crate) async fn until_link(&self, what: &str, seen: impl Fn(&LinkEvent) -> bool) {
        let is = |event: &TransportEvent| matches!(event, TransportEvent::Link { event, .. } if seen(event));
        self.until(what, |events| events.iter().any(is)).await;
    }

    pub(crate) fn links(&self) -> Vec<LinkEvent> {
        let link = |event: &TransportEvent| match event {
            TransportEvent::Link { event, .. } => Some(event.clone()),
            _ => None,
        };
        self.all.borrow().iter().filter_map(link).collect()
    }

    /// The frames of a conversation.
    pub(crate) fn frames(&self, wanted: Conversation) -> Vec<Bytes> {
        let frame = |event: &TransportEvent| match event {
            TransportEvent::Frame { conversation, frame, .. } if *conversation == wanted => {
                Some(frame.clone())
            }
            _ => None,
        };
        self.all.borrow().iter().filter_map(frame).collect()
    }

    /// Number of frames that arrived in all conversations.
    pub(crate) fn frame_count(events: &[TransportEvent]) -> usize {
        events.iter().filter(|event| matches!(event, TransportEvent::Frame { .. })).count()
    }
}

pub(crate) struct TestDriver {
    pub(crate) transport: Rc<QuicTransport>,
    pub(crate) events: Events,
    pub(crate) authority: Rc<Authority>,
    pub(crate) credentials: Rc<RefCell<Credentials>>,
    pub(crate) address: SocketAddr,
}

pub(crate) fn driver_id() -> NodeId {
    NodeId { name: NodeName::Driver, incarnation: Incarnation(1) }
}

pub(crate) fn authority() -> Rc<Authority> {
    Rc::new(Authority::new(JOB, Validity::default()).expect("an authority"))
}

pub(crate) fn listen_options(
    authority: &Rc<Authority>,
    credentials: &Rc<RefCell<Credentials>>,
) -> ListenOptions {
    let table = Rc::clone(credentials);
    ListenOptions::new(
        "127.0.0.1:0".parse().expect("an address"),
        driver_id(),
        Rc::clone(authority),
        Rc::new(move |request| table.borrow_mut().admit(request)),
    )
}

pub(crate) fn credentials(authority: &Authority) -> Rc<RefCell<Credentials>> {
    let secrets = JobSecrets::new(JOB).expect("random numbers");
    Rc::new(RefCell::new(secrets.credentials(authority, Incarnation(1))))
}

impl TestDriver {
    pub(crate) fn start() -> Self {
        Self::start_with(|_| {})
    }

    pub(crate) fn start_with(adjust: impl FnOnce(&mut ListenOptions)) -> Self {
        let authority = authority();
        let credentials = credentials(&authority);
        let mut options = listen_options(&authority, &credentials);
        adjust(&mut options);
        let authority = Rc::clone(&options.authority);
        let events = Events::default();
        let transport = QuicTransport::listen(options, events.sink()).expect("a free port");
        let address = transport.local_address().expect("it listens");
        Self { transport, events, authority, credentials, address }
    }

    pub(crate) fn join_token(&self) -> JoinToken {
        self.credentials.borrow().join_token()
    }

    pub(crate) fn options(&self, host: &str) -> ConnectOptions {
        self.options_with(host, self.join_token())
    }

    pub(crate) fn options_with(&self, host: &str, token: JoinToken) -> ConnectOptions {
        ConnectOptions::new(self.address.to_string(), token, agent(host))
    }

    pub(crate) async fn join(&self, host: &str) -> Client {
        Client::join(self.options(host)).await.expect("let in")
    }
}

pub(crate) fn agent(host: &str) -> NodeName {
    NodeName::Agent(HostName::new(host).expect("a host name"))
}

pub(crate) struct Client {
    pub(crate) transport: Rc<QuicTransport>,
    pub(crate) driver: NodeId,
    pub(crate) events: Events,
}

impl Client {
    pub(crate) async fn join(options: ConnectOptions) -> Result<Self, ConnectError> {
        let events = Events::default();
        let (transport, driver) = QuicTransport::connect(options, events.sink()).await?;
        Ok(Self { transport, driver, events })
    }

    pub(crate) fn id(&self) -> NodeId {
        self.transport.local()
    }

    pub(crate) fn send(&self, conversation: Conversation, frame: impl Into<Bytes>) {
        self.transport.send(&self.driver, conversation, frame.into()).expect("taken");
    }
}

/// The error of a join that must fail.
pub(crate) async fn refusal(options: ConnectOptions) -> ConnectError {
    match Client::join(options).await {
        Ok(_) => panic!("it was let in"),
        Err(error) => error,
    }
}

/// A frame that names its number.
pub(crate) fn numbered(number: u32) -> Bytes {
    Bytes::copy_from_slice(&number.to_le_bytes())
}

/// Checks that a driver still serves: a new node joins and is heard.
pub(crate) async fn assert_undisturbed(driver: &TestDriver, host: &str) {
    let client = driver.join(host).await;
    client.send(Conversation::Control, &b"still there"[..]);
    let heard = |events: &[TransportEvent]| {
        events.iter().any(|event| {
            matches!(event, TransportEvent::Frame { from, frame, .. }
                if *from == client.id() && &frame[..] == b"still there")
        })
    };
    driver.events.until("a newcomer's frame", heard).await;
}
