//! The source of the token of an agent or a client: given directly, read from a file, or found in the driver's state
//! directory on this machine.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};

use elastic_transport::{JoinToken, TOKEN_FILE, read_token};

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

    /// Whether a token may still appear: the driver writes its file when it starts.
    pub(crate) fn may_appear(&self) -> bool {
        match &self.kind {
            TokenOrigin::Given(_) => false,
            TokenOrigin::File(path) => {
                let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
                !path.exists() && folder.is_none_or(Path::exists)
            }
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
        assert!(source.may_appear());
        let error = source.read().expect_err("no file");
        assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
        let source = TokenSource::new("192.0.2.1:1", None, None, None).expect("nothing to refuse");
        assert!(!source.may_appear(), "the driver is elsewhere");
        let error = source.read().expect_err("no token");
        assert!(error.to_string().contains("there is no token"), "{error}");
    }
}
