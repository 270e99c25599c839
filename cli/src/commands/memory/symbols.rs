//! Where a program's variables are: the symbols of its executable (ELF, .symtab and .dynsym), at the addresses to which
//! it was mapped.
//!
//! Called by the parent. What must hold: the file is that of the image, by its size and time: the names of another
//! build would lead to other bytes.

use super::unchanged;
use crate::exit::{Exit, Failure};
use holdfast_image::PAGE_SIZE;
use holdfast_image::record::{Backing, FileIdentity, ProcessRecord};
use object::elf::PT_LOAD;
use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol, SymbolKind};
use std::collections::BTreeMap;
use std::io::Read;

/// Executables that are larger are not read.
const MOST_BYTES: u64 = 2 << 30;

/// A variable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Variable {
    /// In the program.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
}

/// Those of a program, by name.
pub struct Symbols {
    exe: String,
    variables: BTreeMap<String, Variable>,
    /// Names that several variables have (`static` ones of several files).
    several: BTreeMap<String, usize>,
}

impl Symbols {
    /// Of the executable of a process.
    ///
    /// # Errors
    /// It is not the file that was running, or cannot be read.
    pub fn of(process: &ProcessRecord) -> Result<Symbols, Failure> {
        let path = process.exe.path.to_string();
        let text = text_of(&process.exe)?;
        let unfit =
            |why: String| Failure::new(Exit::Refused, format!("{path}: {why}: name addresses instead"));
        let elf = ElfFile64::<Endianness>::parse(&*text)
            .map_err(|error| unfit(format!("its symbols cannot be read ({error})")))?;
        let moved = moved_by(process, &elf).ok_or_else(|| unfit("it is not mapped in the image".into()))?;
        let (mut variables, mut several) = (BTreeMap::new(), BTreeMap::new());
        for symbol in elf.symbols().chain(elf.dynamic_symbols()) {
            if symbol.kind() != SymbolKind::Data || symbol.size() == 0 || symbol.is_undefined() {
                continue;
            }
            let Ok(name) = symbol.name() else { continue };
            let variable = Variable { address: symbol.address().wrapping_add(moved), bytes: symbol.size() };
            match variables.insert(name.to_owned(), variable) {
                Some(other) if other != variable => *several.entry(name.to_owned()).or_insert(1) += 1,
                _ => {}
            }
        }
        if variables.is_empty() {
            return Err(unfit("it has no names of variables (strip(1) removes them)".into()));
        }
        Ok(Symbols { exe: path, variables, several })
    }

    /// All, by name.
    pub fn all(&self) -> impl Iterator<Item = (&String, &Variable)> {
        self.variables.iter()
    }

    /// The one of this name.
    ///
    /// # Errors
    /// There is none, or there are several.
    pub fn find(&self, name: &str) -> Result<Variable, Failure> {
        if let Some(count) = self.several.get(name) {
            let what = format!("{} has {count} variables {name}: name an address instead", self.exe);
            return Err(Failure::new(Exit::Refused, what));
        }
        self.variables.get(name).copied().ok_or_else(|| {
            let what = format!(
                "{} has no variable {name} (without a name `holdfast cat` lists them; strip(1) removes names)",
                self.exe
            );
            Failure::new(Exit::NotFound, what)
        })
    }
}

/// What is in a file, if it is the one of the image.
fn text_of(file: &FileIdentity) -> Result<Vec<u8>, Failure> {
    let opened =
        unchanged::open(file, ": its names may be those of other addresses; name addresses instead")?;
    let path = file.path.as_path();
    if file.size > MOST_BYTES {
        let what = format!("{} is larger than 2 GiB: name addresses instead", path.display());
        return Err(Failure::new(Exit::Refused, what));
    }
    let mut text = Vec::new();
    opened
        .take(MOST_BYTES)
        .read_to_end(&mut text)
        .map_err(|error| Failure::system(format_args!("reading {}", path.display()), &error))?;
    Ok(text)
}

/// What is added to the addresses in the file: 0 unless the kernel has chosen where it is (a position-independent
/// executable).
fn moved_by(process: &ProcessRecord, elf: &ElfFile64<'_, Endianness>) -> Option<u64> {
    let endian = elf.endian();
    let loaded = |offset: u64| {
        let segments = elf.elf_program_headers().iter();
        let mut loads = segments.filter(|segment| segment.p_type(endian) == PT_LOAD);
        loads.find_map(|segment| {
            let begin = segment.p_offset(endian) & !(PAGE_SIZE - 1);
            let end = segment.p_offset(endian).checked_add(segment.p_filesz(endian))?;
            let at = offset.checked_sub(begin).filter(|_| offset < end)?;
            (segment.p_vaddr(endian) & !(PAGE_SIZE - 1)).checked_add(at)
        })
    };
    process.regions.iter().find_map(|region| {
        let Backing::PrivateFile { file, offset } = region.backing else { return None };
        let mapped = process.files.mapped.get(file as usize)?;
        let is_own = mapped.path == process.exe.path && mapped.size == process.exe.size;
        is_own.then(|| loaded(offset).map(|address| region.start.0.wrapping_sub(address)))?
    })
}
