//! By scenario.
