//! End-to-end tests: real processes, real sockets, real kills, through the binary that a user runs. Tests cite the
//! scenarios of the design (H-n, X-n).

mod browser;
mod checkpoints;
mod clock;
mod collector;
mod configuration;
mod containers;
mod data_path;
mod discovery;
mod disk;
mod doctor;
mod documents;
mod durable;
#[expect(dead_code, reason = "shared with the tests of the journal, which need more of it")]
#[path = "../../journal/tests/etcd/server.rs"]
mod etcd;
mod failures;
mod gpu;
mod handshakes;
mod hosts;
mod installed;
mod jobs;
mod lifecycle;
mod logs;
mod membership;
mod memory;
mod metrics;
mod network;
mod networks;
mod nodes;
mod observe;
mod operation;
mod page;
mod pauses;
mod perfetto;
mod progress;
mod recording;
mod report;
mod reported;
mod restart;
mod security;
mod sick;
mod sickness;
mod slurm;
mod slurm_cluster;
mod ssh;
mod sshd;
mod standby;
mod store;
mod strangers;
mod support;
mod torch;
mod torchrun;
mod total_loss;
mod traces;
mod wrong_use;
