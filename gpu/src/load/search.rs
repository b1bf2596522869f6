//! The search for the libraries: at a configured path, by the system's loader, and in the `nvidia-*` wheels of a
//! Python environment. A configured library is taken or refused, never passed over.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};

use super::library::{LoadError, LoadedLibrary};

/// The variable that names NCCL's file, or the folder that it is in.
pub const NCCL_LIBRARY: &str = "ELASTIC_NCCL_LIBRARY";
/// The variable that names the CUDA driver's file, or the folder that it is in.
pub const CUDA_LIBRARY: &str = "ELASTIC_CUDA_LIBRARY";

/// A library of a GPU host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WantedLibrary {
    /// The CUDA driver.
    Driver,
    /// The CUDA runtime. Nothing here needs it (NCCL carries its own): programs may.
    Runtime,
    /// NCCL.
    Nccl,
}

impl WantedLibrary {
    /// Its file names, the one that is most likely right first.
    fn names(self) -> &'static [&'static str] {
        match self {
            WantedLibrary::Driver => &["libcuda.so.1", "libcuda.so"],
            WantedLibrary::Runtime => &["libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"],
            WantedLibrary::Nccl => &["libnccl.so.2", "libnccl.so"],
        }
    }

    /// The folders of wheels that it comes in, below `site-packages`.
    fn wheels(self) -> &'static [&'static str] {
        match self {
            WantedLibrary::Driver => &[],
            WantedLibrary::Runtime => &["nvidia/cu13/lib", "nvidia/cuda_runtime/lib"],
            WantedLibrary::Nccl => &["nvidia/nccl/lib"],
        }
    }

    /// The variable that configures it, where there is one.
    pub const fn variable(self) -> Option<&'static str> {
        match self {
            WantedLibrary::Driver => Some(CUDA_LIBRARY),
            WantedLibrary::Runtime => None,
            WantedLibrary::Nccl => Some(NCCL_LIBRARY),
        }
    }
}

impl fmt::Display for WantedLibrary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            WantedLibrary::Driver => "the CUDA driver",
            WantedLibrary::Runtime => "the CUDA runtime",
            WantedLibrary::Nccl => "NCCL",
        })
    }
}

/// A library that was opened.
#[derive(Debug)]
pub struct Found {
    /// It.
    pub library: LoadedLibrary,
    /// The way in which it was found, in words for the user.
    pub how: &'static str,
}

/// Places to search.
#[derive(Clone, Debug, Default)]
pub struct LibrarySearch {
    /// A file, or the folder of it, that must be taken for the driver.
    pub cuda: Option<PathBuf>,
    /// A file, or the folder of it, that must be taken for NCCL.
    pub nccl: Option<PathBuf>,
    /// Whether the system's loader is asked. Tests turn it off.
    pub system: bool,
    /// Roots of Python environments, in order.
    pub python: Vec<PathBuf>,
}

impl LibrarySearch {
    /// Reads the environment of a process. `lookup` reads its variables.
    pub fn from_environment(lookup: impl Fn(&str) -> Option<String>) -> LibrarySearch {
        let path = |name: &str| lookup(name).filter(|text| !text.is_empty()).map(PathBuf::from);
        let mut python: Vec<PathBuf> =
            ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(path).collect();
        let interpreters = lookup("PATH").unwrap_or_default();
        let interpreter = std::env::split_paths(&interpreters)
            .map(|folder| folder.join("python3"))
            .find_map(|file| file.canonicalize().ok());
        // <root>/bin/python3.x
        let root = interpreter.as_deref().and_then(Path::parent).and_then(Path::parent);
        python.extend(root.map(Path::to_path_buf));
        python.extend([PathBuf::from("/usr/local"), PathBuf::from("/usr")]);
        LibrarySearch { cuda: path(CUDA_LIBRARY), nccl: path(NCCL_LIBRARY), system: true, python }
    }

    /// Opens a library. `None`: there is none.
    ///
    /// # Errors
    ///
    /// One is there and cannot be opened, or the configured one is not there: the error names the file.
    pub fn open(&self, wanted: WantedLibrary) -> Result<Option<Found>, LoadError> {
        let configured = match wanted {
            WantedLibrary::Driver => self.cuda.as_deref(),
            WantedLibrary::Runtime => None,
            WantedLibrary::Nccl => self.nccl.as_deref(),
        };
        if let Some(path) = configured {
            let file = configured_file(path, wanted);
            let library = LoadedLibrary::open_file(&file)?;
            return Ok(Some(Found { library, how: "by the configuration" }));
        }
        if self.system {
            for name in wanted.names() {
                if let Some(library) = LoadedLibrary::open_name(name)? {
                    return Ok(Some(Found { library, how: "by the system's loader" }));
                }
            }
        }
        for file in self.wheel_files(wanted) {
            if file.exists() {
                let library = LoadedLibrary::open_file(&file)?;
                return Ok(Some(Found { library, how: "in a Python environment" }));
            }
        }
        Ok(None)
    }

    /// Files that wheels would have put somewhere.
    fn wheel_files(&self, wanted: WantedLibrary) -> Vec<PathBuf> {
        let packages = self.python.iter().flat_map(|root| site_packages(root));
        let folders: Vec<PathBuf> = packages
            .flat_map(|packages| wanted.wheels().iter().map(move |wheel| packages.join(wheel)))
            .collect();
        let files = folders
            .iter()
            .flat_map(|folder| wanted.names().iter().map(move |name| folder.join(name)));
        files.collect()
    }
}

/// A folder stands for the library in it.
fn configured_file(path: &Path, wanted: WantedLibrary) -> PathBuf {
    if !path.is_dir() {
        return path.to_path_buf();
    }
    let in_folder = wanted.names().iter().map(|name| path.join(name));
    in_folder.clone().find(|file| file.exists()).unwrap_or_else(|| path.join(wanted.names()[0]))
}

/// `lib/python3.x/site-packages` and `dist-packages` of an environment, the newest Python first.
fn site_packages(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for library in ["lib", "lib64"] {
        let Ok(entries) = std::fs::read_dir(root.join(library)) else { continue };
        let mut pythons: Vec<_> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.file_name().is_some_and(is_python))
            .collect();
        pythons.sort_by_key(|path| std::cmp::Reverse(minor_version(path)));
        for python in pythons {
            found.extend(["site-packages", "dist-packages"].map(|name| python.join(name)));
        }
    }
    found
}

fn is_python(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| name.starts_with("python3"))
}

fn minor_version(path: &Path) -> u32 {
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    name.strip_prefix("python3.").and_then(|minor| minor.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(root: &Path) -> LibrarySearch {
        LibrarySearch { python: vec![root.to_path_buf()], ..LibrarySearch::default() }
    }

    #[test]
    fn where_nothing_is_installed_nothing_is_found() {
        let root = tempfile::tempdir().expect("a folder");
        for wanted in [WantedLibrary::Driver, WantedLibrary::Runtime, WantedLibrary::Nccl] {
            assert!(search(root.path()).open(wanted).expect("nothing is broken").is_none());
        }
    }

    #[test]
    fn a_broken_library_is_named_and_not_passed_over() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("lib/python3.11/site-packages/nvidia/nccl/lib");
        std::fs::create_dir_all(&folder).expect("a folder");
        let file = folder.join("libnccl.so.2");
        std::fs::write(&file, b"no library").expect("a file");
        let error = search(root.path()).open(WantedLibrary::Nccl).expect_err("it is broken");
        assert!(error.to_string().contains(file.to_str().expect("UTF-8")), "{error}");
        let configured = LibrarySearch { nccl: Some(folder), ..LibrarySearch::default() };
        let error =
            configured.open(WantedLibrary::Nccl).expect_err("a folder stands for its library");
        assert!(error.to_string().contains("libnccl.so.2"), "{error}");
    }

    #[test]
    fn a_configured_file_that_is_not_there_is_an_error() {
        let search = LibrarySearch {
            nccl: Some("/nonexistent/libnccl.so.2".into()),
            ..LibrarySearch::default()
        };
        let error = search.open(WantedLibrary::Nccl).expect_err("it is not there");
        assert!(error.to_string().contains("/nonexistent/libnccl.so.2"), "{error}");
    }

    #[test]
    fn environments_are_looked_through_the_newest_python_first() {
        let root = tempfile::tempdir().expect("a folder");
        for minor in [9, 13, 11] {
            std::fs::create_dir_all(root.path().join(format!("lib/python3.{minor}"))).expect("it");
        }
        let files = search(root.path()).wheel_files(WantedLibrary::Nccl);
        assert!(files[0].ends_with("python3.13/site-packages/nvidia/nccl/lib/libnccl.so.2"));
        assert_eq!(files.len(), 12);
    }

    #[test]
    fn the_environment_says_where_to_look() {
        let search = LibrarySearch::from_environment(|name| match name {
            "VIRTUAL_ENV" => Some("/venv".to_owned()),
            NCCL_LIBRARY => Some("/opt/nccl".to_owned()),
            CUDA_LIBRARY => Some(String::new()),
            _ => None,
        });
        assert_eq!(search.nccl.as_deref(), Some(Path::new("/opt/nccl")));
        assert_eq!(search.cuda, None, "an empty variable says nothing");
        assert_eq!(search.python[0], Path::new("/venv"));
        assert!(search.system);
    }
}
