//! [`SupportBundle`]: the files of a support bundle in memory, the files left out with the reasons, and the list of
//! both. Secrets are masked in each, and names replaced if that is asked for. Filled by `gather`, written by `archive`.

use elastic_driver::recording::redact::{collect_names, redact_with};
use serde::Serialize;
use serde_json::Value;

use super::mask::{mask_text, mask_value};
use super::redact::NameRedactor;

/// Folder of the recording, in the bundle as in a state directory.
pub(super) const RECORDING_PREFIX: &str = "recording/";

/// The form in which the text of a file is read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum TextForm {
    /// One JSON value.
    Json,
    /// One JSON value a line.
    JsonLines,
    /// Any text.
    Plain,
}

/// A file of the bundle.
#[derive(Clone, Debug)]
pub(super) struct BundleFile {
    /// Its path in the bundle.
    pub(super) path: String,
    /// Its content and purpose.
    pub(super) why: String,
    /// The form of its text.
    pub(super) form: TextForm,
    /// Its text.
    pub(super) text: String,
}

/// A file that was left out of the bundle.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LeftOutFile {
    /// Its path in the bundle.
    path: String,
    /// The reason.
    why: String,
}

/// A file, as the list has it.
#[derive(Debug, Serialize)]
struct ListedFile<'a> {
    path: &'a str,
    bytes: usize,
    why: &'a str,
}

/// The files, and the list of those left out.
#[derive(Clone, Debug, Default)]
pub(super) struct SupportBundle {
    pub(super) files: Vec<BundleFile>,
    left_out: Vec<LeftOutFile>,
    is_redacted: bool,
}

impl SupportBundle {
    /// Adds a file with its secrets masked.
    pub(super) fn add(&mut self, path: &str, why: impl Into<String>, form: TextForm, text: &str) {
        let text = mapped(form, text, &mut mask_value, &mut mask_text);
        self.files.push(BundleFile { path: path.to_owned(), why: why.into(), form, text });
    }

    /// Adds one JSON value with its secrets masked.
    pub(super) fn add_json(&mut self, path: &str, why: impl Into<String>, value: &Value) {
        self.add(path, why, TextForm::Json, &format!("{value:#}\n"));
    }

    /// Notes a file that is left out.
    pub(super) fn leave_out(&mut self, path: &str, why: impl Into<String>) {
        self.left_out.push(LeftOutFile { path: path.to_owned(), why: why.into() });
    }

    /// Replaces all names. `names` may know some already; `protocol` is that of recordings.
    pub(super) fn redact(&mut self, mut names: NameRedactor, protocol: &str) {
        let (recording, files): (Vec<BundleFile>, Vec<BundleFile>) =
            std::mem::take(&mut self.files)
                .into_iter()
                .partition(|file| file.path.starts_with(RECORDING_PREFIX));
        for file in &files {
            for line in pieces(file.form, &file.text) {
                match read(file.form, line) {
                    Some(value) => names.collect(&value),
                    None => names.collect_text(line),
                }
            }
        }
        let segments: Vec<String> = recording.into_iter().map(|file| file.text).collect();
        let collected = collect_names(&segments, names.hosts());
        names.number();
        for BundleFile { path, why, form, text } in files {
            let text = pieces(form, &text).map(|piece| match read(form, piece) {
                Some(value) => rewritten(form, piece, &value, &names.value(&value)),
                None => names.text(piece),
            });
            let text = text.collect();
            self.files.push(BundleFile { path, why: names.text(&why), form, text });
        }
        if !segments.is_empty() {
            let path = format!("{RECORDING_PREFIX}00000001.jsonl");
            let redacted = collected.and_then(|()| redact_with(&segments, protocol, names.hosts()));
            match redacted {
                Ok(text) => {
                    let (form, text) = (TextForm::JsonLines, names.job_ids(&text));
                    let why = "what the driver was told and decided, for `replay`".to_owned();
                    self.files.push(BundleFile { path, why, form, text });
                }
                Err(error) => {
                    self.leave_out(&path, format!("its names cannot be replaced: {error}"));
                }
            }
        }
        for left_out in &mut self.left_out {
            left_out.why = names.text(&left_out.why);
        }
        self.is_redacted = true;
    }

    /// The list of files as JSON.
    pub(super) fn manifest(&self) -> Value {
        serde_json::json!({
            "is_redacted": self.is_redacted,
            "files": self.listed().collect::<Vec<_>>(),
            "left_out": self.left_out,
        })
    }

    /// The list of files for people.
    pub(super) fn describe(&self, bundle: &str) -> String {
        let names = match self.is_redacted {
            true => "names are replaced",
            false => "names stay, --redact replaces them",
        };
        let mut text = format!("{bundle} will have (secrets are left out; {names}):\n");
        let widest = self.files.iter().map(|file| file.path.len()).max().unwrap_or(0);
        for ListedFile { path, bytes, why } in self.listed() {
            text.push_str(&format!("  {path:widest$} {bytes:>9} bytes  {why}\n"));
        }
        for LeftOutFile { path, why } in &self.left_out {
            text.push_str(&format!("  without {path}: {why}\n"));
        }
        text
    }

    fn listed(&self) -> impl Iterator<Item = ListedFile<'_>> {
        self.files.iter().map(|BundleFile { path, why, text, .. }| ListedFile {
            path,
            bytes: text.len(),
            why,
        })
    }
}

/// The text with its JSON values, or else its pieces, mapped.
fn mapped(
    form: TextForm,
    text: &str,
    value: &mut dyn FnMut(&Value) -> Value,
    plain: &mut dyn FnMut(&str) -> String,
) -> String {
    let piece = |piece: &str| match read(form, piece) {
        Some(read) => rewritten(form, piece, &read, &value(&read)),
        None => plain(piece),
    };
    pieces(form, text).map(piece).collect()
}

/// The parts of a text that are read alone.
fn pieces(form: TextForm, text: &str) -> std::str::SplitInclusive<'_, fn(char) -> bool> {
    let is_end: fn(char) -> bool = match form {
        TextForm::JsonLines => |it| it == '\n',
        TextForm::Json | TextForm::Plain => |_| false,
    };
    text.split_inclusive(is_end)
}

fn read(form: TextForm, piece: &str) -> Option<Value> {
    (form != TextForm::Plain).then(|| serde_json::from_str(piece).ok())?
}

/// The text of a value that was mapped: as it was if nothing has changed.
fn rewritten(form: TextForm, text: &str, before: &Value, after: &Value) -> String {
    match form {
        _ if before == after => text.to_owned(),
        TextForm::Json => format!("{after:#}\n"),
        TextForm::JsonLines | TextForm::Plain => format!("{after}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_masked_in_every_form_and_what_has_none_is_as_it_was() {
        let mut bundle = SupportBundle::default();
        let lines = "{\"b\": 1.50,\"a\":2}\n{\"password\":\"x\",\"a\":2}\nno JSON: password=x\n";
        bundle.add("events.jsonl", "events", TextForm::JsonLines, lines);
        bundle.add_json("job.json", "job", &serde_json::json!({ "password": "x" }));
        bundle.add("out.log", "output", TextForm::Plain, "a\nPASSWORD=x\nb");
        let texts: Vec<&str> = bundle.files.iter().map(|file| file.text.as_str()).collect();
        let masked = "{\"b\": 1.50,\"a\":2}\n{\"a\":2,\"password\":\"[secret]\"}\nno JSON: password=[secret]\n";
        assert_eq!(
            texts,
            [masked, "{\n  \"password\": \"[secret]\"\n}\n", "a\nPASSWORD=[secret]\nb"]
        );
    }

    #[test]
    fn the_list_names_each_file_with_its_size_and_what_is_missing() {
        let mut bundle = SupportBundle::default();
        bundle.add("out.log", "what gpu-a:0 wrote", TextForm::Plain, "on gpu-a");
        bundle.leave_out("journal.json", "gpu-a has none");
        let mut names = NameRedactor::default();
        names.add_host("gpu-a");
        bundle.redact(names, "elastic/1");
        let manifest = serde_json::json!({
            "is_redacted": true,
            "files": [{ "path": "out.log", "bytes": 13, "why": "what host-00001:0 wrote" }],
            "left_out": [{ "path": "journal.json", "why": "host-00001 has none" }],
        });
        assert_eq!(bundle.manifest(), manifest);
        let text = bundle.describe("job.tar.zst");
        assert!(text.contains("  out.log        13 bytes  what host-00001:0 wrote\n"), "{text}");
        assert!(text.contains("  without journal.json: host-00001 has none\n"), "{text}");
    }
}
