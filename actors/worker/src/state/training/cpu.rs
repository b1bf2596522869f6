//! The CPU collectives behind the run loop's port: over shared memory within a machine, over TCP between them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use elastic_collectives::{
    AbortHandle, Communicator, DEFAULT_STREAMS, DataPlane, FormError, GroupSpec, HostFabric,
    SoloCommunicator, TcpFabric,
};
use elastic_protocol::Member;
use elastic_protocol::messages::{self, Placement};

use super::membership::Fabric;

/// Forms a group for each generation over one listener; a world of one needs none.
pub struct CpuGroups {
    fabric: HostFabric,
    abort: AbortHandle,
    operation_deadline: Duration,
}

impl CpuGroups {
    /// Groups over a bound fabric, that `abort` ends. An operation that takes longer than
    /// `operation_deadline` fails, and names who was waited for (G-9).
    pub fn new(fabric: TcpFabric, abort: AbortHandle, operation_deadline: Duration) -> Self {
        Self { fabric: HostFabric::new(fabric), abort, operation_deadline }
    }
}

impl Fabric for CpuGroups {
    fn form(
        &mut self,
        placement: &Placement,
        deadline: Duration,
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
            data_plane: plane(placement.data_plane),
            encrypts: placement.encrypts,
            streams: DEFAULT_STREAMS,
            form_deadline: deadline,
            operation_deadline: self.operation_deadline,
        };
        self.fabric.form(&group, &self.abort)
    }
}

fn plane(told: messages::DataPlane) -> DataPlane {
    match told {
        messages::DataPlane::Auto => DataPlane::Auto,
        messages::DataPlane::Tcp => DataPlane::Tcp,
        messages::DataPlane::Quic => DataPlane::Quic,
        messages::DataPlane::ShmQuic => DataPlane::ShmQuic,
    }
}

/// A number for each rank that ranks of one machine share. A machine is told by its address and not by its
/// host name, since several names may stand for one machine; whether ranks really share memory is found
/// out when they form.
fn machines(addresses: impl Iterator<Item = IpAddr>) -> Vec<u32> {
    let mut known: BTreeMap<IpAddr, u32> = BTreeMap::new();
    let mut number = |address: IpAddr| {
        let next = known.len() as u32;
        *known.entry(address).or_insert(next)
    };
    addresses.map(&mut number).collect()
}
