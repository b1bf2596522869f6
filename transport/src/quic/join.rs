//! [`join`]: makes a node and its connection with the driver in one step. Called by the processes of agents and
//! clients, and by the makers of workers' nodes.

use std::cell::RefCell;
use std::mem;
use std::rc::Rc;

use elastic_protocol::NodeId;
use elastic_runtime::NodeHandle;
use elastic_runtime::transport::{TransportEvent, TransportSink};

use crate::quic::connect_error::ConnectError;
use crate::quic::transport::{ConnectOptions, QuicTransport};

/// A node that has a session with its driver.
pub struct JoinedNode {
    /// The node; its session is among the [`NodeHandle::links`].
    pub node: NodeHandle,
    /// Its transport, for [`QuicTransport::shutdown`].
    pub transport: Rc<QuicTransport>,
    /// The driver.
    pub driver: NodeId,
}

/// The receiver of events. A node's id is known only once it has enrolled, and events may come before that.
enum Gate {
    Kept(Vec<TransportEvent>),
    Open(TransportSink),
}

/// Enrols with the driver and makes the node that enrolled. The node's random streams use the seed of the
/// options.
///
/// # Errors
/// [`ConnectError`].
pub async fn join(options: ConnectOptions) -> Result<JoinedNode, ConnectError> {
    let gate = Rc::new(RefCell::new(Gate::Kept(Vec::new())));
    let behind = Rc::clone(&gate);
    let sink: TransportSink = Rc::new(move |event| {
        let open = match &mut *behind.borrow_mut() {
            Gate::Kept(events) => return events.push(event),
            Gate::Open(sink) => Rc::clone(sink),
        };
        open(event);
    });
    let seed = options.seed;
    let (transport, driver) = QuicTransport::connect(options, sink).await?;
    let node = NodeHandle::new(elastic_runtime::transport::Transport::local(&*transport), seed);
    node.attach(transport.clone());
    transport.learn_drivers(&node);
    let kept = mem::replace(&mut *gate.borrow_mut(), Gate::Open(node.sink()));
    if let Gate::Kept(events) = kept {
        events.into_iter().for_each(|event| node.sink()(event));
    }
    Ok(JoinedNode { node, transport, driver })
}
