//! Discovery from a host file. The file is read again at each poll, so a change to it changes the hosts.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use elastic_runtime::OffloadPort;

use super::{Discovery, DiscoveryRun};
use crate::core::DiscoveryError;
use crate::core::limits::OUTPUT_BYTES_MAX;

/// Reads a host file. Bytes that are not UTF-8 are replaced, so that their lines are named as malformed.
#[derive(Debug)]
pub struct HostFileDiscovery {
    path: PathBuf,
    offload: OffloadPort,
}

impl HostFileDiscovery {
    /// A discovery from the file at `path`; a relative path counts from the present working directory. The file
    /// is read through `offload`, since a file system can hang.
    pub fn new(path: &Path, offload: OffloadPort) -> Self {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Self { path, offload }
    }
}

impl Discovery for HostFileDiscovery {
    fn run(&mut self, _limit: Duration) -> DiscoveryRun {
        let path = self.path.clone();
        let shown = path.display().to_string();
        let reading = self.offload.run("host file", move || read(&path));
        Box::pin(async move {
            reading
                .await
                .map_err(|error| error.to_string())
                .and_then(|read| read.map_err(|error| error.to_string()))
                .map_err(|message| DiscoveryError::CannotRead { path: shown.clone(), message })
                .and_then(|bytes| {
                    if bytes.len() > OUTPUT_BYTES_MAX {
                        return Err(DiscoveryError::TooLong { path: shown });
                    }
                    Ok(String::from_utf8_lossy(&bytes).into_owned())
                })
        })
    }
}

/// Reads the file, at most one byte more than the bound.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let bound = u64::try_from(OUTPUT_BYTES_MAX).unwrap_or(u64::MAX);
    let mut bytes = Vec::new();
    File::open(path)?.take(bound + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
