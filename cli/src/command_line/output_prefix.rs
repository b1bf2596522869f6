//! The value of `--output-prefix`, and the template that agents get of it. Called by clap and `driver_plan`.

/// Longest text of a prefix, in bytes: it stands before every line.
const PREFIX_BYTES_MAX: usize = 200;

/// The placeholders of a prefix, with those of the agents' templates.
const PLACEHOLDERS: [(&str, &str); 4] = [
    ("{host}", "${hostname}"),
    ("{slot}", "${slot}"),
    ("{rank}", "${rank}"),
    ("{time}", "${time}"),
];

/// Prefix of each line of a worker's output.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct OutputPrefix(String);

impl OutputPrefix {
    /// The template for agents.
    pub(super) fn into_template(self) -> String {
        self.0
    }
}

/// Parses the value of `--output-prefix`: `none`, `rank`, or a text with placeholders.
pub(super) fn output_prefix(text: &str) -> Result<OutputPrefix, String> {
    let text = match text {
        "none" => return Ok(OutputPrefix(String::new())),
        "rank" => "[{rank}] ",
        text => text,
    };
    let known = PLACEHOLDERS.map(|(name, _)| name).join(", ");
    if text.len() > PREFIX_BYTES_MAX {
        return Err(format!("it is longer than {PREFIX_BYTES_MAX} bytes"));
    }
    if text.contains(char::is_control) {
        return Err("it has control characters".to_owned());
    }
    let (mut template, mut rest) = (String::new(), text);
    while let Some(at) = rest.find('{') {
        let (before, after) = rest.split_at(at);
        let Some((name, of_agents)) = PLACEHOLDERS.iter().find(|(it, _)| after.starts_with(it))
        else {
            let end = after.find('}').map_or(after.len(), |end| end + 1);
            return Err(format!("{} is none of {known}", &after[..end]));
        };
        template.push_str(before);
        template.push_str(of_agents);
        rest = &after[name.len()..];
    }
    if template.is_empty() {
        return Err(format!("{text:?} is none of none, rank, or a text with {known}"));
    }
    template.push_str(rest);
    Ok(OutputPrefix(template))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_those_of_agents_and_others_are_refused() {
        let template = |text| output_prefix(text).map(OutputPrefix::into_template);
        assert_eq!(template("none"), Ok(String::new()));
        assert_eq!(template("rank"), Ok("[${rank}] ".to_owned()));
        assert_eq!(template("{host}:{slot} | "), Ok("${hostname}:${slot} | ".to_owned()));
        assert_eq!(template("{time} "), Ok("${time} ".to_owned()));
        for (wrong, named) in [
            ("rnak", "none of none, rank"),
            ("", "none of none, rank"),
            ("{pid}", "{pid} is none of {host}"),
            ("{host} {ho", "{ho is none of"),
            ("{host}\u{1b}[0m", "control"),
        ] {
            let refused = template(wrong).expect_err(wrong);
            assert!(refused.contains(named), "{wrong:?}: {refused}");
        }
        assert!(template(&"{host}".repeat(50)).is_err());
    }
}
