//! Recognizes bugs that the simulation plants (`is_planted`): they are not mutants, and their code is not mutated.
//! Used by `find`.

use syn::{BinOp, Expr, ExprBinary, UnOp};

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
