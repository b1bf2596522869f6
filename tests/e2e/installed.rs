//! Completions for shells and manual pages, as a packager installs them.

use std::process::Command;

use crate::support::binary;

/// Runs the command, and returns its stdout.
fn stdout_of(arguments: &[&str]) -> String {
    let output = Command::new(binary()).args(arguments).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Has bash complete the last of these words, and returns its proposals.
fn completions(script: &str, words: &[&str]) -> Vec<String> {
    let complete = r#"
        eval "$SCRIPT"
        function=$(complete -p elastic-node | sed 's/.*-F \([^ ]*\).*/\1/')
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        "$function" elastic-node "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let mut shell = Command::new("bash");
    shell.args(["--norc", "-c", complete, "bash", "elastic-node"]).args(words);
    let output = shell.env("SCRIPT", script).output().expect("bash is there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().map(ToOwned::to_owned).collect()
}

#[test]
fn bash_completes_commands_flags_and_values() {
    let script = stdout_of(&["completions", "bash"]);
    assert_eq!(completions(&script, &["st"]), ["status", "stop"]);
    assert_eq!(completions(&script, &["--role", ""]), ["driver", "worker"]);
    assert_eq!(completions(&script, &["run", "--host-disc"]), ["--host-discovery-script"]);
    assert_eq!(completions(&script, &["--launcher", "s"]), ["ssh"]);
}

#[test]
fn every_command_has_a_manual_page_with_its_flags() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().display().to_string();
    assert_eq!(stdout_of(&["man", "--output", &path]), "");
    let page = |name: &str| {
        let text = std::fs::read_to_string(folder.path().join(format!("{name}.1")));
        text.expect("it was written").replace('\\', "")
    };
    assert!(page("elastic-node").contains("--min-np"));
    assert!(page("elastic-node-run").contains("--nproc-per-node"));
    assert!(page("elastic-node-checkpoint-export").contains("safetensors"));
    for command in [
        "demo",
        "list",
        "status",
        "explain",
        "logs",
        "timeline",
        "replay",
        "doctor",
        "completions",
        "man",
    ] {
        assert!(page(&format!("elastic-node-{command}")).contains(".TH"), "{command}");
    }
    assert!(stdout_of(&["man"]).contains("min\\-np"));
}
