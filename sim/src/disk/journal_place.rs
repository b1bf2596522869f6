//! The driver's journal on a simulated disk: a file, and the draft that replaces it.

use elastic_journal::{JournalBytes, JournalError, JournalPlace, Occupant};

use super::{Disk, DiskFile};

/// The name of a journal on a disk.
#[derive(Debug)]
pub struct DiskJournalPlace {
    disk: Disk,
    name: &'static str,
}

impl DiskJournalPlace {
    /// The place of this name.
    pub const fn new(disk: Disk, name: &'static str) -> Self {
        Self { disk, name }
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
        Ok(self.disk.sync_directory()?)
    }

    fn occupant(&self) -> Result<Occupant, JournalError> {
        // Nothing else writes on this disk.
        Ok(if self.disk.exists(self.name) { Occupant::Ours } else { Occupant::Nobody })
    }

    fn name(&self) -> String {
        self.name.to_owned()
    }
}
