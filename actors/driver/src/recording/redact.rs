//! [`redact`]: a copy of a recording without the names of hosts, addresses, and the texts of programs and machines
//! ([`NameSubstitutes`]). The copy can be replayed. Called by `elastic-node replay --export --redact` and by
//! `elastic-node report --redact`, which gives names that it has found elsewhere, too.

use super::replay::{ReplayError, Walk, parsed_lines};
use super::substitutes::NameSubstitutes;
use super::{CoreStart, RecordingLine, json_of};

/// A copy of a recording without names, addresses and texts, as one segment. The copy ends with the first decision that
/// differs.
///
/// # Errors
/// [`ReplayError`]: the recording cannot be replayed.
pub fn redact(segments: &[String], protocol: &str) -> Result<String, ReplayError> {
    let mut names = NameSubstitutes::default();
    collect_names(segments, &mut names)?;
    names.number();
    redact_with(segments, protocol, &mut names)
}

/// Adds the names and addresses of a recording.
///
/// # Errors
/// [`ReplayError`]: a line cannot be read.
pub fn collect_names(segments: &[String], names: &mut NameSubstitutes) -> Result<(), ReplayError> {
    for (segment, text) in (1..).zip(segments) {
        for line in parsed_lines(segment, text) {
            names.collect(&json_of(&line?.1).unwrap_or_default());
        }
    }
    Ok(())
}

/// The copy that [`redact`] makes, with these substitutes.
///
/// # Errors
/// [`ReplayError`]: the recording cannot be replayed.
pub fn redact_with(
    segments: &[String],
    protocol: &str,
    names: &mut NameSubstitutes,
) -> Result<String, ReplayError> {
    let mut copy = String::new();
    let (mut original, mut redacted) = (Walk::new(protocol), Walk::new(protocol));
    for (segment, text) in (1..).zip(segments) {
        for line in parsed_lines(segment, text) {
            let (number, line) = line?;
            let value = json_of(&line).unwrap_or_default();
            let mut without_names: RecordingLine =
                serde_json::from_str(&names.replaced(&value).to_string())
                    .map_err(|source| ReplayError::Line { segment, line: number, source })?;
            original.line(&line, segment)?;
            // While the original's decisions are as recorded, the copy has the core's decisions about the copied
            // inputs: a text that the core has cut may be cut at another place there.
            if let RecordingLine::Head(head) = &mut without_names
                && let CoreStart::State(_) = head.core
                && original.is_same()
                && let Some(state) = redacted.state_before(head)
            {
                head.core = CoreStart::State(state);
            }
            let line = match redacted.line(&without_names, segment)? {
                Some(given) if original.is_same() => RecordingLine::Step(given),
                _ => without_names,
            };
            copy.push_str(&serde_json::to_string(&line).unwrap_or_default());
            copy.push('\n');
            if !original.is_same() {
                return Ok(copy);
            }
        }
    }
    Ok(copy)
}
