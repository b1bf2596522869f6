//! The CPU collectives behind the run loop's port: over shared memory within a machine, over TCP between
//! machines. Made by the Rust API.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use elastic_collectives::{
    AbortHandle, Communicator, DEFAULT_STREAMS, FormError, GroupSpec, HostFabric, LinkRates,
    SoloCommunicator, TcpFabric,
};
use elastic_protocol::Member;
use elastic_protocol::messages::Placement;
use tracing::info;

use super::membership::{Fabric, GroupDeadlines};

/// Forms a group for each generation over one listener; a world of one needs no connection.
pub struct CpuGroups {
    fabric: HostFabric,
    abort: AbortHandle,
    operation_deadline: Duration,
    new_ip: NewIp,
    /// Rates at which data comes in from other hosts. The groups note them here.
    rates: LinkRates,
    warnings: Vec<String>,
}

/// Given the address at which this process listens: the one to listen at instead, if this host has lost that one.
pub type NewIp = Box<dyn Fn(IpAddr) -> Option<IpAddr> + Send>;

impl CpuGroups {
    /// Groups over a bound fabric; `abort` ends them. An operation that takes longer than `operation_deadline`
    /// fails, and names the ranks that it waited for (G-9).
    /// Rates of links are noted in `rates`.
    pub fn new(
        fabric: TcpFabric,
        abort: AbortHandle,
        operation_deadline: Duration,
        rates: LinkRates,
    ) -> Self {
        let new_ip = Box::new(|_| None);
        let fabric = HostFabric::new(fabric.measuring(rates.clone()));
        Self { fabric, abort, operation_deadline, new_ip, rates, warnings: Vec::new() }
    }

    /// The same, which moves to another address when its host does.
    pub fn following(self, new_ip: NewIp) -> Self {
        Self { new_ip, ..self }
    }
}

impl Fabric for CpuGroups {
    fn form(
        &mut self,
        placement: &Placement,
        deadlines: GroupDeadlines,
    ) -> Result<Box<dyn Communicator>, FormError> {
        let (term, generation) = (placement.stamp.term.0, placement.stamp.generation.0);
        let members: Vec<Member> = placement.assignment.members().collect();
        if members.len() == 1 {
            return Ok(Box::new(SoloCommunicator::of_generation(term, generation, &self.abort)));
        }
        let group = GroupSpec {
            term,
            generation,
            rank: placement.rank,
            peers: members.iter().map(|member| member.data_address).collect(),
            hosts: machines(members.iter().map(|member| member.data_address.ip())),
            host_names: members.iter().map(|member| member.worker.host.as_str().into()).collect(),
            key: placement.key.0,
            data_plane: placement.data_plane,
            encrypts: placement.encrypts,
            streams: DEFAULT_STREAMS,
            form_deadline: deadlines.form,
            operation_deadline: self.operation_deadline,
            path_deadline: deadlines.path,
        };
        self.fabric.form(&group, &self.abort)
    }

    fn relocate(&mut self) -> Option<SocketAddr> {
        let old = self.fabric.local_address();
        let ip = (self.new_ip)(old.ip())?;
        match TcpFabric::bind(SocketAddr::new(ip, 0)) {
            Ok(fabric) => self.fabric = HostFabric::new(fabric.measuring(self.rates.clone())),
            Err(error) => {
                let warning =
                    format!("its host has lost {old}, and {ip} cannot be listened at yet: {error}");
                self.warnings = vec![warning];
                return None;
            }
        }
        let new = self.fabric.local_address();
        info!(%old, %new, "the host has another address: other workers are told");
        Some(new)
    }

    fn take_warnings(&mut self) -> Vec<String> {
        let mut warnings = std::mem::take(&mut self.warnings);
        warnings.extend(self.fabric.take_warning());
        warnings
    }
}

/// Machine numbers of the ranks: equal for ranks of the same machine. A machine is identified by its address
/// and not by its host name, since several names may stand for one machine. Whether ranks really share memory
/// is found out when they form.
fn machines(addresses: impl Iterator<Item = IpAddr>) -> Vec<u32> {
    let mut known: BTreeMap<IpAddr, u32> = BTreeMap::new();
    let mut number = |address: IpAddr| {
        let next = known.len() as u32;
        *known.entry(address).or_insert(next)
    };
    addresses.map(&mut number).collect()
}
