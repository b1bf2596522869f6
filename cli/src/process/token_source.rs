//! The source of the token of an agent or a client: given directly, read from a file, or found in the driver's state
//! directory on this machine.

use std::error::Error as _;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};

use elastic_transport::{JoinToken, TOKEN_FILE, TokenFileError, read_token};

use super::state_dir::default_state_dir;
use crate::command_line::{CommandFailure, ResultExt};

/// The source of the token for a driver.
#[derive(Debug)]
pub(crate) struct TokenSource {
    driver: String,
    kind: TokenOrigin,
}

#[derive(Debug)]
enum TokenOrigin {
    Given(JoinToken),
    File(PathBuf),
    /// Candidate files, which the driver would have written if it runs here.
    Found(Vec<PathBuf>),
}

impl TokenSource {
    /// The source that the flags name: a token, a file, or the driver's state directory; else the default directory of
    /// its address (`HOST:PORT`).
    pub(crate) fn new(
        driver: &str,
        token: Option<&str>,
        file: Option<&Path>,
        state_dir: Option<&Path>,
    ) -> Result<Self, CommandFailure> {
        let kind = match (token, file) {
            (Some(_), Some(_)) => {
                return Err(CommandFailure::usage("--token and --token-file are both given")
                    .hint("keep one of them (they may also come from the environment)"));
            }
            (Some(token), None) => TokenOrigin::Given(
                token
                    .parse()
                    .usage("--token cannot be used")
                    .map_err(|failure| failure.hint("copy the whole line of the driver's file"))?,
            ),
            (None, Some(file)) => TokenOrigin::File(file.to_owned()),
            (None, None) => TokenOrigin::Found(match state_dir {
                Some(folder) => vec![folder.join(TOKEN_FILE)],
                None => candidates(driver),
            }),
        };
        Ok(Self { driver: driver.to_owned(), kind })
    }

    /// The source of a known token.
    pub(crate) fn given(driver: &str, token: JoinToken) -> Self {
        Self { driver: driver.to_owned(), kind: TokenOrigin::Given(token) }
    }

    /// The token as it is now.
    pub(crate) fn read(&self) -> Result<JoinToken, CommandFailure> {
        match &self.kind {
            TokenOrigin::Given(token) => Ok(token.clone()),
            TokenOrigin::File(path) => read_token(path)
                .usage(format!("--token-file {} cannot be used", path.display()))
                .map_err(|failure| {
                    failure.hint("give a copy of the driver's token file, of mode 0600")
                }),
            TokenOrigin::Found(paths) => match paths.iter().find(|path| path.exists()) {
                Some(path) => read_token(path).failed("the token cannot be read"),
                None => Err(self.not_found(paths)),
            },
        }
    }

    /// The reason why the token cannot be read yet; none if it can be read, or if waiting changes nothing. The driver writes
    /// its file when it starts, and the file may lie on a disk that does not answer yet. A folder that is missing is taken for a
    /// mistake in its name.
    pub(crate) fn awaits(&self) -> Option<String> {
        if self.is_missing() {
            return Some("there is none".to_owned());
        }
        let path = match &self.kind {
            TokenOrigin::Given(_) => return None,
            TokenOrigin::File(path) => path,
            TokenOrigin::Found(paths) => paths.iter().find(|path| path.exists())?,
        };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        if folder.is_some_and(|folder| matches!(folder.try_exists(), Ok(false))) {
            return None;
        }
        let error = read_token(path).err().filter(TokenFileError::may_pass)?;
        Some(match error.source() {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        })
    }

    /// Whether the file of a driver on this machine is not there.
    pub(crate) fn is_missing(&self) -> bool {
        match &self.kind {
            TokenOrigin::Given(_) | TokenOrigin::File(_) => false,
            TokenOrigin::Found(paths) => {
                !paths.is_empty() && paths.iter().all(|path| !path.exists())
            }
        }
    }

    fn not_found(&self, paths: &[PathBuf]) -> CommandFailure {
        let failure = CommandFailure::new(format!(
            "there is no token for the driver at {} here",
            self.driver
        ));
        if paths.is_empty() {
            return failure.hint(
                "the driver is not on this machine: copy its token file, which it names when it starts, \
                 and give it with --token-file",
            );
        }
        let looked: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        failure.hint(format!(
            "is the driver started, by this user? ({} was looked at); if its token lies elsewhere, \
             give it with --token-file",
            looked.join(", ")
        ))
    }
}

/// The files that may have the token, for the log.
impl fmt::Display for TokenSource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths = match &self.kind {
            TokenOrigin::Given(_) => return formatter.write_str("given"),
            TokenOrigin::File(path) => std::slice::from_ref(path),
            TokenOrigin::Found(paths) => paths.as_slice(),
        };
        let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        formatter.write_str(&paths.join(", "))
    }
}

/// Token files of drivers on this machine that an address may mean; `driver` may be several addresses, separated by
/// commas.
fn candidates(driver: &str) -> Vec<PathBuf> {
    let names = driver.split(',');
    let addresses = names.filter_map(|name| name.to_socket_addrs().ok()).flatten();
    let mut folders = Vec::new();
    for address in addresses.filter(|address| is_of_this_machine(address.ip())) {
        folders.extend(default_state_dir(address));
        if address.ip().is_loopback() {
            // A driver that listens on all addresses is reached here, too.
            for any in [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)] {
                folders.extend(default_state_dir(SocketAddr::new(any, address.port())));
            }
        }
    }
    folders.into_iter().map(|folder| folder.join(TOKEN_FILE)).collect()
}

/// Whether an address is one of this machine's: only to such addresses can a socket be bound.
fn is_of_this_machine(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn what_cannot_be_meant_is_refused_and_the_way_out_is_named() {
        let both = TokenSource::new("a:1", Some("t"), Some(Path::new("f")), None);
        assert_eq!(both.expect_err("both").code(), 2);
        let error = TokenSource::new("a:1", Some("nonsense"), None, None).expect_err("no token");
        assert_eq!(error.to_string(), "--token cannot be used");
        let folder = tempfile::tempdir().expect("a folder");
        let source = TokenSource::new("127.0.0.1:1", None, None, Some(folder.path()));
        let source = source.expect("nothing to refuse");
        assert!(source.is_missing() && source.awaits().is_some());
        let error = source.read().expect_err("no file");
        assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
        let source = TokenSource::new("192.0.2.1:1", None, None, None).expect("nothing to refuse");
        assert!(source.awaits().is_none(), "the driver is elsewhere");
        let error = source.read().expect_err("no token");
        assert!(error.to_string().contains("there is no token"), "{error}");
    }

    #[test]
    fn s_5_a_token_that_comes_late_is_waited_for_and_one_that_is_wrong_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("state/token");
        let source = TokenSource::new("a:1", None, Some(&path), None).expect("nothing to refuse");
        assert_eq!(source.awaits(), None, "there is no such folder");
        assert_eq!(source.read().expect_err("no folder").code(), 2);
        fs::create_dir(folder.path().join("state")).expect("a folder");
        let reason = source.awaits().expect("the driver has not written it yet");
        assert!(reason.contains("state/token") && reason.contains("No such file"), "{reason}");
        let write = |text: &str, mode| {
            fs::write(&path, text).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("ours");
        };
        write("", 0o600);
        assert!(source.awaits().is_some_and(|reason| reason.contains("empty")), "half written");
        write("nonsense", 0o600);
        assert_eq!(source.awaits(), None, "no token");
        assert_eq!(source.read().expect_err("no token").code(), 2);
        write("", 0o660);
        assert_eq!(source.awaits(), None, "only a person changes its mode");
    }
}
