//! Output plan of a process: its files, its prefix, and the streams that are shown. Made when the process is started.

use std::path::{Path, PathBuf};

use elastic_protocol::environment;
use elastic_protocol::messages::{FileUmask, ProcessPlace};

use super::owner::FolderOwner;
use super::prefix::LinePrefix;
use super::{OutputStream, file_stem};
use crate::core::SpawnOrder;

/// Plan for the output of a process: the files that store it, and the form in which it is shown.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct OutputPlan {
    /// The prefix of each line that is shown.
    pub(super) prefix: LinePrefix,
    pub(super) stdout: StreamPlan,
    pub(super) stderr: StreamPlan,
    /// The file in which the program may write why it failed (`TORCHELASTIC_ERROR_FILE`).
    pub(crate) error_file: Option<PathBuf>,
    /// Permissions that the stored files do not get.
    pub(super) umask: FileUmask,
    /// The folder of the stored files, and the job that is to own it; `None` if nothing is stored.
    pub(super) owner: Option<FolderOwner>,
}

/// Plan for one stream of a process.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct StreamPlan {
    /// The file that stores the stream, if it is stored.
    pub(super) file: Option<PathBuf>,
    /// Whether the stream is shown, line by line.
    pub(super) is_shown: bool,
}

impl OutputPlan {
    /// The plan for a process; `scratch` is a folder for error files where no other is given.
    pub(crate) fn new(order: &SpawnOrder, scratch: Option<&Path>) -> Self {
        let settings = &order.output;
        let stored = settings.directory.as_deref().map(Path::new);
        let job = order.environment.iter().rev().find(|(name, _)| name == environment::JOB);
        let owned = |folder: &Path| {
            let (folder, (_, job)) = (folder.to_owned(), job?);
            Some(FolderOwner { folder, job: job.clone() })
        };
        let owner = stored.and_then(owned);
        let Some(place) = order.place else {
            let file = |stream: OutputStream| {
                let name = format!("{}.{}", file_stem(&order.worker), stream.name());
                stored.map(|folder| folder.join(name))
            };
            let whole = |stream| StreamPlan { file: file(stream), is_shown: true };
            return Self {
                prefix: LinePrefix::new(order),
                stdout: whole(OutputStream::Stdout),
                stderr: whole(OutputStream::Stderr),
                error_file: None,
                umask: settings.umask,
                owner,
            };
        };
        let (redirects, tee) =
            (settings.redirects.of(place.local_rank), settings.tee.of(place.local_rank));
        let is_told = !settings.redirects.is_empty() || !settings.tee.is_empty();
        let of_shown = settings.shown.as_ref().is_none_or(|it| it.contains(&place.local_rank));
        let plan = |stream: OutputStream, redirect: bool, tee: bool| StreamPlan {
            file: stored
                .filter(|_| redirect || tee || !is_told)
                .map(|folder| of_rank(folder, place).join(format!("{}.log", stream.name()))),
            is_shown: of_shown && (tee || !redirect),
        };
        Self {
            prefix: LinePrefix::new(order),
            stdout: plan(OutputStream::Stdout, redirects.stdout, tee.stdout),
            stderr: plan(OutputStream::Stderr, redirects.stderr, tee.stderr),
            error_file: stored.or(scratch).map(|folder| of_rank(folder, place).join("error.json")),
            umask: settings.umask,
            owner,
        }
    }
}

/// The folder of a rank in its generation. Generation numbers are never reused, so no output of an earlier
/// generation is overwritten (T-4).
fn of_rank(folder: &Path, place: ProcessPlace) -> PathBuf {
    folder.join(format!("generation_{}", place.stamp.generation)).join(place.rank.to_string())
}

#[cfg(test)]
mod tests {
    use elastic_protocol::messages::OutputSettings;
    use elastic_protocol::output::{StreamMap, Streams};
    use elastic_protocol::{
        GenerationId, HostName, Incarnation, ProgramSpec, Stamp, Term, WorkerId,
    };

    use super::*;
    use crate::core::WorkerCredential;

    fn order(local_rank: u32, output: OutputSettings) -> SpawnOrder {
        let host = HostName::new("h").expect("a literal");
        let stamp = Stamp { term: Term(1), generation: GenerationId(7) };
        SpawnOrder {
            worker: WorkerId { host, slot: local_rank, incarnation: Incarnation(1) },
            program: ProgramSpec::default(),
            environment: vec![("ROLE_NAME".to_owned(), "trainer".to_owned())],
            place: Some(ProcessPlace { stamp, rank: local_rank + 4, local_rank }),
            credential: WorkerCredential(String::new()),
            output,
        }
    }

    fn streams(number: u32) -> Streams {
        Streams::from_number(number).expect("0 to 3")
    }

    #[test]
    fn t_2_redirects_and_tees_go_by_local_rank() {
        let settings = OutputSettings {
            directory: Some("logs".to_owned()),
            redirects: StreamMap { others: streams(0), named: [(0, streams(3))].into() },
            tee: StreamMap { others: streams(0), named: [(1, streams(1))].into() },
            ..OutputSettings::default()
        };
        let seen = |local_rank| {
            let plan = OutputPlan::new(&order(local_rank, settings.clone()), None);
            [plan.stdout, plan.stderr].map(|it| (it.file.is_some(), it.is_shown))
        };
        assert_eq!(seen(0), [(true, false), (true, false)]);
        assert_eq!(seen(1), [(true, true), (false, true)]);
        assert_eq!(seen(2), [(false, true), (false, true)]);
    }

    #[test]
    fn t_4_files_stand_by_generation_and_rank() {
        let directory = Some("logs".to_owned());
        let output =
            OutputSettings { directory, shown: Some([0].into()), ..OutputSettings::default() };
        let plan = OutputPlan::new(&order(1, output), None);
        let path = |file: &Option<PathBuf>| file.as_ref().map(|it| it.display().to_string());
        assert_eq!(path(&plan.stderr.file).as_deref(), Some("logs/generation_7/5/stderr.log"));
        assert_eq!(path(&plan.error_file).as_deref(), Some("logs/generation_7/5/error.json"));
        assert!(!plan.stdout.is_shown, "another local rank is to be shown");
    }
}
