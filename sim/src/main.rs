//! The command line of the simulation: `run` a seed, `sweep` many, `replay` a trace.
//!
//! Exit codes: 0 ok, 2 wrong use, 3 safety, 4 liveness, 5 not deterministic, 6 decisions or states differ from the
//! recorded ones.

mod cli;

use std::process::ExitCode;

use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> anyhow::Result<ExitCode> {
    cli::main()
}
