//! The messages in one source file: errors, failures of commands with their hints, and log lines. Used by `messages`.

use anyhow::Context as _;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens as _;
use syn::visit::Visit;
use syn::{Attribute, Expr, ExprCall, ExprMethodCall, ExprStruct, ImplItemFn, ItemFn, Macro};

/// A text that is shown to people.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Message {
    pub(super) kind: MessageKind,
    /// The text, as the code has it: `{host}` stands for a name.
    pub(super) text: String,
    /// The type of an error; of all else the file.
    pub(super) owner: String,
}

/// The place in which a message is shown.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum MessageKind {
    /// As an error, or within one; `hint:` and `caused by:` lines, too.
    Error,
    /// In the log, at this level.
    Log(&'static str),
}

/// Macros of log lines, with their levels.
const LOG_MACROS: [(&str, &str); 3] = [("error", "error"), ("warn", "warn"), ("info", "info")];

/// Methods that take the text of a failure or its hint, and are declared in `cli`.
const FAILURE_METHODS: [&str; 3] = ["failed", "usage", "hint"];

/// Names of variables in which a text waits to be given to such a method, or to a job's result.
const TEXT_VARIABLES: [&str; 3] = ["hint", "message", "reason"];

/// The begin of the names of functions whose texts are advice, besides `hint`.
const ADVICE: &str = "advice";

/// The messages of a file of the product.
pub(super) fn in_file(path: &str, text: &str) -> anyhow::Result<Vec<Message>> {
    let file = syn::parse_file(text).with_context(|| format!("{path} cannot be parsed"))?;
    let mut finder =
        MessageFinder { path, owner: String::new(), in_hint: false, found: Vec::new() };
    finder.visit_file(&file);
    Ok(finder.found)
}

struct MessageFinder<'a> {
    path: &'a str,
    /// The type whose definition is being read.
    owner: String,
    /// Whether a function `hint` is being read: each of its texts is a message.
    in_hint: bool,
    found: Vec<Message>,
}

impl MessageFinder<'_> {
    fn add(&mut self, kind: MessageKind, text: String) {
        // A text without a letter beside its placeholders is put together of others.
        let own = text.split('}').map(|part| part.split('{').next().unwrap_or_default());
        if own.into_iter().any(|part| part.contains(char::is_alphabetic)) {
            let owner = if kind == MessageKind::Error && !self.owner.is_empty() {
                self.owner.clone()
            } else {
                self.path.to_owned()
            };
            self.found.push(Message { kind, text, owner });
        }
    }

    fn add_expr(&mut self, kind: MessageKind, expr: &Expr) {
        // In front of the text may stand `&` and `Some`, and behind it a method.
        let tokens = expr.to_token_stream();
        for text in texts(tokens) {
            self.add(kind, text);
        }
    }

    /// Adds the text of a variable, where it is made there and then.
    fn add_made(&mut self, expr: &Expr) {
        match expr {
            Expr::Lit(_) => self.add_expr(MessageKind::Error, expr),
            Expr::Macro(called) if called.mac.path.is_ident("format") => {
                self.add_expr(MessageKind::Error, expr);
            }
            Expr::MethodCall(call) => self.add_made(&call.receiver),
            Expr::If(chosen) => {
                let last = chosen.then_branch.stmts.last();
                if let Some(syn::Stmt::Expr(expr, None)) = last {
                    self.add_made(expr);
                }
                if let Some((_, otherwise)) = &chosen.else_branch {
                    self.add_made(otherwise);
                }
            }
            Expr::Match(chosen) => chosen.arms.iter().for_each(|arm| self.add_made(&arm.body)),
            Expr::Block(block) => {
                if let Some(syn::Stmt::Expr(expr, None)) = block.block.stmts.last() {
                    self.add_made(expr);
                }
            }
            _ => {}
        }
    }

    fn add_errors(&mut self, attributes: &[Attribute]) {
        for attribute in attributes.iter().filter(|it| it.path().is_ident("error")) {
            if let Some(text) = first_text(attribute.meta.to_token_stream()) {
                self.add(MessageKind::Error, text);
            }
        }
    }

    fn within_hint(&mut self, name: &str, read: impl FnOnce(&mut Self)) {
        let before =
            std::mem::replace(&mut self.in_hint, name == "hint" || name.starts_with(ADVICE));
        read(self);
        self.in_hint = before;
    }
}

impl<'ast> Visit<'ast> for MessageFinder<'_> {
    fn visit_attribute(&mut self, _: &'ast Attribute) {
        // Comments are attributes, too.
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.owner = item.ident.to_string();
        self.add_errors(&item.attrs);
        for variant in &item.variants {
            self.add_errors(&variant.attrs);
        }
        self.owner.clear();
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.owner = item.ident.to_string();
        self.add_errors(&item.attrs);
        self.owner.clear();
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            syn::visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        // The hints of an error are its own.
        let name = item.self_ty.to_token_stream().to_string();
        let is_own = name.chars().all(char::is_alphanumeric) && item.trait_.is_none();
        let has_hint = item
            .items
            .iter()
            .any(|it| matches!(it, syn::ImplItem::Fn(function) if function.sig.ident == "hint"));
        if is_own && has_hint {
            self.owner = name;
        }
        syn::visit::visit_item_impl(self, item);
        self.owner.clear();
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        if !is_for_tests(&item.attrs) {
            let name = item.sig.ident.to_string();
            self.within_hint(&name, |finder| syn::visit::visit_item_fn(finder, item));
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        if !is_for_tests(&item.attrs) {
            let name = item.sig.ident.to_string();
            self.within_hint(&name, |finder| syn::visit::visit_impl_item_fn(finder, item));
        }
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        let name = local.pat.to_token_stream().to_string();
        if let (true, Some(init)) = (TEXT_VARIABLES.contains(&name.as_str()), &local.init) {
            self.add_made(&init.expr);
        }
        syn::visit::visit_local(self, local);
    }

    fn visit_expr_lit(&mut self, literal: &'ast syn::ExprLit) {
        if let (true, syn::Lit::Str(text)) = (self.in_hint, &literal.lit) {
            self.add(MessageKind::Error, text.value());
        }
    }

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        let name = call.method.to_string();
        if let (true, Some(first)) = (FAILURE_METHODS.contains(&name.as_str()), call.args.first()) {
            self.add_expr(MessageKind::Error, first);
        }
        syn::visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        let function = call.func.to_token_stream().to_string().replace(' ', "");
        let is_failure =
            ["CommandFailure::usage", "CommandFailure::new"].contains(&function.as_str());
        if let (true, Some(first)) = (is_failure, call.args.first()) {
            self.add_expr(MessageKind::Error, first);
        }
        syn::visit::visit_expr_call(self, call);
    }

    fn visit_expr_struct(&mut self, made: &'ast ExprStruct) {
        let name = made.path.segments.last().map(|it| it.ident.to_string()).unwrap_or_default();
        let is_event = name == "Warning" && made.path.segments.len() > 1;
        for field in made.fields.iter().filter(|_| is_event) {
            self.add_expr(MessageKind::Log("warn"), &field.expr);
        }
        syn::visit::visit_expr_struct(self, made);
    }

    fn visit_macro(&mut self, called: &'ast Macro) {
        let name = called.path.segments.last().map(|it| it.ident.to_string()).unwrap_or_default();
        if let Some((_, level)) = LOG_MACROS.iter().find(|(macro_name, _)| *macro_name == name) {
            if let Some(text) = message_of_log(called.tokens.clone()) {
                self.add(MessageKind::Log(level), text);
            }
        } else if let (true, Some(text)) = (self.in_hint, first_text(called.tokens.clone())) {
            self.add(MessageKind::Error, text);
        }
    }
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|it| it.to_token_stream().to_string().contains("test"))
}

/// The texts of an expression: literals, and the first one of each `format!`.
fn texts(tokens: TokenStream) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_format = false;
    for token in tokens {
        match token {
            TokenTree::Literal(literal) => found.extend(text_of(&literal)),
            TokenTree::Group(group) if is_format => {
                found.extend(first_text(group.stream()));
                is_format = false;
            }
            TokenTree::Group(group) if group.delimiter() != Delimiter::Bracket => {
                found.extend(texts(group.stream()));
            }
            TokenTree::Ident(word) => is_format = word == "format",
            _ => {}
        }
    }
    found
}

fn first_text(tokens: TokenStream) -> Option<String> {
    tokens.into_iter().find_map(|token| match token {
        TokenTree::Literal(literal) => text_of(&literal),
        TokenTree::Group(group) => first_text(group.stream()),
        _ => None,
    })
}

/// The message of a call of tracing's macros: the first text that is no field's value.
fn message_of_log(tokens: TokenStream) -> Option<String> {
    let mut is_value = false;
    for token in tokens {
        match &token {
            TokenTree::Literal(literal) if !is_value => return text_of(literal),
            TokenTree::Punct(sign) if sign.as_char() == '=' => is_value = true,
            TokenTree::Punct(sign) if sign.as_char() == ',' => is_value = false,
            _ => {}
        }
    }
    None
}

fn text_of(literal: &proc_macro2::Literal) -> Option<String> {
    let text: syn::LitStr = syn::parse_str(&literal.to_string()).ok()?;
    Some(text.value())
}

#[cfg(test)]
#[path = "find_tests.rs"]
mod tests;
