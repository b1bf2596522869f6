//! One file for other programs: all arrays of a checkpoint as `model.safetensors`. Called by
//! `elastic-node checkpoint export`.

use std::path::Path;

use crate::error::{CheckpointLoadError, SaveError};
use crate::file_system::FileSystem;
use crate::part::{PacedFile, header};
use crate::read::LoadedCheckpoint;
use crate::snapshot::CheckpointTensor;

/// Writes all arrays of a checkpoint into the file `into`, with safetensors' format. Returns their number.
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
    let mut pace = |_| Ok(());
    let mut file = PacedFile::create(files, directory, name, &mut pace)?;
    file.write(&header(&named)?)?;
    for tensor in &tensors {
        file.write(&loaded.bytes[tensor.offset..tensor.offset + tensor.bytes()])?;
    }
    file.finish()?;
    Ok(tensors.len())
}
