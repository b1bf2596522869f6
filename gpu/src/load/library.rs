//! An opened library, and the errors of opening one. Used by `search` and `table`.

#![expect(
    unsafe_code,
    reason = "libraries are opened, and their symbols read, by the system's loader"
)]

use std::ffi::{CStr, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use libloading::Library;
use thiserror::Error;

/// Error of a library that is there and cannot be used.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The system's loader refuses it.
    #[error("{} cannot be loaded", file.display())]
    Broken {
        /// The file.
        file: PathBuf,
        /// The loader's error.
        source: libloading::Error,
    },
    /// It is another library, or too old.
    #[error("{} has no `{symbol}`: it is another library, or too old", file.display())]
    Symbol {
        /// The file.
        file: PathBuf,
        /// The missing symbol.
        symbol: &'static str,
    },
    /// It was loaded and does not work.
    #[error("{}: {reason}", file.display())]
    Unusable {
        /// The file.
        file: PathBuf,
        /// The library's message.
        reason: String,
    },
}

/// An opened library. It is never closed again: CUDA and NCCL keep threads that run in it.
#[derive(Debug)]
pub struct LoadedLibrary {
    library: ManuallyDrop<Library>,
    asked_for: PathBuf,
}

impl LoadedLibrary {
    /// Opens this file.
    pub(super) fn open_file(file: &Path) -> Result<LoadedLibrary, LoadError> {
        // SAFETY: running a library's initialisation is what the caller wants; CUDA's and NCCL's ask for nothing.
        let opened = unsafe { Library::new(file) };
        let library =
            opened.map_err(|source| LoadError::Broken { file: file.to_path_buf(), source })?;
        Ok(LoadedLibrary { library: ManuallyDrop::new(library), asked_for: file.to_path_buf() })
    }

    /// Opens the library that the system's loader finds under this name. `None`: it finds nothing.
    pub(super) fn open_name(name: &str) -> Result<Option<LoadedLibrary>, LoadError> {
        // SAFETY: as above.
        match unsafe { Library::new(name) } {
            Ok(library) => {
                let library = ManuallyDrop::new(library);
                Ok(Some(LoadedLibrary { library, asked_for: name.into() }))
            }
            Err(error) if is_absent(name, &error) => Ok(None),
            Err(source) => Err(LoadError::Broken { file: name.into(), source }),
        }
    }

    /// The address of a symbol.
    pub(crate) fn symbol(&self, name: &'static str) -> Option<*const c_void> {
        // SAFETY: only the address is read; the caller gives it its type.
        let symbol = unsafe { self.library.get::<*const c_void>(name.as_bytes()) }.ok()?;
        // SAFETY: as above; the library is never closed, so the address stays good.
        Some(unsafe { symbol.into_raw() }.as_raw_ptr().cast_const())
    }

    /// The error of a symbol that must be there.
    pub(crate) fn lacks(&self, symbol: &'static str) -> LoadError {
        LoadError::Symbol { file: self.asked_for.clone(), symbol }
    }

    /// The file, or the name, that it was opened by.
    pub fn file(&self) -> &Path {
        &self.asked_for
    }

    /// The file that has `symbol`: the one to which a bare name was resolved.
    pub(crate) fn file_of(&self, symbol: &'static str) -> PathBuf {
        let Some(address) = self.symbol(symbol) else { return self.asked_for.clone() };
        let mut info = libc::Dl_info {
            dli_fname: std::ptr::null(),
            dli_fbase: std::ptr::null_mut(),
            dli_sname: std::ptr::null(),
            dli_saddr: std::ptr::null_mut(),
        };
        // SAFETY: it reads any address, and writes to `info`, which is large enough.
        let known = unsafe { libc::dladdr(address, &mut info) };
        if known == 0 || info.dli_fname.is_null() {
            return self.asked_for.clone();
        }
        // SAFETY: a name that is not null is a string of the loader's, which lives as long as the library.
        let name = unsafe { CStr::from_ptr(info.dli_fname) };
        PathBuf::from(name.to_string_lossy().into_owned())
    }
}

/// Whether the loader found no such file, rather than one that it could not use.
fn is_absent(name: &str, error: &libloading::Error) -> bool {
    let libloading::Error::DlOpen { .. } = error else { return false };
    let text =
        std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    text.contains(&format!("{name}: cannot open shared object file: No such file"))
}
