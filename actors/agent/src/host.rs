//! Defaults of a host: its name and its number of slots. Called by the command line when `--host` or `--slots`
//! is not given.

use std::path::Path;

use elastic_protocol::{HostName, InvalidHostName};

/// Error of `host_name`: the system gives no usable host name.
#[derive(Debug, thiserror::Error)]
pub enum HostNameError {
    /// The system gives no host name.
    #[error("the system does not tell its host name; give one with --host")]
    Unknown(#[source] nix::Error),
    /// The system's host name is not a valid `HostName`.
    #[error("the system's host name cannot be used; give one with --host")]
    Invalid(#[source] InvalidHostName),
}

/// The system's host name.
///
/// # Errors
/// [`HostNameError`] if it has none, or one that is not valid.
pub fn host_name() -> Result<HostName, HostNameError> {
    let name = nix::unistd::gethostname().map_err(HostNameError::Unknown)?;
    HostName::new(&name.to_string_lossy()).map_err(HostNameError::Invalid)
}

/// One slot for each NVIDIA GPU of the host; 1 if it has none.
pub fn slots() -> u32 {
    gpus().max(1)
}

/// The number of NVIDIA GPUs of the host.
pub fn gpus() -> u32 {
    gpus_in(Path::new("/dev"))
}

/// The number of device files `nvidia0`, `nvidia1`, … in a folder.
fn gpus_in(devices: &Path) -> u32 {
    let Ok(entries) = std::fs::read_dir(devices) else { return 0 };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let gpus = names.filter(|name| {
        name.strip_prefix("nvidia").is_some_and(|number| number.parse::<u32>().is_ok())
    });
    u32::try_from(gpus.count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_counted_and_their_helpers_are_not() {
        let devices = tempfile::tempdir().expect("a folder");
        for name in ["nvidia0", "nvidia11", "nvidiactl", "nvidia-uvm", "nvidia", "sda"] {
            std::fs::write(devices.path().join(name), "").expect("a file");
        }
        assert_eq!(gpus_in(devices.path()), 2);
        assert_eq!(gpus_in(&devices.path().join("none")), 0);
        assert!(slots() >= 1);
        assert!(host_name().is_ok());
    }
}
