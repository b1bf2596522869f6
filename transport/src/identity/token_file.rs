//! The file `token` of a state directory: written by the driver, read by processes that may act for its user.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::identity::token::{InvalidToken, JoinToken};

/// Name of the file within the state directory.
pub const TOKEN_FILE: &str = "token";

/// The end of the name of a token that is being written.
const DRAFT_SUFFIX: &str = ".draft";

/// Reason for which the token file could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    /// The operating system refused an operation.
    #[error("{doing} {}", path.display())]
    Io {
        /// The operation.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Users other than the owner can read the file.
    #[error("{} can be read by others (mode {mode:03o}); run: chmod 600 {}", path.display(), path.display())]
    TooOpen {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The file belongs to another user.
    #[error("{} belongs to user {owner}, not to user {user}, who runs this program", path.display())]
    NotOurs {
        /// The file.
        path: PathBuf,
        /// Its owner's user id.
        owner: u32,
        /// The user id of this program.
        user: u32,
    },
    /// It is a pipe, a device or a folder.
    #[error("{} is no plain file", path.display())]
    NotPlain {
        /// The path.
        path: PathBuf,
    },
    /// The file does not hold a token.
    #[error("{} does not hold a token", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The fault in its content.
        #[source]
        source: InvalidToken,
    },
}

impl TokenFileError {
    /// Whether the file may be readable later, without a change of its content or mode by a person: the driver has not written
    /// it yet, or its file system does not answer.
    pub const fn may_pass(&self) -> bool {
        match self {
            Self::Io { .. } | Self::Invalid { source: InvalidToken::Empty, .. } => true,
            Self::TooOpen { .. }
            | Self::NotOurs { .. }
            | Self::NotPlain { .. }
            | Self::Invalid { .. } => false,
        }
    }
}

fn io_error(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> TokenFileError {
    let path = path.to_owned();
    move |source| TokenFileError::Io { doing, path, source }
}

/// Whether a file of this name is one that [`write_token`] puts in the token's place, and that a crash may leave.
pub fn is_token_draft(name: &str) -> bool {
    let process = name.strip_prefix(TOKEN_FILE).and_then(|rest| rest.strip_prefix('.'));
    let process = process.and_then(|rest| rest.strip_suffix(DRAFT_SUFFIX));
    process.is_some_and(|process| process.parse::<u32>().is_ok())
}

/// Writes `<state_dir>/token` with mode 0600 and gives its path. A reader sees either the old token or the new
/// one, never a part.
///
/// # Errors
/// [`TokenFileError::Io`].
pub fn write_token(state_dir: &Path, token: &JoinToken) -> Result<PathBuf, TokenFileError> {
    let path = state_dir.join(TOKEN_FILE);
    let draft = state_dir.join(format!("{TOKEN_FILE}.{}{DRAFT_SUFFIX}", std::process::id()));
    let written = write_draft(&draft, token).and_then(|()| {
        fs::rename(&draft, &path).map_err(io_error("could not put in place", &path))
    });
    if written.is_err() {
        // The first error is the one to report; a draft that stays is harmless.
        let _ = fs::remove_file(&draft);
    }
    written.map(|()| path)
}

fn write_draft(draft: &Path, token: &JoinToken) -> Result<(), TokenFileError> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(draft)
        .map_err(io_error("could not create", draft))?;
    // A draft that a crash left behind keeps its old mode, so the mode is set again.
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .map_err(io_error("could not protect", draft))?;
    let written = writeln!(file, "{}", token.to_line()).and_then(|()| file.sync_all());
    written.map_err(io_error("could not write", draft))
}

/// Reads a token file, if only its owner can read it, and the owner is this user or root.
///
/// # Errors
/// [`TokenFileError`] names the fault and its remedy.
pub fn read_token(path: &Path) -> Result<JoinToken, TokenFileError> {
    // To open a pipe would be to wait for its writer.
    let found = fs::metadata(path).map_err(io_error("could not open", path))?;
    if !found.is_file() {
        return Err(TokenFileError::NotPlain { path: path.to_owned() });
    }
    let file = fs::File::open(path).map_err(io_error("could not open", path))?;
    // The metadata is that of the open file, so that the checked file is the one that is read.
    let metadata = file.metadata().map_err(io_error("could not examine", path))?;
    let mode = metadata.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(TokenFileError::TooOpen { path: path.to_owned(), mode });
    }
    let (owner, user) = (metadata.uid(), nix::unistd::geteuid().as_raw());
    if owner != user && owner != 0 {
        return Err(TokenFileError::NotOurs { path: path.to_owned(), owner, user });
    }
    let mut text = String::new();
    let bound = JoinToken::LINE_BYTES_MAX as u64 + 2;
    file.take(bound).read_to_string(&mut text).map_err(io_error("could not read", path))?;
    text.parse().map_err(|source| TokenFileError::Invalid { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::identity::secret::TokenSecret;
    use crate::identity::token::{Fingerprint, TokenKind};

    #[test]
    fn a_pipe_is_refused_and_not_waited_for() {
        let directory = tempfile::tempdir().expect("a directory");
        let pipe = directory.path().join(TOKEN_FILE);
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        let refused = read_token(&pipe).expect_err("no plain file");
        assert!(matches!(&refused, TokenFileError::NotPlain { .. }), "{refused}");
    }

    #[test]
    fn the_file_is_for_its_owner_only() {
        let directory = tempfile::tempdir().expect("a directory");
        let secret = TokenSecret::generate().expect("random numbers");
        let token = JoinToken { authority: Fingerprint([1; 32]), kind: TokenKind::Join, secret };
        let path = write_token(directory.path(), &token).expect("written");
        let path = write_token(directory.path(), &token).map_or(path, |again| again);
        assert_eq!(fs::metadata(&path).expect("there").mode() & 0o777, 0o600);
        assert!(read_token(&path).expect("ours").secret.is(&token.secret));
        assert_eq!(fs::read_dir(directory.path()).expect("there").count(), 1, "no draft is left");

        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("ours");
        let error = read_token(&path).expect_err("others can read it");
        assert!(error.to_string().contains("chmod 600"), "{error}");
        let error = read_token(&directory.path().join("none")).expect_err("not there");
        assert!(matches!(error, TokenFileError::Io { .. }));
    }
}
