//! Finds the functions that may lose their `const`, so that they can ask a switch: those whose name is used neither in
//! a constant nor by a function that must stay `const`. Used by `find` and `splice`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Context as _;
use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens as _;
use syn::visit::Visit;

use super::scope;

/// The names of functions that may lose their `const`.
pub(crate) fn removable(root: &Path) -> anyhow::Result<BTreeSet<String>> {
    let mut seen = FunctionNames::default();
    for path in scope::all_sources(root)? {
        let text = std::fs::read_to_string(root.join(&path))?;
        let file = syn::parse_file(&text).with_context(|| format!("{path} is not Rust"))?;
        seen.visit_file(&file);
    }
    Ok(seen.removable())
}

#[derive(Default)]
struct FunctionNames {
    /// Names used in constants, and in all other code that is evaluated at compile time.
    in_constants: BTreeSet<String>,
    /// The names in the body of each `const fn`, by the function's name.
    functions: BTreeMap<String, BTreeSet<String>>,
}

impl FunctionNames {
    fn removable(mut self) -> BTreeSet<String> {
        let mut waiting: Vec<String> = self.in_constants.iter().cloned().collect();
        while let Some(name) = waiting.pop() {
            waiting.extend(self.functions.remove(&name).into_iter().flatten());
        }
        self.functions.into_keys().collect()
    }

    fn see_function(&mut self, signature: &syn::Signature, body: &syn::Block) {
        if signature.constness.is_some() {
            let names = self.functions.entry(signature.ident.to_string()).or_default();
            collect(body.to_token_stream(), names);
        }
    }

    fn see_constant(&mut self, tokens: TokenStream) {
        collect(tokens, &mut self.in_constants);
    }
}

impl<'ast> Visit<'ast> for FunctionNames {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.see_function(&item.sig, &item.block);
        syn::visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.see_function(&item.sig, &item.block);
        syn::visit::visit_impl_item_fn(self, item);
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.see_constant(item.expr.to_token_stream());
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.see_constant(item.expr.to_token_stream());
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.see_constant(item.expr.to_token_stream());
    }

    fn visit_trait_item_const(&mut self, item: &'ast syn::TraitItemConst) {
        self.see_constant(item.default.as_ref().map(|(_, value)| value).to_token_stream());
    }

    fn visit_expr_repeat(&mut self, repeat: &'ast syn::ExprRepeat) {
        self.see_constant(repeat.len.to_token_stream());
        syn::visit::visit_expr_repeat(self, repeat);
    }

    fn visit_type_array(&mut self, array: &'ast syn::TypeArray) {
        self.see_constant(array.len.to_token_stream());
    }

    fn visit_expr_const(&mut self, block: &'ast syn::ExprConst) {
        self.see_constant(block.block.to_token_stream());
    }

    fn visit_macro(&mut self, used: &'ast syn::Macro) {
        // The macro `thread_local!` contains constants.
        if used.path.is_ident("thread_local") {
            self.see_constant(used.tokens.clone());
        }
    }
}

fn collect(tokens: TokenStream, names: &mut BTreeSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Ident(name) => {
                names.insert(name.to_string());
            }
            TokenTree::Group(group) => collect(group.stream(), names),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_constant_needs_stays_const() {
        let text = "
            const A: u32 = one();
            const fn one() -> u32 { two() }
            const fn two() -> u32 { 2 }
            const fn free() -> u32 { 3 }
        ";
        let mut names = FunctionNames::default();
        names.visit_file(&syn::parse_file(text).expect("it is Rust"));
        assert_eq!(names.removable(), BTreeSet::from(["free".to_owned()]));
    }
}
