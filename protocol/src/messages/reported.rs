//! The numbers that a training program reports by name, such as its loss. Filled by a worker, carried by its progress,
//! and shown by `status`, the metrics and the page.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Numbers by name, from any sender: finite, and bounded in number and in the length of their names.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(try_from = "BTreeMap<String, f64>")]
pub struct ReportedValues(BTreeMap<String, f64>);

/// Every value is finite, and so equal to itself.
impl Eq for ReportedValues {}

/// The reason why a value is not taken.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum InvalidReport {
    /// The name is empty.
    #[error("a value was reported without a name: give it one, such as \"loss\"")]
    NoName,
    /// The name is longer than [`ReportedValues::NAME_BYTES_MAX`].
    #[error(
        "the name of the reported value {name:?} has {bytes} bytes; at most {} are allowed",
        ReportedValues::NAME_BYTES_MAX
    )]
    LongName {
        /// The beginning of the name.
        name: String,
        /// Length of the name.
        bytes: usize,
    },
    /// The name has a control character, such as a line break.
    #[error("the name of the reported value {name:?} has a control character: use printable ones")]
    ControlCharacter {
        /// The name.
        name: String,
    },
    /// The value is infinite, or no number.
    #[error("{name:?} was reported as {value}: only finite numbers can be shown")]
    NotFinite {
        /// The name.
        name: String,
        /// The value.
        value: f64,
    },
    /// There are [`ReportedValues::VALUES_MAX`] other names already.
    #[error(
        "{name:?} is one name too many: a worker can report {} values, and each keeps its name",
        ReportedValues::VALUES_MAX
    )]
    TooMany {
        /// The name.
        name: String,
    },
}

impl ReportedValues {
    /// Most values of one worker.
    pub const VALUES_MAX: usize = 16;

    /// Longest name, in bytes.
    pub const NAME_BYTES_MAX: usize = 64;

    /// Sets the value with this name.
    ///
    /// # Errors
    /// [`InvalidReport`] names what is wrong; nothing has changed then.
    pub fn set(&mut self, name: &str, value: f64) -> Result<(), InvalidReport> {
        if !value.is_finite() {
            return Err(InvalidReport::NotFinite { name: beginning(name), value });
        }
        if let Some(known) = self.0.get_mut(name) {
            *known = value;
            return Ok(());
        }
        if name.is_empty() {
            return Err(InvalidReport::NoName);
        }
        if name.len() > Self::NAME_BYTES_MAX {
            return Err(InvalidReport::LongName { name: beginning(name), bytes: name.len() });
        }
        if name.contains(char::is_control) {
            return Err(InvalidReport::ControlCharacter { name: name.to_owned() });
        }
        if self.0.len() >= Self::VALUES_MAX {
            return Err(InvalidReport::TooMany { name: name.to_owned() });
        }
        self.0.insert(name.to_owned(), value);
        Ok(())
    }

    /// The values with their names, in the order of the names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }

    /// Whether nothing was reported.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Values from another node pass the same checks as the program's own reports.
impl TryFrom<BTreeMap<String, f64>> for ReportedValues {
    type Error = InvalidReport;

    fn try_from(values: BTreeMap<String, f64>) -> Result<Self, InvalidReport> {
        let mut reported = Self::default();
        values.into_iter().try_for_each(|(name, value)| reported.set(&name, value))?;
        Ok(reported)
    }
}

/// One line, with six digits of each value: `accuracy 0.9611, loss 0.0421`.
impl fmt::Display for ReportedValues {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, value)) in self.iter().enumerate() {
            let lead = if index == 0 { "" } else { ", " };
            write!(formatter, "{lead}{name} {}", shown(value))?;
        }
        Ok(())
    }
}

/// A value with six digits; a whole number with all of its digits.
fn shown(value: f64) -> String {
    const WHOLE_MAX: f64 = 1e15;
    let size = value.abs();
    if value.fract() == 0.0 && size < WHOLE_MAX {
        return value.to_string();
    }
    let rounded = format!("{value:.5e}").parse().unwrap_or(value);
    match (1e-4..1e9).contains(&size) {
        true => rounded.to_string(),
        false => format!("{rounded:e}"),
    }
}

/// As much of a refused name as an error shows.
fn beginning(name: &str) -> String {
    name.chars().take(ReportedValues::NAME_BYTES_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{decode, encode};

    #[test]
    fn the_last_value_of_a_name_counts() {
        let mut reported = ReportedValues::default();
        for (name, value) in [("loss", 2.5), ("accuracy", 0.5), ("loss", -0.25)] {
            reported.set(name, value).expect("allowed");
        }
        assert_eq!(reported.iter().collect::<Vec<_>>(), [("accuracy", 0.5), ("loss", -0.25)]);
    }

    #[test]
    fn what_is_refused_is_named_and_changes_nothing() {
        let mut reported = ReportedValues::default();
        let long = "é".repeat(33);
        for (name, value, says) in [
            ("loss", f64::NAN, "\"loss\" was reported as NaN"),
            ("loss", f64::INFINITY, "\"loss\" was reported as inf"),
            ("", 1.0, "without a name"),
            (long.as_str(), 1.0, "66 bytes; at most 64"),
            ("a\nb", 1.0, "\"a\\nb\" has a control character"),
        ] {
            let error = reported.set(name, value).expect_err(says).to_string();
            assert!(error.contains(says), "{error}");
        }
        assert!(reported.is_empty());
        for number in 0..ReportedValues::VALUES_MAX {
            reported.set(&number.to_string(), 0.0).expect("there is room");
        }
        let error = reported.set("loss", 1.0).expect_err("one too many").to_string();
        assert!(error.contains("\"loss\" is one name too many: a worker can report 16"), "{error}");
        reported.set("7", 1.0).expect("a name that is known");
    }

    #[test]
    fn a_message_with_more_than_is_allowed_is_malformed() {
        let of = |name: &str, value: f64| BTreeMap::from([(name.to_owned(), value)]);
        let many: BTreeMap<String, f64> = (0..17).map(|number| (number.to_string(), 0.0)).collect();
        for values in [of("loss", f64::NAN), of(&"x".repeat(65), 0.0), of("\u{1b}", 0.0), many] {
            let bytes = encode(&values).expect("small");
            assert!(decode::<ReportedValues>(&bytes).is_err(), "{values:?}");
        }
        let bytes = encode(&of("loss", 0.1)).expect("small");
        let reported: ReportedValues = decode(&bytes).expect("allowed");
        assert_eq!(encode(&reported).expect("small"), bytes);
    }

    #[test]
    fn people_see_six_digits_and_whole_numbers_as_they_are() {
        let mut reported = ReportedValues::default();
        let values = [0.1_f32.into(), -1.0 / 3.0, 1_234_567.0, 1.5e-7, 4e20, 0.0, 1_234_567.25];
        for (name, value) in ["a", "b", "c", "d", "e", "f", "g"].into_iter().zip(values) {
            reported.set(name, value).expect("allowed");
        }
        let expected = "a 0.1, b -0.333333, c 1234567, d 1.5e-7, e 4e20, f 0, g 1234570";
        assert_eq!(reported.to_string(), expected);
    }
}
