//! End-to-end tests: real processes, real sockets, real kills, through the binary as a user has it. Tests
//! cite the scenarios of the design (H-n, X-n).

mod clock;
mod discovery;
mod disk;
mod durable;
#[expect(dead_code, reason = "shared with the tests of the journal, which need more of it")]
#[path = "../../journal/tests/etcd/server.rs"]
mod etcd;
mod failures;
mod gpu;
mod lifecycle;
mod membership;
mod network;
mod operation;
mod progress;
mod restart;
mod security;
mod slurm;
mod slurm_cluster;
mod ssh;
mod sshd;
mod standby;
mod support;
mod torch;
mod torchrun;
