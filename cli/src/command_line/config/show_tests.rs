//! Tests of the output of `config show`.

use std::fs;

use super::*;

fn resolved(line: &str) -> ShownConfig {
    let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
    resolve(&words).expect("a sound command line")
}

#[test]
fn each_value_is_shown_with_its_origin_and_the_text_is_a_file_that_says_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("job.toml");
    fs::write(&file, "min-np = 2\numask = \"027\"\nrecord = true\n[run]\nnp = 8\n")
        .expect("written");
    let shown = resolved(&format!("-n 4 --max-np 6 --config {} train.py", file.display()));
    let text = as_toml(&shown);
    assert!(text.starts_with("# elastic-node run: the values in force"), "{text}");
    for (line, origin) in [
        ("np = 4 ", "# command line"),
        ("min-np = 2 ", "job.toml, line 1"),
        ("umask = \"027\" ", "job.toml, line 2"),
        ("record = true ", "job.toml, line 3"),
        ("# encrypt-data: ", "default false"),
        ("# log: ", "default info"),
        ("# not in force: np of ", "job.toml, line 5; a flag or variable goes first"),
        ("# elastic-timeout: ", "default 600"),
    ] {
        let found = text.lines().find(|it| it.starts_with(line)).unwrap_or_default();
        assert!(found.ends_with(origin), "{line:?} {found:?}\n{text}");
    }
    let copy = folder.path().join("copy.toml");
    fs::write(&copy, &text).expect("written");
    let again = resolved(&format!("--config {}", copy.display()));
    for (before, after) in shown.flags.iter().zip(&again.flags) {
        assert_eq!(before.toml(), after.toml());
    }
    let json = as_json(&shown);
    assert_eq!(json["values"]["np"], json!({ "value": 4, "from": "command_line" }));
    assert_eq!(json["values"]["min-np"], json!({ "value": 2, "from": "file", "line": 1 }));
    assert_eq!(json["values"]["max-restarts"]["value"], Value::Null);
}

#[test]
fn a_role_has_its_own_flags_and_secrets_are_not_shown() {
    let shown = resolved("--role worker --join a:1 --token en1-abcdefghijklmnopqrstuvwxyz");
    let (text, json) = (as_toml(&shown), as_json(&shown).to_string());
    assert!(text.contains("\njoin = \"a:1\" "), "{text}");
    assert!(text.contains("# token: a secret, from: command line"), "{text}");
    assert!(!text.contains("en1-") && !json.contains("en1-"), "{text}\n{json}");
    assert!(!text.contains("min-np"), "{text}");
}
