//! Tests of the messages found in a source file.

use super::*;

#[test]
fn errors_failures_hints_and_log_lines_are_found() {
    let text = r#"
        #[derive(Error)]
        enum Broken {
            #[error("it is {what}")]
            Much { what: String },
            #[error(transparent)]
            Other(Inner),
        }
        impl Broken {
            fn hint(&self) -> String {
                match self { Self::Much { .. } => format!("mend {}", 1), Self::Other(_) => "wait".to_owned() }
            }
        }
        fn carry_out() {
            tracing::warn!(field = "value", %other, "it {} now", 2);
            let failure = CommandFailure::usage(format!("{flag} is wrong")).hint("leave it out");
            other.failed("it failed")?;
            let reason = match why { Some(why) => format!("because {why}"), None => "for nothing".to_owned() };
            emit(EventKind::Warning { text: format!("a worker says {said}") });
            tracing::debug!("unseen");
        }
        #[cfg(test)]
        mod tests { fn f() { tracing::warn!("in a test"); } }
    "#;
    let found = in_file("a.rs", text).expect("it parses");
    let mut said: Vec<(MessageKind, &str, &str)> =
        found.iter().map(|it| (it.kind, it.text.as_str(), it.owner.as_str())).collect();
    said.sort_unstable();
    let error = MessageKind::Error;
    let expected = [
        (error, "because {why}", "a.rs"),
        (error, "for nothing", "a.rs"),
        (error, "it failed", "a.rs"),
        (error, "it is {what}", "Broken"),
        (error, "leave it out", "a.rs"),
        (error, "mend {}", "Broken"),
        (error, "wait", "Broken"),
        (error, "{flag} is wrong", "a.rs"),
        (MessageKind::Log("warn"), "a worker says {said}", "a.rs"),
        (MessageKind::Log("warn"), "it {} now", "a.rs"),
    ];
    assert_eq!(said, expected);
}
