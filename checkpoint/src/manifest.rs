//! `manifest.json`: the commit of a checkpoint, its files and its arrays, with their checksums. Written by `seal`, read
//! by `read`.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::Damage;
use crate::{checksum, hex};

/// Highest step of a checkpoint. No training comes so far, and there is room to count on from it without an overflow.
const STEP_MAX: u64 = 1 << 62;

/// Name of the manifest within a step's directory.
pub const MANIFEST: &str = "manifest.json";
/// Name of the manifest until its checkpoint is whole.
pub(crate) const UNSEALED: &str = "manifest.json.partial";
/// Version of the format.
const VERSION: u32 = 1;
/// Bytes of a file that have one checksum.
pub(crate) const CHUNK_BYTES: usize = 16 << 20;
/// Largest manifest that is read, in bytes.
pub(crate) const MANIFEST_BYTES_MAX: u64 = 256 << 20;

/// A checkpoint's contents.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Version of the format: 1.
    pub version: u32,
    /// The job's id.
    pub job: String,
    /// The job's name, if the user gave it one.
    pub name: Option<String>,
    /// The step of the commit.
    pub step: u64,
    /// The driver's term.
    pub term: u64,
    /// The generation in which the commit was made.
    pub generation: u64,
    /// Number of workers that made and wrote the commit.
    pub world_size: u32,
    /// Time at which it was sealed, in milliseconds since 1970.
    pub saved_at_ms: u64,
    /// Length of the commit, in bytes.
    pub length: u64,
    /// Checksum of the commit.
    pub digest: String,
    /// The place in the data: the sampler's ledger.
    pub position: Value,
    /// The names of the state's fields, in their order; none if its type is no struct, or an earlier release saved it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fields: Option<Vec<String>>,
    /// The types of places in the state, each as a word, by the places' names; none as for `fields`. A place that is missing
    /// is of unknown type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field_types: Option<BTreeMap<String, String>>,
    /// The files.
    pub files: Vec<FileRecord>,
    /// The arrays.
    pub tensors: Vec<TensorRecord>,
    /// Name of the file of all bytes that are no array, in their order; none if there is no such byte.
    pub rest: Option<String>,
    /// Checksum of this manifest with an empty `checksum`.
    pub checksum: String,
}

/// A file of a checkpoint.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct FileRecord {
    /// Its name within the step's directory.
    pub name: String,
    /// Its length, in bytes.
    pub bytes: u64,
    /// Length of each chunk but the last, in bytes.
    pub chunk_bytes: u64,
    /// Checksum of each chunk.
    pub chunks: Vec<String>,
}

/// An array of a checkpoint.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TensorRecord {
    /// Its name.
    pub name: String,
    /// Type of its elements, with safetensors' names.
    pub dtype: safetensors::Dtype,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its offset in the commit.
    pub offset: u64,
    /// Its length, in bytes.
    pub bytes: u64,
    /// The file that holds it.
    pub file: String,
    /// Its offset in that file.
    pub file_offset: u64,
}

impl Manifest {
    pub(crate) const VERSION: u32 = VERSION;

    /// The manifest's text, with its own checksum.
    pub fn encode(&self) -> Vec<u8> {
        let unsigned = Self { checksum: String::new(), ..self.clone() };
        let signed = Self { checksum: checksum(&text(&unsigned)), ..unsigned };
        text(&signed)
    }

    /// Reads a manifest's text.
    ///
    /// # Errors
    /// [`Damage::Manifest`]: it is no manifest, of another version, or damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, Damage> {
        let wrong = |reason: String| Damage::Manifest { reason };
        /// The part that all versions have.
        #[derive(Deserialize)]
        struct OfAnyVersion {
            version: u32,
        }
        let of_any: OfAnyVersion = serde_json::from_slice(bytes)
            .map_err(|error| wrong(format!("it cannot be read: {error}")))?;
        if of_any.version != VERSION {
            let version = of_any.version;
            return Err(wrong(format!(
                "it has version {version}, and this program reads {VERSION}"
            )));
        }
        let manifest: Self = serde_json::from_slice(bytes)
            .map_err(|error| wrong(format!("it cannot be read: {error}")))?;
        if manifest.encode() != bytes {
            return Err(wrong("it has other content than was written".to_owned()));
        }
        if manifest.step > STEP_MAX {
            return Err(wrong(format!("no training comes to step {}", manifest.step)));
        }
        let is_outside = |name: &&String| Path::new(name).file_name() != Some(name.as_ref());
        let mut names = manifest.files.iter().map(|file| &file.name).chain(&manifest.rest);
        if let Some(name) = names.find(is_outside) {
            return Err(wrong(format!("{name:?} does not lie beside it")));
        }
        Ok(manifest)
    }

    /// The XXH3-64 of the commit; none if the manifest does not have it as it is written.
    pub fn digest(&self) -> Option<u64> {
        u64::from_str_radix(&self.digest, 16).ok().filter(|digest| hex(*digest) == self.digest)
    }

    /// Compares the XXH3-64 of a commit that was put together from the files with the recorded digest.
    ///
    /// # Errors
    /// [`Damage::Manifest`]: they differ.
    pub fn check_digest(&self, digest: u64) -> Result<(), Damage> {
        if hex(digest) == self.digest {
            return Ok(());
        }
        let reason = "its files do not make the commit that it names".to_owned();
        Err(Damage::Manifest { reason })
    }
}

/// A part's own record, which the writer of the manifest collects.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PartRecord {
    pub(crate) job: String,
    pub(crate) step: u64,
    pub(crate) length: u64,
    pub(crate) digest: String,
    pub(crate) position: Value,
    pub(crate) files: Vec<FileRecord>,
    pub(crate) tensors: Vec<TensorRecord>,
    pub(crate) rest: Option<String>,
}

/// A record as text that people can read.
pub(crate) fn text(record: &impl Serialize) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(record)
        .expect("names are strings, and numbers are finite: nothing else is refused");
    text.push(b'\n');
    text
}
