//! The program `elastic-node`: reads the command line, and runs the command or role that it names.

mod command_line;
mod demo;
#[expect(dead_code, reason = "its `main` is the example's")]
#[path = "../../examples/digits.rs"]
mod digits;
mod process;

use std::ffi::CStr;
use std::process::ExitCode;

use command_line::{CommandFailure, CommandLine, ProgramCommand, ResultExt as _, Role, RunPlan};
use elastic_runtime::system;

fn main() -> ExitCode {
    process::unblock_signals();
    let code = match command_line::read().and_then(carry_out) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.report();
            ExitCode::from(failure.code())
        }
    };
    command_line::flush_stderr();
    code
}

fn carry_out(cli: CommandLine) -> Result<(), CommandFailure> {
    forget_token();
    command_line::start_logging(&cli.log)?;
    command_line::warn_of_misspelt_variables();
    let CommandLine { command, role, log, .. } = cli;
    match (command, role.role) {
        (Some(ProgramCommand::Demo(flags)), _) => demo::run_demo(flags.json),
        (Some(ProgramCommand::DemoWorker(options)), _) => {
            digits::train(&options).map(drop).failed("the training failed")
        }
        (Some(ProgramCommand::Run(run)), _) => match command_line::plan_run(&run)? {
            RunPlan::Driver(plan) => process::run_driver(*plan, &log, None),
            RunPlan::Node(plan) => process::run_node(*plan, &log),
        },
        (Some(ProgramCommand::List(flags)), _) => command_line::print_jobs(&flags),
        (Some(ProgramCommand::Status(flags)), _) => {
            system::run(command_line::print_status(&flags)).failed("the system refuses a client")?
        }
        (Some(ProgramCommand::Explain(flags)), _) => command_line::print_explanation(&flags),
        (Some(ProgramCommand::History(flags)), _) => command_line::print_history(&flags),
        (Some(ProgramCommand::Stop(flags)), _) => {
            system::run(command_line::stop_job(&flags)).failed("the system refuses a client")?
        }
        (Some(ProgramCommand::Drain(flags)), _) => {
            system::run(command_line::drain_host(&flags)).failed("the system refuses a client")?
        }
        (Some(ProgramCommand::Readmit(flags)), _) => {
            system::run(command_line::readmit_host(&flags)).failed("the system refuses a client")?
        }
        (Some(ProgramCommand::Forget(flags)), _) => command_line::forget_job(&flags),
        (Some(ProgramCommand::Logs(flags)), _) => command_line::print_logs(&flags),
        (Some(ProgramCommand::Timeline(flags)), _) => command_line::print_timeline(&flags),
        (Some(ProgramCommand::Replay(flags)), _) => command_line::run_replay(&flags),
        (Some(ProgramCommand::Report(flags)), _) => command_line::run_report(&flags),
        (Some(ProgramCommand::Checkpoint(flags)), _) => command_line::run_checkpoint(&flags),
        (Some(ProgramCommand::Config(flags)), _) => command_line::run_config(&flags),
        (Some(ProgramCommand::Doctor(flags)), _) => command_line::run_doctor(&flags),
        (Some(ProgramCommand::Completions(flags)), _) => command_line::print_completions(&flags),
        (Some(ProgramCommand::Man(flags)), _) => command_line::run_man(&flags),
        (None, Some(Role::Driver)) => {
            process::run_driver(command_line::plan_driver(&role.driver, &role.program)?, &log, None)
        }
        (None, Some(Role::Worker)) => process::run_agent(command_line::plan_worker(&role)?),
        (None, None) => Err(CommandFailure::usage("no command and no role is given")
            .hint("see `elastic-node --help`; `elastic-node demo` shows what it is for")),
    }
}

/// Removes the join token from the environment, which every child process inherits: a worker's program has a
/// credential of its own and must not see this one.
#[expect(unsafe_code, reason = "the environment is changed before there is a second thread")]
fn forget_token() {
    unsafe extern "C" {
        static environ: *const *mut libc::c_char;
    }
    let name = [command_line::TOKEN_VARIABLE, "="].concat();
    // SAFETY: called from `main` while this is the only thread, so no other thread reads the environment, which is an array of
    // strings with a null behind the last one. Nothing needs these values any more, and /proc would show them as long as they
    // stand there: all of them, since an environment may have a variable more than once.
    unsafe {
        let mut entry = environ;
        while !entry.is_null() && !(*entry).is_null() {
            let text = CStr::from_ptr(*entry).to_bytes();
            if let Some(value) = text.strip_prefix(name.as_bytes()) {
                std::ptr::write_bytes((*entry).add(name.len()), 0, value.len());
            }
            entry = entry.add(1);
        }
        std::env::remove_var(command_line::TOKEN_VARIABLE);
    }
}
