//! `Meeting`: forms a group of ranks that know each other through a key-value store, without a driver. That
//! store is what `torch.distributed` gives a backend: under stock torchrun, under our launcher, and for each
//! sub-group.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use elastic_collectives::{
    AbortHandle, AsyncCommunicator, Communicator, DEFAULT_STREAMS, DataPlane, GroupSpec,
    HostFabric, ProgressThread, SoloCommunicator, TcpFabric,
};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

use crate::communicator::PyGroup;
use crate::errors::CollectiveError;
use crate::unlocked::unlocked;

/// A rank that listens for the others of its group to be.
#[pyclass(module = "elastic_node._native")]
pub(crate) struct Meeting {
    fabric: Option<HostFabric>,
    address: SocketAddr,
    progress: ProgressThread,
}

fn malformed(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

#[pymethods]
impl Meeting {
    /// Listens on this address, at a free port.
    #[new]
    fn new(address: &str) -> PyResult<Meeting> {
        let ip = address.parse::<IpAddr>().map_err(malformed)?;
        let tcp = TcpFabric::bind(SocketAddr::new(ip, 0))
            .map_err(|error| PyOSError::new_err(format!("listening on {ip}: {error}")))?;
        let address = tcp.local_address();
        Ok(Meeting { fabric: Some(HostFabric::new(tcp)), address, progress: ProgressThread::new() })
    }

    /// The address at which the other ranks reach it.
    #[getter]
    fn address(&self) -> String {
        self.address.to_string()
    }

    /// Connects all ranks, whose addresses are given by rank. `key` is the group's secret of 32 bytes. A group that
    /// forms within another one ends with it: an abort of that one ends the operations of both. `operation_timeout_s`
    /// limits one operation, if it is not `timeout_s`. Blocks.
    #[pyo3(signature = (rank, addresses, key, timeout_s, within=None, operation_timeout_s=None))]
    #[expect(clippy::too_many_arguments, reason = "Python gives them by name")]
    fn form(
        &mut self,
        py: Python<'_>,
        rank: u32,
        addresses: Vec<String>,
        key: [u8; 32],
        timeout_s: f64,
        within: Option<&PyGroup>,
        operation_timeout_s: Option<f64>,
    ) -> PyResult<PyGroup> {
        let Some(mut fabric) = self.fabric.take() else {
            return Err(PyValueError::new_err("a meeting forms one group"));
        };
        let peers = addresses
            .iter()
            .map(|address| address.parse::<SocketAddr>())
            .collect::<Result<Vec<_>, _>>()
            .map_err(malformed)?;
        let timeout = Duration::try_from_secs_f64(timeout_s).map_err(malformed)?;
        let operation_timeout_s = operation_timeout_s.unwrap_or(timeout_s);
        let operation_deadline =
            Duration::try_from_secs_f64(operation_timeout_s).map_err(malformed)?;
        let abort = match within.and_then(|group| group.communicator.abort_handle()) {
            Some(abort) => abort,
            None => AbortHandle::new().map_err(|error| PyOSError::new_err(error.to_string()))?,
        };
        let (term, generation) = within.map_or((0, 0), |group| group.communicator.stamp());
        let failure = within.map(|group| group.failure.clone()).unwrap_or_default();
        let mut machines: Vec<IpAddr> = peers.iter().map(SocketAddr::ip).collect();
        machines.sort_unstable();
        machines.dedup();
        let machine = |peer: &SocketAddr| machines.iter().position(|ip| *ip == peer.ip());
        let spec = GroupSpec {
            term,
            generation,
            rank,
            hosts: peers.iter().filter_map(machine).map(|number| number as u32).collect(),
            host_names: peers.iter().map(|peer| peer.ip().to_string().into()).collect(),
            peers,
            key,
            data_plane: DataPlane::Auto,
            encrypts: within.is_some_and(|group| group.encrypts),
            streams: DEFAULT_STREAMS,
            form_deadline: timeout,
            operation_deadline,
            path_deadline: elastic_collectives::DEFAULT_PATH_DEADLINE,
        };
        let formed: Result<Box<dyn Communicator>, _> = unlocked(py, || {
            if spec.peers.len() == 1 {
                return Ok(Box::new(SoloCommunicator::of_generation(term, generation, &abort)) as _);
            }
            fabric.form(&spec, &abort)
        });
        let group = formed.map_err(|error| CollectiveError::new_err(error.to_string()))?;
        let communicator = AsyncCommunicator::new(group, Some(abort), &self.progress);
        Ok(PyGroup::of_all(communicator, failure))
    }
}
