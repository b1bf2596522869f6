//! One file for other programs: all arrays of a checkpoint as `model.safetensors`. Called by
//! `elastic-node checkpoint export`.

use std::io::ErrorKind;
use std::path::Path;

use crate::error::{CheckpointLoadError, SaveError};
use crate::file_system::FileSystem;
use crate::part::{PacedFile, header, sync_directory};
use crate::read::LoadedCheckpoint;
use crate::snapshot::CheckpointTensor;

/// Ending of the file's name until it is whole.
const PARTIAL: &str = ".partial";

/// Writes all arrays of a checkpoint into the file `into`, with safetensors' format. Returns their number. The file has its
/// name when it is whole and safe: one that was there before stays as it is if this fails.
///
/// # Errors
/// [`CheckpointLoadError::Export`].
pub fn export(
    files: &dyn FileSystem,
    loaded: &LoadedCheckpoint,
    into: &Path,
) -> Result<usize, CheckpointLoadError> {
    write(files, loaded, into).map_err(|error| CheckpointLoadError::Export(Box::new(error)))
}

fn write(
    files: &dyn FileSystem,
    loaded: &LoadedCheckpoint,
    into: &Path,
) -> Result<usize, SaveError> {
    let records = &loaded.manifest.tensors;
    let mut tensors: Vec<CheckpointTensor> = records
        .iter()
        .map(|record| CheckpointTensor {
            name: record.name.clone(),
            dtype: record.dtype,
            shape: record.shape.clone(),
            offset: record.offset as usize,
        })
        .collect();
    tensors.sort_by_key(|tensor| (std::cmp::Reverse(tensor.dtype), tensor.offset));
    let named: Vec<&CheckpointTensor> = tensors.iter().collect();
    let directory = into.parent().unwrap_or(Path::new(""));
    let name = into.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let write_to = |name: String| {
        let mut pace = |_| Ok(());
        let mut file = PacedFile::create(files, directory, name, &mut pace)?;
        file.write(&header(&named)?)?;
        for tensor in &tensors {
            file.write(&loaded.bytes[tensor.offset..tensor.offset + tensor.bytes()])?;
        }
        file.finish()
    };
    if !is_replaceable(files, into) {
        write_to(name)?;
        return Ok(tensors.len());
    }
    let partial = directory.join(format!("{name}{PARTIAL}"));
    let written = write_to(format!("{name}{PARTIAL}"))
        .and_then(|_| files.rename(&partial, into).map_err(SaveError::io("renaming", &partial)));
    if let Err(error) = written {
        let _ = files.remove_file(&partial);
        return Err(error);
    }
    sync_directory(files, directory)?;
    Ok(tensors.len())
}

/// Whether another file may take the place of this one. A link leads to a file of others, and a device stays one.
fn is_replaceable(files: &dyn FileSystem, path: &Path) -> bool {
    !files.is_link(path)
        && match files.open(path) {
            Ok(_) => true,
            Err(error) => matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied),
        }
}
