//! [`HostFabric`]: forms each generation over the fastest path that all its ranks have.

use std::net::SocketAddr;

use super::communicator::ShmCommunicator;
use super::layout::{Layout, WORLD_MAX};
use super::rendezvous;
use crate::abort::AbortHandle;
use crate::clock;
use crate::communicator::Communicator;
use crate::error::{CollectiveError, FormError, MissingPeer};
use crate::tcp::{GroupSpec, TcpFabric};

/// Forms groups over a [`TcpFabric`], and lets them share memory where all ranks are on one host.
#[derive(Debug)]
pub struct HostFabric {
    tcp: TcpFabric,
}

impl HostFabric {
    /// Over a bound listener, which lives as long as the worker process.
    pub fn new(tcp: TcpFabric) -> HostFabric {
        HostFabric { tcp }
    }

    /// Where the listener is bound.
    pub fn local_address(&self) -> SocketAddr {
        self.tcp.local_address()
    }

    /// Connects all ranks of `group` as [`TcpFabric::form`] does. Where [`GroupSpec::hosts`] says that all
    /// are on one host, collectives go through memory that they share; where one of them cannot open it,
    /// and for groups of several hosts, they go over the connections. The results have the same bits.
    ///
    /// # Errors
    ///
    /// See [`FormError`]. The fabric can form the next generation after any of them. A peer that is lost
    /// when it was connected already shows in the first operation, as [`CollectiveError::PeerLost`].
    pub fn form(
        &mut self,
        group: &GroupSpec,
        abort: &AbortHandle,
    ) -> Result<Box<dyn Communicator>, FormError> {
        let due = clock::now() + group.form_deadline;
        if !group.hosts.is_empty() && group.hosts.len() != group.peers.len() {
            let (hosts, ranks) = (group.hosts.len(), group.peers.len());
            let reason = format!("{hosts} hosts are given for {ranks} ranks: give none, or each");
            return Err(FormError::InvalidGroup(reason));
        }
        let mut tcp = self.tcp.form(group, abort)?;
        let world = tcp.world_size();
        let together = group.hosts.windows(2).all(|pair| pair[0] == pair[1]);
        if !(2..=WORLD_MAX).contains(&world) || group.hosts.is_empty() || !together {
            return Ok(Box::new(tcp));
        }
        tcp.engine.operation_deadline = due.saturating_duration_since(clock::now());
        let layout = Layout::new(world);
        let shared = rendezvous::share(&mut tcp, layout, group.rank, &self.tcp.random);
        tcp.engine.operation_deadline = group.operation_deadline;
        // The caller's first operation is number 0, whatever the path.
        tcp.engine.sequence = 0;
        let (term, generation) = (group.term, group.generation);
        match shared {
            Ok(Some(segment)) => {
                tracing::debug!(term, generation, world, "the group shares memory");
                Ok(Box::new(ShmCommunicator::new(tcp, segment)))
            }
            Ok(None) => {
                tracing::info!(term, generation, world, "no shared memory: the group uses TCP");
                Ok(Box::new(tcp))
            }
            Err(CollectiveError::Aborted { term, generation, reason }) => {
                Err(FormError::Aborted { term, generation, reason })
            }
            Err(CollectiveError::DeadlinePassed { waiting_for, .. }) => {
                let last_seen = "it connected, and said nothing more".to_owned();
                let peer = |rank| MissingPeer { rank, last_seen: last_seen.clone() };
                let missing = waiting_for.into_iter().map(peer).collect();
                Err(FormError::DeadlinePassed { missing })
            }
            // The communicator has failed, and says so at its first operation.
            Err(_) => Ok(Box::new(tcp)),
        }
    }
}
