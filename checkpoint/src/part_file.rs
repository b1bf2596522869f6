//! Names of the files of a part. They say the attempt and its writer, so that files of different attempts at one step differ in
//! their names, and a writer finds its own files again. Used by `part`, `seal` and `remains`.

/// The content of a part's file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum PartFileKind {
    /// Arrays.
    Tensors,
    /// The part of the state that is not in arrays.
    Rest,
    /// The part's own record, which is written last.
    Record,
}

impl PartFileKind {
    const ALL: [Self; 3] = [Self::Tensors, Self::Rest, Self::Record];

    /// The begin of a name, and its extension.
    const fn affixes(self) -> (&'static str, &'static str) {
        match self {
            Self::Tensors => ("tensors", "safetensors"),
            Self::Rest => ("rest", "bin"),
            Self::Record => ("part", "json"),
        }
    }
}

/// A file of a part.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct PartFile {
    pub(crate) kind: PartFileKind,
    /// The driver's term.
    pub(crate) term: u64,
    pub(crate) generation: u64,
    /// The writer.
    pub(crate) rank: u32,
    /// The number of writers.
    pub(crate) world_size: u32,
}

impl PartFile {
    /// Its name.
    pub(crate) fn name(&self) -> String {
        let Self { kind, term, generation, rank, world_size } = self;
        let (begin, extension) = kind.affixes();
        format!("{begin}-{term}.{generation}-{rank:05}-of-{world_size:05}.{extension}")
    }

    /// The file that a name means; none if it is no name of a part's file.
    pub(crate) fn of(name: &str) -> Option<Self> {
        let (begin, rest) = name.split_once('-')?;
        let (stamp, rest) = rest.split_once('-')?;
        let (rank, rest) = rest.split_once("-of-")?;
        let (world_size, extension) = rest.split_once('.')?;
        let (term, generation) = stamp.split_once('.')?;
        let file = Self {
            kind: PartFileKind::ALL
                .into_iter()
                .find(|kind| kind.affixes() == (begin, extension))?,
            term: term.parse().ok()?,
            generation: generation.parse().ok()?,
            rank: rank.parse().ok()?,
            world_size: world_size.parse().ok()?,
        };
        (file.name() == name).then_some(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_was_written_and_no_other_name_is() {
        for kind in PartFileKind::ALL {
            for (rank, world_size) in [(0, 1), (7, 12), (123_456, 200_000)] {
                let file = PartFile { kind, term: 3, generation: 41, rank, world_size };
                assert_eq!(PartFile::of(&file.name()), Some(file));
            }
        }
        for name in [
            "manifest.json",
            "manifest.json.partial",
            "part-1.1-00000-of-00001.bin",
            "part-1.1-0-of-1.json",
            "part-+1.1-00000-of-00001.json",
            "part-1-00000-of-00001.json",
            "rest-1.1-00000-of-00001.bin.old",
            "notes-1.1-00000-of-00001.json",
        ] {
            assert_eq!(PartFile::of(name), None, "{name}");
        }
    }
}
