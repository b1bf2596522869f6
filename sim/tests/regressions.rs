//! Regression tests: the product passes runs in which it once failed. Each file of `regressions/` describes its bug.

use std::path::Path;

use sim::{Recording, Regression, RunVerdict};

#[test]
fn what_was_mended_stays_mended() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("it can be read").path();
        let regression = Regression::read(&path).expect("a regression");
        let report = sim::run(&regression.options(), Recording::default());
        assert_eq!(
            report.verdict(),
            RunVerdict::Ok,
            "{}: {}\nrepeat: cargo run --release -p sim -- run --regression {}",
            regression.about,
            report.reason().unwrap_or_default(),
            path.display()
        );
        count += 1;
    }
    assert!(count > 0, "there are some");
}
