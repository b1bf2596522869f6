//! The program of `run` on this machine: whether it can be started, and whether it is Python's. Called by `driver_plan`
//! and `torch_plan`.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::failure::CommandFailure;

/// Bytes read of a program to see its kind: the first line of a script.
const BEGIN_BYTES: u64 = 256;

/// Whether a program is to be run as it is, though torchrun would give it to Python: a binary, or an executable script of
/// another interpreter.
pub(super) fn is_no_python(program: &Path) -> bool {
    if program.extension().is_some_and(|extension| extension == "py") {
        return false;
    }
    let mut begin = Vec::new();
    let read = File::open(program).and_then(|file| file.take(BEGIN_BYTES).read_to_end(&mut begin));
    if read.is_err() {
        return false;
    }
    let line = begin.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let is_other_script = line.starts_with(b"#!")
        && !String::from_utf8_lossy(line).contains("python")
        && is_executable(program);
    begin.starts_with(b"\x7fELF") || is_other_script
}

/// Refuses a command whose program or script this machine does not have. `argv` is the whole command.
pub(super) fn check_program(argv: &[String], is_python: bool) -> Result<(), CommandFailure> {
    let Some(program) = argv.first() else { return Ok(()) };
    check_executable(program).map_err(|failure| match is_python && !program.contains('/') {
        true => failure.hint("add the folder of Python to PATH, or name Python in PYTHON_EXEC"),
        false => failure,
    })?;
    // Python, `-u`, and the script.
    let script = argv.get(2).filter(|word| is_python && !word.starts_with('-'));
    let Some(script) = script else { return Ok(()) };
    let path = Path::new(script);
    // Python runs a folder that has a `__main__.py`, too.
    if !path.exists() {
        return Err(CommandFailure::usage(format!("there is no such script: {script}")).hint(
            "as with torchrun, what follows the flags is a Python script; put `--` before a program of PATH",
        ));
    }
    Ok(())
}

fn check_executable(program: &str) -> Result<(), CommandFailure> {
    if !program.contains('/') {
        return match in_path(program) {
            Some(_) => Ok(()),
            None => Err(CommandFailure::usage(format!(
                "there is no such program: no folder of PATH has {program}"
            ))
            .hint(format!("for a file of this folder write ./{program}"))),
        };
    }
    let path = Path::new(program);
    if path.is_dir() {
        return Err(CommandFailure::usage(format!("the program {program} is a folder"))
            .hint("give the path of a program: elastic-node run -n 4 -- PROGRAM ARGS"));
    }
    match path.try_exists() {
        Ok(true) => {}
        Ok(false) => {
            return Err(CommandFailure::usage(format!("there is no such program: {program}"))
                .hint("give the path of a program, or the name of one in PATH"));
        }
        // A folder on the way, or of a link, may be another user's: a Python environment's `python` often leads there.
        Err(error) => {
            return Err(CommandFailure::usage(format!("the program {program} cannot be reached"))
                .source(error)
                .hint("this user must be let into each folder on the way to it, and to where links lead"));
        }
    }
    if !is_executable(path) {
        return Err(CommandFailure::usage(format!("the program {program} is not executable"))
            .hint(format!("run: chmod +x {program}")));
    }
    Ok(())
}

/// The executable file of this name in a folder of `PATH`.
pub(super) fn in_path(program: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&folders).map(|folder| folder.join(program));
    found.into_iter().find(|path| path.is_file() && is_executable(path))
}

/// Whether anybody may execute it.
pub(super) fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binaries_and_scripts_of_others_are_not_given_to_python() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &[u8], mode: u32| {
            let path = folder.path().join(name);
            fs::write(&path, text).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("ours");
            path
        };
        assert!(is_no_python(&write("binary", b"\x7fELF\x02", 0o755)));
        assert!(is_no_python(&write("train.sh", b"#!/bin/sh\n", 0o755)));
        assert!(!is_no_python(&write("text", b"#!/bin/sh\n", 0o644)), "as torchrun");
        assert!(!is_no_python(&write("train", b"#!/usr/bin/env python3\n", 0o755)));
        assert!(!is_no_python(&write("train.py", b"\x7fELF", 0o755)));
        assert!(!is_no_python(Path::new("/nope")));
    }
}
