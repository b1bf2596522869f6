//! The driver's own flags and variables with their secrets masked, as the list of this user's jobs keeps them for a support
//! bundle. Called by the driver's process.

use std::collections::BTreeMap;
use std::ffi::OsString;

use super::mask::masked_command;
use crate::command_line::reading::flag_variables;
use crate::command_line::worker_flags::TOKEN_VARIABLE;

/// Most words of a command line that are kept.
const WORDS_MAX: usize = 200;

/// The words of the driver's command line without the program that follows them, then those of its configuration file; all
/// without secrets.
pub(crate) fn masked_flags(
    command_line: impl Iterator<Item = OsString>,
    program: &[String],
    from_file: &[String],
) -> Vec<String> {
    let words = command_line.skip(1).map(|word| word.to_string_lossy().into_owned());
    let mut words: Vec<String> = words.collect();
    // The plan may have put an interpreter before the program, or may have found the program's path.
    let program = program.iter().rev();
    let same = words.iter().rev().zip(program).take_while(|(word, part)| word == part).count();
    words.truncate(words.len() - same);
    if let Some(dashes) = words.iter().position(|word| word == "--") {
        words.truncate(dashes);
    }
    words.extend_from_slice(from_file);
    words.truncate(WORDS_MAX);
    masked_command(&words)
}

/// The variables of this process that set flags, without secrets.
pub(crate) fn masked_variables() -> BTreeMap<String, String> {
    let names = flag_variables().into_iter().filter_map(|name| name.into_string().ok());
    let set = names.filter_map(|name| Some((std::env::var(&name).ok()?, name)));
    set.filter(|(_, name)| name != TOKEN_VARIABLE)
        .map(|(value, name)| masked(name, &value))
        .collect()
}

fn masked(name: String, value: &str) -> (String, String) {
    let line = masked_command(&[format!("{name}={value}")]).concat();
    let value = line.strip_prefix(&format!("{name}=")).unwrap_or_default().to_owned();
    (name, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(ToOwned::to_owned).collect()
    }

    #[test]
    fn the_driver_s_flags_are_kept_without_the_program_and_without_secrets() {
        for (line, program, expected) in [
            ("elastic-node run -n 2 -- train --lr 1", "/bin/train --lr 1", "run -n 2"),
            ("elastic-node run -n 2 a.py -- x", "python3 a.py -- x", "run -n 2"),
            (
                "elastic-node run --token abc --store etcd://me:pw@h:1 --rdzv-conf a=1,token=x a.py",
                "python3 a.py",
                "run --token [secret] --store etcd://[secret]@h:1 --rdzv-conf a=1,token=[secret]",
            ),
        ] {
            let line = words(line).into_iter().map(OsString::from);
            let flags = masked_flags(line, &words(program), &[]);
            assert_eq!(flags.join(" "), expected);
        }
        let line = ["elastic-node", "run", "a.py"].map(OsString::from).into_iter();
        let of_file = ["--store=etcd://me:pw@h:1".to_owned()];
        let flags = masked_flags(line, &words("a.py"), &of_file);
        assert_eq!(flags, ["run", "--store=etcd://[secret]@h:1"], "those of a file, too");
        let (name, value) = masked("PET_RDZV_CONF".to_owned(), "token=x,a=1");
        assert_eq!((name.as_str(), value.as_str()), ("PET_RDZV_CONF", "token=[secret],a=1"));
    }
}
