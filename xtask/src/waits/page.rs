//! The rows of docs/waits.md. Used by `waits`.

/// Purpose of a duration.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum WaitKind {
    /// A wait ends at this time, whether or not the awaited event has come.
    Deadline,
    /// Something is done at this interval, or put off for this time: the wait is for the time itself.
    Interval,
    /// A span that a decision looks at; nothing waits for its end.
    Span,
}

/// A row of the page.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) file: String,
    pub(super) name: String,
    pub(super) value: String,
    /// None if the page says something else.
    pub(super) kind: Option<WaitKind>,
    pub(super) says: String,
    /// `module::name` of tests.
    pub(super) tests: Vec<String>,
}

/// The rows of all tables of a page that have the columns of [`Row`].
pub(super) fn rows(page: &str) -> Vec<Row> {
    page.lines().filter_map(row).collect()
}

fn row(line: &str) -> Option<Row> {
    let cells: Vec<&str> = line.strip_prefix('|')?.split('|').map(str::trim).collect();
    let [file, name, value, kind, says, tests, _end] = cells[..] else { return None };
    Some(Row {
        file: code(file)?.to_owned(),
        name: code(name)?.to_owned(),
        value: value.to_owned(),
        kind: match kind {
            "deadline" => Some(WaitKind::Deadline),
            "interval" => Some(WaitKind::Interval),
            "span" => Some(WaitKind::Span),
            _ => None,
        },
        says: says.to_owned(),
        tests: tests.split('`').skip(1).step_by(2).map(ToOwned::to_owned).collect(),
    })
}

fn code(cell: &str) -> Option<&str> {
    cell.strip_prefix('`')?.strip_suffix('`')
}
