//! Files that must be plain ones: to open a pipe is to wait for its other end, and a device may have no end. Used for the
//! files of the state directory and those that flags name.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

/// Folders of the descriptors that this process was started with. A pipe there is open already, as a shell's `<(command)` is.
const OWN_DESCRIPTORS: [&str; 2] = ["/dev/fd", "/proc/self/fd"];

/// Refuses a path that is neither a plain file nor a pipe that was given to this process.
///
/// # Errors
/// It is no plain file, or cannot be examined; a file that is missing is no error.
pub(crate) fn refuse_other(path: &Path) -> io::Result<()> {
    let is_given = OWN_DESCRIPTORS.iter().any(|folder| path.starts_with(folder));
    match fs::metadata(path) {
        Ok(found) if found.is_file() || (is_given && found.file_type().is_fifo()) => Ok(()),
        Ok(_) => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no plain file")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Opens a plain file to be read.
///
/// # Errors
/// It cannot be opened, or is no plain file.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    refuse_other(path)?;
    File::open(path)
}

/// Reads a plain file of so many bytes at most.
///
/// # Errors
/// It cannot be read, is no plain file, or is longer.
pub(crate) fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        let why = format!("it has more than {bytes_max} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_plain_file_or_too_long_is_refused_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name| folder.path().join(name);
        fs::write(path("file"), "12345").expect("a file");
        nix::unistd::mkfifo(&path("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        assert_eq!(read(&path("file"), 5).expect("short enough"), b"12345");
        let refused = |name, bytes_max| read(&path(name), bytes_max).expect_err("refused");
        assert!(refused("file", 4).to_string().contains("more than 4 bytes"));
        assert!(refused("pipe", 4).to_string().contains("no plain file"));
        assert_eq!(refused("none", 4).kind(), io::ErrorKind::NotFound);
        let (reading, mut writing) = io::pipe().expect("a pipe");
        io::Write::write_all(&mut writing, b"abc").expect("it has room");
        drop(writing);
        let given = format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reading));
        assert_eq!(read(Path::new(&given), 5).expect("a shell gives such files"), b"abc");
        let endless = read(Path::new("/dev/zero"), 4).expect_err("refused");
        assert!(endless.to_string().contains("no plain file"));
    }
}
