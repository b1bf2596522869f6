//! [`form_in_hosts`]: replaces the group of each host's ranks by another one. The GPU's fabric calls it, for NCCL
//! within hosts and the CPU's collectives between them.

use super::communicator::HierarchicalCommunicator;
use super::hosts::Hosts;
use crate::communicator::Communicator;
use crate::error::FormError;
use crate::split::split;
use crate::tcp::TcpCommunicator;

/// Lets `form` make each host's group, out of the CPU group of the host's ranks. `hosts` has the number of each
/// rank's host. A group of a single host is formed as a whole. If no host has two ranks, or a host's ranks are not
/// neighbours, `group` stays as it is.
///
/// # Errors
///
/// The error of `form`, or of making the CPU groups of hosts whose ranks share no memory.
pub fn form_in_hosts(
    mut group: Box<dyn Communicator>,
    hosts: &[u32],
    form: impl FnOnce(Box<dyn Communicator>) -> Result<Box<dyn Communicator>, FormError>,
) -> Result<Box<dyn Communicator>, FormError> {
    if hosts.windows(2).all(|pair| pair[0] == pair[1]) {
        return form(group);
    }
    let Some(layout) = Hosts::new(hosts, group.rank()) else { return Ok(group) };
    if let Some(hierarchy) = group.as_any_mut().downcast_mut::<HierarchicalCommunicator>() {
        hierarchy.local = hierarchy.local.take().map(form).transpose()?;
        return Ok(group);
    }
    let Some(connected) = group.as_any_mut().downcast_mut::<TcpCommunicator>() else {
        return Ok(group);
    };
    // The ranks of a host that share no memory get connections of their own. The hierarchy translates their ranks itself.
    let local = split(connected, Some(layout.own() as u32), 0)?.map(|part| part.group);
    let local = local.filter(|local| local.world_size() > 1).map(form).transpose()?;
    match group.into_any().downcast::<TcpCommunicator>() {
        Ok(world) => Ok(Box::new(HierarchicalCommunicator::new(*world, local, layout))),
        Err(_) => Err(FormError::InvalidGroup("the group has no connections".to_owned())),
    }
}
