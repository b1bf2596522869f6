//! Faults of a machine that kill no process: a disk that hangs, a pipe that is never read, a thread that hangs. Used
//! by the tests of `sick`.

use std::fs::{self, File};
use std::io::{PipeReader, PipeWriter};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::network::not_shown;
use crate::support::make_executable;

/// The faulty parts with which a job is started.
#[derive(Default)]
pub(crate) struct Sickness {
    /// The disk of one of the job's folders.
    pub(crate) disk: Option<Disk>,
    /// The stderr of the driver.
    pub(crate) stderr: Option<OwnedFd>,
}

/// A file system of the test's own, on a loop device: while it is frozen, writers block and cannot be killed.
pub(crate) struct Disk {
    folder: TempDir,
    /// The job's folder that lies on this disk.
    pub(crate) holds: &'static str,
}

impl Disk {
    /// Makes the disk; none without root, or without loop devices.
    pub(crate) fn make(holds: &'static str) -> Option<Self> {
        let made = Self::made(holds, |disk| {
            disk.mount("mkfs.ext4", 24 << 20)?;
            fs::remove_dir_all(disk.path().join("lost+found")).map_err(|error| error.to_string())
        });
        match made {
            Ok(disk) => Some(disk),
            Err(error) => {
                not_shown(&format!("no disk can be made ({error}): that needs root"));
                None
            }
        }
    }

    /// Makes a disk with quotas; none without root, or without btrfs and its programs. Quotas of ext4 do not bind root, those of
    /// btrfs do.
    #[expect(clippy::print_stderr, reason = "a test that shows nothing must say so")]
    pub(crate) fn with_a_quota(holds: &'static str) -> Option<Self> {
        let made = Self::made(holds, |disk| {
            // Smaller than that, btrfs does not make one.
            disk.mount("mkfs.btrfs", 160 << 20)?;
            run("btrfs", &["quota", "enable"], &disk.path())
        });
        let say = |error: &String| {
            eprintln!("not shown: no disk with quotas ({error}): that needs root, and btrfs-progs");
        };
        made.inspect_err(say).ok()
    }

    fn made(
        holds: &'static str,
        make: impl FnOnce(&Self) -> Result<(), String>,
    ) -> Result<Self, String> {
        let disk = Self { folder: TempDir::new().expect("a temporary folder"), holds };
        make(&disk).map(|()| disk)
    }

    fn mount(&self, program: &str, bytes: u64) -> Result<(), String> {
        let image = self.folder.path().join("image");
        let made = File::create(&image).and_then(|file| file.set_len(bytes));
        made.map_err(|error| error.to_string())?;
        fs::create_dir(self.path()).map_err(|error| error.to_string())?;
        run(program, &["-q"], &image)?;
        let target = self.path().display().to_string();
        run("mount", &["-o", "loop", &image.display().to_string()], Path::new(&target))
    }

    /// Sets the quota below what is used already: from here on writers fail.
    pub(crate) fn use_quota_up(&self) {
        run("btrfs", &["qgroup", "limit", "32K"], &self.path()).expect("it has quotas");
    }

    pub(crate) fn lift_quota(&self) {
        run("btrfs", &["qgroup", "limit", "none"], &self.path()).expect("it has quotas");
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("disk")
    }

    /// Freezes the disk: from here on writers block.
    pub(crate) fn freeze(&self) {
        run("fsfreeze", &["-f"], &self.path()).expect("it is mounted");
    }

    /// Thaws the disk; does nothing if it is not frozen.
    pub(crate) fn thaw(&self) {
        let _ = run("fsfreeze", &["-u"], &self.path());
    }

    /// Mounts the disk anew, to read only or not. Says whether that was possible: it is not while a file is being written.
    pub(crate) fn remount(&self, way: &str) -> bool {
        run("mount", &["-o", &format!("remount,{way}")], &self.path()).is_ok()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.thaw();
        let _ = run("umount", &["-l"], &self.path());
    }
}

fn run(program: &str, arguments: &[&str], last: &Path) -> Result<(), String> {
    let output = Command::new(program).args(arguments).arg(last).output();
    let output = output.map_err(|error| format!("`{program}` cannot be run: {error}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    output.status.success().then_some(()).ok_or_else(|| format!("`{program}`: {stderr}"))
}

/// A program on a file system that hangs: a process that opens or executes it waits until this is dropped, or for the
/// 45 s of the kernel, since this process holds the file by a lease (fcntl(2), `F_SETLEASE`).
pub(crate) struct HeldProgram(File);

impl HeldProgram {
    /// Puts a held program in the place of the one at `path`; none where the file system has no leases.
    #[expect(clippy::print_stderr, reason = "a test that shows nothing must say so")]
    pub(crate) fn put(path: &Path, text: &str) -> Option<Self> {
        let aside = path.with_extension("held");
        fs::write(&aside, text).expect("a file");
        make_executable(&aside);
        let file = File::open(&aside).expect("it is there");
        if let Err(error) = lease(&file, libc::F_WRLCK) {
            eprintln!("not shown: no file can be held here: {error}");
            return None;
        }
        fs::rename(&aside, path).expect("it takes the other one's place");
        Some(Self(file))
    }
}

impl Drop for HeldProgram {
    fn drop(&mut self) {
        let _ = lease(&self.0, libc::F_UNLCK);
    }
}

/// fcntl(2): chooses the signal of a lease. The libc crate does not name it.
const F_SETSIG: i32 = 10;

#[expect(unsafe_code, reason = "nix has no leases")]
fn lease(file: &File, kind: i32) -> std::io::Result<()> {
    // The signal that somebody waits would end this process; this one is ignored.
    // SAFETY: these commands take a number, and the descriptor is open.
    let told = unsafe { libc::fcntl(file.as_raw_fd(), F_SETSIG, libc::SIGURG) };
    // SAFETY: as above.
    let held = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) };
    if told == 0 && held == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// A pipe with a buffer of one page, for a reader that does not read.
pub(crate) fn small_pipe() -> (PipeReader, PipeWriter) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    fcntl(&writer, FcntlArg::F_SETPIPE_SZ(4096)).expect("its size can be set");
    (reader, writer)
}

/// The stopped main thread of a process whose other threads run; it continues when this is dropped.
pub(crate) struct StoodStill(Pid);

impl StoodStill {
    pub(crate) fn main_thread_of(pid: u32) -> Self {
        let pid = Pid::from_raw(i32::try_from(pid).expect("a process id"));
        ptrace::seize(pid, ptrace::Options::empty()).expect("it is ours");
        ptrace::interrupt(pid).expect("it runs");
        waitpid(pid, Some(WaitPidFlag::WUNTRACED)).expect("it stops");
        Self(pid)
    }
}

impl Drop for StoodStill {
    fn drop(&mut self) {
        // The process may have ended meanwhile.
        let _ = ptrace::detach(self.0, None);
    }
}

/// A control group of version 1 whose processes get almost no processor time: a program that computes takes the
/// little there is.
pub(crate) struct StarvingGroup {
    folder: PathBuf,
    hog: Option<Child>,
}

impl StarvingGroup {
    /// Makes the group; none where this user may not.
    pub(crate) fn make() -> Option<Self> {
        let name = format!("elastic-node-test-{}", std::process::id());
        let folder = Path::new("/sys/fs/cgroup/cpu").join(name);
        let made = fs::create_dir(&folder)
            .and_then(|()| fs::write(folder.join("cpu.cfs_period_us"), "1000000"))
            // The least that the kernel takes.
            .and_then(|()| fs::write(folder.join("cpu.cfs_quota_us"), "1000"));
        let mut group = Self { folder, hog: None };
        if let Err(error) = made {
            not_shown(&format!("no control group of version 1 can be made ({error})"));
            return None;
        }
        let hog = Command::new("yes").stdout(Stdio::null()).spawn().expect("it is installed");
        let pid = hog.id();
        group.hog = Some(hog);
        group.take(pid);
        Some(group)
    }

    /// Moves a process into the group; beside the program that computes it has no priority at all.
    pub(crate) fn take(&self, pid: u32) {
        fs::write(self.folder.join("cgroup.procs"), pid.to_string()).expect("ours");
    }

    /// Moves a process back out.
    pub(crate) fn release(&self, pid: u32) {
        fs::write("/sys/fs/cgroup/cpu/cgroup.procs", pid.to_string()).expect("ours");
    }
}

impl Drop for StarvingGroup {
    fn drop(&mut self) {
        if let Some(mut hog) = self.hog.take() {
            let _ = hog.kill();
            let _ = hog.wait();
        }
        // A group that is not empty stays.
        let _ = fs::remove_dir(&self.folder);
    }
}

/// A control group of version 1 with a bound of the processes and threads in it.
pub(crate) struct TaskGroup(PathBuf);

/// The controller's root.
const TASKS: &str = "/sys/fs/cgroup/pids";

impl TaskGroup {
    /// Makes the group; none where this user may not.
    pub(crate) fn make() -> Option<Self> {
        let name = format!("elastic-node-test-{}", std::process::id());
        let group = Self(Path::new(TASKS).join(name));
        if let Err(error) = fs::create_dir(&group.0) {
            not_shown(&format!("no control group of version 1 can be made ({error})"));
            return None;
        }
        Some(group)
    }

    pub(crate) fn limit(&self, tasks: &str) {
        fs::write(self.0.join("pids.max"), tasks).expect("ours");
    }

    /// Runs `start` in the group: processes that it starts are in it, this thread only meanwhile.
    pub(crate) fn within<T>(&self, start: impl FnOnce() -> T) -> T {
        fs::write(self.0.join("tasks"), "0").expect("ours");
        let started = start();
        fs::write(Path::new(TASKS).join("tasks"), "0").expect("where it was");
        started
    }
}

impl Drop for TaskGroup {
    fn drop(&mut self) {
        // A group that is not empty stays.
        let _ = fs::remove_dir(&self.0);
    }
}
