//! The file `token` of a state directory: written by the driver, read by whoever may act for its user.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::token::{InvalidToken, Token};

/// Its name within the state directory.
pub const TOKEN_FILE: &str = "token";

/// Why the token file could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    /// The operating system refused.
    #[error("{doing} {}", path.display())]
    Io {
        /// What was attempted.
        doing: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Others than its owner can read it.
    #[error("{} can be read by others (mode {mode:03o}); run: chmod 600 {}", path.display(), path.display())]
    TooOpen {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It belongs to somebody else.
    #[error("{} belongs to user {owner}, not to user {user}, who runs this program", path.display())]
    NotOurs {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Who runs this program.
        user: u32,
    },
    /// It holds something else.
    #[error("{} does not hold a token", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: InvalidToken,
    },
}

fn io_error(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> TokenFileError {
    let path = path.to_owned();
    move |source| TokenFileError::Io { doing, path, source }
}

/// Writes `<state_dir>/token` with mode 0600 and gives its path. A reader sees the old token or the new
/// one, never a part.
///
/// # Errors
/// [`TokenFileError::Io`].
pub fn write_token(state_dir: &Path, token: &Token) -> Result<PathBuf, TokenFileError> {
    let path = state_dir.join(TOKEN_FILE);
    let draft = state_dir.join(format!("{TOKEN_FILE}.{}.draft", std::process::id()));
    let written = write_draft(&draft, token).and_then(|()| {
        fs::rename(&draft, &path).map_err(io_error("could not put in place", &path))
    });
    if written.is_err() {
        // The first error is the one to tell; a draft that stays is only litter.
        let _ = fs::remove_file(&draft);
    }
    written.map(|()| path)
}

fn write_draft(draft: &Path, token: &Token) -> Result<(), TokenFileError> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(draft)
        .map_err(io_error("could not create", draft))?;
    // A draft that a crash left behind keeps its old mode.
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .map_err(io_error("could not protect", draft))?;
    let written = writeln!(file, "{}", token.to_line()).and_then(|()| file.sync_all());
    written.map_err(io_error("could not write", draft))
}

/// Reads a token file, if nobody but its owner can, and the owner is this user or root.
///
/// # Errors
/// [`TokenFileError`] says what is wrong and how to mend it.
pub fn read_token(path: &Path) -> Result<Token, TokenFileError> {
    let file = fs::File::open(path).map_err(io_error("could not open", path))?;
    // Of the open file, so that what is checked is what is read.
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
    let bound = Token::LINE_BYTES_MAX as u64 + 2;
    file.take(bound).read_to_string(&mut text).map_err(io_error("could not read", path))?;
    text.parse().map_err(|source| TokenFileError::Invalid { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::secret::Secret;
    use crate::token::{Fingerprint, TokenKind};

    #[test]
    fn the_file_is_for_its_owner_only() {
        let directory = tempfile::tempdir().expect("a directory");
        let secret = Secret::generate().expect("random numbers");
        let token = Token { authority: Fingerprint([1; 32]), kind: TokenKind::Join, secret };
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
