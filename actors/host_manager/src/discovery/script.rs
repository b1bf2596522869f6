//! Discovery through a script: a program that prints hosts and ends. It is run for each poll, as a direct
//! child, without a shell or a helper process in between.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::Stdio;
use std::time::Duration;

use elastic_protocol::ExitStatus;
use elastic_runtime::{OffloadPort, null_device};
use futures_util::future::{Either, join, select};
use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};

use super::process::{CommandOutput, ProcessGroup};
use super::{Discovery, DiscoveryRun};
use crate::core::DiscoveryError;

/// Timeout for the pipes of a script that has ended. A process that still holds them has left the script's
/// process group, such as the master process of a shared ssh connection, and is not waited for.
const DRAIN: Duration = Duration::from_millis(100);

/// The most attempts to start a script. A script that is just being written cannot be executed (ETXTBSY).
const STARTS_MAX: u32 = 5;

/// Delay between two attempts.
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// Runs a script. Its stdin is empty, its environment and working directory are the driver's, its stdout
/// counts, and the end of its stderr appears in errors.
#[derive(Clone, Debug)]
pub struct ScriptDiscovery {
    path: PathBuf,
    /// The name of a script that may be one of `PATH`.
    name: Option<PathBuf>,
    offload: OffloadPort,
}

impl ScriptDiscovery {
    /// The script at `path`; a relative path counts from the present working directory. A name without a
    /// slash that is no file there is looked for in `PATH`, at each start: the file may come later. The script is started
    /// through `offload`, since the file system with it or with its interpreter can hang.
    pub fn new(path: &Path, offload: OffloadPort) -> Self {
        let name = (path.components().count() == 1).then(|| path.to_owned());
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Self { path, name, offload }
    }

    fn shown(&self) -> String {
        self.name.as_ref().unwrap_or(&self.path).display().to_string()
    }

    async fn start(&self) -> Result<Child, DiscoveryError> {
        let mut starts = 1;
        loop {
            let (path, name, runtime) = (self.path.clone(), self.name.clone(), Handle::current());
            let start = move || match name {
                Some(name) if !path.exists() => spawn(&name, &runtime),
                _ => spawn(&path, &runtime),
            };
            let starting = self.offload.run("discovery script", start);
            let started = starting.await.map_err(|error| {
                let (command, message) = (self.shown(), error.to_string());
                DiscoveryError::CannotStart { command, message }
            })?;
            match started {
                Ok(child) => return Ok(child),
                Err(error)
                    if error.kind() == io::ErrorKind::ExecutableFileBusy && starts < STARTS_MAX =>
                {
                    starts += 1;
                    sleep(BUSY_PAUSE).await;
                }
                Err(error) => return Err(self.cannot_start(&error)),
            }
        }
    }

    fn cannot_start(&self, error: &io::Error) -> DiscoveryError {
        let message = match error.kind() {
            io::ErrorKind::NotFound if self.path.exists() => {
                "the interpreter named in its #! line does not exist".to_owned()
            }
            io::ErrorKind::PermissionDenied if self.path.is_dir() => "it is a directory".to_owned(),
            io::ErrorKind::PermissionDenied => "it is not executable".to_owned(),
            _ if error.raw_os_error() == Some(nix::libc::ENOEXEC) => {
                "it is neither a program nor a script that begins with a #! line".to_owned()
            }
            _ => error.to_string(),
        };
        DiscoveryError::CannotStart { command: self.shown(), message }
    }

    async fn run_once(self, limit: Duration) -> Result<String, DiscoveryError> {
        let mut child = self.start().await?;
        let group = ProcessGroup::of(child.id());
        let output = CommandOutput::default();
        let ended = timeout(limit, wait(&mut child, &group, &output)).await;
        let (command, stderr) = (self.shown(), output.stderr());
        let status = match ended {
            _ if output.is_overflown() => {
                return Err(DiscoveryError::TooMuchOutput { command });
            }
            Err(_elapsed) => {
                group.kill();
                // The script is reaped now or, if the kernel still holds it, later.
                let _ = timeout(DRAIN, child.wait()).await;
                return Err(DiscoveryError::TimedOut { command, limit, stderr });
            }
            Ok(Err(error)) => {
                let message = format!("its end cannot be seen: {error}");
                return Err(DiscoveryError::CannotStart { command, message });
            }
            Ok(Ok(status)) => status,
        };
        if status.is_success() {
            return Ok(output.stdout());
        }
        Err(DiscoveryError::Failed { command, status, stderr })
    }
}

/// Starts the script, on any thread. It ends with its handle, since the run may have been given up meanwhile.
fn spawn(path: &Path, runtime: &Handle) -> io::Result<Child> {
    let _context = runtime.enter();
    Command::new(path)
        .stdin(null_device()?)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
}

/// Reads the script's output until it has ended.
async fn wait(
    child: &mut Child,
    group: &ProcessGroup,
    output: &CommandOutput,
) -> io::Result<ExitStatus> {
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let read_stdout = async {
        if let Some(pipe) = stdout {
            output.read_stdout(pipe, group).await;
        }
    };
    let read_stderr = async {
        if let Some(pipe) = stderr {
            output.read_stderr(pipe).await;
        }
    };
    let mut reading = pin!(join(read_stdout, read_stderr));
    let status = match select(pin!(child.wait()), &mut reading).await {
        Either::Right((_, end)) => end.await?,
        Either::Left((status, _)) => {
            group.kill();
            // After the timeout, the output that was read so far counts.
            let _ = timeout(DRAIN, reading).await;
            status?
        }
    };
    Ok(status.into())
}

impl Discovery for ScriptDiscovery {
    fn run(&mut self, limit: Duration) -> DiscoveryRun {
        Box::pin(self.clone().run_once(limit))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use elastic_runtime::{BlockingLane, system};

    use super::*;

    #[test]
    fn s_12_a_script_that_is_named_without_its_folder_may_come_later() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("hosts-of-this-job.sh");
        let discovery = ScriptDiscovery {
            path: path.clone(),
            name: Some("hosts-of-this-job.sh".into()),
            offload: OffloadPort::lane(BlockingLane::DISCOVERY),
        };
        let run = || {
            let run = discovery.clone().run_once(Duration::from_secs(30));
            system::run(run).expect("a runtime")
        };
        let missing = run().expect_err("no folder of PATH has it").to_string();
        assert!(missing.contains("hosts-of-this-job.sh cannot be started"), "{missing}");
        fs::write(&path, "#!/bin/sh\necho a:1\n").expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
        assert_eq!(run(), Ok("a:1\n".to_owned()));
    }
}
