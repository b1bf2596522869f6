//! The driver's events with their levels and words, read from the two functions that give them. Used by `messages`.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail};
use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens as _;
use syn::{Expr, Item, Pat, Stmt};

/// An event.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct EventRow {
    /// Its level in the log, or the levels.
    pub(super) level: String,
    /// Its words, as the code has them.
    pub(super) words: Vec<String>,
}

/// The events by kind, as they stand in the event log; `text` is the file of `level_of` and `text_of`.
pub(super) fn rows(text: &str) -> anyhow::Result<BTreeMap<String, EventRow>> {
    let file = syn::parse_file(text).context("the words of events cannot be parsed")?;
    let mut rows: BTreeMap<String, EventRow> = BTreeMap::new();
    for (names, body) in arms(&file, "level_of")? {
        for name in names {
            let row = rows.entry(name).or_default();
            for level in levels(&body) {
                if !row.level.contains(level) {
                    let comma = if row.level.is_empty() { "" } else { " or " };
                    row.level = format!("{}{comma}{level}", row.level);
                }
            }
        }
    }
    for (names, body) in arms(&file, "text_of")? {
        for name in names {
            rows.entry(name).or_default().words.extend(words(body.clone()));
        }
    }
    Ok(rows)
}

type Arm = (Vec<String>, TokenStream);

/// The arms of the match in a function: names of variants, each with its result.
fn arms(file: &syn::File, function: &str) -> anyhow::Result<Vec<Arm>> {
    let functions = file.items.iter().filter_map(|item| match item {
        Item::Fn(item) if item.sig.ident == function => Some(&item.block.stmts),
        _ => None,
    });
    let matched = functions.flatten().find_map(|statement| match statement {
        Stmt::Expr(Expr::Match(matched), _) => Some(matched),
        _ => None,
    });
    let Some(matched) = matched else { bail!("no match in {function}") };
    Ok(matched.arms.iter().map(|arm| (names(&arm.pat), arm.body.to_token_stream())).collect())
}

fn names(pattern: &Pat) -> Vec<String> {
    let path = match pattern {
        Pat::Or(cases) => return cases.cases.iter().flat_map(names).collect(),
        Pat::Struct(it) => &it.path,
        Pat::TupleStruct(it) => &it.path,
        Pat::Path(it) => &it.path,
        _ => return Vec::new(),
    };
    path.segments.last().map(|name| snake_case(&name.ident.to_string())).into_iter().collect()
}

fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.extend(letter.to_lowercase());
    }
    snake
}

fn levels(body: &TokenStream) -> Vec<&'static str> {
    let body = body.to_string();
    let of_name = [
        ("EventLevel :: Warn", "warn"),
        ("EventLevel :: Info", "info"),
        ("EventLevel :: Debug", "debug"),
    ];
    match body.contains("warn_if") {
        true => vec!["warn", "info"],
        false => {
            of_name.iter().filter(|(it, _)| body.contains(it)).map(|(_, level)| *level).collect()
        }
    }
}

/// The literal texts of an arm that have a word.
fn words(tokens: TokenStream) -> Vec<String> {
    let mut found = Vec::new();
    for token in tokens {
        match token {
            TokenTree::Literal(literal) => {
                let text = syn::parse_str::<syn::LitStr>(&literal.to_string());
                found.extend(text.ok().map(|it| it.value()).filter(|it| it.contains(' ')));
            }
            TokenTree::Group(group) => found.extend(words(group.stream())),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_their_levels_and_words() {
        let text = r#"
            fn level_of(event: &EventKind) -> EventLevel {
                let warn_if = 1;
                match event {
                    EventKind::HostLost { .. } | EventKind::WorkerExited { expected: false, .. } => EventLevel::Warn,
                    EventKind::ResetDecided { way, .. } => warn_if(1),
                    EventKind::WorkerExited { .. } => EventLevel::Debug,
                }
            }
            fn text_of(event: &EventKind) -> String {
                match event {
                    EventKind::HostLost { host } => format!("host {host} is lost"),
                    EventKind::ResetDecided { .. } => { let way = "x"; format!("a reset {way}") }
                    EventKind::WorkerExited { .. } => format!("it ended"),
                }
            }
        "#;
        let rows = rows(text).expect("it parses");
        let of = |kind: &str| (rows[kind].level.as_str(), rows[kind].words.join("|"));
        assert_eq!(of("host_lost"), ("warn", "host {host} is lost".to_owned()));
        assert_eq!(of("worker_exited"), ("warn or debug", "it ended".to_owned()));
        assert_eq!(of("reset_decided"), ("warn or info", "a reset {way}".to_owned()));
    }
}
