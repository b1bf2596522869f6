//! The commands of the documents: blocks of the quick start and of the tutorials that begin with a certain comment
//! are run, and must print the block of text after them.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use super::support::{binary, program};

/// The first line of a block that is run.
const MARK: &str = "# runs in the tests\n";

/// A part of a document between fences.
struct CodeBlock {
    language: String,
    text: String,
}

fn blocks(document: &str) -> Vec<CodeBlock> {
    let mut blocks = Vec::new();
    let mut parts = document.split("```");
    // The text between two blocks comes first.
    while let (Some(_), Some(block)) = (parts.next(), parts.next()) {
        if let Some((language, text)) = block.split_once('\n') {
            blocks.push(CodeBlock { language: language.to_owned(), text: text.to_owned() });
        }
    }
    blocks
}

/// Runs the blocks of a document as one script, in a folder of its own; each line of the texts after them must be part of
/// what they have written.
fn run(name: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let document = fs::read_to_string(root.join("docs").join(name)).expect("a document");
    let (mut script, mut expected) = ("set -e\n".to_owned(), Vec::new());
    let mut is_run = false;
    for block in blocks(&document) {
        if block.language == "text" && is_run {
            expected.extend(block.text.lines().map(ToOwned::to_owned));
        }
        is_run = block.language == "sh" && block.text.starts_with(MARK);
        if is_run {
            script.push_str(&block.text);
        }
    }
    assert!(!expected.is_empty(), "{name} has no command that is run and says something");

    let folder = tempfile::tempdir().expect("a folder");
    let programs = folder.path().join("target/release/examples");
    fs::create_dir_all(&programs).expect("a folder");
    std::os::unix::fs::symlink(program("digits"), programs.join("digits")).expect("a link");
    let own = Path::new(binary()).parent().expect("a folder");
    let path = std::env::var("PATH").expect("there is one");
    let output = Command::new("bash")
        .args(["-c", &script])
        .current_dir(folder.path())
        .env("PATH", format!("{}:{path}", own.display()))
        .env("HOME", folder.path())
        .env("XDG_STATE_HOME", folder.path())
        .stdin(Stdio::null())
        .output()
        .expect("bash runs");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {}\n{stdout}\n{stderr}", output.status);
    for line in expected {
        assert!(stdout.contains(&line), "{name}: not said: {line:?}\n{stdout}\n{stderr}");
    }
}

#[test]
fn the_commands_of_the_quick_start_do_what_it_says() {
    run("quick-start.md");
}

#[test]
fn the_commands_of_the_torchrun_tutorial_do_what_it_says() {
    run("tutorials/torchrun.md");
}

#[test]
fn the_commands_of_the_horovod_tutorial_do_what_it_says() {
    run("tutorials/horovod.md");
}

#[test]
fn the_commands_of_the_tutorial_of_spot_instances_do_what_it_says() {
    run("tutorials/spot.md");
}
