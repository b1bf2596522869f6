//! Checks whose result changes only with certain files. A record in the repository names the files that have passed, by
//! their hashes, and the check is left out while they are the same: the tools of such checks take minutes to build.
//! Used by `deny` and `book`.

use xshell::{Shell, cmd};

use crate::steps::{skip, step};

/// A check with a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordedCheck {
    pub(crate) name: &'static str,
    /// The task that runs the check and records that it has passed.
    pub(crate) task: &'static str,
    /// The files that determine the result.
    pub(crate) inputs: &'static [&'static str],
    /// The file with the hashes of the inputs that have passed.
    pub(crate) record: &'static str,
}

impl RecordedCheck {
    /// Runs the check as a step, unless its inputs have passed before.
    ///
    /// # Errors
    /// The check failed.
    pub(crate) fn run_if_changed(
        self,
        shell: &Shell,
        run: impl FnOnce(&Shell) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let passed = shell.read_file(self.record);
        if passed.is_ok_and(|passed| self.hashes(shell).is_ok_and(|now| now == passed)) {
            let files = self.inputs.join(", ");
            return skip(self.name, &format!("{files} have passed before ({})", self.task));
        }
        step(self.name, || run(shell))
    }

    /// Runs the check, and records that its inputs have passed.
    ///
    /// # Errors
    /// The check failed, or the record cannot be written.
    pub(crate) fn run_and_note(
        self,
        shell: &Shell,
        run: impl FnOnce(&Shell) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        run(shell)?;
        Ok(shell.write_file(self.record, self.hashes(shell)?)?)
    }

    fn hashes(self, shell: &Shell) -> anyhow::Result<String> {
        let inputs = self.inputs;
        Ok(cmd!(shell, "git hash-object {inputs...}").quiet().read()? + "\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_is_left_out_until_an_input_changes() {
        let shell = Shell::new().expect("a folder to be in");
        let folder = shell.create_temp_dir().expect("a folder");
        shell.change_dir(folder.path());
        let check =
            RecordedCheck { name: "a check", task: "a task", inputs: &["input"], record: "passed" };
        let runs = std::cell::Cell::new(0);
        let count = |_: &Shell| {
            runs.set(runs.get() + 1);
            Ok(())
        };
        shell.write_file("input", "one").expect("written");
        check.run_if_changed(&shell, count).expect("passes");
        assert_eq!(runs.get(), 1, "without a record");
        check.run_and_note(&shell, count).expect("passes");
        check.run_if_changed(&shell, count).expect("passes");
        assert_eq!(runs.get(), 2, "with a record of this input");
        shell.write_file("input", "other").expect("written");
        check.run_if_changed(&shell, count).expect("passes");
        assert_eq!(runs.get(), 3, "with a record of another input");
    }
}
