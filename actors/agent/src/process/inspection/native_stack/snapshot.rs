//! A snapshot of a thread: its registers, and the inner part of its stack. Called by `native_stack`.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::thread;

use framehop::UnwindRegsNative;
use nix::errno::Errno;
use nix::poll::{PollTimeout, poll};
use nix::sys::ptrace;
use nix::unistd::Pid;

use super::NativeStackError;

/// Time limit for the thread to stop. One that runs or sleeps does so at once.
pub(super) const STOPPED_WITHIN_MS: u16 = 200;

/// Most of a stack that is copied, from its innermost call outwards.
const STACK_BYTES_MAX: usize = 512 << 10;

/// The registers that unwinding begins with, and the stack that it reads.
#[derive(Debug)]
pub(super) struct ThreadSnapshot {
    /// The address of the instruction that the thread is at.
    pub(super) instruction: u64,
    pub(super) registers: UnwindRegsNative,
    /// The address of the copied stack's first byte.
    stack_at: u64,
    stack: Vec<u8>,
}

impl ThreadSnapshot {
    /// Stops the main thread of a process, copies, and has it go on.
    ///
    /// # Errors
    /// The thread may not be traced, or does not stop.
    pub(super) fn take(pid: Pid) -> Result<Self, NativeStackError> {
        let path = PathBuf::from(format!("/proc/{pid}/mem"));
        // A thread of its own traces the other: if that one does not stop, only the end of its tracer lets it go.
        let take = move || {
            let memory = File::open(&path);
            let memory = memory.map_err(|source| NativeStackError::Unreadable { path, source })?;
            ptrace::seize(pid, ptrace::Options::empty()).map_err(NativeStackError::Refused)?;
            ptrace::interrupt(pid).map_err(NativeStackError::Refused)?;
            let snapshot = stopped(pid).map(|registers| Self::copy(&registers, &memory));
            // An error means that it was killed, or has not stopped.
            let _ = ptrace::detach(pid, None);
            snapshot
        };
        let tracer = thread::Builder::new().name("native stack".to_owned()).spawn(take);
        let tracer = tracer.map_err(NativeStackError::NoThread)?;
        tracer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    fn copy(registers: &libc::user_regs_struct, memory: &File) -> Self {
        let (instruction, stack_at, registers) = begun(registers);
        let mut stack = vec![0; STACK_BYTES_MAX];
        let mut copied = 0;
        // The file ends where the stack does, by an error or without a byte.
        while let Ok(more @ 1..) = memory.read_at(&mut stack[copied..], stack_at + copied as u64) {
            copied += more;
        }
        stack.truncate(copied);
        Self { instruction, registers, stack_at, stack }
    }

    /// Whether nothing of the stack could be copied.
    pub(super) const fn is_empty(&self) -> bool {
        self.stack.is_empty()
    }

    /// The word at an address of the copied stack.
    pub(super) fn word(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(self.stack_at)?).ok()?;
        let bytes = self.stack.get(at..)?.first_chunk()?;
        Some(u64::from_ne_bytes(*bytes))
    }
}

/// The registers of a thread once it has stopped. No wait(2) is called, since it might take the end of the process from
/// the thread that waits for it.
fn stopped(pid: Pid) -> Result<libc::user_regs_struct, NativeStackError> {
    for _ in 0..STOPPED_WITHIN_MS {
        match ptrace::getregs(pid) {
            Ok(registers) => return Ok(registers),
            // It runs still.
            Err(Errno::ESRCH) => {}
            Err(error) => return Err(NativeStackError::Refused(error)),
        }
        // An interrupted pause is a shorter one.
        let _ = poll(&mut [], PollTimeout::from(1_u8));
    }
    Err(NativeStackError::NotStopped)
}

/// Instruction, top of the stack, and the registers for unwinding.
#[cfg(target_arch = "x86_64")]
fn begun(registers: &libc::user_regs_struct) -> (u64, u64, UnwindRegsNative) {
    let libc::user_regs_struct { rip, rsp, rbp, .. } = *registers;
    (rip, rsp, UnwindRegsNative::new(rip, rsp, rbp))
}

/// Instruction, top of the stack, and the registers for unwinding: 29 is the frame pointer, 30 the link register.
#[cfg(target_arch = "aarch64")]
fn begun(registers: &libc::user_regs_struct) -> (u64, u64, UnwindRegsNative) {
    let libc::user_regs_struct { pc, sp, regs, .. } = *registers;
    (pc, sp, UnwindRegsNative::new(regs[30], sp, regs[29]))
}
