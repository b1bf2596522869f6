//! Makes `ELASTIC_MESSAGES`: a digest of the source of all messages between nodes. It is a part of the protocol's version,
//! so that programs whose messages differ say so instead of misunderstanding each other.

use std::fs;
use std::path::{Path, PathBuf};

/// Sources that define the messages and their encoding, as paths relative to this package.
const SOURCES: [&str; 8] = [
    "../protocol/src",
    "../runtime/src/envelope.rs",
    "../runtime/src/session",
    "../actors/store/src/messages.rs",
    "../actors/store/src/wire/request.rs",
    "src/quic/greeting.rs",
    "src/quic/process_identity.rs",
    "src/quic/wire.rs",
];

fn main() {
    let mut digest = 0xcbf2_9ce4_8422_2325_u64;
    for source in SOURCES {
        println!("cargo::rerun-if-changed={source}");
        let mut files = Vec::new();
        list(Path::new(source), &mut files);
        files.sort();
        for file in files {
            let text = fs::read_to_string(&file).unwrap_or_default();
            for byte in said(&text).bytes() {
                // FNV-1a: it need not withstand anybody, and needs no crate.
                digest = (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
    }
    println!("cargo::rustc-env=ELASTIC_MESSAGES={:08x}", digest as u32);
}

fn list(path: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(path) else {
        // A file, or nothing.
        return files.push(path.to_owned());
    };
    for entry in entries.flatten() {
        let path = entry.path();
        let is_test = path.file_name().is_some_and(|name| name.to_string_lossy().contains("test"));
        if !is_test && (path.is_dir() || path.extension().is_some_and(|it| it == "rs")) {
            list(&path, files);
        }
    }
}

/// The source without comments, white space and unit tests: those change no message.
fn said(text: &str) -> String {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let lines = code.lines().map(str::trim_start).filter(|line| !line.starts_with("//"));
    lines.flat_map(str::chars).filter(|it| !it.is_whitespace()).collect()
}
