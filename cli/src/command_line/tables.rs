//! Tables for people, as wide as the terminal that shows them. Used by the commands that list something.

use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};

use super::stdout::stdout_columns;

/// A table without lines. On a terminal it is at most as wide as that: long cells are broken at their words.
pub(crate) fn plain_table<const COLUMNS: usize>(header: [&str; COLUMNS]) -> Table {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(header);
    if let Some(columns) = stdout_columns() {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(columns);
    }
    table
}

/// The table's lines. Blanks at the end of a line would take a line of their own on a narrow terminal.
pub(crate) fn lines_of(table: &Table) -> String {
    let lines: Vec<String> = table.to_string().lines().map(|it| it.trim_end().to_owned()).collect();
    lines.join("\n")
}
