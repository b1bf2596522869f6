//! Finds the durations in a file: constants, fields of the deadlines, and literals anywhere else. Code for tests is left
//! out. Used by `waits`.

use anyhow::Context as _;
use quote::ToTokens;
use syn::visit::{self, Visit};
use syn::{
    Attribute, Expr, ExprCall, FieldValue, Fields, ImplItemConst, ImplItemFn, Item, ItemConst,
    ItemFn, ItemImpl, ItemMod, ItemStatic, ItemStruct, Member, ReturnType, Type,
};

/// The type whose fields are deadlines, whatever their default.
const DEADLINES: &str = "Deadlines";

/// Ends of names of constants that are durations without the type.
const UNITS: [&str; 7] = ["_NS", "_US", "_MS", "_S", "_SECS", "_SECONDS", "_MINUTES"];

/// A duration in the code.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct Wait {
    pub(super) file: String,
    /// The constant, `Type::CONSTANT`, `Type.field`, or the function that a literal is in.
    pub(super) name: String,
    pub(super) value: String,
}

/// The durations of a file, in its order.
///
/// # Errors
/// The file is no Rust.
pub(super) fn in_file(path: &str, text: &str) -> anyhow::Result<Vec<Wait>> {
    let parsed = syn::parse_file(text).with_context(|| format!("{path} does not parse"))?;
    let mut finder = Finder { file: path, scope: Vec::new(), found: Vec::new() };
    finder.visit_file(&parsed);
    Ok(finder.found)
}

struct Finder<'a> {
    file: &'a str,
    /// Names of the type, and of the constant, function or field, around the visited code.
    scope: Vec<String>,
    found: Vec<Wait>,
}

impl Finder<'_> {
    fn within(&mut self, name: String, walk: impl FnOnce(&mut Self)) {
        self.scope.push(name);
        walk(self);
        self.scope.pop();
    }

    fn add(&mut self, name: String, value: String) {
        // Two literals in one place get a number.
        let known = self.found.iter().filter(|it| it.name.split('#').next() == Some(&name)).count();
        let name = if known == 0 { name } else { format!("{name}#{}", known + 1) };
        self.found.push(Wait { file: self.file.to_owned(), name, value });
    }

    /// A constant: by its type, by its name, or by the literals in its value.
    fn constant(&mut self, name: &str, ty: &Type, value: &Expr) {
        let full = self.scope.iter().map(String::as_str).chain([name]).collect::<Vec<_>>();
        let full = full.join("::");
        if is_duration(ty) {
            self.add(full, value_of(value));
        } else if UNITS.iter().any(|unit| name.ends_with(unit)) {
            self.add(full, text_of(value));
        } else {
            self.within(name.to_owned(), |finder| finder.visit_expr(value));
        }
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Mod(ItemMod { attrs, .. }) | Item::Fn(ItemFn { attrs, .. }) => attrs,
            Item::Impl(ItemImpl { attrs, .. }) | Item::Const(ItemConst { attrs, .. }) => attrs,
            _ => return visit::visit_item(self, item),
        };
        if !is_for_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_const(&mut self, item: &'ast ItemConst) {
        self.constant(&item.ident.to_string(), &item.ty, &item.expr);
    }

    fn visit_item_static(&mut self, item: &'ast ItemStatic) {
        self.constant(&item.ident.to_string(), &item.ty, &item.expr);
    }

    fn visit_impl_item_const(&mut self, item: &'ast ImplItemConst) {
        self.constant(&item.ident.to_string(), &item.ty, &item.expr);
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        let of = last_segment(&item.self_ty).unwrap_or_default();
        self.within(of, |finder| visit::visit_item_impl(finder, item));
    }

    fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
        let Fields::Named(fields) = &item.fields else { return };
        for field in fields.named.iter().filter(|_| item.ident == DEADLINES) {
            if let Some(name) = &field.ident {
                // The value is found where the default is made.
                let is_optional = last_segment(&field.ty).is_some_and(|ty| ty == "Option");
                if is_optional {
                    self.add(format!("{DEADLINES}.{name}"), "none".to_owned());
                }
            }
        }
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.within(item.sig.ident.to_string(), |finder| visit::visit_item_fn(finder, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        if is_for_tests(&item.attrs) {
            return;
        }
        let of_deadlines = self.scope.last().is_some_and(|scope| scope == DEADLINES);
        if let ReturnType::Type(_, ty) = &item.sig.output
            && of_deadlines
            && is_duration(ty)
        {
            let body = item.block.stmts.iter().map(text_of).collect::<Vec<_>>().join(" ");
            self.add(format!("{DEADLINES}::{}", item.sig.ident), body);
            return;
        }
        self.within(item.sig.ident.to_string(), |finder| visit::visit_impl_item_fn(finder, item));
    }

    fn visit_field_value(&mut self, field: &'ast FieldValue) {
        match (&field.member, literal(&field.expr)) {
            (Member::Named(name), Some(value)) => {
                // `impl Default for X` and `const A: X` name the field's type.
                let mut of = self.scope.clone();
                of.retain(|part| part != "default" && part != "new");
                self.add(format!("{}.{name}", of.join("::")), value);
            }
            _ => visit::visit_field_value(self, field),
        }
    }

    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        match literal_call(call) {
            Some(value) => self.add(self.scope.join("::"), value),
            None => visit::visit_expr_call(self, call),
        }
    }
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let text = attribute.to_token_stream().to_string().replace(' ', "");
        text == "#[test]" || text.starts_with("#[cfg(test") || text.starts_with("#[cfg(any(test")
    })
}

fn is_duration(ty: &Type) -> bool {
    last_segment(ty).is_some_and(|name| name == "Duration")
}

fn last_segment(ty: &Type) -> Option<String> {
    match ty {
        Type::Path(path) => Some(path.path.segments.last()?.ident.to_string()),
        _ => None,
    }
}

/// The value of a constant: in words if it is a literal, and otherwise its code.
fn value_of(value: &Expr) -> String {
    literal(value).unwrap_or_else(|| text_of(value))
}

fn literal(value: &Expr) -> Option<String> {
    match value {
        Expr::Call(call) => literal_call(call),
        _ => None,
    }
}

/// A call of `Duration::from_…` with a literal, in words.
fn literal_call(call: &ExprCall) -> Option<String> {
    let Expr::Path(function) = &*call.func else { return None };
    let mut segments = function.path.segments.iter().rev();
    let (name, of) = (segments.next()?.ident.to_string(), segments.next()?.ident.to_string());
    if of != "Duration" {
        return None;
    }
    let unit = match name.as_str() {
        "from_secs" | "from_secs_f64" => "s",
        "from_millis" => "ms",
        "from_micros" => "µs",
        "from_nanos" => "ns",
        _ => return None,
    };
    let number = call.args.first()?;
    // A variable is no literal: its value comes from elsewhere.
    let text = number.to_token_stream().to_string();
    let is_number = text.chars().all(|it| it.is_ascii_digit() || "_.* ".contains(it));
    is_number.then(|| format!("{} {unit}", text.replace('_', "")))
}

fn text_of(tokens: &impl ToTokens) -> String {
    let text = tokens.to_token_stream().to_string();
    let text = text.replace(" :: ", "::").replace(" . ", ".").replace(" (", "(").replace("( ", "(");
    format!("`{}`", text.replace(" )", ")").replace(['|', '`'], "/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(String, String)> {
        let waits = in_file("a.rs", text).expect("it parses");
        waits.into_iter().map(|wait| (wait.name, wait.value)).collect()
    }

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn constants_are_found_by_type_and_by_name() {
        let text =
            "const A: Duration = Duration::from_secs(2); const B_MS: u64 = 7; const C: u32 = 1;
            impl X { pub const D: std::time::Duration = OTHER; }
            fn f() { const E: Duration = Duration::from_millis(1_500); }";
        let wanted = [("A", "2 s"), ("B_MS", "`7`"), ("X::D", "`OTHER`"), ("f::E", "1500 ms")];
        assert_eq!(found(text), wanted.map(|(name, value)| pair(name, value)));
    }

    #[test]
    fn literals_in_fields_and_functions_are_found_and_variables_are_not() {
        let text =
            "impl Default for Y { fn default() -> Self { Self { a: Duration::from_secs(1), b } } }
            impl L { const J: Self = Self { within: Duration::from_secs(5) }; }
            fn g(x: u64) { sleep(Duration::from_millis(3)); sleep(Duration::from_secs(x)); }";
        let wanted = [("Y.a", "1 s"), ("L::J.within", "5 s"), ("g", "3 ms")];
        assert_eq!(found(text), wanted.map(|(name, value)| pair(name, value)));
    }

    #[test]
    fn code_for_tests_is_left_out_and_optional_deadlines_are_not() {
        let text = "#[cfg(test)] mod tests { const A: Duration = Duration::from_secs(2); }
            pub struct Deadlines { a: Duration, b: Option<Duration> }
            impl Deadlines { fn c(&self) -> Duration { self.a * 5 } }";
        let wanted = [("Deadlines.b", "none"), ("Deadlines::c", "`self.a * 5`")];
        assert_eq!(found(text), wanted.map(|(name, value)| pair(name, value)));
    }
}
