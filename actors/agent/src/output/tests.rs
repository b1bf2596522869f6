//! Tests of output through real pipes: the files are complete, a slow reader holds no worker up.

use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use elastic_protocol::messages::OutputSettings;
use elastic_protocol::{HostName, Incarnation, ProgramSpec, WorkerId};
use nix::unistd::pipe;

use super::*;
use crate::core::{SpawnOrder, WorkerCredential};

/// Timeout that a busy machine keeps; no test waits for it to pass.
const PATIENCE: Duration = Duration::from_secs(30);

fn worker() -> WorkerId {
    let host = HostName::new("../h").expect("a valid name");
    WorkerId { host, slot: 1, incarnation: Incarnation(7) }
}

/// The plan for a worker whose output is stored in a folder.
fn plan(directory: &Path) -> OutputPlan {
    let directory = directory.to_str().map(str::to_owned);
    let order = SpawnOrder {
        worker: worker(),
        program: ProgramSpec::default(),
        environment: Vec::new(),
        place: None,
        credential: WorkerCredential(String::new()),
        output: OutputSettings { directory, ..OutputSettings::default() },
    };
    OutputPlan::new(&order, None)
}

fn run<F: Future>(test: F) -> F::Output {
    elastic_runtime::system::run(test).expect("a runtime")
}

#[derive(Default)]
struct Collected(Mutex<Vec<(OutputStream, String)>>);

impl OutputSink for Collected {
    fn line(&self, _prefix: &str, stream: OutputStream, line: &str) {
        self.0.lock().expect("no panic").push((stream, line.to_owned()));
    }
}

#[test]
fn x_16_files_have_every_byte_and_the_view_has_lines() {
    let folder = tempfile::tempdir().expect("a folder");
    let directory = folder.path().join("new/logs");
    let sink = Arc::new(Collected::default());
    let long = "訓".repeat(400_000);
    let text = [b"a \xff\xfe b\n".as_slice(), long.as_bytes(), b"\nlast"].concat();
    let tail = run(async {
        let (pipes, attached) =
            attach(&worker(), &plan(&directory), sink.clone(), &OutputFiles::default())
                .expect("pipes");
        let mut stdout = std::fs::File::from(pipes.stdout);
        for part in text.chunks(1_001) {
            stdout.write_all(part).expect("somebody reads");
        }
        drop(stdout);
        std::fs::File::from(pipes.stderr).write_all("grüße\n".as_bytes()).expect("a reader");
        attached.finish().await
    });
    assert_eq!(tail, "grüße\n");
    let stem = directory.join("%2E.%2Fh.1.7");
    assert_eq!(std::fs::read(stem.with_extension("7.stdout")).expect("a file"), text);
    assert_eq!(
        std::fs::read(stem.with_extension("7.stderr")).expect("a file"),
        "grüße\n".as_bytes()
    );
    let lines = sink.0.lock().expect("no panic");
    let of = |wanted| lines.iter().filter(move |line| line.0 == wanted).map(|line| line.1.as_str());
    let stdout: Vec<_> = of(OutputStream::Stdout).collect();
    assert_eq!((stdout.len(), stdout[0], stdout[2]), (3, "a \u{fffd}\u{fffd} b", "last"));
    assert!(stdout[1].ends_with(&format!("訓 … ({} bytes more)", long.len() - 8190)));
    assert_eq!(of(OutputStream::Stderr).collect::<Vec<_>>(), ["grüße"]);
}

#[test]
fn s_6_a_stream_whose_file_cannot_be_made_is_shown() {
    let folder = tempfile::tempdir().expect("a folder");
    let directory = folder.path().join("a file");
    std::fs::write(&directory, "").expect("a file");
    let sink = Arc::new(Collected::default());
    let mut plan = plan(&directory);
    plan.stdout.is_shown = false;
    let tail = run(async {
        let (pipes, attached) =
            attach(&worker(), &plan, sink.clone(), &OutputFiles::default()).expect("pipes");
        std::fs::File::from(pipes.stdout).write_all(b"out\n").expect("a reader");
        std::fs::File::from(pipes.stderr).write_all(b"err\n").expect("a reader");
        attached.finish().await
    });
    assert_eq!(tail, "err\n");
    let mut lines = sink.0.lock().expect("no panic").clone();
    lines.sort_by(|a, b| a.1.cmp(&b.1));
    let shown = [(OutputStream::Stderr, "err"), (OutputStream::Stdout, "out")];
    assert_eq!(lines, shown.map(|(stream, line)| (stream, line.to_owned())));
}

#[test]
fn x_16_a_reader_that_does_not_read_holds_nobody_up() {
    let folder = tempfile::tempdir().expect("a folder");
    let (reader, writer) = pipe().expect("a pipe");
    let standard =
        StandardStreams::with_writers(Box::new(std::fs::File::from(writer)), Box::new(io::sink()));
    let standard = Arc::new(standard.expect("threads"));
    let line = [b'x'; 99];
    let lines = 100_000_u64;
    run(async {
        let (pipes, attached) =
            attach(&worker(), &plan(folder.path()), standard.clone(), &OutputFiles::default())
                .expect("pipes");
        let mut stdout = std::fs::File::from(pipes.stdout);
        drop(pipes.stderr);
        for _ in 0..lines {
            stdout.write_all(&line).and_then(|()| stdout.write_all(b"\n")).expect("a reader");
        }
        drop(stdout);
        attached.finish().await
    });
    let file = folder.path().join(format!("{}.stdout", file_stem(&worker())));
    let stored = wait_for_length(&file, lines * 100);
    assert_eq!(stored, lines * 100, "10 MB, nothing lost");
    assert!(!standard.flush(Duration::from_millis(1)), "the reader has not read");

    // The reader now reads: it gets whole lines, and the number of lines that are missing.
    let shown = std::thread::Builder::new()
        .spawn(move || {
            let mut shown = String::new();
            std::fs::File::from(reader).read_to_string(&mut shown).map(|_length| shown)
        })
        .expect("a thread");
    assert!(standard.flush(PATIENCE));
    drop(standard);
    let shown = shown.join().expect("no panic").expect("text");
    let prefix = "[../h:1] xxx";
    let whole = shown.lines().filter(|line| line.starts_with(prefix)).count() as u64;
    let notes: Vec<_> = shown.lines().filter(|line| !line.starts_with(prefix)).collect();
    let dropped: u64 = notes
        .iter()
        .filter_map(|note| {
            note.strip_prefix("[elastic-node] ")?.split(' ').next()?.parse::<u64>().ok()
        })
        .sum();
    assert_eq!(whole + dropped, lines, "{notes:?}");
    assert!(dropped > 0);
}

fn wait_for_length(file: &Path, length: u64) -> u64 {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let now = std::fs::metadata(file).map_or(0, |metadata| metadata.len());
        if now >= length || tokio::time::Instant::now() > deadline {
            return now;
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_view_that_nobody_reads_any_more_is_given_up() {
    let (reader, writer) = pipe().expect("a pipe");
    drop(reader);
    let writer = Box::new(std::fs::File::from(writer));
    let standard = StandardStreams::with_writers(writer, Box::new(io::sink())).expect("threads");
    standard.line("", OutputStream::Stdout, "unheard");
    assert!(standard.flush(PATIENCE));
}

#[test]
fn s_6_a_file_that_is_not_written_costs_lines_and_no_time() {
    let folder = tempfile::tempdir().expect("a folder");
    // OutputFiles a pipe for writing waits for a reader, so it behaves like a folder that hangs.
    let file = folder.path().join(format!("{}.stdout", file_stem(&worker())));
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    let lines = 200_000_u64;
    run(async {
        let sink = Arc::new(Collected::default());
        let attached = attach(&worker(), &plan(folder.path()), sink, &OutputFiles::default());
        let (pipes, attached) = attached.expect("it starts all the same");
        let mut stdout = std::fs::File::from(pipes.stdout);
        drop(pipes.stderr);
        for _ in 0..lines {
            stdout.write_all(&[b'x'; 99]).and_then(|()| stdout.write_all(b"\n")).expect("a reader");
        }
        drop(stdout);
        attached.finish().await
    });
    let text = std::fs::read_to_string(&file).expect("somebody writes");
    let whole = text.lines().filter(|line| line.starts_with('x')).count() as u64;
    // On a busy machine lines may be missing in several places, each with its note.
    let notes = text.lines().filter_map(|line| line.strip_prefix("[elastic-node] "));
    let missing: Vec<u64> = notes.filter_map(|note| note.split(' ').next()?.parse().ok()).collect();
    assert!(whole > 0 && !missing.is_empty(), "{whole} {missing:?}");
    // Behind a note, a line may have nothing but its end: all of it else was in what is missing.
    let ends = missing.len() as u64;
    assert!(whole + missing.iter().sum::<u64>() + ends >= lines, "{whole} {missing:?}");
}
