//! The command line `elastic-node`: reads what is wanted, and becomes that process.

mod cli;
mod demo;
#[expect(dead_code, reason = "its `main` is the example's")]
#[path = "../examples/digits.rs"]
mod digits;
mod process;

use std::process::ExitCode;

use cli::{Cli, Command, Failure, ResultExt as _, Role};
use elastic_runtime::system;

fn main() -> ExitCode {
    match cli::read().and_then(carry_out) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.report();
            ExitCode::from(failure.code())
        }
    }
}

fn carry_out(cli: Cli) -> Result<(), Failure> {
    forget_token();
    cli::start_logging(&cli.log)?;
    let Cli { command, role, log } = cli;
    match (command, role.role) {
        (Some(Command::Demo(flags)), _) => demo::run_demo(flags.json),
        (Some(Command::DemoWorker(options)), _) => {
            digits::train(&options).map(drop).failed("the training failed")
        }
        (Some(Command::Run(run)), _) => process::run_driver(cli::plan_run(&run)?, &log),
        (Some(Command::Status(flags)), _) => {
            system::run(cli::print_status(&flags)).failed("the system refuses a client")?
        }
        (Some(Command::Doctor(flags)), _) => cli::run_doctor(&flags),
        (None, Some(Role::Driver)) => {
            process::run_driver(cli::plan_driver(&role.driver, &role.program)?, &log)
        }
        (None, Some(Role::Worker)) => process::run_agent(cli::plan_worker(&role)?),
        (None, None) => Err(Failure::usage("no command and no role is given")
            .hint("see `elastic-node --help`; `elastic-node demo` shows what it is for")),
    }
}

/// Takes the join token out of the environment, which every process that is started from here inherits: a
/// worker's program has a credential of its own, and no business with this one.
#[expect(unsafe_code, reason = "the environment is changed before there is a second thread")]
fn forget_token() {
    // SAFETY: called from `main` while this is the only thread, so nobody reads the environment meanwhile.
    unsafe { std::env::remove_var(cli::TOKEN_VARIABLE) };
}
