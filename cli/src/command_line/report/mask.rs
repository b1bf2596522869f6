//! Masks secrets in a support bundle: tokens of this program, private keys, passwords in URLs, and values whose names
//! say that they are secret. Called by `gather`; `masked_command` by the driver's process, too, before it stores its
//! command line.

use serde_json::Value;

/// The text in place of a secret.
pub(crate) const MASKED: &str = "[secret]";

/// The ends of names whose values are secret, in lower case with `_` for `-` and `.`.
const SECRET_NAMES: [&str; 15] = [
    "accesskey",
    "access_key",
    "apikey",
    "api_key",
    "authorization",
    "cookie",
    "credential",
    "credentials",
    "passphrase",
    "passwd",
    "password",
    "private_key",
    "secret",
    "secret_key",
    "token",
];

/// The last words of names whose values are secret, in lower case: of flags, of variables, and of names of several words.
const SECRET_WORDS: [&str; 13] = [
    "auth",
    "credential",
    "credentials",
    "key",
    "passphrase",
    "passwd",
    "password",
    "passwords",
    "pwd",
    "secret",
    "secrets",
    "token",
    "authorization",
];

/// The variable in which a shell keeps its working directory.
const WORKING_DIRECTORY: &str = "PWD";

/// Fewest letters of a flag after one dash whose value may be the next word: `-p` may mean anything.
const FLAG_LETTERS_MIN: usize = 3;

/// Fewest characters after `en1-` of a token.
const TOKEN_CHARACTERS_MIN: usize = 16;

/// Fewest characters of a value after `Bearer`.
const BEARER_CHARACTERS_MIN: usize = 8;

/// A command line with its secrets masked: the value of `--password` may also be the word after it.
pub(crate) fn masked_command(words: &[String]) -> Vec<String> {
    let mut is_value = false;
    let masked = words.iter().map(|word| {
        if std::mem::take(&mut is_value) && !word.starts_with('-') {
            return MASKED.to_owned();
        }
        is_value = word.starts_with('-') && is_secret_name(word);
        mask_text(word)
    });
    masked.collect()
}

/// A value with its secrets masked.
pub(super) fn mask_value(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mask = |(name, value): (&String, &Value)| {
                let is_secret = value.is_string() && is_secret_name(name);
                let value = if is_secret { MASKED.into() } else { mask_value(value) };
                (mask_text(name), value)
            };
            Value::Object(fields.iter().map(mask).collect())
        }
        // Lines of a text: a private key goes on from one to the next.
        Value::Array(items) if items.is_empty() => value.clone(),
        Value::Array(items) => match lines(items) {
            Some(lines) => {
                let text = mask_private_keys(&lines.join("\n"));
                let lines: Vec<String> = text.split('\n').map(ToOwned::to_owned).collect();
                Value::Array(masked_command(&lines).into_iter().map(Value::String).collect())
            }
            None => Value::Array(items.iter().map(mask_value).collect()),
        },
        Value::String(text) => Value::String(mask_text(text)),
        other => other.clone(),
    }
}

/// The items as lines of a text, or words of a command line; none if one of them is neither.
fn lines(items: &[Value]) -> Option<Vec<&str>> {
    items.iter().map(|item| item.as_str().filter(|text| !text.contains('\n'))).collect()
}

/// A text with its secrets masked.
pub(super) fn mask_text(text: &str) -> String {
    mask_named(&mask_passwords(&mask_tokens(&mask_private_keys(text))))
}

/// Masks the blocks of private keys. A block without its first or last line reaches to the text's start or end.
fn mask_private_keys(text: &str) -> String {
    let (mut masked, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(label) = rest.find("PRIVATE KEY-----") {
        let label_end = label + "PRIVATE KEY-----".len();
        let dashes = rest[..label].rfind("-----").unwrap_or(0);
        let (begin, end) = match rest[dashes..].starts_with("-----END ") {
            true => (0, label_end),
            false => {
                let after = &rest[label_end..];
                let end = after.find("PRIVATE KEY-----").map(|at| at + "PRIVATE KEY-----".len());
                (dashes, end.map_or(rest.len(), |end| label_end + end))
            }
        };
        masked.push_str(&rest[..begin]);
        masked.push_str(MASKED);
        rest = &rest[end..];
    }
    masked + rest
}

/// Masks tokens of this program, of any version: `en1-…`.
fn mask_tokens(text: &str) -> String {
    let is_part = |it: char| it.is_ascii_alphanumeric() || matches!(it, '-' | '_');
    map_runs(text, is_part, |run| {
        let rest = run.strip_prefix("en")?;
        let (version, body) = rest.split_once('-')?;
        let is_version = !version.is_empty() && version.bytes().all(|it| it.is_ascii_digit());
        (is_version && body.len() >= TOKEN_CHARACTERS_MIN).then(|| MASKED.to_owned())
    })
}

/// Masks `user:password` in `scheme://user:password@host`.
fn mask_passwords(text: &str) -> String {
    let (mut masked, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        masked.push_str(before);
        let is_end = |it: char| it.is_whitespace() || "/?#\"'<>".contains(it);
        let authority = &after[..after.find(is_end).unwrap_or(after.len())];
        rest = match authority.rfind('@').filter(|end| authority[..*end].contains(':')) {
            Some(end) => {
                masked.push_str(MASKED);
                &after[end..]
            }
            None => after,
        };
    }
    masked + rest
}

/// Masks `NAME=value`, `"name": "value"`, `--name value` and `Bearer value`. An apparent value may contain a name
/// itself, whose value follows.
fn mask_named(text: &str) -> String {
    let is_part = |it: char| it.is_ascii_alphanumeric() || matches!(it, '-' | '_' | '.');
    let (mut masked, mut copied, mut at) = (String::with_capacity(text.len()), 0, 0);
    while let Some(begin) = text[at..].find(is_part).map(|begin| at + begin) {
        let end = text[begin..].find(|it| !is_part(it)).map_or(text.len(), |end| begin + end);
        at = end;
        let Some((gap, value)) = value_after(&text[begin..end], &text[end..]) else { continue };
        let value_begin = end + gap;
        if value_begin >= copied {
            masked.push_str(&text[copied..value_begin]);
            masked.push_str(MASKED);
        }
        copied = copied.max(value_begin + value);
    }
    masked + &text[copied..]
}

/// Offset of the secret value after a name, and its length, in bytes; `None` if none follows.
fn value_after(name: &str, after: &str) -> Option<(usize, usize)> {
    let blank = |text: &str| text.len() - text.trim_start_matches([' ', '\t']).len();
    let is_end = |it: char| it.is_whitespace() || ",;&)]}\"'".contains(it);
    let length = |text: &str| text.find(is_end).unwrap_or(text.len());
    if name.eq_ignore_ascii_case("bearer") {
        let gap = blank(after);
        let value = length(&after[gap..]);
        return (gap > 0 && value >= BEARER_CHARACTERS_MIN).then_some((gap, value));
    }
    if !is_secret_name(name) {
        return None;
    }
    let quote = usize::from(after.starts_with(['"', '\'']));
    let mut gap = quote + blank(&after[quote..]);
    let sign = after[gap..].chars().next();
    match sign {
        Some('=' | ':') => {
            gap += 1;
            gap += blank(&after[gap..]);
        }
        // The value of a flag is the next word.
        _ if is_long_flag(name) && quote == 0 && gap > 0 && sign != Some('-') => {}
        _ => return None,
    }
    let value = &after[gap..];
    let value = match value.chars().next().filter(|it| matches!(it, '"' | '\'')) {
        Some(quote) => {
            gap += 1;
            value[1..].find(quote).unwrap_or(value.len() - 1)
        }
        // `Authorization: Basic value`
        None if value.starts_with("Basic ") || value.starts_with("Bearer ") => {
            let scheme = value.find(' ').map_or(0, |at| at + 1);
            scheme + length(&value[scheme..])
        }
        None => length(value),
    };
    // A masked value ends with a bracket, which would end a value, too.
    (value > 0 && !after[gap..].starts_with(MASKED)).then_some((gap, value))
}

/// Whether a name says that its value is secret: by its end, or by its last word.
fn is_secret_name(name: &str) -> bool {
    let ended = name.trim_start_matches('-').to_ascii_lowercase().replace(['-', '.'], "_");
    SECRET_NAMES.iter().any(|secret| ended.ends_with(secret)) || has_secret_word(name)
}

/// Whether the last word of a name, numbers aside, is one of [`SECRET_WORDS`]. A lone word of a text is no name: `key: 5`.
fn has_secret_word(name: &str) -> bool {
    let bare = name.trim_start_matches('-');
    let is_separator = |it: char| matches!(it, '-' | '_' | '.');
    let bare = bare.trim_end_matches(|it: char| it.is_ascii_digit() || is_separator(it));
    let begin = bare.rfind(is_separator).map_or(0, |at| at + 1);
    let word = &bare[begin..];
    // `wandbKey`: a capital begins a word.
    let camel = word
        .rfind(|it: char| it.is_ascii_uppercase())
        .filter(|at| word[..*at].ends_with(|it: char| it.is_ascii_lowercase()));
    let word = &word[camel.unwrap_or(0)..];
    let is_variable = bare.bytes().all(|it| it.is_ascii_uppercase()) && bare != WORKING_DIRECTORY;
    let is_name = word.len() < bare.len() || name.starts_with('-') || is_variable;
    is_name && SECRET_WORDS.iter().any(|secret| word.eq_ignore_ascii_case(secret))
}

/// Whether a name is a flag by its form: `--name`, or `-name` as Go and Java have it.
fn is_long_flag(name: &str) -> bool {
    name.starts_with("--")
        || name.strip_prefix('-').is_some_and(|letters| letters.len() >= FLAG_LETTERS_MIN)
}

/// The text with some of its runs of such characters replaced.
pub(super) fn map_runs(
    text: &str,
    is_part: impl Fn(char) -> bool,
    mut replaced: impl FnMut(&str) -> Option<String>,
) -> String {
    let (mut mapped, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(begin) = rest.find(&is_part) {
        let (before, from) = rest.split_at(begin);
        let (run, after) = from.split_at(from.find(|it| !is_part(it)).unwrap_or(from.len()));
        mapped.push_str(before);
        match replaced(run) {
            Some(other) => mapped.push_str(&other),
            None => mapped.push_str(run),
        }
        rest = after;
    }
    mapped + rest
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_secret_by_its_form_or_its_name_is_masked() {
        for (text, expected) in [
            ("joined with en1-AbC_d-123456789012345678.", "joined with [secret]."),
            ("taken1-abcdefghijklmnopqrst", "taken1-abcdefghijklmnopqrst"),
            ("en1-short", "en1-short"),
            ("WANDB_API_KEY=abc HOME=/x", "WANDB_API_KEY=[secret] HOME=/x"),
            ("{'hf-token': 'a b', 'n': 1}", "{'hf-token': '[secret]', 'n': 1}"),
            ("password : \"x y\" z", "password : \"[secret]\" z"),
            ("run --auth-token xyz --lr 1", "run --auth-token [secret] --lr 1"),
            ("--token --lr", "--token --lr"),
            ("--token-file /a --tokens 5", "--token-file /a --tokens 5"),
            ("Authorization: Basic dXNlcg== x", "Authorization: [secret] x"),
            ("with Bearer abcdefgh12", "with Bearer [secret]"),
            ("etcd://me:pass@h:1/x e://h:1/@", "etcd://[secret]@h:1/x e://h:1/@"),
            ("the token was refused", "the token was refused"),
            ("token=grüße; x", "token=[secret]; x"),
            ("A_TOKEN=en1-abcdefghijklmnopqrst x", "A_TOKEN=[secret] x"),
        ] {
            assert_eq!(mask_text(text), expected);
        }
    }

    #[test]
    fn a_name_whose_last_word_is_secret_masks_its_value_in_each_form_and_no_other_name_does() {
        for name in [
            "--wandb-key",
            "--wandb_key",
            "--wandbKey",
            "--key",
            "--auth",
            "--pwd",
            "--db-passwd",
            "--api-key-2",
            "--hf-token1",
            "-wandb-key",
            "-password",
            "--aws-credentials",
        ] {
            assert_eq!(mask_text(&format!("{name}=abc x")), format!("{name}={MASKED} x"));
            assert_eq!(mask_text(&format!("run {name} abc x")), format!("run {name} {MASKED} x"));
            let command = [name.to_owned(), "abc".to_owned(), "x".to_owned()];
            assert_eq!(masked_command(&command), [name, MASKED, "x"]);
        }
        for variable in ["MYSQL_PWD", "WANDB_KEY", "BASIC_AUTH", "KEY", "SSH_KEY_2", "Db_Secret"] {
            assert_eq!(mask_text(&format!("{variable}=abc x")), format!("{variable}={MASKED} x"));
        }
        for harmless in [
            "--key-size 5",
            "--key-size=5",
            "--tokenizer bert",
            "--num-keys 3",
            "--num_keys=3",
            "--max-tokens 5",
            "--author me",
            "--monkey=1",
            "--hotkeys on",
            "--credential-free x",
            "--secret-sharing 2",
            "-p abc",
            "-pwd",
            "PWD=/home/me",
            "OLDPWD=/home/me",
            "MONKEY=1",
            "key: 5",
            "the key is 5, auth follows",
        ] {
            assert_eq!(mask_text(harmless), harmless);
            let words: Vec<String> = harmless.split(' ').map(ToOwned::to_owned).collect();
            assert_eq!(masked_command(&words), words);
        }
    }

    #[test]
    fn a_private_key_is_masked_also_where_its_begin_or_end_is_missing() {
        let (begin, end) = ("-----BEGIN EC PRIVATE KEY-----", "-----END EC PRIVATE KEY-----");
        for (text, expected) in [
            (format!("a {begin}\nMIG\n{end} b"), "a [secret] b"),
            (format!("a {begin}\nMIG"), "a [secret]"),
            (format!("MIG\n{end} b"), "[secret] b"),
            (format!("{begin}x{end}y{begin}z"), "[secret]y[secret]"),
        ] {
            assert_eq!(mask_text(&text), expected);
        }
        let lines = json!({ "tail": ["x", begin, "MIG", end, "y"] });
        assert_eq!(mask_value(&lines), json!({ "tail": ["x", MASKED, "y"] }));
        let certificate = "-----BEGIN CERTIFICATE-----\nMIG\n-----END CERTIFICATE-----";
        assert_eq!(mask_text(certificate), certificate);
    }

    /// Secrets, each with the text that marks it as one, and parts of texts between which they may stand.
    const PARTS: [&str; 20] = [
        " password=hunter2 ",
        " --api-key hunter2 ",
        " {\"secret\": \"hunter2\"} ",
        " s://u:hunter2@h ",
        " en1-abcdefghij-hunter2 ",
        " -----BEGIN EC PRIVATE KEY-----\nhunter2\n-----END EC PRIVATE KEY----- ",
        "token",
        "=",
        " ",
        "\"",
        "'",
        ":",
        "-----BEGIN EC PRIVATE KEY-----",
        "-----END EC PRIVATE KEY-----",
        "\n",
        "ü",
        "s://",
        "Bearer",
        "Basic ",
        MASKED,
    ];

    #[test]
    fn a_secret_is_masked_whatever_stands_around_it() {
        bolero::check!().with_type::<Vec<u8>>().for_each(|picks| {
            let part = |pick: &u8| PARTS[usize::from(*pick) % PARTS.len()];
            let text: String = picks.iter().map(part).collect();
            let masked = mask_text(&text);
            assert!(!masked.contains("hunter2"), "{text:?} became {masked:?}");
        });
    }

    #[test]
    fn values_are_masked_by_the_names_of_their_fields_and_of_flags() {
        let said = json!({
            "argv": ["x", "--api-key", "abc", "--lr", "1"],
            "environment": { "AWS_SECRET_ACCESS_KEY": "abc", "eos_token": 2 }, "n": [1, "a"],
        });
        let expected = json!({
            "argv": ["x", "--api-key", MASKED, "--lr", "1"],
            "environment": { "AWS_SECRET_ACCESS_KEY": MASKED, "eos_token": 2 }, "n": [1, "a"],
        });
        assert_eq!(mask_value(&said), expected);
    }
}
