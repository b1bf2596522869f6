//! Mutants of calls whose value is used. Called by `find`.

use quote::format_ident;
use syn::{Expr, ExprMethodCall};

use super::{MutantFinder, code, short};
use crate::mutants::mutant::Operator;

/// Pairs of methods that are easily confused.
const PAIRS: [(&str, &str); 5] = [
    ("min", "max"),
    ("any", "all"),
    ("first", "last"),
    ("min_by_key", "max_by_key"),
    ("is_none_or", "is_some_and"),
];

/// Methods that return a truth about a collection or an `Option`.
const TRUTHS: [&str; 7] =
    ["is_some", "is_none", "is_ok", "is_err", "is_empty", "contains", "contains_key"];

impl MutantFinder<'_> {
    pub(super) fn call(&mut self, at: &Expr, call: &ExprMethodCall) {
        let name = call.method.to_string();
        let other = PAIRS.iter().find_map(|(one, other)| match name.as_str() {
            name if name == *one => Some(*other),
            name if name == *other => Some(*one),
            _ => None,
        });
        if let Some(other) = other {
            let mut mutated = call.clone();
            mutated.method = format_ident!("{other}");
            let what = format!("`{}` with `{other}`", short(at));
            self.instead(Operator::Call, at, what, &code(&mutated));
        }
        if TRUTHS.contains(&name.as_str()) {
            self.opposite(Operator::Condition, at, format!("`{}` is the opposite", short(at)));
        }
        if name == "take" && call.args.is_empty() {
            self.instead(Operator::Call, at, format!("`{}` is None", short(at)), "None");
        }
    }

    /// Adds a mutant of `insert` or `remove` in a condition: the call is left out, and its value is `true`.
    pub(super) fn not_done(&mut self, at: &Expr) {
        if let Expr::MethodCall(call) = at
            && (call.method == "insert" || call.method == "remove")
        {
            let what = format!("`{}` not done", short(at));
            self.instead(Operator::Call, at, what, "true");
        }
    }
}
