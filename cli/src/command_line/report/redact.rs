//! [`NameRedactor`]: replaces names in a support bundle (`--redact`): hosts, addresses, users, jobs, paths and the program's
//! arguments, each by the same placeholder in all files. First everything is collected, then replaced. Hosts and addresses
//! have the substitutes of a redacted recording. Called by `report`.

use std::collections::BTreeMap;

use elastic_driver::recording::substitutes::NameSubstitutes;
use serde_json::Value;

use super::mask::{MASKED, map_runs};

/// Fewest characters of an argument, or of a job's name, that is replaced outside of the command line, too: a shorter one is
/// a word or a number of every text.
const NAME_CHARACTERS_MIN: usize = 4;

/// Fewest characters of a user's name: a shorter one is a word of every text.
const USER_CHARACTERS_MIN: usize = 2;

/// Most names of each kind that have placeholders of their own; the others share the last one.
const NAMES_MAX: usize = 100_000;

/// The flags whose value names the job.
const JOB_NAME_FLAGS: [&str; 3] = ["--rdzv-id", "--rdzv_id", "PET_RDZV_ID"];

/// Folders whose subfolders have the names of users.
const HOMES: [&str; 2] = ["home", "Users"];

/// The substitutes of all names.
#[derive(Debug, Default)]
pub(super) struct NameRedactor {
    hosts: NameSubstitutes,
    /// Names that are replaced if they stand as a whole word: users, jobs.
    words: BTreeMap<String, String>,
    arguments: BTreeMap<String, String>,
    /// The arguments that are replaced in texts, the longest first.
    long_arguments: Vec<String>,
    paths: BTreeMap<String, String>,
    users: usize,
    jobs: usize,
}

impl NameRedactor {
    /// The substitutes of hosts and addresses, for a recording.
    pub(super) fn hosts(&mut self) -> &mut NameSubstitutes {
        &mut self.hosts
    }

    /// Adds the name of a host.
    pub(super) fn add_host(&mut self, name: &str) {
        self.hosts.name(name);
    }

    /// Adds the name of a user. The name root identifies nobody.
    pub(super) fn add_user(&mut self, name: &str) {
        let is_name = name.len() >= USER_CHARACTERS_MIN && name != "root";
        if is_name && !self.words.contains_key(name) {
            self.users = (self.users + 1).min(NAMES_MAX);
            self.words.insert(name.to_owned(), format!("user-{}", self.users));
        }
    }

    /// Adds the name of a job. The substitute of an id has an id's form, since programs read it.
    fn add_job(&mut self, name: &str) {
        if name.len() < NAME_CHARACTERS_MIN || self.words.contains_key(name) {
            return;
        }
        self.jobs = (self.jobs + 1).min(NAMES_MAX);
        let is_id = uuid::Uuid::try_parse(name).is_ok();
        let substitute = match is_id {
            true => uuid::Uuid::from_u128(self.jobs as u128).to_string(),
            false => format!("job-{}", self.jobs),
        };
        if let Some(short) = name.get(..8).filter(|_| is_id) {
            self.words.insert(short.to_owned(), format!("job-{}", self.jobs));
        }
        self.words.insert(name.to_owned(), substitute);
    }

    /// Adds the driver's own flags, or variables as `NAME=value`.
    pub(super) fn add_flags(&mut self, flags: &[String]) {
        let mut is_job_name = false;
        for flag in flags {
            if std::mem::take(&mut is_job_name) {
                self.add_job(flag);
                continue;
            }
            let (name, value) = flag.split_once('=').unwrap_or((flag, ""));
            if JOB_NAME_FLAGS.contains(&name) {
                self.add_job(value);
                is_job_name = value.is_empty();
            }
            flag.split([',', '=', ' ']).for_each(|part| self.add_host_with_number(part));
        }
    }

    /// Adds the program's command line.
    pub(super) fn add_program(&mut self, program: &[String]) {
        for argument in program.iter().filter(|it| !is_kept(it)) {
            self.argument(argument);
            let value = argument.split_once('=').map_or(argument.as_str(), |(_, value)| value);
            for long in [argument.as_str(), value] {
                let is_number = long.parse::<f64>().is_ok();
                if long.len() >= NAME_CHARACTERS_MIN && !is_number && long != MASKED {
                    self.argument(long);
                    self.long_arguments.push(long.to_owned());
                }
            }
        }
        self.long_arguments.sort_by(|left, right| (right.len(), left).cmp(&(left.len(), right)));
        self.long_arguments.dedup();
    }

    /// Adds the names in a value: by the names of its fields, and by the form of its texts.
    pub(super) fn collect(&mut self, value: &Value) {
        self.hosts.collect(value);
        self.collect_fields(value);
    }

    /// Adds the addresses and users in a text.
    pub(super) fn collect_text(&mut self, text: &str) {
        self.hosts.collect(&Value::String(text.to_owned()));
        self.collect_users(text);
    }

    fn collect_fields(&mut self, value: &Value) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    match (name.as_str(), value) {
                        ("from" | "to", Value::String(text)) => self.hosts.name(text),
                        ("job", Value::String(text)) => self.add_job(text),
                        ("hosts" | "standbys" | "to" | "driver", Value::Array(items)) => {
                            for item in items.iter().filter_map(Value::as_str) {
                                self.add_host_with_number(item.trim_matches(['(', ')']));
                            }
                        }
                        _ => {}
                    }
                    self.collect_fields(value);
                }
            }
            Value::Array(items) => items.iter().for_each(|item| self.collect_fields(item)),
            Value::String(text) => {
                // A worker: `host[slot]#incarnation`.
                let worker = text.strip_suffix(|it: char| it.is_ascii_digit());
                if let Some((host, rest)) = worker.and_then(|_| text.rsplit_once('['))
                    && rest.contains("]#")
                {
                    self.hosts.name(host);
                }
                self.collect_users(text);
            }
            _ => {}
        }
    }

    /// Adds the host of `HOST:NUMBER`: slots, or a port.
    fn add_host_with_number(&mut self, text: &str) {
        if let Some((host, number)) = text.rsplit_once(':')
            && number.parse::<u32>().is_ok()
            && host.starts_with(|it: char| it.is_alphanumeric())
            && host.parse::<std::net::IpAddr>().is_err()
        {
            self.hosts.name(host);
        }
    }

    /// Adds the users whose home folders a text names.
    fn collect_users(&mut self, text: &str) {
        let mut parts = text.split(['/', ' ', '"', '\n', ':']).peekable();
        while let Some(part) = parts.next() {
            if HOMES.contains(&part)
                && let Some(user) = parts.peek()
            {
                self.add_user(user);
            }
        }
    }

    /// Ends the collection.
    pub(super) fn number(&mut self) {
        self.hosts.number();
    }

    /// A value with its names replaced.
    pub(super) fn value(&mut self, value: &Value) -> Value {
        match value {
            Value::Object(fields) => {
                let fields = fields.iter().map(|(name, value)| {
                    let value = match (name.as_str(), value) {
                        ("program" | "argv", Value::Array(words)) => self.program(words),
                        ("job", Value::String(job)) => Value::String(self.word(job)),
                        _ => self.value(value),
                    };
                    (self.hosts.in_words(name), value)
                });
                Value::Object(fields.collect())
            }
            Value::Array(items) => items.iter().map(|item| self.value(item)).collect(),
            Value::String(text) => Value::String(self.text(text)),
            other => other.clone(),
        }
    }

    fn program(&mut self, words: &[Value]) -> Value {
        let words = words.iter().map(|word| match word.as_str() {
            Some(word) if is_kept(word) => word.to_owned(),
            Some(word) => self.argument(word),
            None => MASKED.to_owned(),
        });
        Value::Array(words.map(Value::String).collect())
    }

    /// A text with its names replaced.
    pub(super) fn text(&mut self, text: &str) -> String {
        let text = self.without_arguments(text);
        let text = self.without_paths(&text);
        let is_part = |it: char| it.is_alphanumeric() || matches!(it, '-' | '_' | '.');
        let text = map_runs(&text, is_part, |run| {
            let ended = run.trim_end_matches(['.', '-']);
            let word = self.word(ended);
            (word != ended).then(|| word + &run[ended.len()..])
        });
        self.hosts.in_words(&text)
    }

    /// A redacted recording with the ids of its jobs replaced.
    pub(super) fn job_ids(&self, text: &str) -> String {
        let is_part = |it: char| it.is_ascii_hexdigit() || it == '-';
        map_runs(text, is_part, |run| {
            let substitute = self.words.get(run)?;
            uuid::Uuid::try_parse(substitute).ok().map(|_| substitute.clone())
        })
    }

    /// A user, a job, or the whole name of a host of which the first part is known.
    fn word(&self, word: &str) -> String {
        if let Some(substitute) = self.words.get(word) {
            return substitute.clone();
        }
        let whole = self.hosts.in_words(word);
        match word.split_once('.') {
            Some((first, _)) if whole == word && first.parse::<u8>().is_err() => {
                let substitute = self.hosts.in_words(first);
                if substitute == first { whole } else { substitute }
            }
            _ => whole,
        }
    }

    fn without_arguments(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for argument in &self.long_arguments {
            let Some(substitute) = self.arguments.get(argument) else { continue };
            if !text.contains(argument) {
                continue;
            }
            let (mut replaced, mut rest) = (String::with_capacity(text.len()), text.as_str());
            while let Some(at) = rest.find(argument.as_str()) {
                let (before, after) = (&rest[..at], &rest[at + argument.len()..]);
                let is_part = |it: char| it.is_alphanumeric() || it == '_';
                let is_word = !before.ends_with(is_part) && !after.starts_with(is_part);
                replaced.push_str(before);
                replaced.push_str(if is_word { substitute } else { argument });
                rest = after;
            }
            text = replaced + rest;
        }
        text
    }

    /// Replaces absolute paths, and those from the home folder or the working folder.
    fn without_paths(&mut self, text: &str) -> String {
        let is_part = |it: char| !it.is_whitespace() && !"\"'`<>|;,(){}=".contains(it);
        map_runs(text, is_part, |run| {
            // In a URL the path follows the host.
            let lead = run.find("://").map_or(0, |at| {
                let host = &run[at + 3..];
                at + 3 + host.find('/').unwrap_or(host.len())
            });
            let (lead, path) = run.split_at(lead);
            let (path, rest) = path.split_at(path.trim_end_matches(['.', ':', ']', '[']).len());
            let begins = ["/", "./", "../", "~"].iter().any(|begin| path.starts_with(begin));
            let is_path = begins && path.trim_matches('/').len() > 1;
            is_path.then(|| format!("{lead}{}{rest}", numbered(&mut self.paths, "path", path)))
        })
    }

    fn argument(&mut self, argument: &str) -> String {
        numbered(&mut self.arguments, "argument", argument)
    }
}

/// Whether a word of a command line stays: it is no name.
fn is_kept(word: &str) -> bool {
    word == MASKED || word.is_empty()
}

/// The substitute of a name of this kind.
fn numbered(known: &mut BTreeMap<String, String>, kind: &str, name: &str) -> String {
    let number = (known.len() + 1).min(NAMES_MAX);
    if number == NAMES_MAX && !known.contains_key(name) {
        return format!("{kind}-{NAMES_MAX}");
    }
    known.entry(name.to_owned()).or_insert_with(|| format!("{kind}-{number}")).clone()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(ToOwned::to_owned).collect()
    }

    #[test]
    fn a_name_has_the_same_placeholder_in_every_file() {
        let id = "0192f0c1-2a3b-7c4d-8e5f-60718293a4b5";
        let event = json!({
            "job": id, "address": "10.1.2.3:7070", "members": ["gpu-a[0]#1", "gpu-b[1]#2"],
            "hosts": ["gpu-a:2", "(gpu-c:1)"], "message": "gpu-b[1]#2 exited, gpu-c.corp.example is away",
        });
        let output = "File \"/home/alice/llama/train.py\", line 3: alice on gpu-a at 10.1.2.3: --name=llama70\n";
        let entry =
            json!({ "program": ["/home/alice/llama/train.py", "--name=llama70", "-n", "3"] });
        let mut names = NameRedactor::default();
        names.add_program(&words("/home/alice/llama/train.py --name=llama70 -n 3"));
        names.add_flags(&words("-H gpu-d:4 --rdzv-id llama-run --output-dir /data/alice/out"));
        names.collect(&event);
        names.collect_text(output);
        names.number();
        let job = "00000000-0000-0000-0000-000000000002";
        assert_eq!(
            names.value(&event),
            json!({
                "job": job, "address": "198.18.0.1:7070",
                "members": ["host-00001[0]#1", "host-00002[1]#2"],
                "hosts": ["host-00001:2", "(host-00003:1)"],
                "message": "host-00002[1]#2 exited, host-00003 is away",
            })
        );
        assert_eq!(
            names.text(output),
            "File \"argument-1\", line 3: user-1 on host-00001 at 198.18.0.1: argument-2\n"
        );
        let program =
            json!({ "program": ["argument-1", "argument-2", "argument-4", "argument-5"] });
        assert_eq!(names.value(&entry), program);
        assert_eq!(
            names.text("-H gpu-d:4 --rdzv-id llama-run --output-dir /data/alice/out"),
            "-H host-00004:4 --rdzv-id job-1 --output-dir path-1"
        );
        assert_eq!(names.text("job 0192f0c1 in /data/alice/out."), "job job-2 in path-1.");
    }

    #[test]
    fn what_is_no_name_stays() {
        let mut names = NameRedactor::default();
        names.add_program(&words("/bin/sh -c 3"));
        names.add_user("root");
        names.collect(&json!({ "host": "gpu-a" }));
        names.number();
        for text in [
            "step 3 of 3: and/or, n/a, 1/2 s / 3",
            "the root holds 127.0.0.1:1",
            "http://127.0.0.1:4/",
        ] {
            assert_eq!(names.text(text), text);
        }
        assert_eq!(names.text("http://127.0.0.1:4/a/b ~/x"), "http://127.0.0.1:4path-1 path-2");
    }
}
