//! The program and the libraries that a process has mapped, with their unwind tables, and the walk up a stack by them.
//! Called by `native_stack`.

use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};

use framehop::{
    CacheNative, ExplicitModuleSectionInfo, FrameAddress, MayAllocateDuringUnwind, Module,
    Unwinder as _, UnwinderNative,
};
use nix::unistd::Pid;
use object::elf::PF_X;
use object::read::elf::{ElfFile64, ProgramHeader as _};
use object::{Endianness, Object as _, ObjectSection as _, ReadCache};

use super::NativeStackError;
use super::snapshot::ThreadSnapshot;

/// Most calls of a stack that are walked: a recursion without end is told by its innermost ones.
const CALLS_MAX: usize = 256;

/// Largest unwind table that is read; that of torch's largest library takes a tenth of it.
const TABLE_BYTES_MAX: u64 = 256 << 20;

/// Code that a process has mapped from a file.
#[derive(Clone, Debug, Eq, PartialEq)]
struct MappedCode {
    addresses: Range<u64>,
    /// Its offset in the file.
    offset: u64,
    path: PathBuf,
}

/// The mapped code of a process. Unwind tables are read from the files when a stack leads there.
pub(super) struct Modules {
    mapped: Vec<(MappedCode, bool)>,
    unwinder: UnwinderNative<Vec<u8>, MayAllocateDuringUnwind>,
}

impl Modules {
    pub(super) fn of(pid: Pid) -> Result<Self, NativeStackError> {
        let path = PathBuf::from(format!("/proc/{pid}/maps"));
        let maps = fs::read_to_string(&path);
        let maps = maps.map_err(|source| NativeStackError::Unreadable { path, source })?;
        let mapped = maps.lines().filter_map(MappedCode::parse).map(|code| (code, false));
        Ok(Self { mapped: mapped.collect(), unwinder: UnwinderNative::new() })
    }

    /// The addresses of a thread's calls, the innermost first.
    pub(super) fn calls(&mut self, snapshot: &ThreadSnapshot) -> Vec<u64> {
        let mut cache = CacheNative::<MayAllocateDuringUnwind>::new();
        let mut registers = snapshot.registers;
        let mut read = |address| snapshot.word(address).ok_or(());
        let mut next = Some(FrameAddress::from_instruction_pointer(snapshot.instruction));
        let mut calls = Vec::new();
        while let Some(call) = next.filter(|_| calls.len() < CALLS_MAX) {
            let address = call.address_for_lookup();
            calls.push(address);
            self.load(address);
            let caller = self.unwinder.unwind_frame(call, &mut registers, &mut cache, &mut read);
            // The walk ends at the first error. The calls that were found before it are returned.
            next = caller.ok().flatten().and_then(FrameAddress::from_return_address);
        }
        calls
    }

    /// The name of the file that an address belongs to.
    pub(super) fn file_name(&self, address: u64) -> Option<String> {
        let mut mapped = self.mapped.iter().map(|(code, _)| code);
        let code = mapped.find(|code| code.addresses.contains(&address))?;
        Some(code.path.file_name()?.to_string_lossy().into_owned())
    }

    /// Reads the unwind tables of the code at an address, once.
    fn load(&mut self, address: u64) {
        let mut mapped = self.mapped.iter_mut();
        let found = mapped.find(|(code, _)| code.addresses.contains(&address));
        let Some((code, is_loaded)) = found.filter(|(_, is_loaded)| !is_loaded) else { return };
        *is_loaded = true;
        match code.module() {
            Some(module) => self.unwinder.add_module(module),
            None => tracing::debug!(path = %code.path.display(), "it has no unwind tables"),
        }
    }
}

impl MappedCode {
    /// Parses a line of `/proc/PID/maps`: `ADDRESSES PERMISSIONS OFFSET DEVICE INODE PATH`.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(6, ' ');
        let (addresses, permissions, offset) = (words.next()?, words.next()?, words.next()?);
        let path = words.nth(2)?.trim_start();
        let (from, to) = addresses.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let is_code = permissions.contains('x') && path.starts_with('/');
        is_code.then_some(Self {
            addresses: number(from)?..number(to)?,
            offset: number(offset)?,
            path: path.into(),
        })
    }

    /// Its unwind tables. `None` if the file has none, or is not there any more.
    fn module(&self) -> Option<Module<Vec<u8>>> {
        // A file that was replaced may be anything now, such as a pipe that nobody writes to.
        if !fs::metadata(&self.path).ok()?.is_file() {
            return None;
        }
        let file = ReadCache::new(File::open(&self.path).ok()?);
        let elf = ElfFile64::<Endianness, _>::parse(&file).ok()?;
        let base = self.base(&elf)?;
        let section = |name| {
            let section = elf.section_by_name(name)?;
            let (at, size) = (section.address(), section.size());
            let data = (size <= TABLE_BYTES_MAX).then(|| section.data().ok()).flatten()?;
            Some((at..at + size, data.to_vec()))
        };
        let ranges = |name| {
            let section = elf.section_by_name(name)?;
            Some(section.address()..section.address() + section.size())
        };
        let (eh_frame_svma, eh_frame) = section(".eh_frame").unzip();
        let (eh_frame_hdr_svma, eh_frame_hdr) = section(".eh_frame_hdr").unzip();
        let info = ExplicitModuleSectionInfo {
            text_svma: ranges(".text"),
            got_svma: ranges(".got"),
            eh_frame_svma,
            eh_frame,
            eh_frame_hdr_svma,
            eh_frame_hdr,
            ..ExplicitModuleSectionInfo::default()
        };
        Some(Module::new(name_of(&self.path), self.addresses.clone(), base, info))
    }

    /// The difference between an address in the process and the one that the file states for it.
    fn base<'data>(
        &self,
        elf: &ElfFile64<'data, Endianness, &'data ReadCache<File>>,
    ) -> Option<u64> {
        let endian = elf.endian();
        let segment = elf.elf_program_headers().iter().find(|segment| {
            let (offset, size) = segment.file_range(endian);
            let file = offset..offset + size;
            segment.p_flags(endian).contains(PF_X) && is_overlapping(&file, &self.in_file())
        })?;
        let ahead = self.addresses.start.wrapping_sub(self.offset);
        Some(ahead.wrapping_add(segment.p_offset(endian)).wrapping_sub(segment.p_vaddr(endian)))
    }

    fn in_file(&self) -> Range<u64> {
        self.offset..self.offset + (self.addresses.end - self.addresses.start)
    }
}

fn name_of(path: &Path) -> String {
    path.display().to_string()
}

const fn is_overlapping(left: &Range<u64>, right: &Range<u64>) -> bool {
    left.start < right.end && right.start < left.end
}
