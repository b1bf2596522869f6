//! The files of a worker's output below the folder of `--output-dir`. Used by `logs`, `report` and the dashboard.

use std::fs;
use std::path::{Path, PathBuf};

use elastic_agent::OutputStream;
use elastic_agent::output::file_stem;
use elastic_observe::WorkerOutput;

/// The file of a worker's stream; none if there is none on this machine. Of the two places the one that was written last
/// counts: the folder may have served another job before.
pub(crate) fn file_of(
    folder: &Path,
    output: &WorkerOutput,
    stream: OutputStream,
) -> Option<PathBuf> {
    let (generation, rank) = output.first;
    let of_generation = folder.join(format!("generation_{generation}")).join(rank.to_string());
    let places = [
        folder.join(format!("{}.{}", file_stem(&output.worker), stream.name())),
        of_generation.join(format!("{}.log", stream.name())),
    ];
    let written = |path: &PathBuf| fs::metadata(path).and_then(|it| it.modified()).ok();
    places.into_iter().filter(|path| written(path).is_some()).max_by_key(written)
}
