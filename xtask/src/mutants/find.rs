//! Finds the mutants of a file, in a walk over its functions. Logging, texts and tests are left out, since a mistake
//! there changes no decision. Used by `mutants`; the conditions, calls and arms are in `find/`.

mod calls;
mod matches;
mod operators;
mod planted;

use std::collections::BTreeSet;
use std::ops::Range;

use quote::ToTokens;
use syn::spanned::Spanned;
use syn::visit::Visit;
use syn::{Attribute, Block, Expr, ReturnType, Signature, Stmt};

use super::mutant::{Mutant, Operator};
use super::scope::SourceFile;
use super::values;

/// Placeholder for the switch in the text of a mutant, until the mutant has a number.
pub(crate) const SWITCH: &str = "@SWITCH@";

/// Prefix of a comment that explains why the mutants of its line, and of the next, change nothing.
pub(crate) const EQUIVALENT: &str = "// Equivalent mutant:";

/// Functions without mutants: they make texts, or check invariants.
const SILENT_FUNCTIONS: [&str; 6] = ["fmt", "describe", "reason", "message", "check", "explain"];

/// Traits without mutants: they define texts and wire formats.
const SILENT_TRAITS: [&str; 6] = ["Display", "Debug", "Error", "Serialize", "Deserialize", "Hash"];

/// Calls that are not left out: without them only texts or the use of memory would change.
const SILENT_CALLS: [&str; 10] = [
    "trace",
    "debug",
    "info",
    "warn",
    "error",
    "drop",
    "reserve",
    "shrink_to_fit",
    "check",
    "debug_check",
];

/// Most bytes of text that a mutant puts before its span, since such text may repeat code.
const TWICE_MAX: usize = 2_000;

/// The mutants of all files, in order.
pub(crate) fn all(files: &[SourceFile], unconst: &BTreeSet<String>) -> Vec<Mutant> {
    files.iter().flat_map(|file| in_file(file, unconst)).collect()
}

/// The mutants of a file; none if it does not parse as Rust, which the build then reports.
pub(crate) fn in_file(file: &SourceFile, unconst: &BTreeSet<String>) -> Vec<Mutant> {
    let Ok(parsed) = syn::parse_file(&file.text) else { return Vec::new() };
    let argued: BTreeSet<usize> = file
        .text
        .lines()
        .enumerate()
        .filter(|(_, line)| line.contains(EQUIVALENT))
        .flat_map(|(index, _)| [index + 1, index + 2])
        .collect();
    let mut finder =
        MutantFinder { file, unconst, found: Vec::new(), functions: Vec::new(), of: None };
    finder.visit_file(&parsed);
    finder.found.retain(|mutant| !argued.contains(&mutant.line));
    finder.found
}

struct Function {
    name: String,
    span: Range<usize>,
}

struct MutantFinder<'a> {
    file: &'a SourceFile,
    unconst: &'a BTreeSet<String>,
    found: Vec<Mutant>,
    functions: Vec<Function>,
    /// The type of the `impl` block.
    of: Option<String>,
}

impl MutantFinder<'_> {
    /// Adds one mutant at a piece of the text; does nothing outside of functions.
    fn add(&mut self, operator: Operator, at: &impl Spanned, what: String, around: [String; 2]) {
        let span = at.span();
        self.add_at(operator, span.byte_range(), span.start(), what, around);
    }

    fn add_at(
        &mut self,
        operator: Operator,
        span: Range<usize>,
        start: proc_macro2::LineColumn,
        what: String,
        [before, behind]: [String; 2],
    ) {
        let Some(function) = self.functions.last() else { return };
        if before.len() > TWICE_MAX {
            return;
        }
        self.found.push(Mutant {
            file: self.file.path.clone(),
            line: start.line,
            column: start.column + 1,
            function: function.name.clone(),
            function_span: function.span.clone(),
            operator,
            what,
            span,
            before,
            behind,
        });
    }

    /// Adds a mutant that replaces an expression by another.
    fn instead(&mut self, operator: Operator, at: &Expr, what: String, other: &str) {
        let before = format!("(if {SWITCH} {{ {other} }} else {{ ");
        self.add(operator, at, what, [before, " })".to_owned()]);
    }

    /// Adds a mutant that negates a condition.
    fn opposite(&mut self, operator: Operator, at: &Expr, what: String) {
        self.add(operator, at, what, [format!("({SWITCH} ^ "), ")".to_owned()]);
    }

    fn enter(&mut self, signature: &Signature, body: &Block, whole: &impl Spanned) {
        let name = signature.ident.to_string();
        let stays_const = signature.constness.is_some() && !self.unconst.contains(&name);
        let is_silent = SILENT_FUNCTIONS.contains(&name.as_str()) || name.starts_with("check_");
        if stays_const || is_silent || body.stmts.is_empty() {
            return;
        }
        let name = self.of.as_ref().map_or(name.clone(), |of| format!("{of}::{name}"));
        self.functions.push(Function { name, span: whole.span().byte_range() });
        self.bodies(signature, body);
        self.visit_block(body);
        if matches!(signature.output, ReturnType::Default)
            && let Some(Stmt::Expr(last, None)) = body.stmts.last()
        {
            self.left_out(last, last);
        }
        self.functions.pop();
    }

    /// Adds mutants in which the function returns at once.
    fn bodies(&mut self, signature: &Signature, body: &Block) {
        let is_now: String = body.stmts.iter().map(text).collect();
        let open = body.brace_token.span.open();
        let at = open.byte_range().end;
        for value in values::of_return(&signature.output) {
            let is_same = is_now == value.replace(' ', "");
            if is_same || signature.asyncness.is_some() {
                continue;
            }
            let what = match value.as_str() {
                "" => "does nothing".to_owned(),
                value => format!("returns `{value}`"),
            };
            let before = format!(" if {SWITCH} {{ return {value}; }}");
            let around = [before, String::new()];
            self.add_at(Operator::Body, at..at, signature.span().start(), what, around);
        }
    }

    /// Adds a mutant that leaves a statement out.
    fn left_out(&mut self, call: &Expr, whole: &impl Spanned) {
        if !is_work(call) {
            return;
        }
        let what = format!("`{}` left out", short(call));
        let around = [format!("if !{SWITCH} {{ "), " }".to_owned()];
        self.add(Operator::Statement, whole, what, around);
    }
}

impl<'ast> Visit<'ast> for MutantFinder<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_conditional(&item.attrs) {
            syn::visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let of_trait = item.trait_.as_ref().and_then(|(_, path, _)| path.segments.last());
        let is_silent =
            of_trait.is_some_and(|last| SILENT_TRAITS.iter().any(|name| last.ident == name));
        if is_silent || is_conditional(&item.attrs) {
            return;
        }
        let outer = self.of.replace(type_name(&item.self_ty));
        syn::visit::visit_item_impl(self, item);
        self.of = outer;
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !is_conditional(&item.attrs) {
            self.enter(&item.sig, &item.block, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_conditional(&item.attrs) {
            self.enter(&item.sig, &item.block, item);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(body) = &item.default {
            self.enter(&item.sig, body, item);
        }
    }

    fn visit_stmt(&mut self, statement: &'ast Stmt) {
        if let Stmt::Expr(call, Some(_)) = statement {
            self.left_out(call, statement);
        }
        syn::visit::visit_stmt(self, statement);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if !arm.guard.as_ref().is_some_and(|(_, guard)| planted::plants(guard)) {
            syn::visit::visit_arm(self, arm);
        }
    }

    fn visit_expr(&mut self, expression: &'ast Expr) {
        match expression {
            Expr::If(branch) if planted::plants(&branch.cond) => {
                if let Some((_, otherwise)) = &branch.else_branch {
                    self.visit_expr(otherwise);
                }
                return;
            }
            Expr::Match(choice) if planted::asks(&choice.expr) => {
                let others = choice.arms.iter().filter(|arm| !planted::is_of_bug(arm));
                return others.for_each(|arm| self.visit_arm(arm));
            }
            _ if planted::settles(expression) => return,
            Expr::Binary(binary) => self.binary(expression, binary),
            Expr::Unary(unary) => self.unary(expression, unary),
            Expr::MethodCall(call) => self.call(expression, call),
            Expr::If(branch) => self.branch(&branch.cond),
            Expr::Match(choice) => self.arms(choice),
            Expr::Macro(used) if used.mac.path.is_ident("matches") => {
                let what = format!("`{}` is the opposite", short(expression));
                self.opposite(Operator::Condition, expression, what);
            }
            _ => {}
        }
        syn::visit::visit_expr(self, expression);
    }

    // Code that is evaluated at compile time cannot ask a switch; types and patterns have nothing to mutate.
    fn visit_expr_repeat(&mut self, repeat: &'ast syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
    }

    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}

    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}

    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}

    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}

    fn visit_trait_item_const(&mut self, _: &'ast syn::TraitItemConst) {}

    fn visit_type(&mut self, _: &'ast syn::Type) {}

    fn visit_pat(&mut self, _: &'ast syn::Pat) {}

    fn visit_attribute(&mut self, _: &'ast Attribute) {}
}

/// Whether the item is compiled under a condition, such as for tests: then a mutant would not always exist.
fn is_conditional(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let path = attribute.path();
        path.is_ident("cfg") || path.segments.last().is_some_and(|last| last.ident == "test")
    })
}

/// Whether a statement is a call or an assignment with an effect on decisions.
fn is_work(statement: &Expr) -> bool {
    let is_loud = |name: &syn::Ident| !SILENT_CALLS.iter().any(|silent| name == silent);
    match statement {
        Expr::MethodCall(call) => is_loud(&call.method) && !says_something(statement),
        Expr::Call(call) => match &*call.func {
            Expr::Path(path) => path.path.segments.last().is_some_and(|last| is_loud(&last.ident)),
            _ => true,
        },
        Expr::Try(tried) => is_work(&tried.expr),
        Expr::Assign(assigned) => !matches!(&*assigned.left, Expr::Infer(_)),
        Expr::Binary(binary) => operators::is_assignment(&binary.op),
        _ => false,
    }
}

/// Whether the call only emits a warning for people.
fn says_something(call: &Expr) -> bool {
    text(call).contains("EventKind::Warning")
}

fn type_name(of: &syn::Type) -> String {
    match of {
        syn::Type::Path(path) => {
            path.path.segments.last().map(|last| last.ident.to_string()).unwrap_or_default()
        }
        _ => text(of),
    }
}

/// The code without spaces between tokens, for comparisons.
fn text(code: &impl ToTokens) -> String {
    code.to_token_stream().to_string().replace(' ', "")
}

/// The code in one line and without comments, to be put elsewhere.
fn code(code: &impl ToTokens) -> String {
    code.to_token_stream().to_string()
}

/// The code for people, cut short.
fn short(code: &impl ToTokens) -> String {
    const LONGEST: usize = 60;
    let mut words = code.to_token_stream().to_string().replace('\n', " ");
    for (apart, together) in [
        (" . ", "."),
        (" (", "("),
        ("( ", "("),
        (" )", ")"),
        (" :: ", "::"),
        (" , ", ", "),
        ("& ", "&"),
        (" ;", ";"),
    ] {
        words = words.replace(apart, together);
    }
    match words.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", &words[..at]),
        None => words,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutants_of(text: &str) -> Vec<String> {
        let file = SourceFile { path: "a/src/core/b.rs".to_owned(), text: text.to_owned() };
        let found = in_file(&file, &BTreeSet::new());
        found.iter().map(|mutant| mutant.what.clone()).collect()
    }

    #[test]
    fn a_comparison_a_statement_and_a_body_are_mutated() {
        let found = mutants_of("fn f(&mut self) { if a < b { self.set.clear(); } }");
        assert_eq!(
            found,
            [
                "does nothing",
                "`a < b` with `<=`",
                "`a < b` is the opposite",
                "`self.set.clear()` left out",
            ]
        );
    }

    #[test]
    fn tests_texts_and_constants_are_not() {
        assert!(mutants_of("#[cfg(test)] mod tests { fn f() -> bool { a < b } }").is_empty());
        assert!(
            mutants_of("impl fmt::Display for A { fn fmt(&self) -> bool { a < b } }").is_empty()
        );
        assert!(mutants_of("const A: bool = 1 < 2; const fn f() -> bool { 1 < 2 }").is_empty());
        assert!(mutants_of("fn f() -> String { String::from(\"a\") }").is_empty());
    }

    #[test]
    fn what_is_argued_to_be_equivalent_is_left_out() {
        let text = "fn f() {\n    // Equivalent mutant: it is empty already.\n    set.clear();\n    other.clear();\n}";
        assert_eq!(mutants_of(text), ["does nothing", "`other.clear()` left out"]);
    }

    #[test]
    fn planted_bugs_are_left_alone() {
        let text = "fn f() { if a.is_late() && !is_planted(B) { g(); } if is_planted(C) { h(); } }";
        let found = mutants_of(text);
        let of_condition = ["`a.is_late()` is always true", "`a.is_late()` is always false"];
        assert_eq!(found, [&["does nothing"], &of_condition[..], &["`g()` left out"]].concat());
    }

    #[test]
    fn what_matters_only_with_a_planted_bug_is_left_alone() {
        let found = mutants_of("fn f() { if a < b || !is_planted(B) { g(); } }");
        assert_eq!(found, ["does nothing", "`g()` left out"]);
        let found = mutants_of("fn f() { let b = a > 1 && is_planted(B); g(b) }");
        assert_eq!(found, ["does nothing", "`g(b)` left out"]);
        let found = mutants_of("fn f() { if a < b || is_planted(B) { g(); } }");
        assert!(found.contains(&"`a < b` is the opposite".to_owned()), "{found:?}");
        let found = mutants_of("fn f() -> A { match is_planted(B) { true => a + 1, false => a } }");
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn conditions_with_a_pattern_keep_it() {
        let found = mutants_of("fn f() { if let Some(a) = b && a.is_late(now) { go(a) } }");
        assert_eq!(found, ["does nothing", "`a.is_late(now)` is always true"]);
    }

    #[test]
    fn an_arm_before_a_catch_all_is_taken_out() {
        let found = mutants_of("fn f(a: A) -> A { match a { A::B if c => x, _ => y } }");
        assert_eq!(found, ["arm `A::B` never taken", "guard `c` is always true"]);
    }
}
