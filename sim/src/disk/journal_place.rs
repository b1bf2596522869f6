//! The driver's journal on a simulated disk: a file, and the draft that replaces it. Opened by `state_dir`.

use std::cell::Cell;

use elastic_journal::{JournalBytes, JournalError, JournalPlace, Occupant};

use super::{Disk, DiskFile};

/// The name of a journal on a disk.
#[derive(Debug)]
pub struct DiskJournalPlace {
    disk: Disk,
    name: &'static str,
    /// The number of the file that was installed last.
    installed: Cell<Option<usize>>,
}

impl DiskJournalPlace {
    /// The place of this name.
    pub const fn new(disk: Disk, name: &'static str) -> Self {
        Self { disk, name, installed: Cell::new(None) }
    }

    fn draft_name(&self) -> String {
        format!("{}.draft", self.name)
    }
}

impl JournalPlace for DiskJournalPlace {
    type File = DiskFile;
    type Hold = ();

    fn read(&self) -> Result<JournalBytes<()>, JournalError> {
        if !self.disk.exists(self.name) {
            return Ok(None);
        }
        let file = self.disk.open(self.name)?;
        let mut bytes = vec![0; file.len()? as usize];
        file.read(0, &mut bytes)?;
        Ok(Some((bytes, ())))
    }

    fn draft(&self) -> Result<DiskFile, JournalError> {
        let draft = self.draft_name();
        if self.disk.exists(&draft) {
            self.disk.remove(&draft)?;
        }
        Ok(self.disk.open(&draft)?)
    }

    fn install(&self) -> Result<(), JournalError> {
        let draft = self.draft_name();
        self.disk.open(&draft)?.sync()?;
        self.disk.rename(&draft, self.name)?;
        self.disk.sync_directory()?;
        // Last, since a caller that gets an error does not use the new file.
        self.installed.set(self.disk.file(self.name));
        Ok(())
    }

    fn occupant(&self) -> Result<Occupant, JournalError> {
        Ok(match self.disk.file(self.name) {
            None => Occupant::Nobody,
            found if found == self.installed.get() => Occupant::Ours,
            Some(_) => Occupant::Other,
        })
    }

    fn name(&self) -> String {
        self.name.to_owned()
    }
}
