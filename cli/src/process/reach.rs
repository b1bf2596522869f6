//! Trials of the ports between hosts. Each agent answers one: it tries the ports of the host that asks, and opens two of
//! its own; the driver's process passes a question of `doctor --join` on to the agents. None of this is a decision of a
//! core: nothing in the job depends on it.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use actix::{Actor, Addr, Context, Handler};
use elastic_driver::{AskAgents, Driver};
use elastic_protocol::messages::{ReachAnswer, ReachFinding, ReachRequest};
use elastic_protocol::{ActorId, ActorName, HostName};
use elastic_runtime::{ChildExit, NodeHandle, Question, Routes, spawn_child};
use futures_util::future::join_all;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::time::{sleep, timeout};

/// Timeout for a connection, or for all packets.
const TRIED_WITHIN: Duration = Duration::from_secs(2);

/// Interval between two packets of a trial: one may be lost.
const PACKET_EVERY: Duration = Duration::from_millis(300);

/// Timeout for the answer of an agent.
const AGENT_WITHIN: Duration = Duration::from_secs(4);

/// Time for which the ports of a trial stay open.
const OPEN_FOR: Duration = Duration::from_secs(8);

/// Most trials that a node has under way at once; further ones have no answer.
const TRIALS_MAX: usize = 4;

/// Two ports that are open for a trial: one accepts connections, one returns packets.
#[derive(Debug)]
pub(crate) struct TrialPorts {
    tcp: TcpListener,
    udp: UdpSocket,
}

impl TrialPorts {
    /// Opens two ports of an address.
    pub(crate) async fn open(address: IpAddr) -> io::Result<Self> {
        let tcp = TcpListener::bind((address, 0)).await?;
        let udp = UdpSocket::bind((address, 0)).await?;
        Ok(Self { tcp, udp })
    }

    /// Their addresses, TCP first.
    pub(crate) fn addresses(&self) -> io::Result<(SocketAddr, SocketAddr)> {
        Ok((self.tcp.local_addr()?, self.udp.local_addr()?))
    }

    /// Serves them for as long as a trial may take.
    pub(crate) async fn serve(self) {
        let Self { tcp, udp } = self;
        let accepting = async {
            loop {
                // A connection is all that is wanted.
                drop(tcp.accept().await);
            }
        };
        let returning = async {
            let mut packet = [0; 64];
            loop {
                if let Ok((bytes, from)) = udp.recv_from(&mut packet).await {
                    // A packet that cannot be sent is as good as lost.
                    let _ = udp.send_to(&packet[..bytes], from).await;
                }
            }
        };
        let all = async { futures_util::future::join(accepting, returning).await };
        // It ends by its time only.
        let _: Result<((), ()), _> = timeout(OPEN_FOR, all).await;
    }
}

/// Tries to connect, from this address. Returns why not.
pub(crate) async fn try_tcp(to: SocketAddr) -> Option<String> {
    match timeout(TRIED_WITHIN, TcpStream::connect(to)).await {
        Ok(Ok(_connected)) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_elapsed) => Some(format!("no answer within {} s", TRIED_WITHIN.as_secs())),
    }
}

/// Sends packets until one comes back. Returns why none did.
pub(crate) async fn try_udp(from: IpAddr, to: SocketAddr) -> Option<String> {
    let returned = async {
        let socket = UdpSocket::bind((from, 0)).await?;
        socket.connect(to).await?;
        let mut packet = [0; 64];
        loop {
            socket.send(b"elastic-node: is this port reached?").await?;
            if let Ok(received) = timeout(PACKET_EVERY, socket.recv(&mut packet)).await {
                return received.map(drop);
            }
        }
    };
    match timeout(TRIED_WITHIN, returned).await {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_elapsed) => Some(format!("no packet came back within {} s", TRIED_WITHIN.as_secs())),
    }
}

/// Without the actor `doctor --join` has no answer, and nothing else is lost.
fn ended(exit: ChildExit) {
    tracing::debug!("no ports are tried any more: the actor {exit}");
}

/// The actor of an agent's node that tries the ports of others.
pub(super) struct HostTrials {
    host: HostName,
    /// The address for data, as it is now.
    data_ip: Box<dyn Fn() -> Option<IpAddr>>,
    under_way: Rc<()>,
}

impl HostTrials {
    /// Publishes the actor on the agent's node.
    pub(super) fn start(
        node: &NodeHandle,
        host: HostName,
        data_ip: impl Fn() -> Option<IpAddr> + 'static,
    ) {
        let trials = Self { host, data_ip: Box::new(data_ip), under_way: Rc::new(()) };
        let trials = spawn_child(|_| trials, ended);
        let routes = Routes::new().ask::<ReachRequest>(trials.recipient());
        node.register(ActorName::REACH, routes);
    }
}

impl Actor for HostTrials {
    type Context = Context<Self>;
}

impl Handler<Question<ReachRequest>> for HostTrials {
    type Result = ();

    fn handle(&mut self, question: Question<ReachRequest>, _: &mut Context<Self>) {
        if Rc::strong_count(&self.under_way) > TRIALS_MAX {
            return;
        }
        let (guard, host, from) = (Rc::clone(&self.under_way), self.host.clone(), (self.data_ip)());
        tokio::task::spawn_local(async move {
            let _guard = guard;
            let ReachRequest { address, tcp, udp } = question.request;
            let from = from.filter(|from| from.is_ipv4() == address.is_ipv4());
            let ports = match from {
                Some(own) => TrialPorts::open(own).await.ok(),
                None => None,
            };
            let own = ports.as_ref().and_then(|ports| ports.addresses().ok());
            let any = if address.is_ipv4() { [0, 0, 0, 0].into() } else { [0_u16; 8].into() };
            let tried = futures_util::future::join(
                try_tcp((address, tcp).into()),
                try_udp(from.unwrap_or(any), (address, udp).into()),
            );
            let (tcp, udp) = tried.await;
            let finding = ReachFinding { host, tcp, udp, own };
            question.reply.answer(ReachAnswer { findings: vec![finding], silent: Vec::new() });
            if let Some(ports) = ports {
                ports.serve().await;
            }
        });
    }
}

/// The actor of the driver's node that passes a question on to the agents.
pub(super) struct TrialRelay {
    node: NodeHandle,
    driver: Addr<Driver>,
    under_way: Rc<()>,
}

impl TrialRelay {
    /// Publishes the actor on the driver's node.
    pub(super) fn start(node: &NodeHandle, driver: Addr<Driver>) {
        let relay = Self { node: node.clone(), driver, under_way: Rc::new(()) };
        let relay = spawn_child(|_| relay, ended);
        let routes = Routes::new().ask::<ReachRequest>(relay.recipient());
        node.register(ActorName::REACH, routes);
    }
}

impl Actor for TrialRelay {
    type Context = Context<Self>;
}

impl Handler<Question<ReachRequest>> for TrialRelay {
    type Result = ();

    fn handle(&mut self, question: Question<ReachRequest>, _: &mut Context<Self>) {
        if Rc::strong_count(&self.under_way) > TRIALS_MAX {
            return;
        }
        let (guard, node) = (Rc::clone(&self.under_way), self.node.clone());
        let driver = self.driver.clone();
        tokio::task::spawn_local(async move {
            let _guard = guard;
            let Ok(agents) = driver.send(AskAgents).await else { return };
            let (asked, left) = agents.split_at(agents.len().min(ReachRequest::HOSTS_MAX));
            let answers = asked.iter().map(|(host, agent)| {
                let to =
                    node.reference::<ReachRequest>(ActorId::new(agent.clone(), ActorName::REACH));
                let answer = to.ask(question.request.clone(), AGENT_WITHIN);
                async move { (host.clone(), answer.await) }
            });
            let mut all = ReachAnswer::default();
            for (host, answer) in join_all(answers).await {
                match answer {
                    Ok(answer) => all.findings.extend(answer.findings),
                    Err(_no_answer) => all.silent.push(host),
                }
            }
            all.silent.extend(left.iter().map(|(host, _)| host.clone()));
            question.reply.answer(all);
        });
    }
}

/// Results between this host and the others, in both directions. Hosts by name.
#[derive(Debug, Default, serde::Serialize)]
pub(crate) struct ReachReport {
    /// Hosts that this host reaches, and that reach it, over TCP and UDP.
    pub(crate) reached: Vec<String>,
    /// Directions that do not work, with the reasons.
    pub(crate) cut: Vec<ReachCut>,
    /// Hosts that did not say.
    pub(crate) silent: Vec<String>,
}

/// One direction that does not work.
#[derive(Debug, serde::Serialize)]
pub(crate) struct ReachCut {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) protocol: &'static str,
    pub(crate) error: String,
}

/// Tries the ports between this host's address for data and the other hosts. `ask` gives the question to the driver.
pub(crate) async fn try_hosts<A>(
    address: IpAddr,
    ask: impl FnOnce(ReachRequest) -> A,
) -> io::Result<ReachReport>
where
    A: Future<Output = Option<ReachAnswer>>,
{
    const HERE: &str = "this host";
    let ports = TrialPorts::open(address).await?;
    let (tcp, udp) = ports.addresses()?;
    let serving = tokio::task::spawn_local(ports.serve());
    let request = ReachRequest { address, tcp: tcp.port(), udp: udp.port() };
    let answer = ask(request).await.unwrap_or_default();
    let mut report = ReachReport::default();
    let mut results: BTreeMap<String, Vec<ReachCut>> = BTreeMap::new();
    // At once: the others' ports are open for a few seconds only.
    let tried = answer.findings.into_iter().map(|finding| async move {
        let (tcp, udp) = match finding.own {
            Some((tcp, udp)) => {
                futures_util::future::join(try_tcp(tcp), try_udp(address, udp)).await
            }
            None => (None, None),
        };
        (finding, tcp, udp)
    });
    for (ReachFinding { host, tcp, udp, .. }, to_tcp, to_udp) in join_all(tried).await {
        let name = host.to_string();
        let mut cut = |from: &str, to: &str, protocol, error: Option<String>| {
            let found = results.entry(name.clone()).or_default();
            let (from, to) = (from.to_owned(), to.to_owned());
            found.extend(error.map(|error| ReachCut { from, to, protocol, error }));
        };
        cut(&name, HERE, "TCP", tcp);
        cut(&name, HERE, "UDP", udp);
        cut(HERE, &name, "TCP", to_tcp);
        cut(HERE, &name, "UDP", to_udp);
    }
    for (host, cuts) in results {
        if cuts.is_empty() {
            report.reached.push(host);
        }
        report.cut.extend(cuts);
    }
    report.silent = answer.silent.iter().map(ToString::to_string).collect();
    serving.abort();
    // Lets the aborted task go before its runtime does.
    sleep(Duration::ZERO).await;
    Ok(report)
}

#[cfg(test)]
mod tests {
    use elastic_runtime::system;

    use super::*;

    #[test]
    fn g_9_a_port_that_nobody_answers_is_given_up_with_the_reason() {
        let tried = system::run(async {
            let silent = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
            let to = silent.local_addr().expect("bound");
            try_udp([127, 0, 0, 1].into(), to).await
        });
        let why = tried.expect("a runtime").expect("nobody answers");
        assert_eq!(why, "no packet came back within 2 s");
    }
}
