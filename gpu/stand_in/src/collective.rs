//! The collectives, through a segment, as a stream's thread carries them out. Queued by `comm`.

use std::sync::atomic::AtomicBool;

use crate::reduce;
use crate::segment::{Aborted, MAIL, SLOT, Segment, wait};

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    AllReduce,
    Reduce(u32),
    Broadcast(u32),
    AllGather,
    ReduceScatter,
    Send(u32),
    Receive(u32),
}

/// A queued operation. `bytes` is the length of the smaller buffer.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    pub kind: Kind,
    pub data_type: u32,
    pub op: u32,
    pub from: usize,
    pub to: usize,
    pub bytes: usize,
}

impl Operation {
    /// The description on which all ranks must agree.
    fn description(&self) -> u64 {
        let kind = match self.kind {
            Kind::AllReduce => 1,
            Kind::Reduce(root) => 0x100 + u64::from(root),
            Kind::Broadcast(root) => 0x200 + u64::from(root),
            Kind::AllGather => 2,
            Kind::ReduceScatter => 3,
            Kind::Send(_) | Kind::Receive(_) => 4,
        };
        kind << 48 | u64::from(self.data_type) << 44 | u64::from(self.op) << 40 | self.bytes as u64
    }
}

/// The view of one rank.
pub struct View<'a> {
    pub segment: &'a Segment,
    pub rank: u32,
    pub world: u32,
    pub abort: &'a AtomicBool,
}

impl View<'_> {
    /// Does the operations of one group: collectives in order, messages together.
    pub fn run(&self, group: &[Operation]) -> Result<(), Aborted> {
        let mut messages = Vec::new();
        for operation in group {
            match operation.kind {
                Kind::Send(_) | Kind::Receive(_) => messages.push((*operation, 0)),
                _ => self.collective(operation)?,
            }
        }
        wait(self.abort, || {
            messages.iter_mut().for_each(|(operation, done)| self.exchange(operation, done));
            messages.iter().all(|(operation, done)| *done == operation.bytes)
        })
    }

    fn exchange(&self, operation: &Operation, done: &mut usize) {
        while *done < operation.bytes {
            let length = MAIL.min(operation.bytes - *done);
            // SAFETY: the caller of NCCL keeps its buffers until the stream has passed.
            let went = unsafe {
                match operation.kind {
                    Kind::Send(to) => {
                        self.segment.post(self.rank, to, bytes(operation.from + *done, length))
                    }
                    Kind::Receive(from) => {
                        let into = bytes_mut(operation.to + *done, length);
                        self.segment.take(from, self.rank, into)
                    }
                    _ => true,
                }
            };
            if !went {
                return;
            }
            *done += length;
        }
    }

    fn collective(&self, operation: &Operation) -> Result<(), Aborted> {
        if !self.segment.agree(self.rank, operation.description(), self.abort)? {
            // NCCL would hang, or mix the data.
            return wait(self.abort, || false);
        }
        let mut at = 0;
        while at < operation.bytes {
            let length = SLOT.min(operation.bytes - at);
            self.piece(operation, at, length)?;
            at += length;
        }
        Ok(())
    }

    fn piece(&self, operation: &Operation, at: usize, length: usize) -> Result<(), Aborted> {
        let Operation { kind, from, to, bytes: part, .. } = *operation;
        // SAFETY: the caller of NCCL keeps its buffers until the stream has passed; slots go by turns.
        unsafe {
            match kind {
                Kind::AllReduce => {
                    self.contribute(from + at, length)?;
                    let result = self.folded(operation, length);
                    self.segment.barrier(self.abort)?;
                    bytes_mut(to + at, length).copy_from_slice(&result);
                }
                Kind::Reduce(root) => {
                    self.contribute(from + at, length)?;
                    let result = (root == self.rank).then(|| self.folded(operation, length));
                    self.segment.barrier(self.abort)?;
                    if let Some(result) = result {
                        bytes_mut(to + at, length).copy_from_slice(&result);
                    }
                }
                Kind::Broadcast(root) => {
                    if root == self.rank {
                        let slot = &mut self.segment.slot(root)[..length];
                        slot.copy_from_slice(bytes(from + at, length));
                    }
                    self.segment.barrier(self.abort)?;
                    bytes_mut(to + at, length).copy_from_slice(&self.segment.slot(root)[..length]);
                    self.segment.barrier(self.abort)?;
                }
                Kind::AllGather => {
                    self.contribute(from + at, length)?;
                    for rank in 0..self.world {
                        let slot = &self.segment.slot(rank)[..length];
                        bytes_mut(to + rank as usize * part + at, length).copy_from_slice(slot);
                    }
                    self.segment.barrier(self.abort)?;
                }
                Kind::ReduceScatter => {
                    for rank in 0..self.world {
                        self.contribute(from + rank as usize * part + at, length)?;
                        let result = (rank == self.rank).then(|| self.folded(operation, length));
                        self.segment.barrier(self.abort)?;
                        if let Some(result) = result {
                            bytes_mut(to + at, length).copy_from_slice(&result);
                        }
                    }
                }
                Kind::Send(_) | Kind::Receive(_) => {}
            }
        }
        Ok(())
    }

    /// Shows the others a piece of this rank's.
    unsafe fn contribute(&self, from: usize, length: usize) -> Result<(), Aborted> {
        unsafe { &mut self.segment.slot(self.rank)[..length] }
            .copy_from_slice(unsafe { bytes(from, length) });
        self.segment.barrier(self.abort)
    }

    unsafe fn folded(&self, operation: &Operation, length: usize) -> Vec<u8> {
        let Operation { data_type, op, .. } = *operation;
        let mut result = unsafe { self.segment.slot(0)[..length].to_vec() };
        for rank in 1..self.world {
            reduce::fold(data_type, op, &mut result, unsafe { &self.segment.slot(rank)[..length] });
        }
        reduce::finish(data_type, op, &mut result, self.world);
        result
    }
}

unsafe fn bytes<'a>(start: usize, length: usize) -> &'a [u8] {
    unsafe { std::slice::from_raw_parts(start as *const u8, length) }
}

unsafe fn bytes_mut<'a>(start: usize, length: usize) -> &'a mut [u8] {
    unsafe { std::slice::from_raw_parts_mut(start as *mut u8, length) }
}
