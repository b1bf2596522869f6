//! `elastic-node report`: the contents of a support bundle, the secrets that it never has, and the names that
//! `--redact` replaces.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use elastic_driver::journal::Image;
use elastic_journal::FileJournal;
use elastic_transport::JobSecrets;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{Job, binary, signal};

/// A secret in the program's own output.
const PASSWORD: &str = "hunter2-of-the-program";

/// A bundle that was written: the files by path, the list that was printed, and stderr.
struct Bundle {
    files: BTreeMap<String, Vec<u8>>,
    manifest: Value,
    stderr: String,
}

impl Bundle {
    /// Runs `report` for a job, and unpacks the file with tar and zstd.
    fn of(job: &Job, name: &str, flags: &[&str]) -> Self {
        let file = job.path(&format!("{name}.tar.zst"));
        let output = Command::new(binary())
            .arg("report")
            .arg(job.path("state"))
            .arg("-o")
            .arg(&file)
            .arg("--json")
            .args(flags)
            .env("XDG_STATE_HOME", job.path("user"))
            .output()
            .expect("it runs");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{stderr}");
        assert_eq!(fs::metadata(&file).expect("there").permissions().mode() & 0o777, 0o600);
        let folder = job.path(name);
        fs::create_dir(&folder).expect("a folder");
        let unpacked = Command::new("tar")
            .arg("--zstd")
            .arg("-xf")
            .arg(&file)
            .arg("-C")
            .arg(&folder)
            .output()
            .expect("tar");
        assert!(unpacked.status.success(), "{}", String::from_utf8_lossy(&unpacked.stderr));
        let mut files = BTreeMap::new();
        read_files(&folder.join("elastic-node-report"), "", &mut files);
        let manifest = serde_json::from_slice(&output.stdout).expect("one object");
        Self { files, manifest, stderr }
    }

    fn text(&self, path: &str) -> String {
        let bytes = self.files.get(path).unwrap_or_else(|| panic!("{path}: {}", self.stderr));
        String::from_utf8_lossy(bytes).into_owned()
    }

    fn json(&self, path: &str) -> Value {
        serde_json::from_str(&self.text(path)).expect("JSON")
    }

    /// The files that have these bytes.
    fn having(&self, bytes: &[u8]) -> Vec<&str> {
        let has = |file: &Vec<u8>| file.windows(bytes.len()).any(|window| window == bytes);
        let having = self.files.iter().filter(|(path, file)| {
            has(file) || path.as_bytes().windows(bytes.len()).any(|window| window == bytes)
        });
        having.map(|(path, _)| path.as_str()).collect()
    }
}

fn read_files(folder: &Path, prefix: &str, files: &mut BTreeMap<String, Vec<u8>>) {
    for entry in fs::read_dir(folder).expect("unpacked").flatten() {
        let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
        match entry.path().is_dir() {
            true => read_files(&entry.path(), &format!("{path}/"), files),
            false => drop(files.insert(path, fs::read(entry.path()).expect("unpacked"))),
        }
    }
}

/// The secrets of a job, in each form in which they might be written: the token's line and its parts, all that the
/// journal keeps for the next driver, and the key of the generation.
fn secrets_of(job: &Job) -> Vec<(String, Vec<u8>)> {
    let token = fs::read_to_string(job.path("state/token")).expect("a token");
    let token = token.trim().to_owned();
    let mut secrets = vec![
        ("the token".to_owned(), token.clone().into_bytes()),
        ("the token's body".to_owned(), token.as_bytes()[4..].to_owned()),
        ("the password".to_owned(), PASSWORD.as_bytes().to_owned()),
    ];
    let loaded = FileJournal::read_beside_driver(&job.path("state/journal.redb"));
    let loaded = loaded.expect("a journal").expect("there");
    let image = Image::of(&loaded).expect("sound");
    let stored = JobSecrets::from_bytes(&image.secrets.0).expect("a job's secrets");
    let mut raw = vec![("the journal's secrets".to_owned(), image.secrets.0.clone())];
    let authority = stored.authority().expect("sound");
    let pem = authority.key_pem();
    for line in pem.lines().filter(|line| !line.starts_with('-') && line.len() > 16) {
        secrets.push(("the private key".to_owned(), line.as_bytes().to_owned()));
    }
    let body: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
    raw.push(("the private key".to_owned(), STANDARD.decode(body).expect("PEM")));
    // Secrets of 32 bytes each follow the two texts in PEM.
    let parts = image.secrets.0.rchunks(32).take(4).map(<[u8]>::to_owned);
    raw.extend(parts.map(|part| ("a secret of the journal".to_owned(), part)));
    if let Some(current) = &image.current {
        raw.push(("the generation's key".to_owned(), current.formation.key.0.to_vec()));
    }
    for (name, bytes) in raw {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let list = bytes.iter().map(u8::to_string).collect::<Vec<_>>();
        let forms = [
            hex.into_bytes(),
            STANDARD.encode(&bytes).trim_end_matches('=').as_bytes().to_owned(),
            URL_SAFE_NO_PAD.encode(&bytes).into_bytes(),
            list.join(",").into_bytes(),
            bytes,
        ];
        secrets.extend(forms.map(|form| (name.clone(), form)));
    }
    secrets
}

/// A job with names and secrets everywhere: two hosts, a recording, stored output, a loss, and a worker that prints what
/// it must not.
fn job_with_names() -> Job {
    let environment = [("ELASTIC_STORE_SECRET_NOTE", PASSWORD), ("PET_RDZV_CONF", "token=x")];
    let flags =
        ["-n", "2", "--min-np", "1", "--record", "--output-dir", "DIR/out", "--max-restarts", "9"];
    let program = crate::support::program("trainer").display().to_string();
    let says = format!(
        "echo morning at 10.9.8.7 in /data/caesar; echo \"password={PASSWORD}\" >&2; env >&2; \
         exec '{program}' --control CONTROL --log LOG"
    );
    let line =
        ["/bin/sh", "-c", &says, "rubicon-run", "--api-key", PASSWORD].map(ToOwned::to_owned);
    let flags = [&flags[..], &["--mode", "in-process"]].concat();
    let mut job = Job::start_program_in(&environment, &flags, &line);
    job.agent("morning", 1);
    job.agent("evening", 1);
    job.wait_for_sizes(&[2]);
    signal(job.pid("evening", 0), Signal::SIGKILL);
    job.wait("two workers again", |job| {
        let sizes = job.sizes();
        (sizes.len() > 1 && sizes.last() == Some(&2)).then_some(())
    });
    job.wait_for_progress();
    job
}

#[test]
fn a_bundle_of_a_running_job_has_what_explains_it_and_none_of_its_secrets() {
    let mut job = job_with_names();
    let secrets = secrets_of(&job);
    let bundle = Bundle::of(&job, "plain", &[]);
    let expected = [
        "doctor.json",
        "events.jsonl",
        "job.json",
        "journal.json",
        "manifest.json",
        "outputs/rank-0.stderr.log",
        "outputs/rank-0.stdout.log",
        "outputs/rank-1.stderr.log",
        "outputs/rank-1.stdout.log",
        "recording/00000001.jsonl",
        "status.json",
        "versions.json",
    ];
    assert_eq!(bundle.files.keys().map(String::as_str).collect::<Vec<_>>(), expected);
    for (name, secret) in &secrets {
        assert!(secret.len() >= 16, "{name} is too short to be looked for");
        let having = bundle.having(secret);
        assert!(having.is_empty(), "{name} is in {having:?}");
        assert!(!bundle.stderr.as_bytes().windows(secret.len()).any(|part| part == secret));
    }
    // A worker's tokens, if it has any, are in its environment.
    assert!(bundle.having(b"en1-").is_empty(), "{:?}", bundle.having(b"en1-"));
    let stderr = bundle.text("outputs/rank-0.stderr.log");
    assert!(stderr.contains("password=[secret]") && stderr.contains("PATH="), "{stderr}");

    let job_entry = bundle.json("job.json");
    assert_eq!(job_entry["program"][5], "[secret]", "{job_entry}");
    let flags = job_entry["flags"].to_string();
    assert!(flags.contains("\"--output-dir\"") && !flags.contains("rubicon"), "{flags}");
    assert_eq!(bundle.json("status.json")["world_size"], 2);
    let journal = bundle.json("journal.json");
    assert_eq!(journal["job"], bundle.json("status.json")["job"]);
    assert_eq!(
        (&journal["secrets"], &journal["program"]["argv"][1]),
        (&serde_json::json!([]), &Value::Null)
    );
    assert_eq!(bundle.json("versions.json")["program"], env!("CARGO_PKG_VERSION"));
    assert!(bundle.json("doctor.json")["slots"].is_u64());
    assert!(bundle.text("outputs/rank-0.stdout.log").starts_with("morning at 10.9.8.7"));

    // The list comes first, and is the same in the bundle.
    let listed = bundle.manifest["files"].as_array().expect("a list");
    assert_eq!(listed.len() + 1, expected.len(), "all but itself");
    for file in listed {
        let path = file["path"].as_str().expect("a path");
        assert_eq!(file["bytes"], bundle.files[path].len(), "{path}");
        assert!(bundle.stderr.contains(path) && !file["why"].as_str().unwrap_or("").is_empty());
    }
    assert_eq!(bundle.json("manifest.json")["files"], bundle.manifest["files"]);
    let (list, end) = (bundle.stderr.find("will have"), bundle.stderr.find("is written"));
    assert!(list.is_some() && list < end, "{}", bundle.stderr);

    // The job goes on, and its state directory is as it was for the next driver.
    job.kill_driver();
    job.start_driver_again();
    job.wait("the takeover", |job| job.events_of("takeover_done").pop());
    assert_eq!(job.finish(), 0);
}

#[test]
fn a_redacted_bundle_has_placeholders_for_names_and_can_be_explained_and_replayed() {
    let mut job = job_with_names();
    let plain = Bundle::of(&job, "plain", &[]);
    let bundle = Bundle::of(&job, "redacted", &["--redact"]);
    let id = plain.json("status.json")["job"].as_str().expect("an id").to_owned();
    let folder = job.folder.path().display().to_string();
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).expect("a list").expect("listed");
    let host = nix::unistd::gethostname().expect("a name").to_string_lossy().into_owned();
    let names =
        ["morning", "evening", "10.9.8.7", "caesar", "rubicon", &id, &id[..8], &folder, &host];
    for name in names {
        assert!(!plain.having(name.as_bytes()).is_empty() || name == host, "{name} is nowhere");
        let having = bundle.having(name.as_bytes());
        assert!(having.is_empty(), "{name} is in {having:?}");
    }
    if user.name != "root" {
        assert!(bundle.having(user.name.as_bytes()).is_empty(), "the user's name is there");
    }
    assert_eq!(bundle.manifest["is_redacted"], true);
    for (name, secret) in secrets_of(&job) {
        assert!(bundle.having(&secret).is_empty(), "{name} is in the redacted bundle");
    }

    // The same name has the same placeholder in every file.
    let host_of = |value: &Value| {
        value.as_str().map(|it| it.split(['[', ':']).next().unwrap_or("").to_owned())
    };
    let status = bundle.json("status.json");
    let joined: Value = bundle
        .text("events.jsonl")
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .find(|event: &Value| event["kind"] == "host_joined")
        .expect("an event");
    let (first, oldest) = (&joined["host"], &status["hosts"][0]["name"]);
    assert_eq!(host_of(first), host_of(oldest));
    let placeholder = first.as_str().expect("a name");
    assert!(placeholder.starts_with("host-"), "{placeholder}");
    for path in ["journal.json", "recording/00000001.jsonl"] {
        assert!(bundle.text(path).contains(placeholder), "{placeholder} is not in {path}");
    }
    let program = bundle.json("job.json")["program"].clone();
    assert_eq!(program[0], "argument-1", "{program}");

    // Unpacked, it serves as a state directory.
    let state = job.path("redacted").join("elastic-node-report");
    for command in ["explain last", "timeline", "replay"] {
        let output =
            Command::new(binary()).args(command.split(' ')).arg(&state).output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {text}{stderr}");
        assert!(!text.contains("evening"), "{command}: {text}");
    }
    assert_eq!(job.finish(), 0);
}

#[test]
fn a_bundle_of_a_job_that_is_over_has_its_end_and_is_found_by_its_id() {
    let mut job = Job::start(&["-n", "1"], &[]);
    job.agent("a", 1);
    job.wait_for_sizes(&[1]);
    let id = job.status().expect("a status")["job"].as_str().expect("an id").to_owned();
    let token = fs::read_to_string(job.path("state/token")).expect("a token");
    assert_eq!(job.finish(), 0);
    let bundle = Bundle::of(&job, "over", &[]);
    assert_eq!(bundle.json("job.json")["ended"]["result"]["outcome"], "succeeded");
    assert!(bundle.json("status.json")["result"].is_object());
    assert!(bundle.having(token.trim().as_bytes()).is_empty());
    let left_out = bundle.manifest["left_out"].to_string();
    for reason in ["the job is over", "--record", "--output-dir"] {
        assert!(left_out.contains(reason), "{left_out}");
    }

    let report = |target: &str, file: &str| {
        let output = Command::new(binary())
            .args(["report", target, "-o"])
            .arg(job.path(file))
            .env("XDG_STATE_HOME", job.path("user"))
            .output()
            .expect("it runs");
        (output.status.code(), output.stdout, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, stdout, stderr) = report(&id[..8], "by-id.tar.zst");
    assert_eq!((code, stdout.len()), (Some(0), 0), "{stderr}");
    let before = fs::read(job.path("by-id.tar.zst")).expect("written");
    let (code, _, stderr) = report(&id[..8], "by-id.tar.zst");
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("exists already") && stderr.contains("hint: give another"), "{stderr}");
    assert_eq!(fs::read(job.path("by-id.tar.zst")).expect("there"), before);
}
