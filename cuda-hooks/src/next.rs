//! The C library's `dlsym` and `dlvsym`, which the program's calls are passed on to.
//!
//! Runs in: the first `dlsym` of a process, which may be in the constructor of any library, before ours, and in the
//! middle of an instrumenting runtime's own start (ASan's functions lead nowhere until it has looked all of them up):
//! so nothing of the C library is called but getauxval(3), and the list of loaded objects is read as a debugger reads
//! it. `dlsym` itself cannot be asked: by that name there is ours.
//! Found is what is next after this library in the order of the loader, as RTLD_NEXT would: another preloaded library's
//! `dlsym`, if it has one, else the C library's. Objects there live as long as the process.
//! Invariants: only tables are read that the loader has used itself to load these objects. The list changes only at its
//! end, behind the C library, where the search has ended.
//! Fails by: null, where the program was linked without DT_DEBUG; then [`resolve`](crate::resolve) finds nothing.
//!
//! # Safety
//! The layouts are those of the System V ABI (chapters 4 and 5), of link.h and of the symbol tables' version numbers
//! (Linux Standard Base, Core, 10.7); all memory read is the loader's, which leaves it mapped.
#![allow(unsafe_code)]

use core::arch::asm;
use core::ffi::{CStr, c_char, c_void};
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// struct link_map of link.h, its public part.
#[repr(C)]
struct LinkMap {
    base: usize,
    name: *const c_char,
    dynamic: *const [usize; 2],
    next: *const LinkMap,
    previous: *const LinkMap,
}

/// struct r_debug of link.h, its beginning.
#[repr(C)]
struct Debug {
    version: i32,
    map: *const LinkMap,
}

const DT_HASH: usize = 4;
const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;
const DT_DEBUG: usize = 21;
const DT_GNU_HASH: usize = 0x6fff_fef5;
const DT_VERSYM: usize = 0x6fff_fff0;
const STT_FUNC: u8 = 2;
/// In a version number: not the default version of that name.
const HIDDEN: u16 = 0x8000;

static DLSYM: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static DLVSYM: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// What is called where there is nothing else.
extern "C" fn nothing() -> *mut c_void {
    null_mut()
}

/// The next `dlsym`.
pub extern "C-unwind" fn address_of_dlsym() -> *mut c_void {
    remembered(&DLSYM, c"dlsym")
}

/// The next `dlvsym`.
pub extern "C-unwind" fn address_of_dlvsym() -> *mut c_void {
    remembered(&DLVSYM, c"dlvsym")
}

#[inline(always)]
fn remembered(place: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = place.load(Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: as the head of the file says.
    let mut found = unsafe { after_ours(name) };
    if found.is_null() {
        found = nothing as *mut c_void;
    }
    place.store(found, Relaxed);
    found
}

/// This library's dynamic section.
fn own_dynamic() -> *const [usize; 2] {
    let address: *const [usize; 2];
    // SAFETY: an address that the linker knows.
    unsafe {
        asm!(
            ".hidden _DYNAMIC",
            "lea {}, [rip + _DYNAMIC]",
            out(reg) address,
            options(nomem, nostack, preserves_flags)
        );
    }
    address
}

/// The definition of `name` in the objects after this library.
///
/// # Safety
/// In a process that a loader of the System V kind has set up.
unsafe fn after_ours(name: &CStr) -> *mut c_void {
    // SAFETY: the list of the loader; its entries live as long as their objects, and none of these is unloaded.
    unsafe {
        let own = own_dynamic();
        let mut map = first_object();
        let mut passed = false;
        while !map.is_null() {
            if passed {
                let found = definition(&*map, name);
                if !found.is_null() {
                    return found;
                }
            }
            passed |= (*map).dynamic == own;
            map = (*map).next;
        }
    }
    null_mut()
}

/// The first entry of the list of loaded objects: by the program's own dynamic section (System V ABI, 5, DT_DEBUG),
/// which lies where the program headers say that the kernel has told of.
///
/// # Safety
/// As [`after_ours`].
unsafe fn first_object() -> *const LinkMap {
    // SAFETY: getauxval reads a table that the kernel has made; the program headers are mapped, as part of the first
    // page of the program.
    unsafe {
        let headers = libc::getauxval(libc::AT_PHDR) as usize;
        let count = libc::getauxval(libc::AT_PHNUM) as usize;
        if headers == 0 {
            return null();
        }
        let header = |index| &*core::ptr::with_exposed_provenance::<libc::Elf64_Phdr>(headers).add(index);
        let base = (0..count)
            .map(header)
            .find(|header| header.p_type == libc::PT_PHDR)
            .map_or(0, |header| headers.wrapping_sub(header.p_vaddr as usize));
        let Some(dynamic) = (0..count).map(header).find(|header| header.p_type == libc::PT_DYNAMIC) else {
            return null();
        };
        let dynamic = base.wrapping_add(dynamic.p_vaddr as usize);
        let debug = entry(core::ptr::with_exposed_provenance(dynamic), DT_DEBUG);
        match debug {
            Some(debug) if debug != 0 => (*core::ptr::with_exposed_provenance::<Debug>(debug)).map,
            _ => null(),
        }
    }
}

/// The value of `tag` in a dynamic section.
///
/// # Safety
/// `dynamic` is one, ended by DT_NULL.
unsafe fn entry(mut dynamic: *const [usize; 2], tag: usize) -> Option<usize> {
    loop {
        // SAFETY: the caller's promise: not yet at the end.
        let [found, value] = unsafe { dynamic.read() };
        if found == tag {
            return Some(value);
        }
        if found == 0 {
            return None;
        }
        // SAFETY: as above.
        dynamic = unsafe { dynamic.add(1) };
    }
}

/// The function `name` that an object defines, by its default version if there are several; or null.
///
/// # Safety
/// `map` is an entry of the loader's list.
unsafe fn definition(map: &LinkMap, name: &CStr) -> *mut c_void {
    // SAFETY: the tables that the dynamic section of a loaded object names.
    unsafe {
        // glibc has relocated the addresses in place (elf/get-dynamic-info.h), others have not.
        let table = |tag| {
            entry(map.dynamic, tag)
                .map(|value| if value < map.base { value.wrapping_add(map.base) } else { value })
        };
        let (Some(symbols), Some(strings)) = (table(DT_SYMTAB), table(DT_STRTAB)) else { return null_mut() };
        let symbols = core::ptr::with_exposed_provenance::<libc::Elf64_Sym>(symbols);
        let strings = core::ptr::with_exposed_provenance::<c_char>(strings);
        let versions = table(DT_VERSYM).map(core::ptr::with_exposed_provenance::<u16>);
        let mut any: *mut c_void = null_mut();
        let mut default: *mut c_void = null_mut();
        let mut look = |index: usize| {
            let symbol = &*symbols.add(index);
            let usable = symbol.st_shndx != 0
                && symbol.st_value != 0
                && symbol.st_info & 15 == STT_FUNC
                && same(strings.add(symbol.st_name as usize), name);
            if !usable {
                return;
            }
            let version = versions.map_or(1, |versions| versions.add(index).read());
            let address: *mut c_void =
                core::ptr::with_exposed_provenance_mut(map.base.wrapping_add(symbol.st_value as usize));
            if version & !HIDDEN == 0 {
                return;
            }
            any = address;
            if version & HIDDEN == 0 && default.is_null() {
                default = address;
            }
        };
        if let Some(hash) = table(DT_GNU_HASH) {
            gnu_chain(core::ptr::with_exposed_provenance(hash), name, &mut look);
        } else if let Some(hash) = table(DT_HASH) {
            old_chain(core::ptr::with_exposed_provenance(hash), name, &mut look);
        }
        if default.is_null() { any } else { default }
    }
}

/// Whether a string of the loader's is `name`.
///
/// # Safety
/// `text` is a NUL-terminated string.
unsafe fn same(text: *const c_char, name: &CStr) -> bool {
    for (index, byte) in name.to_bytes_with_nul().iter().enumerate() {
        // SAFETY: all bytes before were those of `name`, none of them NUL.
        if unsafe { text.add(index).read() } as u8 != *byte {
            return false;
        }
    }
    true
}

/// Calls `look` with the symbols that a DT_GNU_HASH table has under the hash of `name`. Its layout: four words (number
/// of buckets, first symbol, words of the filter, shift), the filter, the buckets, a chain per bucket whose last entry
/// is odd (binutils, elflink.c).
///
/// # Safety
/// `table` is one.
unsafe fn gnu_chain(table: *const u32, name: &CStr, look: &mut impl FnMut(usize)) {
    let hash = name
        .to_bytes()
        .iter()
        .fold(5381_u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)));
    // SAFETY: within the table, as its head says.
    unsafe {
        let (buckets, first, words) = (table.read(), table.add(1).read(), table.add(2).read());
        if buckets == 0 {
            return;
        }
        let bucket = table.add(4 + 2 * words as usize);
        let chain = bucket.add(buckets as usize);
        let mut index = bucket.add((hash % buckets) as usize).read();
        if index < first {
            return;
        }
        loop {
            let found = chain.add((index - first) as usize).read();
            if found | 1 == hash | 1 {
                look(index as usize);
            }
            if found & 1 != 0 {
                return;
            }
            index += 1;
        }
    }
}

/// The same for a DT_HASH table (System V ABI, 5, "Hash Table").
///
/// # Safety
/// `table` is one.
unsafe fn old_chain(table: *const u32, name: &CStr, look: &mut impl FnMut(usize)) {
    let hash = name.to_bytes().iter().fold(0_u32, |hash, byte| {
        let hash = (hash << 4).wrapping_add(u32::from(*byte));
        let high = hash & 0xf000_0000;
        (hash ^ high >> 24) & !high
    });
    // SAFETY: within the table, as its head says.
    unsafe {
        let (buckets, chains) = (table.read(), table.add(1).read());
        if buckets == 0 {
            return;
        }
        let mut index = table.add(2 + (hash % buckets) as usize).read();
        while index != 0 && index < chains {
            look(index as usize);
            index = table.add(2 + (buckets + index) as usize).read();
        }
    }
}

/// Whether an entry of the loader's list comes before this library's.
pub fn is_before_ours(object: *const c_void) -> bool {
    let own = own_dynamic();
    // SAFETY: the list of the loader, as in `after_ours`; objects before ours are never unloaded.
    unsafe {
        let mut map = first_object();
        while !map.is_null() && (*map).dynamic != own {
            if map.cast() == object {
                return true;
            }
            map = (*map).next;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_librarys_functions_are_found_without_asking_it() {
        type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
        let found = address_of_dlsym();
        assert_ne!(found.addr(), (nothing as *mut c_void).addr());
        // SAFETY: the C library's function of this name.
        let there = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"dlsym".as_ptr()) };
        assert_eq!(found, there);
        // SAFETY: as above.
        let getpid = unsafe {
            core::mem::transmute::<*mut c_void, Dlsym>(found)(libc::RTLD_DEFAULT, c"getpid".as_ptr())
        };
        // SAFETY: as above.
        assert_eq!(getpid, unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"getpid".as_ptr()) });
        // SAFETY: as above.
        let versioned = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"dlvsym".as_ptr()) };
        assert_eq!(address_of_dlvsym(), versioned);
        // SAFETY: the loader's own list.
        assert!(unsafe { after_ours(c"no_such_function_anywhere") }.is_null());
    }

    #[test]
    fn the_old_hash_is_that_of_the_abi() {
        // Three symbols in one bucket: 0, then 2, then 1.
        let table: [u32; 6] = [1, 3, 2, 0, 0, 1];
        let mut seen = std::vec::Vec::new();
        // SAFETY: a whole table: one bucket, three entries of the chain.
        unsafe { old_chain(table.as_ptr(), c"x", &mut |index| seen.push(index)) };
        assert_eq!(seen, [2, 1]);
    }
}
