//! Sub-groups: `MPI_Comm_split` over any backend. The ranks tell each other colours, keys and new listeners over
//! the group that they have; each colour then forms over the best path that its ranks have, as a generation
//! does, with a key of its own that follows from the generation's.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ring::hmac;

use crate::abort::AbortHandle;
use crate::backend::{Backend, Membership, Places};
use crate::communicator::Communicator;
use crate::error::{CollectiveError, FormError, WaitDetails};
use crate::host_fabric::HostFabric;
use crate::quic::Endpoint;
use crate::solo::SoloCommunicator;
use crate::tcp::{GroupSpec, Standing, TcpFabric};
use crate::wire::{Operation, OperationKind};

/// What a group was formed of.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) group: GroupSpec,
    pub(crate) abort: AbortHandle,
    /// Where this rank listens.
    pub(crate) address: IpAddr,
    /// Which part of the generation it is.
    pub(crate) part: u32,
    /// Where its connections go when it ends.
    pub(crate) standing: Standing,
    /// What carries its streams, if they are QUIC's: it stands as long as they do.
    pub(crate) _quic: Option<Arc<Endpoint>>,
}

/// Where a group's sub-groups come from.
pub(crate) enum Ancestry {
    /// A world of one has but itself.
    Alone(SoloCommunicator),
    /// What the group was formed of, and the number of its next operation.
    Group(Arc<Origin>, u64),
}

/// What each rank tells: its colour plus one, or zero; its key; its listener's port, or zero where it has none.
type Entry = [u64; 3];

/// See [`Communicator::split`].
pub(crate) fn split<B: Backend>(
    parent: &mut B,
    colour: Option<u32>,
    key: i32,
) -> Result<Option<Box<dyn Communicator>>, CollectiveError> {
    let Membership { term, generation, rank, world } = parent.membership();
    let (origin, sequence) = match parent.ancestry() {
        Ancestry::Group(origin, sequence) => (origin, sequence),
        Ancestry::Alone(child) => {
            Backend::barrier(parent, operation(0))?;
            return Ok(colour.map(|_| Box::new(child) as Box<dyn Communicator>));
        }
    };
    let bound = TcpFabric::bind(SocketAddr::new(origin.address, 0));
    let port = bound.as_ref().map_or(0, |fabric| fabric.local_address().port());
    let own: Entry = [colour.map_or(0, |colour| u64::from(colour) + 1), key as u64, port.into()];
    let mut entries: Vec<Entry> = vec![[0; 3]; world as usize];
    let output = bytemuck::cast_slice_mut(&mut entries);
    let input = bytemuck::cast_slice(&own);
    parent.all_gather(operation(input.len()), input, output, &Places::Equal(input.len()))?;
    let fabric = bound.map_err(|error| CollectiveError::System(Arc::new(error)))?;
    // Whoever could not listen has failed on its own; nobody waits for it.
    if let Some(other) = entries.iter().position(|[_, _, port]| *port == 0) {
        let error = io::Error::other(format!("rank {other} could not listen for its sub-group"));
        return Err(CollectiveError::System(Arc::new(error)));
    }
    let Some(colour) = colour else { return Ok(None) };
    let mut members: Vec<u32> =
        (0..world).filter(|rank| entries[*rank as usize][0] == own[0]).collect();
    members.sort_by_key(|rank| (entries[*rank as usize][1] as i32, *rank));
    let place = members.iter().position(|member| *member == rank).unwrap_or_default();
    if members.len() == 1 {
        let solo = SoloCommunicator::of_generation(term, generation, &origin.abort);
        return Ok(Some(Box::new(solo)));
    }
    let group = sub_group(&origin.group, &members, place as u32, sequence, colour, &entries);
    let formed = HostFabric::new(fabric).form(&group, &origin.abort);
    formed.map(Some).map_err(|error| failed(error, &origin.group, sequence, &members))
}

fn operation(bytes: usize) -> Operation {
    let kind = OperationKind::Split;
    Operation { kind, data_type: None, reduce_op: None, root: None, bytes: bytes as u64 }
}

fn sub_group(
    parent: &GroupSpec,
    members: &[u32],
    rank: u32,
    sequence: u64,
    colour: u32,
    entries: &[Entry],
) -> GroupSpec {
    let secret = hmac::Key::new(hmac::HMAC_SHA256, &parent.key);
    let mut context = hmac::Context::with_key(&secret);
    context.update(b"elastic-collectives split");
    context.update(&sequence.to_le_bytes());
    context.update(&colour.to_le_bytes());
    let mut key = [0; 32];
    key.copy_from_slice(context.sign().as_ref());
    let peer = |member: &u32| {
        let port = entries[*member as usize][2] as u16;
        SocketAddr::new(parent.peers[*member as usize].ip(), port)
    };
    fn of_members<T: Clone>(members: &[u32], all: &[T]) -> Vec<T> {
        members.iter().filter_map(|member| all.get(*member as usize).cloned()).collect()
    }
    GroupSpec {
        rank,
        peers: members.iter().map(peer).collect(),
        hosts: of_members(members, &parent.hosts),
        host_names: of_members(members, &parent.host_names),
        key,
        ..parent.clone()
    }
}

/// The error of a sub-group that did not form, with the ranks and the number of the group that is split.
fn failed(error: FormError, parent: &GroupSpec, sequence: u64, members: &[u32]) -> CollectiveError {
    match error {
        FormError::Aborted { term, generation, reason } => {
            CollectiveError::Aborted { term, generation, reason }
        }
        FormError::DeadlinePassed { missing } => {
            let waiting_for: Vec<u32> =
                missing.iter().map(|peer| members[peer.rank as usize]).collect();
            let name = |rank: &u32| parent.host_names.get(*rank as usize).cloned();
            let hosts = waiting_for.iter().filter_map(name).collect();
            let others = (members.len() - waiting_for.len()) as u32;
            let details = Box::new(WaitDetails { hosts, entered: true, others });
            let operation = OperationKind::Split;
            CollectiveError::DeadlinePassed { operation, sequence, waiting_for, details }
        }
        error => CollectiveError::System(Arc::new(io::Error::other(error))),
    }
}
