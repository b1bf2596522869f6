//! Words for system calls that block. The calls are listed by name, since their numbers differ between processor
//! architectures. Called by `waits_in`.

/// Words for the wait of a thread in a system call.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Blocking {
    /// These words, followed by a description of the file descriptor that is the call's first argument.
    On(&'static str),
    /// These words alone.
    In(&'static str),
}

/// The words for a system call; `None` for one that does not block often.
pub(super) fn blocking(number: i64) -> Option<Blocking> {
    let words = match number {
        libc::SYS_read
        | libc::SYS_pread64
        | libc::SYS_readv
        | libc::SYS_preadv
        | libc::SYS_preadv2 => Blocking::On("read from"),
        libc::SYS_write
        | libc::SYS_pwrite64
        | libc::SYS_writev
        | libc::SYS_pwritev
        | libc::SYS_pwritev2
        | libc::SYS_sendfile => Blocking::On("write to"),
        libc::SYS_recvfrom | libc::SYS_recvmsg | libc::SYS_recvmmsg => Blocking::On("receive from"),
        libc::SYS_sendto | libc::SYS_sendmsg | libc::SYS_sendmmsg => Blocking::On("send to"),
        libc::SYS_connect => Blocking::On("connect by"),
        libc::SYS_accept | libc::SYS_accept4 => Blocking::On("accept from"),
        libc::SYS_flock | libc::SYS_fcntl => Blocking::On("a lock of"),
        libc::SYS_fsync | libc::SYS_fdatasync | libc::SYS_syncfs => Blocking::On("sync of"),
        libc::SYS_ftruncate | libc::SYS_fallocate => Blocking::On("a change of the size of"),
        libc::SYS_getdents64 => Blocking::On("a list of"),
        libc::SYS_close => Blocking::On("close of"),
        libc::SYS_ioctl => Blocking::On("ioctl of"),
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => Blocking::On("an event at"),
        libc::SYS_ppoll | libc::SYS_pselect6 => POLL,
        libc::SYS_futex => Blocking::In("a lock or a condition (futex)"),
        libc::SYS_wait4 | libc::SYS_waitid => Blocking::In("the end of a child process"),
        libc::SYS_nanosleep | libc::SYS_clock_nanosleep => Blocking::In("a sleep"),
        libc::SYS_restart_syscall => Blocking::In("a sleep or a wait with a time limit"),
        libc::SYS_rt_sigsuspend | libc::SYS_rt_sigtimedwait => SIGNAL,
        libc::SYS_openat | libc::SYS_openat2 => OPEN,
        libc::SYS_newfstatat | libc::SYS_statx | libc::SYS_faccessat => LOOK,
        libc::SYS_mkdirat | libc::SYS_unlinkat | libc::SYS_renameat2 => FOLDER,
        libc::SYS_sync => Blocking::In("a sync of all disks"),
        libc::SYS_mmap | libc::SYS_munmap | libc::SYS_mprotect | libc::SYS_madvise => {
            Blocking::In("a change of its memory")
        }
        libc::SYS_io_getevents | libc::SYS_io_uring_enter => {
            Blocking::In("reads or writes under way")
        }
        libc::SYS_semop | libc::SYS_semtimedop => Blocking::In("a semaphore"),
        libc::SYS_msgrcv | libc::SYS_msgsnd => Blocking::In("a message queue"),
        libc::SYS_execve | libc::SYS_execveat => Blocking::In("the start of a program"),
        libc::SYS_clone | libc::SYS_clone3 => START,
        _ => return older(number),
    };
    Some(words)
}

const FOLDER: Blocking = Blocking::In("a change of a folder");
const LOOK: Blocking = Blocking::In("a look at a file (stat)");
const OPEN: Blocking = Blocking::In("the opening of a file");
const POLL: Blocking = Blocking::In("an event at its file descriptors (poll)");
const SIGNAL: Blocking = Blocking::In("a signal");
const START: Blocking = Blocking::In("the start of a child process");

/// Calls that newer processors do not have.
#[cfg(target_arch = "x86_64")]
fn older(number: i64) -> Option<Blocking> {
    Some(match number {
        libc::SYS_epoll_wait => Blocking::On("an event at"),
        libc::SYS_poll | libc::SYS_select => POLL,
        libc::SYS_pause => SIGNAL,
        libc::SYS_open | libc::SYS_creat => OPEN,
        libc::SYS_stat | libc::SYS_lstat | libc::SYS_access => LOOK,
        libc::SYS_mkdir | libc::SYS_rmdir | libc::SYS_unlink | libc::SYS_rename => FOLDER,
        libc::SYS_fork | libc::SYS_vfork => START,
        _ => return None,
    })
}

#[cfg(not(target_arch = "x86_64"))]
fn older(_: i64) -> Option<Blocking> {
    None
}
