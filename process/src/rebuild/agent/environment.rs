//! `restart --env`: variables that the program finds in its environment from now on, and what it starts inherits.
//!
//! Runs in the agent, for each process, when its memory is back and before it runs. The C library reads its variable
//! `environ` at each getenv(3), and a program may assign it (environ(7)): it gets a new array, in new memory, with the
//! program's own entries, whose strings stay where they are, and those that are asked for. What must hold: the entries
//! have a name each. Fails by: a process without libholdfast, or with one of an older version, which does not say where
//! `environ` is; an array that cannot be read. A thread that was inside setenv(3) at the cut may put its own array in
//! the place of this one: what it set is there then, what was asked for is not.

use super::remote_calls::{Need, SeedThread};
use crate::rebuild::error::RebuildError;
use holdfast_abi::{PAGE, SharedPage};
use holdfast_image::record::ProcessRecord;
use holdfast_sys::procmem::ForcedMemory;
use std::ffi::CString;
use std::io;

/// A pointer, bytes.
const WORD: usize = 8;
/// Most entries that are read of the program. Longer arrays do not fit into what execve(2) takes anyway.
const MAX_ENTRIES: usize = 1 << 18;

/// Gives the process these entries, `NAME=VALUE` each. `leader`: its first thread.
///
/// # Errors
/// See the head of the file.
pub fn set(
    leader: SeedThread,
    record: &ProcessRecord,
    memory: &ForcedMemory,
    entries: &[CString],
) -> Result<(), RebuildError> {
    if entries.is_empty() {
        return Ok(());
    }
    let variable = variable(record, memory)?;
    let failed = || RebuildError::io("changing the environment of the program");
    let old = pointers(memory, variable).map_err(failed())?;
    let mut kept = Vec::with_capacity(old.len());
    for pointer in old {
        if !is_one_of(memory, pointer, entries).map_err(failed())? {
            kept.push(pointer);
        }
    }
    let len = layout(0, &kept, entries).len().next_multiple_of(PAGE) as u64;
    let mut batch = leader.batch();
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let args = [0, len, word(prot), word(flags), u64::MAX, 0];
    batch.call(libc::SYS_mmap, &args, Need::Must("map memory for its environment of length", len))?;
    let (results, _) = batch.finish()?;
    let base = results.first().map_or(0, |base| base.cast_unsigned());
    memory.write(base, &layout(base, &kept, entries)).map_err(failed())?;
    memory.write(variable, &base.to_le_bytes()).map_err(failed())
}

fn word(flags: i32) -> u64 {
    u64::from(flags.cast_unsigned())
}

/// Where `environ` is.
fn variable(record: &ProcessRecord, memory: &ForcedMemory) -> Result<u64, RebuildError> {
    let page = record.inject.shared.0;
    let mut found = [0; WORD];
    if page != 0 {
        memory
            .read(page + SharedPage::ENVIRON as u64, &mut found)
            .map_err(RebuildError::io("reading the page of libholdfast in the program"))?;
    }
    match u64::from_le_bytes(found) {
        0 => Err(RebuildError::Refused(format!(
            "--env: nothing tells where process {} has its environment: it runs without libholdfast, or the image is \
             of an older version of Holdfast; restart without --env",
            record.pid
        ))),
        address => Ok(address),
    }
}

/// The array that the variable points to.
fn pointers(memory: &ForcedMemory, variable: u64) -> io::Result<Vec<u64>> {
    let read = |at: u64| {
        let mut word = [0; WORD];
        memory.read(at, &mut word).map(|()| u64::from_le_bytes(word))
    };
    let array = read(variable)?;
    let mut all = Vec::new();
    // clearenv(3) leaves none.
    while array != 0 && all.len() < MAX_ENTRIES {
        match read(array.wrapping_add((all.len() * WORD) as u64))? {
            0 => return Ok(all),
            pointer => all.push(pointer),
        }
    }
    if array == 0 { Ok(all) } else { Err(io::Error::other("the program's array has no end")) }
}

/// Whether the program's entry is of a name that is asked for.
fn is_one_of(memory: &ForcedMemory, pointer: u64, entries: &[CString]) -> io::Result<bool> {
    let names = entries.iter().map(name);
    let longest = names.clone().map(<[u8]>::len).max().unwrap_or(0);
    // It may lie at the end of what is mapped: what there is of it is enough.
    let text = memory.read_some(pointer, longest);
    if text.is_empty() {
        return Err(io::Error::from_raw_os_error(libc::EFAULT));
    }
    Ok(names.into_iter().any(|name| text.starts_with(name)))
}

/// The name and its `=`.
fn name(entry: &CString) -> &[u8] {
    let bytes = entry.as_bytes();
    let end = bytes.iter().position(|&byte| byte == b'=').map_or(bytes.len(), |at| at + 1);
    &bytes[..end]
}

/// What lies at `base`: the array, and the strings behind it. Of one name the last one counts.
fn layout(base: u64, kept: &[u64], entries: &[CString]) -> Vec<u8> {
    let is_last = |at: usize| entries.iter().skip(at + 1).all(|later| name(later) != name(&entries[at]));
    let new: Vec<&CString> = (0..entries.len()).filter(|&at| is_last(at)).map(|at| &entries[at]).collect();
    let mut next = base + ((kept.len() + new.len() + 1) * WORD) as u64;
    let mut all: Vec<u8> = kept.iter().flat_map(|pointer| pointer.to_le_bytes()).collect();
    for entry in &new {
        all.extend(next.to_le_bytes());
        next += entry.as_bytes_with_nul().len() as u64;
    }
    all.extend([0; WORD]);
    new.iter().for_each(|entry| all.extend(entry.as_bytes_with_nul()));
    all
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn entries(all: &[&str]) -> Vec<CString> {
        all.iter().map(|text| CString::new(*text).unwrap()).collect()
    }

    #[test]
    fn the_array_points_to_old_strings_and_new_ones() {
        let bytes = layout(0x1000, &[7, 9], &entries(&["A=1", "B=", "A=22"]));
        let words: Vec<u64> =
            bytes.as_chunks::<8>().0[..5].iter().map(|word| u64::from_le_bytes(*word)).collect();
        assert_eq!(words, [7, 9, 0x1028, 0x102b, 0]);
        assert_eq!(&bytes[40..], b"B=\0A=22\0");
    }

    #[test]
    fn this_process_has_what_is_asked_for() {
        let own = std::process::id().cast_signed();
        let memory = ForcedMemory::open(own, own).unwrap();
        let strings = entries(&["PATH=/bin", "PATHS=1", "EMPTY="]);
        let mut array: Vec<u64> = strings.iter().map(|text| text.as_ptr().addr() as u64).collect();
        array.push(0);
        let variable = array.as_ptr().addr() as u64;
        let found = pointers(&memory, std::ptr::from_ref(&variable).addr() as u64).unwrap();
        assert_eq!(found, array[..3]);
        let asked = entries(&["PATH=/usr/bin"]);
        let are: Vec<bool> =
            found.iter().map(|pointer| is_one_of(&memory, *pointer, &asked).unwrap()).collect();
        assert_eq!(are, [true, false, false]);
        assert!(is_one_of(&memory, 8, &asked).is_err());
        let none = 0_u64;
        assert!(pointers(&memory, std::ptr::from_ref(&none).addr() as u64).unwrap().is_empty());
    }
}
