//! Mutants of operators and conditions. Called by `find`.

use syn::{BinOp, Expr, ExprBinary, ExprUnary, UnOp};

use super::{MutantFinder, SWITCH, code, planted, short};
use crate::mutants::mutant::Operator;

impl MutantFinder<'_> {
    pub(super) fn binary(&mut self, at: &Expr, binary: &ExprBinary) {
        if has_pattern(at) {
            // With a pattern in it, `&&` cannot be replaced: its plain parts become always true instead.
            for part in [&*binary.left, &*binary.right] {
                if !has_pattern(part) {
                    self.always(part, true);
                }
            }
            return;
        }
        if planted::asks(&binary.left) || planted::asks(&binary.right) {
            self.branch(&binary.left);
            return self.branch(&binary.right);
        }
        let shown = short(at);
        if let Some((operator, others)) = others(&binary.op) {
            for other in others {
                let (left, right) = (code(&binary.left), code(&binary.right));
                let what = format!("`{shown}` with `{other}`");
                let with = match is_assignment(&binary.op) {
                    true => format!("{left} {other} {right}"),
                    false => format!("({left}) {other} ({right})"),
                };
                self.instead(operator, at, what, &with);
            }
        }
        if is_comparison(&binary.op) {
            self.opposite(Operator::Comparison, at, format!("`{shown}` is the opposite"));
        }
    }

    pub(super) fn unary(&mut self, at: &Expr, unary: &ExprUnary) {
        if matches!(unary.op, UnOp::Not(_)) && !planted::asks(at) {
            self.opposite(Operator::Condition, at, format!("`{}` without `!`", short(at)));
            self.not_done(&unary.expr);
        }
    }

    /// A condition that is a call or a field.
    pub(super) fn branch(&mut self, condition: &Expr) {
        let is_plain = matches!(
            condition,
            Expr::MethodCall(_) | Expr::Call(_) | Expr::Path(_) | Expr::Field(_) | Expr::Macro(_)
        );
        if is_plain && !planted::asks(condition) {
            self.always(condition, true);
            self.always(condition, false);
            self.not_done(condition);
        }
    }

    fn always(&mut self, condition: &Expr, value: bool) {
        let before = match value {
            true => format!("({SWITCH} || ("),
            false => format!("(!{SWITCH} && ("),
        };
        let what = format!("`{}` is always {value}", short(condition));
        self.add(Operator::Condition, condition, what, [before, "))".to_owned()]);
    }
}

/// Whether the condition is `let …`, or contains it among parts joined by `&&`.
fn has_pattern(condition: &Expr) -> bool {
    match condition {
        Expr::Let(_) => true,
        Expr::Binary(binary) if matches!(binary.op, BinOp::And(_)) => {
            has_pattern(&binary.left) || has_pattern(&binary.right)
        }
        _ => false,
    }
}

const fn is_comparison(operator: &BinOp) -> bool {
    use BinOp::{Eq, Ge, Gt, Le, Lt, Ne};
    matches!(operator, Eq(_) | Ne(_) | Lt(_) | Le(_) | Gt(_) | Ge(_))
}

/// Whether the operator changes its left side.
pub(super) const fn is_assignment(operator: &BinOp) -> bool {
    use BinOp::{
        AddAssign, BitAndAssign, BitOrAssign, BitXorAssign, DivAssign, MulAssign, RemAssign,
        ShlAssign, ShrAssign, SubAssign,
    };
    matches!(
        operator,
        AddAssign(_)
            | SubAssign(_)
            | MulAssign(_)
            | DivAssign(_)
            | RemAssign(_)
            | BitXorAssign(_)
            | BitAndAssign(_)
            | BitOrAssign(_)
            | ShlAssign(_)
            | ShrAssign(_)
    )
}

/// The operators that may be written instead by mistake.
const fn others(operator: &BinOp) -> Option<(Operator, &'static [&'static str])> {
    Some(match operator {
        BinOp::Lt(_) => (Operator::Comparison, &["<="]),
        BinOp::Le(_) => (Operator::Comparison, &["<"]),
        BinOp::Gt(_) => (Operator::Comparison, &[">="]),
        BinOp::Ge(_) => (Operator::Comparison, &[">"]),
        BinOp::And(_) => (Operator::Logic, &["||"]),
        BinOp::Or(_) => (Operator::Logic, &["&&"]),
        BinOp::Add(_) => (Operator::Arithmetic, &["-"]),
        BinOp::Sub(_) => (Operator::Arithmetic, &["+"]),
        BinOp::Mul(_) => (Operator::Arithmetic, &["/"]),
        BinOp::Div(_) => (Operator::Arithmetic, &["*"]),
        BinOp::Rem(_) => (Operator::Arithmetic, &["/"]),
        BinOp::BitAnd(_) => (Operator::Arithmetic, &["|"]),
        BinOp::BitOr(_) => (Operator::Arithmetic, &["&"]),
        BinOp::AddAssign(_) => (Operator::Arithmetic, &["-="]),
        BinOp::SubAssign(_) => (Operator::Arithmetic, &["+="]),
        BinOp::BitOrAssign(_) => (Operator::Arithmetic, &["&="]),
        BinOp::BitAndAssign(_) => (Operator::Arithmetic, &["|="]),
        _ => return None,
    })
}
