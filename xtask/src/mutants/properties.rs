//! Finds the names of tests that draw their input: those in `proptest!`, and those that call bolero. Used by `suites`.

use std::collections::BTreeSet;
use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens as _;
use syn::visit::Visit;

use super::scope;

/// The names in the whole workspace.
pub(crate) fn names(root: &Path) -> anyhow::Result<BTreeSet<String>> {
    let mut seen = Drawn::default();
    for path in scope::all_sources(root)? {
        let text = std::fs::read_to_string(root.join(path))?;
        if let Ok(file) = syn::parse_file(&text) {
            seen.visit_file(&file);
        }
    }
    Ok(seen.0)
}

#[derive(Default)]
struct Drawn(BTreeSet<String>);

impl<'ast> Visit<'ast> for Drawn {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        let body = item.block.to_token_stream().to_string();
        let draws = ["bolero", "TestRunner", "proptest !", "proptest ::"];
        if draws.iter().any(|word| body.contains(word)) {
            self.0.insert(item.sig.ident.to_string());
        }
    }

    fn visit_macro(&mut self, used: &'ast syn::Macro) {
        if used.path.segments.last().is_some_and(|last| last.ident == "proptest") {
            self.functions_in(used.tokens.clone());
        }
    }
}

impl Drawn {
    fn functions_in(&mut self, tokens: TokenStream) {
        let mut tokens = tokens.into_iter();
        while let Some(token) = tokens.next() {
            if let TokenTree::Ident(word) = token
                && word == "fn"
                && let Some(TokenTree::Ident(name)) = tokens.next()
            {
                self.0.insert(name.to_string());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawn_tests_are_found() {
        let text = "
            proptest! { #[test] fn one(a in 0..3) { f(a) } }
            #[test] fn two() { bolero::check!().for_each(f); }
            #[test] fn three() { f(1); }
        ";
        let mut drawn = Drawn::default();
        drawn.visit_file(&syn::parse_file(text).expect("it is Rust"));
        assert_eq!(drawn.0, BTreeSet::from(["one".to_owned(), "two".to_owned()]));
    }
}
