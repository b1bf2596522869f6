//! The secret that the nodes of a job share before there is a driver: the text from which the token is made. Called by
//! `node`.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rand::RngCore as _;

use super::meeting_point;
use crate::command_line::{CommandFailure, NodePlan, ResultExt, SecretSource};
use crate::process::plain_file;
use crate::process::random::system_rng;
use crate::process::state_dir::state_root;

/// Interval between two looks for a file that is missing yet.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Fewest bytes of a secret text.
const TEXT_BYTES_MIN: usize = 16;

/// Most bytes that are read from a file.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// The hint shown where nodes share no secret.
const WAYS: &str = "give all nodes the same secret: ELASTIC_TOKEN with a long random text, --rdzv-conf token_file=FILE \
                    on a file system that all have, or, where the network is trusted, the same --rdzv-id";

#[expect(clippy::disallowed_methods, reason = "there is no actor yet")]
/// The secret text. A node that leads creates the file if it is missing; others wait for it.
pub(super) fn read_secret(plan: &NodePlan, leads: bool) -> Result<String, CommandFailure> {
    let file = match &plan.secret {
        SecretSource::Text(text) => return checked(&text.0, "ELASTIC_TOKEN"),
        SecretSource::Id(id) => {
            tracing::warn!(
                "the job's secret follows from --rdzv-id {id}: whoever reaches this network and knows or guesses \
                 that name can join the job and run programs on its nodes. Set ELASTIC_TOKEN to one random text \
                 on all nodes, or --rdzv-conf token_file=FILE"
            );
            return Ok(format!("--rdzv-id {id}"));
        }
        SecretSource::File(file) => file.clone(),
        SecretSource::Home => in_home(plan)?,
    };
    let until = Instant::now() + plan.patience;
    let mut is_told = false;
    loop {
        match read(&file) {
            Ok(text) => return checked(&text, &file.display().to_string()),
            Err(error) if error.kind() == ErrorKind::NotFound && leads => {
                make(&file)
                    .failed(format!("the job's secret cannot be stored in {}", file.display()))?;
            }
            Err(error) if error.kind() == ErrorKind::NotFound && Instant::now() < until => {
                if !is_told {
                    tracing::info!(file = %file.display(), "waits for the job's secret, which the head stores");
                    is_told = true;
                }
                sleep(LOOK_EVERY);
            }
            Err(error) => {
                let message = format!("the job's secret cannot be read from {}", file.display());
                return Err(CommandFailure::new(message).source(error).hint(WAYS));
            }
        }
    }
}

/// The path of the secret in a home directory that the nodes may share.
fn in_home(plan: &NodePlan) -> Result<PathBuf, CommandFailure> {
    let root = state_root().ok_or_else(|| {
        CommandFailure::new("nodes share no secret, and HOME is not set, where one could be")
            .hint(WAYS)
    })?;
    let point: String = meeting_point(plan)
        .chars()
        .map(|it| if it.is_ascii_alphanumeric() || ".:-".contains(it) { it } else { '_' })
        .collect();
    Ok(root.join("nodes").join(format!("{point}.secret")))
}

fn checked(text: &str, from: &str) -> Result<String, CommandFailure> {
    let text = text.trim();
    if text.len() >= TEXT_BYTES_MIN {
        return Ok(text.to_owned());
    }
    Err(CommandFailure::usage(format!("{from}: a secret has {TEXT_BYTES_MIN} characters at least"))
        .hint("such as what `openssl rand -hex 32` prints"))
}

/// Reads a secret text that only its owner may read, and that is long enough.
pub(crate) fn read_secret_file(path: &Path) -> io::Result<String> {
    let text = read(path)?;
    checked(&text, "it").map_err(|failure| io::Error::other(failure.to_string()))
}

fn read(path: &Path) -> io::Result<String> {
    let found = fs::metadata(path)?;
    let refused = |why: String| io::Error::new(ErrorKind::PermissionDenied, why);
    if found.mode() & 0o077 != 0 {
        let path = path.display();
        return Err(refused(format!("others can read it; run: chmod 600 {path}")));
    }
    if found.len() > FILE_BYTES_MAX {
        return Err(refused(format!("it has {} bytes, which no secret has", found.len())));
    }
    let text = plain_file::read(path, FILE_BYTES_MAX)?;
    String::from_utf8(text).map_err(|_error| io::Error::other("it is not UTF-8"))
}

/// Stores a new secret, unless another node was first.
fn make(path: &Path) -> io::Result<()> {
    let mut bytes = [0; 32];
    system_rng().fill_bytes(&mut bytes);
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let folder = path.parent().unwrap_or(Path::new("."));
    if !folder.as_os_str().is_empty() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let draft = path.with_extension(format!("draft{}", std::process::id()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let written = file.write_all(format!("{text}\n").as_bytes()).and_then(|()| file.sync_all());
    // A link is created only where no file exists: every reader finds a complete text, and all the same one.
    let linked = written.and_then(|()| fs::hard_link(&draft, path));
    fs::remove_file(&draft)?;
    match linked {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_first_makes_it_and_nobody_else_reads_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a/secret");
        make(&path).expect("made");
        let text = read(&path).expect("read");
        make(&path).expect("it is there");
        assert_eq!(read(&path).expect("read"), text, "the first one stays");
        assert!(checked(&text, "here").is_ok_and(|text| text.len() == 64));
        assert!(checked("short", "here").is_err());
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644))
            .expect("ours");
        assert!(read(&path).expect_err("too open").to_string().contains("chmod 600"));
        assert_eq!(fs::read_dir(folder.path().join("a")).expect("there").count(), 1, "no drafts");
    }
}
