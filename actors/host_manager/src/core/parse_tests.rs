//! Tests of the grammar of discovery output, line by line, and with random text.

use proptest::prelude::*;

use super::*;

fn hosts(output: &str) -> Vec<(String, u32)> {
    let parsed = parse_hosts(output, Some(7));
    assert_eq!(parsed.errors, [], "in {output:?}");
    parsed.hosts.into_iter().map(|host| (host.name.to_string(), host.slots)).collect()
}

fn problem(line: &str) -> LineProblem {
    let mut parsed = parse_hosts(line, None);
    assert_eq!(parsed.hosts, [], "in {line:?}");
    parsed.errors.pop().unwrap_or_else(|| panic!("{line:?} is taken")).problem
}

#[test]
fn what_horovod_prints() {
    assert_eq!(hosts(""), []);
    assert_eq!(hosts("h"), [("h".to_owned(), 7)]);
    assert_eq!(hosts("h:2"), [("h".to_owned(), 2)]);
    let two = [("a".to_owned(), 1), ("b".to_owned(), 2)];
    for output in ["a:1\nb:2", "\na:1\nb:2", "a:1\n\nb:2\n", "a:1\nb:2\n\n", "a:1\r\nb:2\r\n"] {
        assert_eq!(hosts(output), two);
    }
}

#[test]
fn what_people_write() {
    let two = [("a".to_owned(), 1), ("b".to_owned(), 2)];
    for output in [
        "# all of them\na:1 # old\n  #indented\n b:2 ",
        "a slots=1\nb slots=2",
        "a : 1\nb:\t2",
        "\u{feff}a:1\nb:02",
    ] {
        assert_eq!(hosts(output), two);
    }
    assert_eq!(hosts("a#1:2"), [("a#1".to_owned(), 2)], "no white space, no comment");
    assert_eq!(hosts("../x:1\nhöst:1\nmy host:1").len(), 3, "X-20");
}

#[test]
fn ipv6_stands_in_brackets() {
    assert_eq!(hosts("[::1]:2"), [("::1".to_owned(), 2)]);
    assert_eq!(hosts("[fe80::1%eth0]"), [("fe80::1%eth0".to_owned(), 7)]);
    assert_eq!(hosts("[::1] slots=3"), [("::1".to_owned(), 3)]);
    assert_eq!(problem("::1"), LineProblem::ManyColons);
    for line in ["[::1", "[]:2", "[host]:2", "[::1]2"] {
        assert_eq!(problem(line), LineProblem::Brackets, "{line}");
    }
}

#[test]
fn x_7_every_malformed_line_is_named() {
    assert_eq!(problem(":2"), LineProblem::Host(InvalidHostName::Empty));
    assert_eq!(problem("h"), LineProblem::NoSlots);
    assert_eq!(problem("h:"), LineProblem::NotANumber { slots: String::new() });
    assert_eq!(problem("h:x"), LineProblem::NotANumber { slots: "x".to_owned() });
    assert_eq!(problem("h:1.5"), LineProblem::NotANumber { slots: "1.5".to_owned() });
    assert_eq!(problem("h:+1"), LineProblem::NotANumber { slots: "+1".to_owned() });
    assert_eq!(problem("h:-1"), LineProblem::NegativeSlots { slots: "-1".to_owned() });
    assert_eq!(problem("h:0"), LineProblem::ZeroSlots);
    assert_eq!(problem("h:4097"), LineProblem::TooManySlots { slots: "4097".to_owned() });
    let huge = "99999999999999999999";
    assert_eq!(problem(&format!("h:{huge}")), LineProblem::TooManySlots { slots: huge.to_owned() });
    assert_eq!(problem("h\u{fffd}:1"), LineProblem::NotUtf8);
    assert_eq!(problem("h\0:1"), {
        let name = "h\0".to_owned();
        LineProblem::Host(InvalidHostName::ControlCharacter { name })
    });
    let long = "x".repeat(LINE_BYTES_MAX + 1);
    assert_eq!(problem(&long), LineProblem::TooLong { bytes: LINE_BYTES_MAX + 1 });
    let name = format!("{}:1", "x".repeat(256));
    assert_eq!(problem(&name), LineProblem::Host(InvalidHostName::TooLong { bytes: 256 }));
}

#[test]
fn the_first_of_two_lines_of_a_host_counts() {
    let parsed = parse_hosts("a:1\nb:1\na:2\n", None);
    assert_eq!(parsed.hosts.len(), 2);
    assert_eq!(parsed.hosts[0].slots, 1);
    let text = parsed.errors[0].to_string();
    assert_eq!(text, "line 3 (\"a:2\"): the host stands there already, as number 1");
}

#[test]
fn a_host_with_unreadable_slots_is_unclear_unless_another_line_is_clear() {
    let parsed = parse_hosts("a:x\nb:x\nb:1\nc:0\n", None);
    let unclear: Vec<_> = parsed.unclear.iter().map(HostName::as_str).collect();
    assert_eq!(unclear, ["a"]);
}

#[test]
fn h_15_a_malformed_line_names_the_host_of_its_first_word() {
    let unclear = |line: &str, default: Option<u32>| {
        let parsed = parse_hosts(line, default);
        assert_eq!((parsed.hosts.len(), parsed.errors.len()), (0, 1), "{line:?}");
        parsed.unclear.into_iter().map(|host| host.to_string()).collect::<Vec<_>>()
    };
    for line in ["c:1:1", "c cpu=4", "c max_slots=4", "c slots=1 max_slots=4", "c:1\u{fffd}"] {
        assert_eq!(unclear(line, None), ["c"], "{line:?}");
        assert_eq!(unclear(line, Some(1)), ["c"], "{line:?}");
    }
    assert_eq!(unclear("c 2", None), ["c"], "a name may have spaces, if slots follow");
    assert_eq!(unclear("my host:x", None), ["my host"]);
    assert_eq!(unclear("::1", None), ["::1"], "an address without its brackets");
    for line in ["[::1", "[::1]2", "[::1]:x", "[::1] cpu=4"] {
        assert_eq!(unclear(line, None), ["::1"], "{line:?}");
    }
    for line in ["c:0", "c slots=0", ":1:1"] {
        assert_eq!(unclear(line, None), [""; 0], "{line:?}");
    }
    let attribute = "cpu=4".to_owned();
    assert_eq!(problem("c cpu=4"), LineProblem::UnknownAttribute { attribute });
}

#[test]
fn x_7_a_flood_of_malformed_lines_is_counted() {
    let parsed = parse_hosts(&"x:\n".repeat(100_000), None);
    assert_eq!(parsed.errors.len() + parsed.errors_left_out, 100_000);
    assert_eq!(parsed.complaints().count(), LINE_ERRORS_MAX + 1);
    let longest = parsed.complaints().map(|complaint| complaint.len()).max();
    assert!(longest < Some(200));
}

#[test]
fn a_list_on_one_line() {
    let hosts = parse_host_list("a:2, b:1,[::1]:3,", None).expect("all are hosts");
    assert_eq!(hosts.iter().map(|host| host.slots).collect::<Vec<_>>(), [2, 1, 3]);
    let error = parse_host_list("a:2,b", None).expect_err("b has no slots");
    assert!(error.to_string().starts_with("entry 2 of the host list (\"b\"): no slots"));
}

proptest! {
    #[test]
    fn any_text_is_safe(output in "(\\PC|\n|:|-|[0-9]|\\[|\\]|#| ){0,200}", slots in 1..5_u32) {
        let parsed = parse_hosts(&output, Some(slots));
        let lines = output.lines().count();
        prop_assert!(parsed.hosts.len() + parsed.errors.len() + parsed.errors_left_out <= lines);
        for (index, host) in parsed.hosts.iter().enumerate() {
            prop_assert!((1..=SLOTS_MAX).contains(&host.slots));
            prop_assert!(parsed.hosts[..index].iter().all(|other| other.name != host.name));
            prop_assert!(!parsed.unclear.contains(&host.name));
        }
    }

    #[test]
    fn what_is_printed_is_read(names in prop::collection::btree_set("[a-z][a-z0-9.-]{0,20}", 0..20)) {
        let lines: Vec<String> = names.iter().map(|name| format!("{name}:3")).collect();
        let parsed = parse_hosts(&lines.join("\n"), None);
        prop_assert_eq!(&parsed.errors, &[]);
        let read: Vec<&str> = parsed.hosts.iter().map(|host| host.name.as_str()).collect();
        prop_assert_eq!(read, names.iter().map(String::as_str).collect::<Vec<_>>());
    }
}

#[test]
fn x_7_hosts_beyond_the_bound_are_named() {
    let output: String = (0..=HOSTS_MAX).map(|number| format!("h{number}:1\n")).collect();
    let parsed = parse_hosts(&output, None);
    assert_eq!(parsed.hosts.len(), HOSTS_MAX);
    let problems: Vec<(usize, LineProblem)> =
        parsed.errors.into_iter().map(|error| (error.line_number, error.problem)).collect();
    assert_eq!(problems, [(HOSTS_MAX + 1, LineProblem::TooManyHosts)]);
}
