//! Checkpoints that were given up for an earlier step, and cannot be set aside (C-2).

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::checkpoints::{killed_after_checkpoints, loaded, set_aside, start, steps_listed};
use crate::network::not_shown;

/// A directory that nobody can rename, since it is mounted on itself. It can be renamed when this is dropped.
struct Immovable(PathBuf);

impl Immovable {
    /// Mounts the directory; none without root.
    fn make(path: &Path) -> Option<Self> {
        let mounted = Command::new("mount").arg("--bind").arg(path).arg(path).output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self(path.to_owned())),
            failed => {
                not_shown(&format!("nothing can be mounted ({failed:?}): that needs root"));
                None
            }
        }
    }
}

impl Drop for Immovable {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

#[test]
fn c_2_a_later_checkpoint_that_cannot_be_set_aside_is_named_and_the_job_does_not_begin() {
    let shared = TempDir::new().expect("a folder");
    let whole = killed_after_checkpoints(shared.path(), 3);
    let [.., chosen, newest] = whole[..] else { panic!("{whole:?}") };
    let of_step = |step: u64| shared.path().join(format!("step-{step:010}"));
    let (from, later) = (of_step(chosen).display().to_string(), of_step(newest));
    let Some(immovable) = Immovable::make(&later) else { return };
    for resume in [&*from, "never"] {
        let mut refused = start(2, shared.path(), &["--resume", resume]);
        assert_eq!(refused.end(), 1, "{}", refused.stderr());
        let stderr = refused.stderr();
        let named = format!("the checkpoint {} is of a later step", later.display());
        for words in [&*named, "Device or resource busy", "remove it or move it away"] {
            assert!(stderr.contains(words), "{words}\n{stderr}");
        }
        let begun = refused.log().into_iter().any(|line| line["event"] == "enter");
        assert!(!begun, "nothing is trained");
        assert_eq!(set_aside(shared.path()), [""; 0]);
        let left: Vec<u64> =
            steps_listed(shared.path()).into_iter().map(|(step, _)| step).collect();
        assert_eq!(left, whole, "each has its name");
    }
    drop(immovable);
    let mut again = start(2, shared.path(), &["--resume", &from]);
    assert_eq!(loaded(&mut again)["step"], chosen);
    assert_eq!(again.finish(), 0);
    again.assert_exact();
}
