//! Mutants of match arms and their guards. Called by `find`.

use std::collections::BTreeSet;

use syn::visit::Visit;
use syn::{Arm, Expr, ExprMatch, Pat};

use super::{MutantFinder, SWITCH, code, planted, short, text};
use crate::mutants::mutant::Operator;

impl MutantFinder<'_> {
    pub(super) fn arms(&mut self, choice: &ExprMatch) {
        let falls_through = choice.arms.last().is_some_and(is_catch_all);
        let last = choice.arms.len().saturating_sub(1);
        for (index, arm) in choice.arms.iter().enumerate() {
            if arm.guard.as_ref().is_some_and(|(_, guard)| planted::plants(guard)) {
                continue;
            }
            if falls_through && index < last {
                self.never_taken(arm);
            }
            if let Some((_, guard)) = &arm.guard {
                let what = format!("guard `{}` is always true", short(guard));
                let around = [format!("({SWITCH} || ("), "))".to_owned()];
                self.add(Operator::Arm, &**guard, what, around);
            }
            let next = choice.arms.get(index + 1);
            if let Some(next) = next.filter(|_| !falls_through || index + 1 < last) {
                self.merged(arm, next);
            }
            self.does_nothing(arm);
        }
    }

    fn never_taken(&mut self, arm: &Arm) {
        let what = format!("arm `{}` never taken", short(&arm.pat));
        if let Some((_, guard)) = &arm.guard {
            let around = [format!("(!{SWITCH} && ("), "))".to_owned()];
            self.add(Operator::Arm, &**guard, what, around);
        } else {
            let behind = format!(" if !{SWITCH}");
            self.add(Operator::Arm, &arm.pat, what, [String::new(), behind]);
        }
    }

    /// Adds a mutant in which the arm does what the next arm does.
    fn merged(&mut self, arm: &Arm, next: &Arm) {
        let is_alike = bindings(&arm.pat) == bindings(&next.pat);
        if !is_alike || text(&arm.body) == text(&next.body) {
            return;
        }
        let what = format!("arm `{}` does `{}`", short(&arm.pat), short(&next.body));
        let before = format!("{{ if {SWITCH} {{ {} }} else {{ ", code(&next.body));
        self.add(Operator::Arm, &*arm.body, what, [before, " } }".to_owned()]);
    }

    /// Adds a mutant that leaves the call of an arm out; where the call's value is used, the compiler takes the mutant
    /// back.
    fn does_nothing(&mut self, arm: &Arm) {
        if matches!(&*arm.body, Expr::MethodCall(_) | Expr::Call(_)) && super::is_work(&arm.body) {
            let what = format!("arm `{}` without `{}`", short(&arm.pat), short(&arm.body));
            let around = [format!("{{ if !{SWITCH} {{ "), " } }".to_owned()];
            self.add(Operator::Statement, &*arm.body, what, around);
        }
    }
}

fn is_catch_all(arm: &Arm) -> bool {
    let is_open = match &arm.pat {
        Pat::Wild(_) => true,
        Pat::Ident(name) => name.subpat.is_none() && is_binding(&name.ident),
        _ => false,
    };
    is_open && arm.guard.is_none()
}

/// Whether the name is a binding: bindings begin in lower case, constants and variants do not.
fn is_binding(name: &syn::Ident) -> bool {
    name.to_string().starts_with(|first: char| first.is_lowercase() || first == '_')
}

fn bindings(pattern: &Pat) -> BTreeSet<String> {
    #[derive(Default)]
    struct PatternNames(BTreeSet<String>);
    impl<'ast> Visit<'ast> for PatternNames {
        fn visit_pat_ident(&mut self, name: &'ast syn::PatIdent) {
            if is_binding(&name.ident) {
                self.0.insert(name.ident.to_string());
            }
            syn::visit::visit_pat_ident(self, name);
        }
    }
    let mut names = PatternNames::default();
    names.visit_pat(pattern);
    names.0
}
