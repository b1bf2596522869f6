//! The recorded decisions that are committed in words. All of them, in their hundreds, are compared by `sim decisions`.

use std::path::Path;

use sim::decisions::record::{self, Decisions};

#[test]
fn nodes_decide_as_recorded() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("decisions");
    let runs = record::read(&folder).expect("the recorded decisions");
    let told: Vec<_> = runs.iter().filter(|run| run.is_told(&folder)).collect();
    assert!(told.len() >= 12, "{} runs are recorded in words", told.len());
    for run in told {
        let now = Decisions::of(&run.options);
        let differs = run.differs(&folder, &now).expect("the recorded decisions");
        assert_eq!(
            differs,
            None,
            "{}; `cargo xtask decisions --accept` records a change that is meant",
            run.name()
        );
    }
}
