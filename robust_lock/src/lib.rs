//! Robust locks: a worker's death is known before the kernel clears its memory, whatever its size.
//!
//! When a thread ends, the kernel marks the robust locks that it holds as ownerless and wakes a thread that waits for
//! each (futex(2), `FUTEX_OWNER_DIED`). It does so before it takes the process's memory apart. The end of the process,
//! and of its sockets, shows only after that, which is a second for 6 GB. So each worker takes one lock, on the thread
//! of its actors and for life, in memory that it shares with its agent: [`RobustLock`]. One thread of the agent waits
//! for all of them: [`LockWatch`]. A worker that waits for others of its host looks at their locks, too: [`PeerLocks`].
//!
//! A lock shows the end of that *thread*, not of the process. The process is ending too, or has replaced its program by
//! exec(2); only a pidfd tells the two apart, and the exit status. A worker's actors are gone in both cases. A lock
//! that was given back, a process that is stopped, and a process that never took a lock show nothing.
//!
//! The protocol of the words is `elastic_shm_protocol::owner`, which loom checks.

mod futex;
mod hold;
mod peers;
mod table;
mod watch;

pub use hold::{LockError, RobustLock};
pub use peers::{LockMark, PeerLocks};
pub use watch::{LockSeat, LockWatch};
