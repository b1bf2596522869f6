//! The values that a mutant of a function can return at once instead of doing its work, by its return type. Used by
//! `find`.

use syn::{GenericArgument, PathArguments, ReturnType, Type};

/// Integer types.
const INTEGERS: [&str; 12] =
    ["u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "i128", "isize"];

/// Collections that are empty at first.
const COLLECTIONS: [&str; 5] = ["BTreeMap", "BTreeSet", "VecDeque", "BinaryHeap", "LinkedList"];

/// The values, as source text; none for an unknown type. Texts have none: their wording is no decision.
pub(crate) fn of_return(returned: &ReturnType) -> Vec<String> {
    match returned {
        ReturnType::Default => vec![String::new()],
        ReturnType::Type(_, returned) => of_type(returned),
    }
}

fn of_type(returned: &Type) -> Vec<String> {
    let owned = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect();
    match returned {
        Type::Tuple(tuple) if tuple.elems.is_empty() => owned(&["()"]),
        Type::Reference(reference) => match &*reference.elem {
            Type::Slice(_) if reference.mutability.is_none() => owned(&["&[]"]),
            _ => Vec::new(),
        },
        Type::Path(path) if path.qself.is_none() => {
            let Some(last) = path.path.segments.last() else { return Vec::new() };
            let name = last.ident.to_string();
            match name.as_str() {
                "bool" => owned(&["true", "false"]),
                "f32" | "f64" => owned(&["0.0"]),
                "Option" => owned(&["None"]),
                "Vec" => owned(&["Vec::new()"]),
                "Duration" => owned(&["std::time::Duration::ZERO"]),
                "Result" => first_argument(&last.arguments).map_or_else(Vec::new, |ok| {
                    of_type(ok).into_iter().map(|value| format!("Ok({value})")).collect()
                }),
                name if INTEGERS.contains(&name) => owned(&["0", "1"]),
                name if COLLECTIONS.contains(&name) => {
                    vec![format!("std::collections::{name}::new()")]
                }
                _ => Vec::new(),
            }
        }
        _ => Vec::new(),
    }
}

fn first_argument(arguments: &PathArguments) -> Option<&Type> {
    let PathArguments::AngleBracketed(arguments) = arguments else { return None };
    arguments.args.iter().find_map(|argument| match argument {
        GenericArgument::Type(of) => Some(of),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(returned: &str) -> Vec<String> {
        of_type(&syn::parse_str(returned).expect("it is a type"))
    }

    #[test]
    fn a_type_has_its_plain_values() {
        assert_eq!(values("bool"), ["true", "false"]);
        assert_eq!(values("Result<(), Error>"), ["Ok(())"]);
        assert_eq!(values("Option<&'a str>"), ["None"]);
        assert_eq!(values("BTreeSet<WorkerId>"), ["std::collections::BTreeSet::new()"]);
        assert!(values("String").is_empty());
        assert!(values("impl Iterator<Item = u32>").is_empty());
    }
}
