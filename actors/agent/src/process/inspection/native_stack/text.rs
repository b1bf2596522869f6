//! The text of a native stack: names of functions by their symbols. Called by `native_stack`.

use blazesym::Pid as TracedPid;
use blazesym::symbolize::source::{Process, Source};
use blazesym::symbolize::{Input, Symbolizer};
use elastic_protocol::messages::ProcessSight;
use nix::unistd::Pid;

use super::NativeStackError;
use super::modules::Modules;
use crate::process::inspection::texts::{bounded_lines, printable};

/// Longest name of a function that is shown whole, in bytes: those of C++ templates fill pages.
const NAME_BYTES_MAX: usize = 120;

/// The function in which Python's interpreter runs the program.
const INTERPRETER: &str = "_PyEval_EvalFrameDefault";

/// Prefix of the names of Python functions in the map that the interpreter writes (`python -X perf`).
const PYTHON_FUNCTION: &str = "py::";

/// Names the calls at these addresses, the innermost first.
pub(super) fn named(
    pid: Pid,
    calls: &[u64],
    modules: &Modules,
) -> Result<String, NativeStackError> {
    let symbolizer =
        Symbolizer::builder().enable_code_info(false).enable_inlined_fns(false).build();
    let process = Process {
        debug_syms: false,
        // The other way takes a privilege.
        map_files: false,
        ..Process::new(TracedPid::from(pid.as_raw().unsigned_abs()))
    };
    let found = symbolizer.symbolize(&Source::Process(process), Input::AbsAddr(calls));
    let found = found.map_err(NativeStackError::Unnamed)?;
    let names = found.iter().map(|found| found.as_sym().map(|symbol| symbol.name.as_ref()));
    let files = calls.iter().map(|address| modules.file_name(*address));
    let lines: Vec<String> = names.zip(files).map(|(name, file)| line(name, file)).collect();
    Ok(arranged(&lines))
}

fn line(function: Option<&str>, file: Option<String>) -> String {
    let mut name = printable(function.unwrap_or("??"));
    if name.len() > NAME_BYTES_MAX {
        while name.len() > NAME_BYTES_MAX {
            name.pop();
        }
        name.push('…');
    }
    match file {
        Some(file) => format!("{name} ({})", printable(&file)),
        None => name,
    }
}

/// Lines within the bound of a sight. Of the callers of the interpreter, which are mostly its own functions, only those are
/// shown that stand for a Python function.
fn arranged(lines: &[String]) -> String {
    let is_interpreter = |line: &String| line.starts_with(INTERPRETER);
    let first = lines.iter().position(is_interpreter).unwrap_or(lines.len());
    let shown = lines.iter().enumerate();
    let shown = shown.filter(|(at, line)| *at <= first || line.starts_with(PYTHON_FUNCTION));
    let shown: Vec<&str> = shown.map(|(_, line)| line.as_str()).collect();
    bounded_lines(&shown, ProcessSight::NATIVE_STACK_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_its_function_and_its_file() {
        let file = Some("libc.so.6".to_owned());
        assert_eq!(line(Some("read"), file.clone()), "read (libc.so.6)");
        assert_eq!(line(None, file), "?? (libc.so.6)");
        assert_eq!(line(Some("py::load:train.py"), None), "py::load:train.py");
        let long = line(Some(&"ä".repeat(200)), None);
        assert!(long.ends_with("ä…") && long.len() <= NAME_BYTES_MAX + '…'.len_utf8(), "{long}");
    }

    #[test]
    fn of_the_interpreters_callers_python_functions_are_shown() {
        let [pause, run, load, main] =
            ["pause (libc.so.6)", "_PyEval_EvalFrameDefault (python3.12)", "py::load", "main (x)"];
        let lines = [pause, run, load, run, main].map(ToOwned::to_owned);
        assert_eq!(arranged(&lines), format!("{pause}\n{run}\n{load}\n"));
        assert_eq!(arranged(&lines[4..]), format!("{main}\n"));
    }
}
