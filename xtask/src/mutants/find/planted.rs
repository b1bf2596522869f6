//! Recognizes bugs that the simulation plants (`is_planted`): they are not mutants, and their code is not mutated.
//! Used by `find`.

use syn::{Arm, BinOp, Expr, ExprBinary, Lit, Pat, UnOp};

/// The function that says whether a bug is planted.
const IS_PLANTED: &str = "is_planted";

/// Whether the condition is true only where a bug is planted.
pub(super) fn plants(condition: &Expr) -> bool {
    match condition {
        Expr::Binary(ExprBinary { left, op: BinOp::And(_), right, .. }) => {
            plants(left) || plants(right)
        }
        Expr::Paren(inner) => plants(&inner.expr),
        Expr::Unary(_) => false,
        _ => asks(condition),
    }
}

/// Whether the other parts of an expression matter only where a bug is planted: a mutant of them changes nothing.
pub(super) fn settles(expression: &Expr) -> bool {
    match expression {
        Expr::Binary(ExprBinary { left, op: BinOp::Or(_), right, .. }) => {
            is_certain(left) || is_certain(right)
        }
        Expr::Binary(ExprBinary { op: BinOp::And(_), .. }) => plants(expression),
        _ => false,
    }
}

/// Whether the condition is true unless a bug is planted.
fn is_certain(condition: &Expr) -> bool {
    match condition {
        Expr::Paren(inner) => is_certain(&inner.expr),
        Expr::Unary(unary) => asks(condition) && !matches!(&*unary.expr, Expr::Unary(_)),
        _ => settles(condition) && !plants(condition),
    }
}

/// Whether the arm of a choice by a planted bug is that of the bug.
pub(super) fn is_of_bug(arm: &Arm) -> bool {
    matches!(&arm.pat, Pat::Lit(literal) if matches!(&literal.lit, Lit::Bool(truth) if truth.value))
}

/// Whether the condition asks for a planted bug, negated or not.
pub(super) fn asks(condition: &Expr) -> bool {
    match condition {
        Expr::Unary(unary) if matches!(unary.op, UnOp::Not(_)) => asks(&unary.expr),
        Expr::Call(call) => match &*call.func {
            Expr::Path(path) => {
                path.path.segments.last().is_some_and(|last| last.ident == IS_PLANTED)
            }
            _ => false,
        },
        _ => false,
    }
}
