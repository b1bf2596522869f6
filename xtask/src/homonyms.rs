//! One name, one type: no two types of the workspace share a name, so that a search for a name finds one definition.
//! Types of tests and of examples are free. Called by `check`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail};
use syn::visit::Visit;

use crate::mutants::scope;
use crate::steps::root;

/// Names that several types may have, with the reason.
const PERMITTED: &[(&str, &str)] = &[
    ("Comm", "the stand-in for NCCL has NCCL's names"),
    ("Group", "the stand-in for NCCL has NCCL's names"),
    ("Operation", "the stand-in for NCCL has NCCL's names"),
    ("Stream", "the stand-in for CUDA has CUDA's names; QUIC's streams are streams, too"),
    ("UniqueId", "the stand-in for NCCL has NCCL's names"),
];

/// Folders whose types are free: each file there is a program, or a test, of its own.
const FREE_FOLDERS: [&str; 3] = ["examples", "tests", "programs"];

/// Looks for types that share a name.
///
/// # Errors
/// Two types share a name that is not permitted.
pub(crate) fn check() -> anyhow::Result<()> {
    let shared = shared(&definitions(&root()?)?);
    let permitted: BTreeSet<&str> = PERMITTED.iter().map(|(name, _)| *name).collect();
    let faults: Vec<String> = shared
        .iter()
        .filter(|(name, _)| !permitted.contains(name.as_str()))
        .map(|(name, files)| format!("{name}: {}", files.join(", ")))
        .collect();
    if !faults.is_empty() {
        let count = faults.len();
        bail!(
            "{count} names of types are not those of one type\n{}\nhint: rename all but one, or add the name \
             with a reason to PERMITTED in xtask/src/homonyms.rs",
            faults.join("\n")
        );
    }
    Ok(())
}

/// The names with more than one definition.
fn shared(definitions: &BTreeMap<String, Vec<String>>) -> BTreeMap<String, Vec<String>> {
    let several = definitions.iter().filter(|(_, files)| files.len() > 1);
    several.map(|(name, files)| (name.clone(), files.clone())).collect()
}

/// The files that define each type, once for each definition.
fn definitions(root: &Path) -> anyhow::Result<BTreeMap<String, Vec<String>>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut of_tests = BTreeSet::new();
    for path in scope::all_sources(root)? {
        if scope::is_test(&path) || path.split('/').any(|part| FREE_FOLDERS.contains(&part)) {
            continue;
        }
        let text = fs::read_to_string(root.join(&path))?;
        let file = syn::parse_file(&text).with_context(|| format!("{path} is not Rust"))?;
        let mut types = Types::default();
        types.visit_file(&file);
        of_tests.extend(types.test_modules.iter().map(|module| module_path(&path, module)));
        for name in types.names {
            found.entry(name).or_default().push(path.clone());
        }
    }
    for files in found.values_mut() {
        files.retain(|file| !is_below(file, &of_tests));
    }
    Ok(found)
}

/// The path of a module's file or folder, without an extension.
fn module_path(parent: &str, module: &str) -> String {
    let folder = match parent.rsplit_once('/') {
        Some((folder, "mod.rs" | "lib.rs" | "main.rs")) => folder,
        _ => parent.trim_end_matches(".rs"),
    };
    format!("{folder}/{module}")
}

fn is_below(file: &str, modules: &BTreeSet<String>) -> bool {
    modules.iter().any(|module| {
        file.strip_prefix(module.as_str()).is_some_and(|rest| rest.starts_with(['.', '/']))
    })
}

/// The types of a file, without those of its tests.
#[derive(Default)]
struct Types {
    names: Vec<String>,
    /// The modules in files of their own that only tests have.
    test_modules: Vec<String>,
}

impl<'ast> Visit<'ast> for Types {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_of_tests(&item.attrs) {
            syn::visit::visit_item_mod(self, item);
        } else if item.content.is_none() {
            self.test_modules.push(item.ident.to_string());
        }
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.see(&item.ident, &item.attrs);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.see(&item.ident, &item.attrs);
    }

    fn visit_item_union(&mut self, item: &'ast syn::ItemUnion) {
        self.see(&item.ident, &item.attrs);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.see(&item.ident, &item.attrs);
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.see(&item.ident, &item.attrs);
    }

    /// Types within a function are known there alone.
    fn visit_block(&mut self, _: &'ast syn::Block) {}
}

impl Types {
    fn see(&mut self, name: &syn::Ident, attributes: &[syn::Attribute]) {
        if !is_of_tests(attributes) {
            self.names.push(name.to_string());
        }
    }
}

/// Whether an item is compiled for tests alone.
fn is_of_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Ident>().is_ok_and(|condition| condition == "test")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        let mut types = Types::default();
        types.visit_file(&syn::parse_file(text).unwrap());
        types.names
    }

    #[test]
    fn types_of_tests_and_functions_are_free() {
        assert_eq!(names("struct A; mod b { enum B { X } type C = u8; }"), ["A", "B", "C"]);
        assert!(names("#[cfg(test)] mod tests { struct A; } #[cfg(test)] struct B;").is_empty());
        assert!(names("fn f() { struct A; }").is_empty());
    }

    #[test]
    fn modules_of_tests_are_found_beside_their_parent() {
        let modules = BTreeSet::from([
            module_path("a/src/lib.rs", "proof"),
            module_path("a/src/core.rs", "replay"),
        ]);
        assert!(is_below("a/src/proof.rs", &modules));
        assert!(is_below("a/src/core/replay/mod.rs", &modules));
        assert!(!is_below("a/src/proofs.rs", &modules));
    }

    #[test]
    fn a_name_with_two_definitions_is_shared() {
        let file = |name: &str| name.to_owned();
        let definitions = BTreeMap::from([
            (file("A"), vec![file("a.rs"), file("b.rs")]),
            (file("B"), vec![file("a.rs")]),
        ]);
        assert_eq!(shared(&definitions).into_keys().collect::<Vec<_>>(), ["A"]);
    }

    #[test]
    fn one_name_has_one_type() {
        check().expect("one name, one type");
    }
}
