//! The parts of a document in Markdown that are checked: links, anchors of headings. Used by `docs`.

use std::collections::BTreeSet;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// Parts of a document.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct DocumentParts {
    /// Targets of its links and pictures, as they are written.
    pub(crate) links: Vec<String>,
    /// Anchors of its headings.
    pub(crate) anchors: BTreeSet<String>,
}

/// Reads a document.
pub(crate) fn parts(text: &str) -> DocumentParts {
    let mut parts = DocumentParts::default();
    let mut heading: Option<String> = None;
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                parts.links.push(dest_url.into_string());
            }
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => {
                let base = anchor(&heading.take().unwrap_or_default());
                let numbered = (1_u32..).map(|number| format!("{base}-{number}"));
                let mut all = std::iter::once(base.clone()).chain(numbered);
                parts.anchors.extend(all.find(|it| !parts.anchors.contains(it)));
            }
            Event::Text(text) | Event::Code(text) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&text);
                }
            }
            _ => {}
        }
    }
    parts
}

/// The anchor of a heading, as GitHub and mdBook make it.
pub(crate) fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter_map(|letter| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        letter if letter.is_alphanumeric() => Some(letter),
        _ => None,
    });
    kept.flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_anchors_are_found_and_code_is_no_link() {
        let parts = parts(
            "# A `b` c\n[x](y.md#z) `[no](link)`\n\n## Twice\n\n## Twice\n\n| a |\n| --- |\n| [t](u) |\n",
        );
        assert_eq!(parts.links, ["y.md#z", "u"]);
        let anchors: Vec<&str> = parts.anchors.iter().map(String::as_str).collect();
        assert_eq!(anchors, ["a-b-c", "twice", "twice-1"]);
        assert_eq!(anchor("What `--config` says, and why"), "what---config-says-and-why");
    }
}
