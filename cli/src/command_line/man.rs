//! `man`: the manual pages, made from the help. Called by `main`.

use std::path::PathBuf;

use clap::{Args, CommandFactory as _};
use clap_mangen::Man;

use super::arguments::CommandLine;
use super::failure::{CommandFailure, ResultExt as _};
use super::stdout::print_line;

/// Flags of `man`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ManFlags {
    /// Write the pages of all commands into this folder, which exists, instead of printing the first one
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,
}

/// Prints the page of the program, or writes all pages.
pub(crate) fn run_man(flags: &ManFlags) -> Result<(), CommandFailure> {
    let command = CommandLine::command();
    if let Some(folder) = &flags.output {
        let written = clap_mangen::generate_to(command, folder);
        return written
            .usage(format!("the manual pages cannot be written into {}", folder.display()))
            .map_err(|failure| failure.hint("give a folder that exists and can be written"));
    }
    let mut page = Vec::new();
    Man::new(command).render(&mut page).failed("the page cannot be made")?;
    let page = String::from_utf8(page).failed("the page is not UTF-8")?;
    print_line(page.trim_end())
}
