//! The rendezvous by which the ranks of one host come to share a segment, over the authenticated links of the mesh.
//!
//! Rank 0 makes the segment and tells the others its process number, its descriptor's number and a random token. They
//! open it by `/proc`, which the kernel allows to processes of one user, and compare the token. No part of it has a
//! name that could outlive the ranks, and no second channel has to be authenticated. If one rank cannot open it
//! (another machine after all, another namespace or user, no memfd), all go on over TCP.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use ring::rand::{SecureRandom, SystemRandom};

use super::layout::SegmentLayout;
use super::memory::{SharedSegment, Token};
use super::stores::Stores;
use crate::communicator::CommunicatorExt;
use crate::error::CollectiveError;
use crate::reduce::ReduceOp;
use crate::tcp::TcpCommunicator;

const ROOT: u32 = 0;
/// Words of the invitation: process number, descriptor, token.
const INVITATION_WORDS: usize = 6;

/// Makes a segment that every rank of the group has mapped; `None` where one of them could not.
///
/// # Errors
///
/// Any error of the links' collectives; the links are of no use after that.
pub(super) fn share(
    tcp: &mut TcpCommunicator,
    layout: SegmentLayout,
    rank: u32,
    random: &SystemRandom,
) -> Result<Option<SharedSegment>, CollectiveError> {
    let mut invitation = [0u64; INVITATION_WORDS];
    // The descriptor stays open until every rank has opened it.
    let mut made: Option<(SharedSegment, OwnedFd)> = None;
    if rank == ROOT {
        match make(layout, random) {
            Ok((segment, descriptor, token)) => {
                invitation[0] = u64::from(std::process::id());
                invitation[1] = descriptor.as_raw_fd() as u64;
                invitation[2..].copy_from_slice(&token);
                made = Some((segment, descriptor));
            }
            Err(error) => tracing::debug!(%error, "no shared memory can be made"),
        }
    }
    tcp.broadcast(&mut invitation, ROOT)?;
    let segment = if rank == ROOT {
        made.as_ref().map(|_| None)
    } else {
        accept(layout, &invitation).map(Some)
    };
    let is_fast_past_caches = Stores::of_machine(layout.world()) == Stores::NonTemporal;
    // The algorithm follows from the stores, so all ranks take the same, also where they see other numbers of processors.
    let mut agreed = [u8::from(segment.is_some()), u8::from(is_fast_past_caches)];
    tcp.all_reduce(&mut agreed, ReduceOp::Min)?;
    let [is_ready, is_fast_past_caches] = agreed.map(|by_all| by_all != 0);
    if !is_ready {
        return Ok(None);
    }
    let stores = if is_fast_past_caches { Stores::NonTemporal } else { Stores::Cached };
    let segment = segment.flatten().or(made.map(|(segment, _)| segment));
    Ok(segment.map(|segment| segment.written_with(stores)))
}

fn make(
    layout: SegmentLayout,
    random: &SystemRandom,
) -> io::Result<(SharedSegment, OwnedFd, Token)> {
    let mut token: Token = [0; 4];
    random
        .fill(bytemuck::cast_slice_mut(&mut token))
        .map_err(|_| io::Error::other("the system gives no randomness"))?;
    let (segment, descriptor) = SharedSegment::create(layout, token)?;
    Ok((segment, descriptor, token))
}

fn accept(layout: SegmentLayout, invitation: &[u64; INVITATION_WORDS]) -> Option<SharedSegment> {
    let pid = u32::try_from(invitation[0]).ok().filter(|pid| *pid != 0)?;
    let descriptor = i32::try_from(invitation[1]).ok()?;
    let mut token: Token = [0; 4];
    token.copy_from_slice(&invitation[2..]);
    SharedSegment::open(layout, pid, descriptor, token)
        .inspect_err(|error| tracing::debug!(%error, pid, "shared memory cannot be opened"))
        .ok()
}
