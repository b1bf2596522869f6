//! [`HostFabric`]: forms each generation over the fastest path that all its ranks have. Called by the worker, and by
//! Python's `Meeting`.

use std::net::SocketAddr;

use crate::abort::AbortHandle;
use crate::clock;
use crate::communicator::Communicator;
use crate::error::{CollectiveError, FormError};
use crate::hierarchy;
use crate::shm::{self, ShmCommunicator};
use crate::tcp::{GroupSpec, TcpFabric};

/// Forms groups over a [`TcpFabric`], and lets ranks of one host share memory where [`crate::DataPlane`] allows it.
#[derive(Debug)]
pub struct HostFabric {
    tcp: TcpFabric,
}

impl HostFabric {
    /// A fabric over a bound listener, which lives as long as the worker process.
    pub fn new(tcp: TcpFabric) -> HostFabric {
        HostFabric { tcp }
    }

    /// The address of the listener.
    pub fn local_address(&self) -> SocketAddr {
        self.tcp.local_address()
    }

    /// A warning for the operator, if one arose while a group formed. Each kind is returned once in the life of a
    /// fabric.
    pub fn take_warning(&mut self) -> Option<String> {
        self.tcp.warning.take()
    }

    /// Connects all ranks of `group` as [`TcpFabric::form`] does, then picks the fastest path; the results have the
    /// same bits on each. With all ranks on one host by [`GroupSpec::hosts`], collectives use memory that they share.
    /// With several ranks on each of several hosts, they use memory within a host and one leader per host between
    /// hosts. Otherwise, and where a rank cannot open its host's memory, they use the connections.
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
        let formed = self.form_best(group, abort);
        self.tcp.standing.clear();
        formed
    }

    fn form_best(
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
        if !group.data_plane.shares_memory() {
            return Ok(Box::new(tcp));
        }
        let world = tcp.world_size();
        let together = group.hosts.windows(2).all(|pair| pair[0] == pair[1]);
        if !together {
            let left = due.saturating_duration_since(clock::now());
            return hierarchy::form(tcp, &mut self.tcp, left, abort);
        }
        if !shm::serves(world) || group.hosts.is_empty() {
            return Ok(Box::new(tcp));
        }
        let left = due.saturating_duration_since(clock::now());
        let shared = tcp.agree(left, |tcp| ShmCommunicator::share(tcp, &self.tcp.random));
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
            Err(
                error @ (CollectiveError::Aborted { .. } | CollectiveError::DeadlinePassed { .. }),
            ) => Err(error.into()),
            // The communicator has failed, and returns the error from its first operation.
            Err(_) => Ok(Box::new(tcp)),
        }
    }
}
