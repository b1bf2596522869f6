//! The jobs of this user on this machine, running and past: one file a job below the user's state folder, written by the
//! driver's process and read by `list`, `status`, `explain` and
//! others, which find a job by it without an address.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use elastic_protocol::messages::StatusReport;
use elastic_protocol::{JobOutcome, JobResult};
use serde::{Deserialize, Serialize};

use super::plain_file;
use super::state_dir::{JOURNAL_FILE, LOCK_FILE, state_root};
use super::state_files::StateFiles;

/// Most jobs that are remembered; past it the oldest that do not run are forgotten, with their default state folders where
/// these hold nothing but what a driver has written.
const JOBS_MAX: usize = 100;

/// Largest file of a job that is read, in bytes (4 MiB).
const ENTRY_BYTES_MAX: u64 = 4 << 20;

/// The flag that names a state directory, and its variable.
const STATE_DIR_FLAG: (&str, &str) = ("--state-dir", "ELASTIC_STATE_DIR");

/// Name of the folder of the entries.
const JOBS_FOLDER: &str = "jobs";

/// The entry of one job.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct JobEntry {
    /// The job's id.
    pub(crate) job: String,
    /// Start of its first driver, in RFC 3339.
    pub(crate) started_at: String,
    /// Address at which the driver is reached.
    pub(crate) address: String,
    /// The driver's state directory.
    pub(crate) state_dir: PathBuf,
    /// Process of the driver.
    pub(crate) pid: u32,
    /// The program of the workers, with its arguments.
    pub(crate) program: Vec<String>,
    /// The driver's own words of its command line, secrets masked.
    #[serde(default)]
    pub(crate) flags: Vec<String>,
    /// The variables that set flags of it, secrets masked.
    #[serde(default)]
    pub(crate) variables: BTreeMap<String, String>,
    /// Version of the driver.
    pub(crate) version: String,
    /// The job's end, if it has ended.
    pub(crate) ended: Option<JobEnd>,
}

/// The end of a job.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct JobEnd {
    /// Time of the end, in RFC 3339.
    pub(crate) at: String,
    /// The job's result.
    pub(crate) result: JobResult,
    /// The last status, if the driver could still give one.
    pub(crate) status: Option<Box<StatusReport>>,
}

/// Condition of a job as known without its driver's answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum JobCondition {
    /// Its driver runs on this machine.
    Running,
    /// The job ended with success.
    Succeeded,
    /// The job ended without success.
    Failed,
    /// The operator ended the job.
    Stopped,
    /// Its driver vanished without an end, such as by SIGKILL or with the machine.
    DriverGone,
}

impl JobCondition {
    /// The word that `list` shows.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
            Self::DriverGone => "driver gone",
        }
    }
}

impl JobEnd {
    /// How the job ended.
    pub(crate) const fn condition(&self) -> JobCondition {
        match self.result.outcome {
            JobOutcome::Succeeded => JobCondition::Succeeded,
            JobOutcome::Failed => JobCondition::Failed,
            JobOutcome::Stopped => JobCondition::Stopped,
        }
    }
}

impl JobEntry {
    /// Whether the job runs, or how it ended.
    pub(crate) fn condition(&self) -> JobCondition {
        match &self.ended {
            Some(end) => end.condition(),
            None if self.has_process() && is_locked(&self.state_dir) => JobCondition::Running,
            None => JobCondition::DriverGone,
        }
    }

    /// Whether the state directory is the one that the driver's address has below this root, and nobody has chosen it.
    fn has_default_state_dir(&self, root: &Path) -> bool {
        let (flag, variable) = STATE_DIR_FLAG;
        let names = |word: &String| {
            word.strip_prefix(flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        };
        let is_chosen = self.variables.contains_key(variable) || self.flags.iter().any(names);
        let name = self.state_dir.file_name().and_then(|name| name.to_str());
        let is_address = name.is_some_and(|name| name.parse::<SocketAddr>().is_ok());
        !is_chosen && is_address && self.state_dir.parent() == Some(root)
    }

    fn has_process(&self) -> bool {
        Path::new(&format!("/proc/{}", self.pid)).exists()
    }
}

/// Whether a driver holds the lock of a state directory.
pub(crate) fn is_locked(state_dir: &Path) -> bool {
    let Ok(lock) = File::open(state_dir.join(LOCK_FILE)) else { return false };
    matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock))
}

/// The state directory of a job that was forgotten.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum ForgottenFiles {
    /// It is not there any more.
    Removed,
    /// It is there with these names alone: no driver has written them.
    Foreign(Vec<String>),
    /// It is there as it was.
    Kept,
}

/// The folder of the entries.
#[derive(Clone, Debug)]
pub(crate) struct JobRegistry {
    root: PathBuf,
}

impl JobRegistry {
    /// The registry of this user; none without a home.
    pub(crate) fn of_user() -> Option<Self> {
        Some(Self { root: state_root()? })
    }

    /// All jobs, the newest first. Files that are no entries are left out.
    ///
    /// # Errors
    /// The folder of the entries is there and cannot be read.
    pub(crate) fn jobs(&self) -> io::Result<Vec<JobEntry>> {
        let folder = match fs::read_dir(self.folder()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            folder => folder?,
        };
        let mut jobs: Vec<JobEntry> =
            folder.flatten().filter_map(|entry| read_entry(&entry.path())).collect();
        jobs.sort_by(|left, right| {
            (&right.started_at, &right.job).cmp(&(&left.started_at, &left.job))
        });
        Ok(jobs)
    }

    /// Stores the entry of a job that begins, or goes on with another driver, and forgets the oldest jobs.
    pub(crate) fn begin(&self, mut entry: JobEntry) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(self.folder())?;
        if let Some(former) = read_entry(&self.path(&entry.job)) {
            entry.started_at = former.started_at;
        }
        self.write(&entry)?;
        self.forget_oldest();
        Ok(())
    }

    /// Stores the entry of a job that runs if its file was removed.
    pub(crate) fn restore_if_removed(&self, entry: &JobEntry) -> io::Result<()> {
        if self.path(&entry.job).exists() { Ok(()) } else { self.begin(entry.clone()) }
    }

    /// Adds the end of a job.
    pub(crate) fn end(&self, job: &str, end: JobEnd) -> io::Result<()> {
        let Some(mut entry) = read_entry(&self.path(job)) else { return Ok(()) };
        entry.ended = Some(end);
        self.write(&entry)
    }

    /// Forgets a job that does not run, and removes what its driver has written into the state directory if that is to go
    /// with it. Everything else in the directory stays.
    pub(crate) fn forget(&self, entry: &JobEntry) -> io::Result<ForgottenFiles> {
        let folder = &entry.state_dir;
        let mut jobs = self.jobs()?;
        jobs.retain(|other| other.job != entry.job);
        let files = if self.goes_with(entry, &jobs) {
            let files = StateFiles::of(folder)?;
            files.remove(folder)?;
            match files.foreign() {
                [] => ForgottenFiles::Removed,
                names => ForgottenFiles::Foreign(names.to_vec()),
            }
        } else if folder.exists() {
            ForgottenFiles::Kept
        } else {
            ForgottenFiles::Removed
        };
        fs::remove_file(self.path(&entry.job))?;
        Ok(files)
    }

    /// Whether a job's state directory goes with its entry: nobody chose it, no other job and no driver uses it, and it has no
    /// journal, with which the job can still go on.
    fn goes_with(&self, entry: &JobEntry, others: &[JobEntry]) -> bool {
        let folder = &entry.state_dir;
        let is_used = others.iter().any(|other| other.state_dir == *folder) || is_locked(folder);
        entry.has_default_state_dir(&self.root) && !is_used && !folder.join(JOURNAL_FILE).exists()
    }

    /// The folder of the entries.
    pub(crate) fn folder(&self) -> PathBuf {
        self.root.join(JOBS_FOLDER)
    }

    fn path(&self, job: &str) -> PathBuf {
        self.folder().join(format!("{job}.json"))
    }

    /// Writes an entry for this user alone: arguments of a program may be secret.
    fn write(&self, entry: &JobEntry) -> io::Result<()> {
        let path = self.path(&entry.job);
        let draft = path.with_extension("draft");
        plain_file::refuse_other(&draft)?;
        let mut file =
            OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&draft)?;
        serde_json::to_writer(&mut file, entry)?;
        file.write_all(b"\n")?;
        fs::rename(draft, path)
    }

    /// Forgets the oldest entries beyond the bound. Nobody asked for it: a state directory with anything in it that no driver
    /// has written stays as it is. Other drivers may do so at the same time: a missing file is no error.
    fn forget_oldest(&self) {
        let Ok(jobs) = self.jobs() else { return };
        let (kept, beyond) = jobs.split_at(jobs.len().min(JOBS_MAX));
        for entry in beyond.iter().filter(|entry| entry.condition() != JobCondition::Running) {
            let _ = fs::remove_file(self.path(&entry.job));
            if !self.goes_with(entry, kept) {
                continue;
            }
            if let Ok(files) = StateFiles::of(&entry.state_dir)
                && files.foreign().is_empty()
            {
                let _ = files.remove(&entry.state_dir);
            }
        }
    }
}

fn read_entry(path: &Path) -> Option<JobEntry> {
    if path.extension()? != "json" {
        return None;
    }
    serde_json::from_slice(&plain_file::read(path, ENTRY_BYTES_MAX).ok()?).ok()
}

/// A time as entries have it.
pub(crate) fn entry_time(at: SystemTime) -> String {
    humantime::format_rfc3339_millis(at).to_string()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use elastic_protocol::GenerationId;

    use super::*;
    use crate::process::EVENTS_FILE;

    fn entry(root: &Path, number: usize) -> JobEntry {
        let state_dir = root.join(format!("127.0.0.1:{number}"));
        fs::create_dir_all(&state_dir).expect("a folder");
        JobEntry {
            job: format!("job-{number:04}"),
            started_at: format!("2026-01-01T00:00:00.{number:03}Z"),
            address: format!("127.0.0.1:{number}"),
            state_dir,
            pid: std::process::id(),
            program: vec!["train".to_owned()],
            flags: Vec::new(),
            variables: BTreeMap::new(),
            version: "1".to_owned(),
            ended: None,
        }
    }

    fn end(outcome: JobOutcome) -> JobEnd {
        let (code, reason, generation) = (0, "done".to_owned(), GenerationId(1));
        let result =
            JobResult { outcome, code, reason, hint: None, generation, first_failure: None };
        JobEnd { at: entry_time(SystemTime::UNIX_EPOCH), result, status: None }
    }

    #[test]
    fn a_job_is_found_while_it_runs_and_after_its_end() {
        let root = tempfile::tempdir().expect("a folder");
        let registry = JobRegistry { root: root.path().to_owned() };
        let entry = entry(root.path(), 1);
        registry.begin(entry.clone()).expect("written");
        let path = registry.path(&entry.job);
        let mode = fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "arguments may be secret");
        let condition = || registry.jobs().expect("the folder can be read")[0].condition();
        assert_eq!(condition(), JobCondition::DriverGone, "nobody holds the lock");
        let lock = File::create(entry.state_dir.join(LOCK_FILE)).expect("made");
        lock.lock().expect("free");
        assert_eq!(condition(), JobCondition::Running);
        registry.end(&entry.job, end(JobOutcome::Succeeded)).expect("written");
        assert_eq!(condition(), JobCondition::Succeeded);
        registry.end("unknown", end(JobOutcome::Failed)).expect("nothing to do");
        fs::write(registry.folder().join("x.json"), "no entry").expect("written");
        assert_eq!(registry.jobs().expect("the folder can be read").len(), 1);
    }

    #[test]
    fn a_folder_of_entries_that_cannot_be_read_is_an_error_and_not_empty() {
        let root = tempfile::tempdir().expect("a folder");
        let registry = JobRegistry { root: root.path().to_owned() };
        assert_eq!(registry.jobs().expect("no job has begun").len(), 0);
        fs::write(registry.folder(), "no folder").expect("written");
        let error = registry.jobs().expect_err("it cannot be read");
        assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
    }

    #[test]
    fn s_13_what_is_no_plain_file_among_the_entries_is_left_out_and_not_waited_for() {
        let root = tempfile::tempdir().expect("a folder");
        let registry = JobRegistry { root: root.path().to_owned() };
        let folder = registry.folder();
        fs::create_dir_all(&folder).expect("made");
        let mode = nix::sys::stat::Mode::S_IRWXU;
        nix::unistd::mkfifo(&folder.join("pipe.json"), mode).expect("made");
        std::os::unix::fs::symlink("/dev/zero", folder.join("endless.json")).expect("made");
        let entry = entry(root.path(), 1);
        registry.begin(entry.clone()).expect("written");
        assert_eq!(registry.jobs().expect("the folder can be read").len(), 1);
        nix::unistd::mkfifo(&folder.join("job-0001.draft"), mode).expect("made");
        let error = registry.begin(entry).expect_err("nobody reads that pipe");
        assert!(error.to_string().contains("no plain file"), "{error}");
    }

    #[test]
    fn the_oldest_jobs_are_forgotten_with_their_default_state_folders() {
        let root = tempfile::tempdir().expect("a folder");
        let registry = JobRegistry { root: root.path().to_owned() };
        for number in 0..JOBS_MAX + 3 {
            let entry = entry(root.path(), number);
            if number == 1 {
                fs::write(entry.state_dir.join(JOURNAL_FILE), "").expect("written");
            }
            registry.begin(entry).expect("written");
        }
        let jobs = registry.jobs().expect("the folder can be read");
        assert_eq!((jobs.len(), jobs[0].job.as_str()), (JOBS_MAX, "job-0102"));
        let is_there = |number: usize| root.path().join(format!("127.0.0.1:{number}")).exists();
        assert_eq!([0, 1, 2, 3].map(is_there), [false, true, false, true], "1 has a journal");
    }

    #[test]
    fn what_a_user_keeps_in_a_default_state_folder_stays_when_its_job_is_forgotten_unasked() {
        let root = tempfile::tempdir().expect("a folder");
        let registry = JobRegistry { root: root.path().to_owned() };
        let oldest = entry(root.path(), 0);
        for name in [EVENTS_FILE, LOCK_FILE, "model.pt"] {
            fs::write(oldest.state_dir.join(name), "text").expect("written");
        }
        fs::create_dir(oldest.state_dir.join("checkpoints")).expect("made");
        registry.begin(oldest.clone()).expect("written");
        for number in 1..=JOBS_MAX {
            registry.begin(entry(root.path(), number)).expect("written");
        }
        assert!(
            !registry
                .jobs()
                .expect("the folder can be read")
                .iter()
                .any(|job| job.job == oldest.job),
            "it is forgotten"
        );
        for name in [EVENTS_FILE, LOCK_FILE, "model.pt", "checkpoints"] {
            assert!(oldest.state_dir.join(name).exists(), "{name}");
        }
    }

    #[test]
    fn a_job_is_forgotten_with_what_its_driver_has_written_and_nothing_else() {
        let root = tempfile::tempdir().expect("a folder");
        let registry = JobRegistry { root: root.path().to_owned() };
        let begun = |number: usize, change: &dyn Fn(&mut JobEntry)| {
            let mut entry = entry(root.path(), number);
            change(&mut entry);
            fs::create_dir_all(&entry.state_dir).expect("made");
            fs::write(entry.state_dir.join(EVENTS_FILE), "lines").expect("written");
            registry.begin(entry.clone()).expect("written");
            entry
        };
        let plain = begun(1, &|_| {});
        assert_eq!(registry.forget(&plain).expect("forgotten"), ForgottenFiles::Removed);
        assert!(
            !plain.state_dir.exists()
                && registry.jobs().expect("the folder can be read").is_empty()
        );

        let with_checkpoints = begun(2, &|_| {});
        fs::create_dir(with_checkpoints.state_dir.join("checkpoints")).expect("made");
        let left = registry.forget(&with_checkpoints).expect("forgotten");
        assert_eq!(left, ForgottenFiles::Foreign(vec!["checkpoints".to_owned()]));
        assert!(with_checkpoints.state_dir.join("checkpoints").exists());
        assert!(!with_checkpoints.state_dir.join(EVENTS_FILE).exists());

        let named = |entry: &mut JobEntry| entry.state_dir = root.path().join("mine");
        let flag = |entry: &mut JobEntry| entry.flags = vec!["--state-dir=x".to_owned()];
        let variable = |entry: &mut JobEntry| {
            entry.variables.insert(STATE_DIR_FLAG.1.to_owned(), "x".to_owned());
        };
        let chosen: [&dyn Fn(&mut JobEntry); 3] = [&named, &flag, &variable];
        for (number, choose) in (3..).zip(chosen) {
            let chosen = begun(number, choose);
            assert_eq!(registry.forget(&chosen).expect("forgotten"), ForgottenFiles::Kept);
            assert!(chosen.state_dir.join(EVENTS_FILE).exists(), "{chosen:?}");
        }

        let held = begun(6, &|_| {});
        let lock = File::create(held.state_dir.join(LOCK_FILE)).expect("made");
        lock.lock().expect("free");
        assert_eq!(registry.forget(&held).expect("forgotten"), ForgottenFiles::Kept);
    }
}
