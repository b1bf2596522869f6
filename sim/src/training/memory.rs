//! [`SimulatedMemory`]: memory beside the state of a simulated training thread, as a GPU's. Its copies end when they are waited
//! for, and fail by the plan. Added to the state by `nodes`.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use elastic_worker::state::training::{DeviceError, DeviceMemory};

use super::seat::ThreadSeat;
use super::witness::HeldCommit;

#[derive(Debug, Default)]
struct MemoryBlocks {
    live: Vec<u8>,
    committed: Vec<u8>,
    /// The copy that is under way, and the commit that is lost if it is to fail.
    copying: Option<(Vec<u8>, Option<HeldCommit>)>,
    finished: Option<Vec<u8>>,
    is_changed: bool,
}

/// The program's handle on its memory.
#[derive(Clone, Debug)]
pub(super) struct MemoryHandle(Rc<RefCell<MemoryBlocks>>);

impl MemoryHandle {
    pub(super) fn new(length: usize) -> Self {
        Self(Rc::new(RefCell::new(MemoryBlocks {
            live: vec![0; length],
            ..MemoryBlocks::default()
        })))
    }

    /// Writes all of it, from these bits.
    pub(super) fn write(&self, bits: u64) {
        let mut blocks = self.0.borrow_mut();
        for (place, byte) in blocks.live.iter_mut().enumerate() {
            *byte = (bits >> (place % 53)) as u8 ^ place as u8;
        }
        blocks.is_changed = true;
    }

    /// Its content.
    pub(super) fn content(&self) -> Vec<u8> {
        self.0.borrow().live.clone()
    }
}

/// The memory as the State sees it.
pub(super) struct SimulatedMemory {
    handle: MemoryHandle,
    seat: Arc<ThreadSeat>,
}

impl SimulatedMemory {
    pub(super) fn new(handle: &MemoryHandle, seat: &Arc<ThreadSeat>) -> Self {
        Self { handle: handle.clone(), seat: Arc::clone(seat) }
    }
}

impl DeviceMemory for SimulatedMemory {
    fn length_bytes(&self) -> usize {
        self.handle.0.borrow().live.len()
    }

    fn begin_commit(&mut self, stop: &dyn Fn() -> Option<String>) -> Result<(), DeviceError> {
        if let Some(reason) = stop() {
            return Err(reason.into());
        }
        let fails = std::mem::take(&mut self.seat.orders().copy_fails);
        let held = self.seat.witness().facts(self.seat.number).held.filter(|_| fails);
        let mut blocks = self.handle.0.borrow_mut();
        blocks.copying = Some((blocks.live.clone(), held));
        blocks.is_changed = false;
        Ok(())
    }

    fn finish_commit(&mut self) -> Result<(), DeviceError> {
        let mut blocks = self.handle.0.borrow_mut();
        match blocks.copying.take() {
            Some((_, lost @ Some(_))) => {
                self.seat.witness().commit_lost(self.seat.number, lost);
                Err("the plan says so".into())
            }
            Some((copy, None)) => {
                blocks.finished = Some(copy);
                Ok(())
            }
            None => Err("no copy was begun".into()),
        }
    }

    fn keep_commit(&mut self) {
        let mut blocks = self.handle.0.borrow_mut();
        if let Some(copy) = blocks.finished.take() {
            blocks.committed = copy;
        }
    }

    fn give_up_commit(&mut self) {
        let mut blocks = self.handle.0.borrow_mut();
        (blocks.copying, blocks.finished) = (None, None);
    }

    fn read_commit(&self, read: &mut dyn FnMut(&[u8])) {
        read(&self.handle.0.borrow().committed);
    }

    fn replace_commit(&mut self, bytes: &[u8]) -> Result<(), DeviceError> {
        self.handle.0.borrow_mut().committed = bytes.to_vec();
        Ok(())
    }

    fn restore(&mut self) -> Result<(), DeviceError> {
        let mut blocks = self.handle.0.borrow_mut();
        blocks.live = blocks.committed.clone();
        blocks.is_changed = false;
        Ok(())
    }

    fn is_changed(&self) -> bool {
        self.handle.0.borrow().is_changed
    }
}
