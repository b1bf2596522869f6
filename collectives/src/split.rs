//! Sub-groups: `MPI_Comm_split` over any backend. The ranks exchange colours, keys and new listeners over the
//! existing group. Each colour then forms over the best path that its ranks have, as a generation does, with a key
//! derived from the generation's.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ring::hmac;

use crate::abort::AbortHandle;
use crate::backend::{CpuBackend, GroupMembership};
use crate::communicator::Communicator;
use crate::element::DataType;
use crate::error::{CollectiveError, FormError, PeerLoss, WaitDetails};
use crate::host_fabric::HostFabric;
use crate::link_rates::LinkRates;
use crate::operation::HostOperation;
use crate::quic::Endpoint;
use crate::solo::SoloCommunicator;
use crate::tcp::{GroupSpec, StandingConnections, TcpFabric};
use crate::wire::{OperationKind, OperationSignature};

/// The origin of a group: the parameters and resources from which it was formed, and its sub-groups are.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) group: GroupSpec,
    pub(crate) abort: AbortHandle,
    /// The address on which this rank listens.
    pub(crate) address: IpAddr,
    /// The number of the part of the generation that this group is.
    pub(crate) part: u32,
    /// The store of connections that outlive the group.
    pub(crate) standing: StandingConnections,
    /// The place of the rates at which data comes in from other hosts.
    pub(crate) rates: LinkRates,
    /// The QUIC endpoint, if the streams are QUIC's: it lives as long as they do.
    pub(crate) _quic: Option<Arc<Endpoint>>,
}

/// The parent from which sub-groups are made.
pub(crate) enum Ancestry {
    /// A world of one, whose only sub-group is itself.
    Alone(SoloCommunicator),
    /// The origin of the group, and the number of its next operation.
    Group(Arc<Origin>, u64),
}

/// The message of each rank: its colour plus one, or zero; its key; its listener's port, or zero without one.
type SplitEntry = [u64; 3];

/// The part of a group that has one colour.
pub(crate) struct SplitPart {
    /// The part's communicator, whose errors name the part's own ranks.
    pub(crate) group: Box<dyn Communicator>,
    /// The ranks of its members in the group that was split.
    pub(crate) members: Vec<u32>,
}

/// See [`Communicator::split`].
pub(crate) fn split<B: CpuBackend>(
    parent: &mut B,
    colour: Option<u32>,
    key: i32,
) -> Result<Option<SplitPart>, CollectiveError> {
    let GroupMembership { term, generation, rank, world } = parent.membership();
    let (origin, sequence) = match parent.ancestry() {
        Ancestry::Group(origin, sequence) => (origin, sequence),
        Ancestry::Alone(child) => {
            parent.carry_out(signature(0), HostOperation::Barrier)?;
            return Ok(colour.map(|_| SplitPart { group: Box::new(child), members: vec![0] }));
        }
    };
    let bound = TcpFabric::bind(SocketAddr::new(origin.address, 0));
    let port = bound.as_ref().map_or(0, |fabric| fabric.local_address().port());
    let own: SplitEntry =
        [colour.map_or(0, |colour| u64::from(colour) + 1), key as u64, port.into()];
    let mut entries: Vec<SplitEntry> = vec![[0; 3]; world as usize];
    let output = bytemuck::cast_slice_mut(&mut entries);
    let input = bytemuck::cast_slice(&own);
    let exchange =
        HostOperation::AllGather { input, output, counts: None, data_type: DataType::U64 };
    parent.carry_out(signature(input.len()), exchange)?;
    let mut fabric = bound.map_err(|error| CollectiveError::System(Arc::new(error)))?;
    fabric.rates = origin.rates.clone();
    // A rank that could not listen has failed on its own; the others do not wait for it.
    if let Some(other) = entries.iter().position(|[_, _, port]| *port == 0) {
        return Err(CollectiveError::PeerLost { rank: other as u32, source: PeerLoss::Failed });
    }
    let Some(colour) = colour else { return Ok(None) };
    let mut members: Vec<u32> =
        (0..world).filter(|rank| entries[*rank as usize][0] == own[0]).collect();
    members.sort_by_key(|rank| (entries[*rank as usize][1] as i32, *rank));
    let place = members.iter().position(|member| *member == rank).unwrap_or_default();
    if members.len() == 1 {
        let solo = SoloCommunicator::of_generation(term, generation, &origin.abort);
        return Ok(Some(SplitPart { group: Box::new(solo), members }));
    }
    let group = sub_group(&origin.group, &members, place as u32, sequence, colour, &entries);
    match HostFabric::new(fabric).form(&group, &origin.abort) {
        Ok(group) => Ok(Some(SplitPart { group, members })),
        Err(error) => Err(failed(error, &origin.group, sequence, &members)),
    }
}

/// The signature of the exchange: another than that of the operation that carries it out, so that a rank that does not
/// split is noticed.
fn signature(bytes: usize) -> OperationSignature {
    OperationSignature::plain(OperationKind::Split, bytes as u64)
}

fn sub_group(
    parent: &GroupSpec,
    members: &[u32],
    rank: u32,
    sequence: u64,
    colour: u32,
    entries: &[SplitEntry],
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

/// The error of a sub-group that did not form, with the ranks and the operation number of the parent group.
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
        FormError::Broken { rank, source } => match *source {
            CollectiveError::PeerLost { source, .. } => {
                let in_parent = |rank: u32| members[rank as usize];
                let source = match source {
                    PeerLoss::Reported { by } => PeerLoss::Reported { by: in_parent(by) },
                    source => source,
                };
                CollectiveError::PeerLost { rank: in_parent(rank), source }
            }
            error => error,
        },
        FormError::System(error) => CollectiveError::System(Arc::new(error)),
        error => CollectiveError::System(Arc::new(io::Error::other(error))),
    }
}
