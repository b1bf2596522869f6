//! Writes a support bundle as a tar archive, compressed with Zstandard (RFC 8878): for its owner alone, under a temporary
//! name, and never over another file. Called by `report`.

use std::io::{self, ErrorKind, Write as _};
use std::path::Path;

use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use tar::{Builder, Header};

use super::ReportError;
use super::bundle::SupportBundle;

/// Folder of the files in the archive: unpacked, they lie in one place.
const TOP_FOLDER: &str = "elastic-node-report";

/// The archive's bytes; `unix_seconds` is the time of its files. They name no user.
pub(super) fn archive(bundle: &SupportBundle, unix_seconds: u64) -> io::Result<Vec<u8>> {
    let manifest = format!("{:#}\n", bundle.manifest());
    let files = bundle.files.iter().map(|file| (file.path.as_str(), file.text.as_str()));
    let mut tar = Builder::new(Vec::new());
    for (path, text) in files.chain([("manifest.json", manifest.as_str())]) {
        let mut header = Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(unix_seconds);
        header.set_uid(0);
        header.set_gid(0);
        tar.append_data(&mut header, format!("{TOP_FOLDER}/{path}"), text.as_bytes())?;
    }
    Ok(compress_to_vec(&*tar.into_inner()?, CompressionLevel::Fastest))
}

/// Refuses a path that is taken, or whose folder is none, before anything is collected.
pub(super) fn check_target(target: &Path) -> Result<(), ReportError> {
    if target.symlink_metadata().is_ok() {
        return Err(ReportError::Taken { path: target.to_owned() });
    }
    match folder_of(target).is_dir() && target.file_name().is_some() {
        true => Ok(()),
        false => Err(ReportError::NoFolder { path: target.to_owned() }),
    }
}

/// Writes the archive to a new file of mode 0600.
pub(super) fn write_new(target: &Path, bytes: &[u8]) -> Result<(), ReportError> {
    let failed = |source| ReportError::NotWritten { path: target.to_owned(), source };
    // Files of this kind have mode 0600.
    let mut draft = tempfile::Builder::new()
        .prefix(".elastic-node-report.")
        .tempfile_in(folder_of(target))
        .map_err(failed)?;
    draft.write_all(bytes).and_then(|()| draft.as_file().sync_all()).map_err(failed)?;
    match draft.persist_noclobber(target) {
        Ok(_) => Ok(()),
        Err(error) if error.error.kind() == ErrorKind::AlreadyExists => {
            Err(ReportError::Taken { path: target.to_owned() })
        }
        Err(error) => Err(failed(error.error)),
    }
}

fn folder_of(target: &Path) -> &Path {
    match target.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::fs::PermissionsExt as _;

    use ruzstd::decoding::StreamingDecoder;

    use super::super::bundle::TextForm;
    use super::*;

    /// A text that a compressor finds some of again: letters by a linear congruential generator.
    fn text(letters: usize, seed: u64) -> String {
        let mut state = seed;
        let letter = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888);
            char::from(b'a' + (state >> 60) as u8)
        };
        (0..letters).map(letter).collect()
    }

    #[test]
    fn each_file_is_read_back_as_it_was() {
        let mut bundle = SupportBundle::default();
        // Blocks have at most 128 KiB.
        let lengths = [0, 1, 511, 512, 513, 100_000, 131_072, 300_000];
        for length in lengths {
            let twice = text(length, length as u64).repeat(2);
            bundle.add(&format!("outputs/{length}"), "", TextForm::Plain, &twice);
        }
        let long = format!("outputs/{}", "n".repeat(150));
        bundle.add(&long, "", TextForm::Plain, "x");
        let bytes = archive(&bundle, 7).expect("memory");
        let decoded = StreamingDecoder::new(&*bytes).expect("a frame");
        let mut tar = tar::Archive::new(decoded);
        let mut found = Vec::new();
        for entry in tar.entries().expect("an archive") {
            let mut entry = entry.expect("whole");
            let header = entry.header();
            assert_eq!((header.mtime().ok(), header.uid().ok()), (Some(7), Some(0)));
            let path = entry.path().expect("a path").display().to_string();
            let mut text = String::new();
            entry.read_to_string(&mut text).expect("a text");
            found.push((path, text));
        }
        let (_, manifest) = found.pop().expect("the list");
        assert_eq!(manifest, format!("{:#}\n", bundle.manifest()));
        let files = bundle.files.iter();
        let expected: Vec<_> =
            files.map(|file| (format!("{TOP_FOLDER}/{}", file.path), file.text.clone())).collect();
        assert!(found == expected, "the files differ");
    }

    #[test]
    fn a_file_is_its_owner_s_alone_and_never_written_over() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = folder.path().join("job.tar.zst");
        check_target(&target).expect("free");
        write_new(&target, b"first").expect("written");
        let mode = std::fs::metadata(&target).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);
        for refused in [check_target(&target), write_new(&target, b"second")] {
            assert!(matches!(refused, Err(ReportError::Taken { .. })), "{refused:?}");
        }
        assert_eq!(std::fs::read(&target).expect("there"), b"first");
        let entries = std::fs::read_dir(folder.path()).expect("ours").count();
        assert_eq!(entries, 1, "no draft is left");
        let nowhere = check_target(&folder.path().join("none/job.tar.zst"));
        assert!(matches!(nowhere, Err(ReportError::NoFolder { .. })), "{nowhere:?}");
    }
}
