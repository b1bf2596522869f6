//! `cargo xtask`: tasks that are more than one cargo call. `cargo xtask test` is the tier for a fresh checkout,
//! `cargo xtask ci` runs all checks.

mod book;
mod check;
mod checked;
mod ci;
mod debian;
mod deny;
mod direction;
mod disk;
mod dist;
mod docs;
mod features;
mod homonyms;
mod lane;
mod messages;
mod mutants;
mod python;
mod simulation;
mod step_times;
mod steps;
mod test;
mod unused;
mod waits;

use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use clap::{Parser, Subcommand};

/// Elastic Node's own tasks.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
struct XtaskArguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Clone, Debug, Subcommand)]
enum Task {
    /// Format, lints, tests, simulated clusters; needs no root, installs nothing, skips missing components by name.
    Test,
    /// All checks; installs what the tests run against (etcd, sshd, torch, ...), as root.
    Ci,
    /// Only the tests that need Python: of the package, and of unmodified torch scripts.
    Python {
        /// The torch to test with, such as 2.8; by default the newest that is pinned.
        #[arg(long)]
        torch: Option<String>,
    },
    /// The test suites of peer projects, run on this package; docs/compatibility.md lists what passes.
    Suites {
        /// Ranks to run with.
        #[arg(long, num_args = 1.., default_values_t = [2, 3, 4])]
        ranks: Vec<u32>,
        /// A checkout of Horovod; without it, git fetches one.
        #[arg(long)]
        horovod: Option<String>,
    },
    /// Small mistakes put into the code, one at a time: how many of them the simulation and the tests find.
    Mutants(mutants::MutantsOptions),
    /// Compares what recorded runs of the simulation decide, and what their cores hold, with what is committed in `sim/decisions`.
    Decisions {
        /// Records what is decided now. The change is then seen in the commit.
        #[arg(long)]
        accept: bool,
    },
    /// Whether docs/waits.md names each duration of the product, and a test for each deadline.
    Waits,
    /// Whether docs/messages.md has each message of the product, and docs/troubleshooting.md an entry for each error.
    Messages {
        /// Writes docs/messages.md anew.
        #[arg(long)]
        accept: bool,
    },
    /// The documents as a book, in target/book/html; builds mdBook below target/tools if it is not installed.
    Book,
    /// The quick checks: format, lints, dependencies, names of types.
    Check,
    /// The part of `ci` that installs what the tests run against, beside its lints.
    #[command(hide = true)]
    Components,
    /// The part of `ci` that runs beside its tests.
    #[command(hide = true)]
    Computing,
    /// The part of `test` that runs beside its tests.
    #[command(hide = true)]
    Simulation,
    /// Licences, bans and sources of dependencies; records in `deny.checked` that these lock files have passed.
    Deny,
    /// What a release consists of, made in `dist/`: programs, wheel, Debian package, bill of materials, checksums.
    Dist(dist::DistOptions),
}

fn main() -> ExitCode {
    let arguments = XtaskArguments::parse();
    match restart_for_cargo(&arguments.task).and_then(|()| run(arguments.task)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A closed stderr leaves nobody to tell; the exit code remains.
            let _ = write!(std::io::stderr(), "{}", in_words(&error));
            ExitCode::FAILURE
        }
    }
}

/// Begins of the names of variables that `cargo run` gives a program about its package. The build script of ring asks for
/// variables with the same names. With xtask's in its environment, cargo builds ring and what depends on it anew, and once
/// more when it is called by hand.
const OF_PACKAGE: [&str; 2] = ["CARGO_PKG_", "CARGO_MANIFEST_"];

/// The variable by which cargo keeps what a next build of the same package could use.
const INCREMENTAL: &str = "CARGO_INCREMENTAL";

/// Starts this program anew without the variables of [`OF_PACKAGE`], unless it has none, so that the cargo that it calls
/// is as one that is called by hand. `ci` builds everything once: what cargo would keep for a next build takes time, and
/// gigabytes of disk.
fn restart_for_cargo(task: &Task) -> anyhow::Result<()> {
    let names = std::env::vars_os().map(|(name, _)| name);
    let is_of_package = |name: &OsString| {
        name.to_str().is_some_and(|name| OF_PACKAGE.iter().any(|it| name.starts_with(it)))
    };
    let of_package: Vec<OsString> = names.filter(is_of_package).collect();
    if of_package.is_empty() {
        return Ok(());
    }
    let mut restarted = Command::new(std::env::current_exe()?);
    restarted.args(std::env::args_os().skip(1));
    for name in of_package {
        restarted.env_remove(name);
    }
    if matches!(task, Task::Ci) && std::env::var_os(INCREMENTAL).is_none() {
        restarted.env(INCREMENTAL, "0");
    }
    Err(restarted.exec().into())
}

fn run(task: Task) -> anyhow::Result<()> {
    match task {
        Task::Test => test::test(),
        Task::Ci => ci::ci(),
        Task::Python { torch } => ci::python(torch.as_deref()),
        Task::Suites { ranks, horovod } => ci::suites(&ranks, horovod.as_deref()),
        Task::Waits => waits::waits(),
        Task::Messages { accept } => messages::messages(accept),
        Task::Book => book::build_and_note(&steps::shell()?),
        Task::Check => check::check().and_then(|()| step_times::print()),
        Task::Components => lane::run(lane::COMPONENTS, ci::components),
        Task::Computing => lane::run(lane::COMPUTING, ci::computing),
        Task::Simulation => lane::run(lane::SIMULATION, test::simulation),
        Task::Deny => deny::check_and_note(&steps::shell()?),
        Task::Dist(options) => dist::dist(options),
        Task::Decisions { accept } => simulation::decisions(&steps::shell()?, accept),
        Task::Mutants(options) => mutants::run(&options),
    }
}

/// An error and its causes, as the program `elastic-node` prints them: without a backtrace, which says nothing about a
/// failed step.
fn in_words(error: &anyhow::Error) -> String {
    let causes = error.chain().skip(1).map(|cause| format!("caused by: {cause}\n"));
    std::iter::once(format!("\nerror: {error}\n")).chain(causes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_step_ends_with_its_name_and_without_a_backtrace() {
        let failed: anyhow::Result<()> = steps::step("lints", || anyhow::bail!("a warning"));
        let said = in_words(&failed.unwrap_err());
        assert_eq!(said, "\nerror: lints failed\ncaused by: a warning\n");
    }
}
