//! [`NameSubstitutes`]: substitutes for the names of hosts, addresses, and texts of programs and machines. The same name
//! has the same substitute everywhere. The order of names and of addresses stays, since decisions depend on it. Used by
//! `redact`, and by `elastic-node report --redact` for files that are no recordings.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use serde_json::Value;

/// Fields with texts of programs, of operators, or of a machine.
const TEXTS: [&str; 23] = [
    "Closed",
    "ClosedHere",
    "because",
    "checkpoint_directory",
    "command",
    "detail",
    "directory",
    "draining",
    "error",
    "failed_because",
    "launch_failure",
    "leaving",
    "message",
    "note",
    "out_of_memory",
    "prefix",
    "reason",
    "role",
    "run_id",
    "tail",
    "tensor",
    "text",
    "trouble",
];

/// Fields with lists or maps of such texts.
const LISTS_OF_TEXTS: [&str; 6] =
    ["accusations", "argv", "reports", "tensors", "unclear", "warnings"];

/// The field with a checkpoint's path. A decision depends on its folder.
const PATH: &str = "Exactly";

/// The field with named numbers, whose names are such texts.
const NAMED_NUMBERS: &str = "reported";

/// First of the addresses that stand for others: they are reserved for tests (RFC 2544, RFC 3849).
const FIRST_V4: u32 = u32::from_be_bytes([198, 18, 0, 1]);
const FIRST_V6: u128 = 0x2001_0db8 << 96 | 1;

/// Substitutes of names, addresses and texts: first everything is collected, then the names are numbered, and then
/// replaced.
#[derive(Debug, Default)]
pub struct NameSubstitutes {
    names: BTreeMap<String, String>,
    addresses: BTreeSet<IpAddr>,
    of_addresses: BTreeMap<IpAddr, IpAddr>,
    texts: BTreeMap<String, String>,
}

impl NameSubstitutes {
    /// Adds the names and addresses in a value.
    pub fn collect(&mut self, value: &Value) {
        match value {
            Value::Object(fields) => {
                let is_lane = fields.contains_key("answers_within_ms");
                let is_node = fields.contains_key("incarnation");
                for (key, value) in fields {
                    match (key.as_str(), value) {
                        ("host" | "Agent" | "Join" | "Reports", Value::String(name)) => {
                            self.name(name);
                        }
                        ("name", Value::String(name)) if !is_lane && !is_node => self.name(name),
                        ("address" | "driver_address", Value::String(address)) => {
                            let host = address.rsplit_once(':').map_or("", |(host, _)| host);
                            let host = host.trim_matches(['[', ']']);
                            if !host.is_empty() && host.parse::<IpAddr>().is_err() {
                                self.name(host);
                            }
                        }
                        _ => {}
                    }
                    self.collect(value);
                }
            }
            Value::Array(items) => {
                if let [Value::String(name), Value::Number(_)] = items.as_slice() {
                    self.name(name);
                }
                items.iter().for_each(|item| self.collect(item));
            }
            Value::String(text) => {
                for word in words(text) {
                    let address = word.parse::<SocketAddr>().map(|it| it.ip());
                    if let Ok(address) = address.or_else(|_| word.parse()) {
                        self.addresses.insert(address);
                    }
                }
            }
            _ => {}
        }
    }

    /// Adds the name of a host.
    pub fn name(&mut self, name: &str) {
        if !self.names.contains_key(name) {
            self.names.insert(name.to_owned(), String::new());
        }
    }

    /// Chooses the substitutes. They have the order of the names and addresses that they stand for.
    pub fn number(&mut self) {
        for (number, substitute) in (1..).zip(self.names.values_mut()) {
            *substitute = format!("host-{number:05}");
        }
        let (mut v4, mut v6) = (FIRST_V4, FIRST_V6);
        for address in &self.addresses {
            let substitute = match address {
                // Decisions depend on these two kinds, and they identify nobody.
                address if address.is_loopback() || address.is_unspecified() => *address,
                IpAddr::V4(_) => {
                    v4 += 1;
                    Ipv4Addr::from(v4 - 1).into()
                }
                IpAddr::V6(_) => {
                    v6 += 1;
                    Ipv6Addr::from(v6 - 1).into()
                }
            };
            self.of_addresses.insert(*address, substitute);
        }
    }

    /// A value with its names, addresses and texts replaced.
    pub fn replaced(&mut self, value: &Value) -> Value {
        self.replaced_in(value, false)
    }

    fn replaced_in(&mut self, value: &Value, is_text: bool) -> Value {
        match value {
            Value::Object(fields) => {
                let is_node = fields.contains_key("incarnation");
                let fields = fields.iter().map(|(key, value)| {
                    let is_kept = key == "host" || (key == "name" && is_node);
                    let is_own = value.is_string() && TEXTS.contains(&key.as_str());
                    let is_list = LISTS_OF_TEXTS.contains(&key.as_str());
                    let is_text = !is_kept && (is_text || is_own || is_list);
                    let value = match (key.as_str(), value) {
                        (NAMED_NUMBERS, Value::Object(numbers)) => {
                            let numbers = numbers.iter();
                            numbers.map(|(name, value)| (self.text(name), value.clone())).collect()
                        }
                        (PATH, Value::String(path)) => Value::String(self.path(path)),
                        _ => self.replaced_in(value, is_text),
                    };
                    let key = self.names.get(key).cloned().unwrap_or_else(|| key.clone());
                    (key, value)
                });
                Value::Object(fields.collect())
            }
            Value::Array(items) => {
                items.iter().map(|item| self.replaced_in(item, is_text)).collect()
            }
            Value::String(text) if is_text => Value::String(self.text(text)),
            Value::String(text) => Value::String(self.in_words(text)),
            other => other.clone(),
        }
    }

    /// The substitute of a text. The same text has the same substitute.
    fn text(&mut self, text: &str) -> String {
        // The role of a host that has none, and the reason of a loss without a text.
        if text.is_empty() || text == "default" || text == "Forgotten" {
            return text.to_owned();
        }
        let number = self.texts.len() + 1;
        self.texts.entry(text.to_owned()).or_insert_with(|| format!("text-{number}")).clone()
    }

    /// The substitute of a path: that of its folder, and that of the last component. A path without a folder is a text.
    fn path(&mut self, path: &str) -> String {
        let parts = Path::new(path);
        let parts = parts.parent().zip(parts.file_name());
        let Some((folder, name)) = parts.filter(|(folder, _)| !folder.as_os_str().is_empty())
        else {
            return self.text(path);
        };
        format!("{}/{}", self.text(&folder.to_string_lossy()), self.text(&name.to_string_lossy()))
    }

    /// A text with the names and addresses in it replaced.
    pub fn in_words(&self, text: &str) -> String {
        if let Some(name) = self.names.get(text) {
            return name.clone();
        }
        let mut replaced = String::with_capacity(text.len());
        let mut rest = text;
        for word in words(text) {
            let Some((before, after)) = rest.split_once(word) else { continue };
            replaced.push_str(before);
            replaced.push_str(&self.word(word));
            rest = after;
        }
        replaced + rest
    }

    fn word(&self, word: &str) -> String {
        let substitute = |address: &IpAddr| self.of_addresses.get(address).copied();
        if let Some(name) = self.names.get(word) {
            name.clone()
        } else if let Some((address, ip)) =
            word.parse::<SocketAddr>().ok().and_then(|it| Some((it, substitute(&it.ip())?)))
        {
            SocketAddr::new(ip, address.port()).to_string()
        } else if let Some(ip) = word.parse().ok().and_then(|ip| substitute(&ip)) {
            ip.to_string()
        } else if let Some((name, rest)) =
            word.split_once(':').filter(|(name, _)| self.names.contains_key(*name))
        {
            format!("{}:{rest}", self.names[name])
        } else {
            word.to_owned()
        }
    }
}

/// The words of a text: each may be a name or an address, with its port.
fn words(text: &str) -> impl Iterator<Item = &str> {
    // `h1[0]#12` is a worker; `[::1]:7070` is an address.
    let is_part = |it: char| it.is_alphanumeric() || "._-:[]".contains(it);
    text.split(move |it| !is_part(it))
        .flat_map(|run| {
            let run = run.trim_end_matches(['.', ':', '-']);
            match run.find('[').filter(|at| *at > 0) {
                Some(at) => vec![&run[..at]],
                None => vec![run],
            }
        })
        .filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_name_or_address_has_the_same_substitute_everywhere_and_their_order_stays() {
        let said = serde_json::json!({
            "host": "zeta", "hosts": [{ "name": "alpha", "slots": 2 }], "at": [["mu", 0], 3],
            "meeting": "10.1.2.3:80", "other": "10.1.2.4:80", "here": "127.0.0.1:7070",
            "event": "zeta[1]#4 lost alpha:2 at 10.1.2.3, (mu).", "tail": "password",
            "cause": { "HostLost": { "host": "mu", "reason": "password" } },
            "reported": { "password": 0.5, "host": 1.0 },
        });
        let mut names = NameSubstitutes::default();
        names.collect(&said);
        names.number();
        let expected = serde_json::json!({
            "host": "host-00003", "hosts": [{ "name": "host-00001", "slots": 2 }],
            "at": [["host-00002", 0], 3],
            "meeting": "198.18.0.1:80", "other": "198.18.0.2:80", "here": "127.0.0.1:7070",
            "event": "host-00003[1]#4 lost host-00001:2 at 198.18.0.1, (host-00002).",
            "tail": "text-1", "cause": { "HostLost": { "host": "host-00002", "reason": "text-1" } },
            "reported": { "text-1": 0.5, "text-2": 1.0 },
        });
        assert_eq!(names.replaced(&said), expected);
    }

    #[test]
    fn paths_and_commands_are_replaced_and_the_folder_of_a_checkpoint_stays_that_of_its_path() {
        let said = serde_json::json!({
            "image": { "checkpoint_directory": "/home/ann/secret" },
            "checkpoint": { "directory": "/home/ann/secret", "resume": { "Exactly": "/home/ann/secret/step-9" } },
            "health_check": { "command": "secret --key" }, "output": { "prefix": "secret ${rank}" },
        });
        let mut names = NameSubstitutes::default();
        names.collect(&said);
        names.number();
        let replaced = names.replaced(&said);
        assert!(!replaced.to_string().contains("secret"), "{replaced}");
        let folder = replaced["checkpoint"]["directory"].as_str().expect("a text");
        let chosen = replaced["checkpoint"]["resume"]["Exactly"].as_str().expect("a text");
        assert_eq!(Path::new(chosen).parent(), Some(Path::new(folder)));
        assert_eq!(replaced["image"]["checkpoint_directory"], folder);
    }
}
