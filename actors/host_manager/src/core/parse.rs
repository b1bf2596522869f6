//! Parser of a discovery's output: gives the hosts, and every malformed line with its number. Called by the
//! core, and by the command line for `-H`.
//!
//! One grammar for discovery scripts, host files and host lists. A line is `host`, `host:slots` (Horovod's
//! discovery) or `host slots=N` (mpirun's and Horovod's host files); an IPv6 address stands in brackets.
//! Blank lines and `#` comments, alone on a line or after white space, are skipped; CRLF is fine.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;

use elastic_protocol::{HostName, InvalidHostName};

use super::config::HostSlots;
use super::limits::{HOSTS_MAX, LINE_BYTES_MAX, LINE_ERRORS_MAX, LINE_SHOWN_CHARS_MAX, SLOTS_MAX};

/// The parsed output of a discovery.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct HostLines {
    /// The hosts in the order of their lines; each name once.
    pub hosts: Vec<HostSlots>,
    /// The malformed lines, the first [`LINE_ERRORS_MAX`] of them.
    pub errors: Vec<LineError>,
    /// The number of further malformed lines.
    pub errors_left_out: usize,
    /// Hosts that are named by lines that cannot be parsed otherwise. Such a host stays in the list if it is there: a
    /// typing error must not remove it.
    pub unclear: BTreeSet<HostName>,
}

/// A malformed line.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("line {line_number} ({text:?}): {problem}")]
pub struct LineError {
    /// Its number, from 1.
    pub line_number: usize,
    /// Its beginning.
    pub text: String,
    /// The problem with the line.
    pub problem: LineProblem,
}

/// Problems of a line.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum LineProblem {
    /// The host's name is missing, or not a valid name.
    #[error(transparent)]
    Host(#[from] InvalidHostName),
    /// No slots, and no default.
    #[error("no slots: write host:slots, or give --slots-per-host")]
    NoSlots,
    /// The slots are not a number.
    #[error("{slots:?} is not a number of slots")]
    NotANumber {
        /// The text in the place of the slots.
        slots: String,
    },
    /// Another attribute than the slots.
    #[error("{attribute:?} is not known: write host:slots or host slots=N")]
    UnknownAttribute {
        /// The word in the place of the slots.
        attribute: String,
    },
    /// The slots are below zero.
    #[error("{slots} slots: a host has at least 1")]
    NegativeSlots {
        /// The text in the place of the slots.
        slots: String,
    },
    /// Zero slots: the host is taken as not listed.
    #[error("0 slots: the host is left out; remove the line to leave it out without a warning")]
    ZeroSlots,
    /// More than [`SLOTS_MAX`].
    #[error("{slots} slots: a host has at most {SLOTS_MAX}")]
    TooManySlots {
        /// The text in the place of the slots.
        slots: String,
    },
    /// The host was named before; the first line counts.
    #[error("the host stands there already, as number {first}")]
    Duplicate {
        /// The first line.
        first: usize,
    },
    /// Several colons outside of brackets.
    #[error("several colons: write an IPv6 address in brackets, as in [::1]:2")]
    ManyColons,
    /// The text in brackets is not an IPv6 address, or something other than slots follows them.
    #[error("not an IPv6 address in brackets, as in [::1]:2")]
    Brackets,
    /// Longer than [`LINE_BYTES_MAX`].
    #[error("{bytes} bytes long; at most {LINE_BYTES_MAX} are read")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// Bytes that are not UTF-8 stood there; they were replaced by U+FFFD before.
    #[error("not valid UTF-8")]
    NotUtf8,
    /// More than [`HOSTS_MAX`] hosts.
    #[error("more than {HOSTS_MAX} hosts")]
    TooManyHosts,
}

/// Reads a discovery's output, or a host file.
pub fn parse_hosts(output: &str, default_slots: Option<u32>) -> HostLines {
    let mut parsed = HostLines::default();
    let mut first_lines = BTreeMap::new();
    let output = output.strip_prefix('\u{feff}').unwrap_or(output);
    for (index, line) in output.lines().enumerate() {
        parsed.take(index + 1, line, default_slots, &mut first_lines);
    }
    for host in &parsed.hosts {
        parsed.unclear.remove(&host.name);
    }
    parsed
}

/// A malformed entry of a host list.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("entry {number} of the host list ({text:?}): {problem}")]
pub struct HostListError {
    /// Its number, from 1.
    pub number: usize,
    /// Its beginning.
    pub text: String,
    /// The problem with the line.
    pub problem: LineProblem,
}

/// Parses a list on one line, as in `-H a:2,b:2`. Empty entries are skipped.
///
/// # Errors
/// [`HostListError`] names the first malformed entry. Unlike a script's output, a list that a person gives once
/// is refused rather than read in part.
pub fn parse_host_list(
    list: &str,
    default_slots: Option<u32>,
) -> Result<Vec<HostSlots>, HostListError> {
    let mut parsed = HostLines::default();
    let mut first_lines = BTreeMap::new();
    for (index, item) in list.split(',').enumerate() {
        parsed.take(index + 1, item, default_slots, &mut first_lines);
    }
    match parsed.errors.into_iter().next() {
        None => Ok(parsed.hosts),
        Some(LineError { line_number: number, text, problem }) => {
            Err(HostListError { number, text, problem })
        }
    }
}

impl HostLines {
    /// Whether the output is garbage: no line is a host, and some line is malformed other than by zero slots.
    pub fn is_garbage(&self) -> bool {
        let drained = |error: &LineError| error.problem == LineProblem::ZeroSlots;
        self.hosts.is_empty() && (self.errors_left_out > 0 || !self.errors.iter().all(drained))
    }

    /// A sentence for each malformed line.
    pub fn complaints(&self) -> impl Iterator<Item = String> {
        let more = (self.errors_left_out > 0)
            .then(|| format!("{} more lines are malformed", self.errors_left_out));
        self.errors.iter().map(ToString::to_string).chain(more)
    }

    fn take(
        &mut self,
        line_number: usize,
        line: &str,
        default_slots: Option<u32>,
        first_lines: &mut BTreeMap<HostName, usize>,
    ) {
        let text = without_comment(line);
        if text.is_empty() {
            return;
        }
        let problem = match parse_line(text, default_slots) {
            Err((problem, unclear)) => {
                if self.unclear.len() < HOSTS_MAX {
                    self.unclear.extend(unclear);
                }
                problem
            }
            Ok(host) => match first_lines.get(&host.name) {
                Some(first) => LineProblem::Duplicate { first: *first },
                None if self.hosts.len() >= HOSTS_MAX => LineProblem::TooManyHosts,
                None => {
                    first_lines.insert(host.name.clone(), line_number);
                    self.hosts.push(host);
                    return;
                }
            },
        };
        if self.errors.len() < LINE_ERRORS_MAX {
            let text = text.chars().take(LINE_SHOWN_CHARS_MAX).collect();
            self.errors.push(LineError { line_number, text, problem });
        } else {
            self.errors_left_out += 1;
        }
    }
}

/// The line without its comment and the white space around it.
fn without_comment(line: &str) -> &str {
    let line = line.trim();
    if line.starts_with('#') {
        return "";
    }
    let comment =
        line.match_indices('#').find(|(at, _)| line[..*at].ends_with(char::is_whitespace));
    match comment {
        Some((at, _)) => line[..at].trim_end(),
        None => line,
    }
}

/// A line's host; or the problem, with the host that the line names. A line with zero slots names none: it leaves its host out.
fn parse_line(
    text: &str,
    default_slots: Option<u32>,
) -> Result<HostSlots, (LineProblem, Option<HostName>)> {
    let (name, slots) = split_line(text).map_err(|problem| (problem, first_name(text)))?;
    let parsed = match slots {
        None => attribute_of(name).map_or(default_slots.ok_or(LineProblem::NoSlots), Err),
        Some(slots) => parse_slots(slots.trim()),
    };
    let host = HostName::new(name).map_err(|error| (error.into(), first_name(text)))?;
    match parsed {
        Ok(slots) => Ok(HostSlots { name: host, slots }),
        Err(LineProblem::ZeroSlots) => Err((LineProblem::ZeroSlots, None)),
        // The name goes on to the line's end, though it may be another attribute that stands there.
        Err(problem) if slots.is_none() => Err((problem, first_name(text))),
        Err(problem) => Err((problem, Some(host))),
    }
}

/// The host that the first word of a malformed line names.
fn first_name(text: &str) -> Option<HostName> {
    let word = text.trim_start_matches('[').split(char::is_whitespace).next()?;
    let word = word.split_once(']').map_or(word, |(address, _)| address);
    let is_address = is_ipv6(word);
    let name = word.split_once(':').filter(|_| !is_address).map_or(word, |(name, _)| name);
    HostName::new(name).ok()
}

/// The problem of a name without slots that ends with an attribute, as in `host cpu=4`.
fn attribute_of(name: &str) -> Option<LineProblem> {
    let (_, last) = name.rsplit_once(char::is_whitespace).filter(|(_, last)| last.contains('='))?;
    let attribute = last.chars().take(LINE_SHOWN_CHARS_MAX).collect();
    Some(LineProblem::UnknownAttribute { attribute })
}

/// Whether this is an IPv6 address, with or without a zone.
fn is_ipv6(address: &str) -> bool {
    let without_zone = address.split_once('%').map_or(address, |(address, _)| address);
    without_zone.parse::<Ipv6Addr>().is_ok()
}

/// Splits a line into name and slots, both unparsed.
fn split_line(text: &str) -> Result<(&str, Option<&str>), LineProblem> {
    if text.len() > LINE_BYTES_MAX {
        return Err(LineProblem::TooLong { bytes: text.len() });
    }
    if text.contains(char::REPLACEMENT_CHARACTER) {
        return Err(LineProblem::NotUtf8);
    }
    if let Some(bracketed) = text.strip_prefix('[') {
        let (address, rest) = bracketed.split_once(']').ok_or(LineProblem::Brackets)?;
        if !is_ipv6(address) {
            return Err(LineProblem::Brackets);
        }
        let rest = rest.trim_start();
        if rest.is_empty() {
            return Ok((address, None));
        }
        let slots = rest.strip_prefix(':').or_else(|| rest.strip_prefix("slots="));
        return slots.map(|slots| (address, Some(slots))).ok_or(LineProblem::Brackets);
    }
    if let Some((name, slots)) = text.split_once(" slots=") {
        return Ok((name, Some(slots)));
    }
    match text.split_once(':') {
        Some((_, rest)) if rest.contains(':') => Err(LineProblem::ManyColons),
        Some((name, slots)) => Ok((name, Some(slots))),
        None => Ok((text, None)),
    }
}

fn parse_slots(text: &str) -> Result<u32, LineProblem> {
    let slots = || text.chars().take(LINE_SHOWN_CHARS_MAX).collect();
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(LineProblem::NotANumber { slots: slots() });
    }
    if negative {
        return Err(LineProblem::NegativeSlots { slots: slots() });
    }
    match digits.parse::<u32>() {
        Ok(0) => Err(LineProblem::ZeroSlots),
        Ok(number) if number <= SLOTS_MAX => Ok(number),
        _ => Err(LineProblem::TooManySlots { slots: slots() }),
    }
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
