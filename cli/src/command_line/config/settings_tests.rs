//! Tests of a file's settings, and of the errors for which it is refused.

use clap::CommandFactory as _;

use super::super::super::arguments::CommandLine;
use super::super::file::entries;
use super::*;

fn read(table: ConfigTable, text: &str, given: &[&str]) -> Result<FileSettings, ConfigFileError> {
    let entries = entries("f.toml", text)?;
    settings(&CommandLine::command(), table, PathBuf::from("f.toml"), &entries, given)
}

fn refused(table: ConfigTable, text: &str) -> String {
    read(table, text, &[]).expect_err("a wrong file").to_string()
}

#[test]
fn a_table_goes_before_what_is_said_for_all_and_other_roles_have_no_part_in_it() {
    let text = "np = 4\nlog = \"warn\"\nstate-dir = \"s\"\nmax_restarts = 1\n[run]\nnproc-per-node = 2\n\
                [driver]\nbind = \"127.0.0.1:7\"\n[worker]\nslots = 3\nstate-dir = \"w\"\n";
    let words = |table| read(table, text, &[]).expect("sound").words();
    let run = ["--log=warn", "--max-restarts=1", "--nproc-per-node=2", "--state-dir=s"];
    assert_eq!(words(ConfigTable::Run), run);
    let driver =
        ["--bind=127.0.0.1:7", "--log=warn", "--max-restarts=1", "--np=4", "--state-dir=s"];
    assert_eq!(words(ConfigTable::Driver), driver);
    assert_eq!(words(ConfigTable::Worker), ["--log=warn", "--slots=3", "--state-dir=w"]);
}

#[test]
fn a_flag_or_variable_sets_aside_what_says_the_same() {
    let text = "np = 4\nhosts = \"a:4\"\nrecord = true\n[run]\nverbose = true\n";
    let settings = read(ConfigTable::Run, text, &["nproc_per_node", "hostfile"]).expect("sound");
    assert_eq!(settings.words(), ["--record", "--verbose"]);
    let aside: Vec<&str> = settings.set_aside.iter().map(|it| it.flag.as_str()).collect();
    assert_eq!(aside, ["hosts", "np"]);
}

#[test]
fn wrong_keys_are_named_with_their_line_and_what_was_meant() {
    let meant = |text: &str| match read(ConfigTable::Run, text, &[]) {
        Err(ConfigFileError::UnknownKey { meant, at, .. }) => (at.line, meant),
        other => panic!("{other:?}"),
    };
    assert_eq!(meant("np = 2\nmim-np = 1\n"), (2, Some("min-np".to_owned())));
    assert_eq!(meant("[worker]\nmin_np = 1\n"), (2, Some("min-np".to_owned())));
    assert_eq!(meant("something = 1\n"), (1, None));
    for (text, expected) in [
        ("[worker]\nnp = 1\n", "f.toml, line 2: np is no flag of [worker]"),
        ("role = \"driver\"\n", "f.toml, line 1: role cannot be set in a configuration file"),
        ("config = \"g\"\n", "f.toml, line 1: config cannot be set in a configuration file"),
        ("launched = true\n", "f.toml, line 1: no flag is called \"launched\""),
        (
            "[worker]\ntoken = \"x\"\n",
            "f.toml, line 2: token is a secret, which does not belong into a configuration file",
        ),
        (
            "np = 1\nnproc-per-node = 2\n",
            "f.toml, line 2: nproc-per-node and np contradict each other",
        ),
    ] {
        assert_eq!(refused(ConfigTable::Run, text), expected);
    }
}

#[test]
fn wrong_values_are_named_with_what_the_flag_takes() {
    for (text, expected) in [
        ("np = true", "np takes a text or a number, not true or false"),
        ("np = [1]", "np takes a text or a number, not an array"),
        ("record = 1", "record takes true or false, not a text or a number"),
        (
            "umask = 0o27",
            "umask takes a text or a number, not an octal, hexadecimal or binary number",
        ),
        ("np = \"many\"", "np = \"many\": \"many\" is not a whole number of at least 1"),
        ("np = -1", "np = \"-1\": \"-1\" is not a whole number of at least 1"),
        ("mode = \"restrat\"", "mode = \"restrat\": it is one of auto, in-process, restart"),
        (
            "blacklist-cooldown-range = []",
            "blacklist-cooldown-range takes an array, not an empty array",
        ),
        ("np = 2020-01-01", "np takes a text or a number, not a date"),
    ] {
        assert_eq!(refused(ConfigTable::Driver, text), format!("f.toml, line 1: {expected}"));
    }
    // Values that only other roles would read are not checked: an address may be resolved only there.
    assert!(read(ConfigTable::Worker, "np = \"many\"", &[]).is_ok());
}

#[test]
fn values_of_a_file_lie_beneath_the_command_line() {
    let text =
        "np = 4\nmin-np = 2\nrecord = true\nlog = \"warn\"\nblacklist-cooldown-range = [10, 60]\n";
    let settings = read(ConfigTable::Run, text, &["np"]).expect("sound");
    let line = ["elastic-node", "run", "-n", "3", "--", "x"];
    let command = settings.beneath(CommandLine::command());
    let matches = command.try_get_matches_from(line).expect("sound");
    let of_run = matches.subcommand_matches("run").expect("run");
    assert_eq!(of_run.get_one::<u32>("np"), Some(&3));
    assert_eq!(of_run.get_one::<u32>("min_np"), Some(&2));
    assert!(of_run.get_flag("record"));
    assert_eq!(of_run.get_one::<String>("log").map(String::as_str), Some("warn"));
    let range = of_run.get_many::<std::time::Duration>("blacklist_cooldown_range");
    let range: Vec<u64> = range.expect("two").map(std::time::Duration::as_secs).collect();
    assert_eq!(range, [10, 60]);
}
