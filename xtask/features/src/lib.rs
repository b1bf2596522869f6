//! No code: the dependencies of this package give every selection of packages the same features of external crates, so
//! that `cargo run -p bench` after `cargo run -p sim` compiles none of them again. Nothing that ships depends on it; the
//! programs for developers do, and the tests of all packages.
