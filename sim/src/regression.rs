//! Regressions: bugs that were found. Each is a file with a seed, the necessary faults, and a line about the bug. The
//! faults are in the file, so that a change in the drawing of plans does not hide the bug. Used by the command line and
//! the tests.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::options::RunOptions;
use crate::plan::FaultPlan;

/// A bug that was found.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Regression {
    /// Description of the bug.
    pub about: String,
    /// The run that showed it.
    pub options: RunOptions,
    /// The faults of the run.
    pub plan: FaultPlan,
}

/// Reason why a regression cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RegressionError {
    /// The file cannot be read or written.
    #[error("{} cannot be read or written", path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The content is no valid regression.
    #[error("{} is no regression", path.display())]
    Content {
        /// The path of the file.
        path: PathBuf,
        /// The error in the content.
        #[source]
        source: serde_json::Error,
    },
}

impl Regression {
    /// A regression of a failed run, with only the faults that it has kept.
    pub fn of(about: &str, options: &RunOptions) -> Self {
        let plan = FaultPlan::of(options);
        let options = RunOptions { keep: None, plan: None, ..options.clone() };
        Self { about: about.to_owned(), options, plan }
    }

    /// The options that repeat the run.
    pub fn options(&self) -> RunOptions {
        RunOptions { plan: Some(self.plan.clone()), ..self.options.clone() }
    }

    /// Reads a regression.
    ///
    /// # Errors
    /// [`RegressionError`].
    pub fn read(path: &Path) -> Result<Self, RegressionError> {
        let text = fs::read_to_string(path)
            .map_err(|source| RegressionError::File { path: path.to_owned(), source })?;
        serde_json::from_str(&text)
            .map_err(|source| RegressionError::Content { path: path.to_owned(), source })
    }

    /// Writes the regression, one fault a line.
    ///
    /// # Errors
    /// [`RegressionError`].
    pub fn write(&self, path: &Path) -> Result<(), RegressionError> {
        let content = |source| RegressionError::Content { path: path.to_owned(), source };
        let faults: Result<Vec<String>, _> =
            self.plan.0.iter().map(serde_json::to_string).collect();
        let text = format!(
            "{{\n  \"about\": {},\n  \"options\": {},\n  \"plan\": [\n    {}\n  ]\n}}\n",
            serde_json::to_string(&self.about).map_err(content)?,
            serde_json::to_string(&self.options).map_err(content)?,
            faults.map_err(content)?.join(",\n    ")
        );
        fs::write(path, text)
            .map_err(|source| RegressionError::File { path: path.to_owned(), source })
    }
}
