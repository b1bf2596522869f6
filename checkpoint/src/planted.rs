//! Planted bugs: with each of them a test must fail that passes without. Tests plant one on their own thread; outside of
//! tests the answer is a constant, and the compiler removes the place.

/// A bug that a test can plant.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum PlantedBug {
    /// The manifest gets its name before the data is safe.
    ManifestBeforeData,
    /// Directories are not synced.
    DirectoryNotSynced,
    /// An old checkpoint is removed before the new one is whole.
    OldRemovedFirst,
    /// Data of an old checkpoint is removed before its manifest.
    DataRemovedBeforeManifest,
    /// The parts' contents are not compared.
    PartsNotCompared,
}

#[cfg(test)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<PlantedBug>> = const { std::cell::Cell::new(None) };
}

/// Whether this bug is planted on this thread.
#[cfg(test)]
pub(crate) fn is_planted(bug: PlantedBug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Whether this bug is planted: never outside of tests.
#[cfg(not(test))]
pub(crate) const fn is_planted(_: PlantedBug) -> bool {
    false
}

/// Plants a bug on this thread in place of the former one.
#[cfg(test)]
pub(crate) fn plant(bug: Option<PlantedBug>) {
    PLANTED.set(bug);
}
