//! End-to-end tests: real processes, real sockets, real kills, through the binary as a user has it. Tests
//! cite the scenarios of the design (H-n, X-n).

mod discovery;
mod durable;
mod failures;
mod gpu;
mod lifecycle;
mod membership;
mod operation;
mod progress;
mod restart;
mod security;
mod slurm;
mod slurm_cluster;
mod ssh;
mod sshd;
mod support;
mod torch;
mod torchrun;
