//! Bugs that were found: each as a file with a seed, the faults that it needs, and a line on what it was. The
//! faults stand in the file, so that a change of how plans are drawn does not take the bug away.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::options::Options;
use crate::plan::Plan;

/// A bug that was found.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Regression {
    /// What it was.
    pub about: String,
    /// The run that showed it.
    pub options: Options,
    /// Its faults.
    pub plan: Plan,
}

/// Why a regression cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RegressionError {
    /// The file.
    #[error("{} cannot be read or written", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// What is in it.
    #[error("{} is no regression", path.display())]
    Content {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
}

impl Regression {
    /// Of a run that failed: only the faults that it has kept.
    pub fn of(about: &str, options: &Options) -> Self {
        let plan = Plan::of(options);
        let options = Options { keep: None, plan: None, ..options.clone() };
        Self { about: about.to_owned(), options, plan }
    }

    /// The run.
    pub fn options(&self) -> Options {
        Options { plan: Some(self.plan.clone()), ..self.options.clone() }
    }

    /// Reads one.
    ///
    /// # Errors
    /// [`RegressionError`].
    pub fn read(path: &Path) -> Result<Self, RegressionError> {
        let text = fs::read_to_string(path)
            .map_err(|source| RegressionError::File { path: path.to_owned(), source })?;
        serde_json::from_str(&text)
            .map_err(|source| RegressionError::Content { path: path.to_owned(), source })
    }

    /// Writes it, a fault a line.
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
