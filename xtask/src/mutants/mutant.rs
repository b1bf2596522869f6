//! One mutant: its place, its change, and the text that is put in for it. Made by `find`, put in by `splice`.

use std::fmt;
use std::ops::Range;

use serde::Serialize;

/// The kind of a mutant.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Operator {
    /// A function returns a constant value at once.
    Body,
    /// `<` for `<=`, and the reverse; a comparison reversed.
    Comparison,
    /// `&&` for `||`, and the reverse.
    Logic,
    /// A condition is the opposite, always true, or always false.
    Condition,
    /// `+` for `-`, `*` for `/`, and the reverse.
    Arithmetic,
    /// A statement is left out: a deadline not armed, a set not cleared, a field not set.
    Statement,
    /// A match arm is never taken, does what the next one does, or has no guard.
    Arm,
    /// A call is replaced: `min` for `max`, `any` for `all`, nothing taken or inserted.
    Call,
}

impl Operator {
    /// All kinds, in the order of the table.
    pub(crate) const ALL: [Self; 8] = [
        Self::Body,
        Self::Comparison,
        Self::Logic,
        Self::Condition,
        Self::Arithmetic,
        Self::Statement,
        Self::Arm,
        Self::Call,
    ];

    /// The name in the table.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Body => "function returns at once",
            Self::Comparison => "comparison",
            Self::Logic => r"`&&` and `\|\|`",
            Self::Condition => "condition",
            Self::Arithmetic => "arithmetic",
            Self::Statement => "statement left out",
            Self::Arm => "match arm",
            Self::Call => "another call",
        }
    }
}

/// One mutant. Its number is assigned when it is put in.
#[derive(Clone, Debug)]
pub(crate) struct Mutant {
    /// The file's path, relative to the workspace's root.
    pub(crate) file: String,
    pub(crate) line: usize,
    pub(crate) column: usize,
    /// The function that it is in.
    pub(crate) function: String,
    /// The bytes of the file that the function spans.
    pub(crate) function_span: Range<usize>,
    pub(crate) operator: Operator,
    /// A description for people: the original code, and the mutant's effect.
    pub(crate) what: String,
    /// The bytes of the file before and behind which text is put.
    pub(crate) span: Range<usize>,
    /// The text before the span; `@SWITCH@` in it stands for the switch.
    pub(crate) before: String,
    /// The text behind the span.
    pub(crate) behind: String,
}

impl fmt::Display for Mutant {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, column, function, what, .. } = self;
        write!(formatter, "{file}:{line}:{column} {function}: {what}")
    }
}
