//! The vdso of another kernel. Its code reads data of the kernel whose layout changes from build to build
//! (lib/vdso), so the code of an image must not run on another kernel: its entries, which programs keep the
//! addresses of, are made to jump to those of this kernel, which lies elsewhere.
//!
//! Used by [`super::preflight`](fn@super::preflight) and, in the agent, by `address_space` and `rebuild_process`.
//! What must hold: no thread is in the middle of the old code. Around it is what was around it: zeros in the
//! at of its data, by which what a signal handler returns to finds no clock that it could read and asks the
//! kernel (VDSO_CLOCKMODE_NONE, include/vdso/clocksource.h). How it fails: an error says why the image needs the
//! kernel that it was made under.

use super::error::RebuildError;
use crate::inject::area::own_vdso;
use holdfast_image::record::{Backing, HostRecord, ProcessRecord, Region};
use holdfast_sys::procmem::ForcedMemory;
use holdfast_sys::ptrace::Registers;
use holdfast_sys::{fault, procfs};
use object::read::elf::ElfFile64;
use object::{Object, ObjectSymbol, SymbolKind};
use std::collections::BTreeMap;
use std::fs;

/// Bytes of an entry that leads elsewhere: mov r11, imm64; jmp r11. No function needs r11 (System V ABI, 3.2.1).
const JUMP_LEN: usize = 13;

/// What an entry does that this kernel has no function for: the system call, where there is one.
const CALLS: [(&str, i64); 6] = [
    ("__vdso_clock_gettime", libc::SYS_clock_gettime),
    ("__vdso_gettimeofday", libc::SYS_gettimeofday),
    ("__vdso_time", libc::SYS_time),
    ("__vdso_clock_getres", libc::SYS_clock_getres),
    ("__vdso_getcpu", libc::SYS_getcpu),
    // Always: what it keeps in the program's memory between calls is the kernel's own business.
    (GETRANDOM, libc::SYS_getrandom),
];
const GETRANDOM: &str = "__vdso_getrandom";

/// An image was made under a kernel with another vdso.
#[derive(Debug)]
pub struct ForeignVdso<'a> {
    host: &'a HostRecord,
    new: Vec<u8>,
}

impl<'a> ForeignVdso<'a> {
    /// `None`: this kernel's is the same.
    pub fn of(host: &'a HostRecord) -> Option<ForeignVdso<'a>> {
        let new = own_vdso().unwrap_or_default();
        let same = !fault::is_asked("other-vdso") && xxhash_rust::xxh3::xxh3_64(&new) == host.vdso_hash;
        (!same).then_some(ForeignVdso { host, new })
    }

    /// Why the processes of a record cannot run under this kernel's, one line each.
    pub fn obstacles(&self, record: &ProcessRecord) -> Vec<String> {
        let release = &self.host.kernel_release;
        if let Err(error) = redirected(&self.host.vdso.0, &self.new, 0) {
            return vec![format!("this is not kernel {release}, and {error}: restart under that kernel")];
        }
        let inside = |process: &ProcessRecord| {
            let region = region(process)?;
            let thread = process.threads.iter().find(|thread| is_inside(region, &thread.registers))?;
            Some(format!(
                "thread {} of process {} was just reading the clock in a way that belongs to kernel \
                 {release}: restart from \
                 another image (JOB@N; holdfast list JOB), or under that kernel",
                thread.tid, process.pid
            ))
        };
        record.processes().filter_map(inside).collect()
    }

    /// Fills the at of the old vdso in a process that has this kernel's elsewhere.
    ///
    /// # Errors
    /// As [`Self::obstacles`].
    pub fn redirect_entries(
        &self,
        record: &ProcessRecord,
        pid: i32,
        memory: &ForcedMemory,
    ) -> Result<(), RebuildError> {
        let Some(region) = region(record) else { return Ok(()) };
        let maps =
            procfs::maps(pid, pid).map_err(RebuildError::io("reading the mappings of the new process"))?;
        let at = maps.iter().find(|mapping| mapping.name == b"[vdso]").map_or(0, |mapping| mapping.start);
        let bytes = redirected(&self.host.vdso.0, &self.new, at).map_err(RebuildError::Image)?;
        let len = usize::try_from(region.end.0 - region.start.0).unwrap_or(0);
        memory
            .write(region.start.0, &bytes[..bytes.len().min(len)])
            .map_err(RebuildError::io("writing the old entries of the vdso"))
    }
}

/// What the user should know.
pub fn note(host: &HostRecord) -> Option<String> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    (release.trim() != host.kernel_release).then(|| {
        format!("the image was made under kernel {}, this one is {}", host.kernel_release, release.trim())
    })
}

fn is_inside(region: &Region, registers: &[u64]) -> bool {
    <[u64; 27]>::try_from(registers)
        .is_ok_and(|words| (region.start.0..region.end.0).contains(&Registers::from_words(words).rip))
}

fn region(record: &ProcessRecord) -> Option<&Region> {
    let is_vdso = |region: &&Region| matches!(&region.backing, Backing::Kernel { name } if name == "vdso");
    record.regions.iter().find(is_vdso)
}

/// The functions of a vdso: their offsets, each with its names.
fn functions(vdso: &[u8]) -> Option<BTreeMap<u64, Vec<String>>> {
    let file: ElfFile64<'_> = ElfFile64::parse(vdso).ok()?;
    let mut all: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    let is_function = |symbol: &object::read::elf::ElfSymbol64<'_, '_>| {
        symbol.kind() == SymbolKind::Text && symbol.is_definition()
    };
    for symbol in file.dynamic_symbols().filter(is_function) {
        all.entry(symbol.address()).or_default().push(symbol.name().ok()?.to_owned());
    }
    Some(all)
}

/// The old vdso with entries that lead to `new`, which lies at `at`.
///
/// # Errors
/// One of them is not what a vdso is.
fn redirected(old: &[u8], new: &[u8], at: u64) -> Result<Vec<u8>, String> {
    if old.is_empty() {
        return Err("the image does not have that kernel's vdso".to_owned());
    }
    let entries = functions(old).ok_or("the vdso of the image cannot be read")?;
    let targets = functions(new).ok_or("the vdso of this kernel cannot be read")?;
    let target = |names: &[String]| {
        let known = |(_, others): &(&u64, &Vec<String>)| {
            others.iter().any(|other| other != GETRANDOM && names.contains(other))
        };
        targets.iter().find(known).map(|(offset, _)| at.wrapping_add(*offset))
    };
    let mut bytes = old.to_vec();
    let ends = entries.keys().skip(1).copied().chain([old.len() as u64]);
    for ((&offset, names), end) in entries.iter().zip(ends) {
        let code = match target(names) {
            Some(target) => jump(target),
            None => call(names),
        };
        let entry =
            usize::try_from(offset).ok().and_then(|start| bytes.get_mut(start..start.checked_add(JUMP_LEN)?));
        match entry.filter(|_| end - offset >= JUMP_LEN as u64) {
            Some(entry) => entry.copy_from_slice(&code),
            None => return Err(format!("there is no space for a jump at its {}", names.join(", "))),
        }
    }
    Ok(bytes)
}

fn jump(target: u64) -> [u8; JUMP_LEN] {
    let mut code = [0x49, 0xbb, 0, 0, 0, 0, 0, 0, 0, 0, 0x41, 0xff, 0xe3];
    code[2..10].copy_from_slice(&target.to_le_bytes());
    code
}

/// mov eax, number; syscall; ret. An unknown function says ENOSYS: mov rax, -38; ret.
fn call(names: &[String]) -> [u8; JUMP_LEN] {
    const INT3: u8 = 0xcc;
    let number =
        CALLS.iter().find(|(name, _)| names.iter().any(|own| own == name)).map(|(_, number)| *number);
    let mut code = [INT3; JUMP_LEN];
    match number.and_then(|number| u32::try_from(number).ok()) {
        Some(number) => {
            code[0] = 0xb8;
            code[1..5].copy_from_slice(&number.to_le_bytes());
            code[5..8].copy_from_slice(&[0x0f, 0x05, 0xc3]);
        }
        None => {
            code[..3].copy_from_slice(&[0x48, 0xc7, 0xc0]);
            code[3..7].copy_from_slice(&(-libc::ENOSYS).to_le_bytes());
            code[7] = 0xc3;
        }
    }
    code
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::rebuild::testing::region as region_of;

    #[test]
    fn each_entry_leads_to_its_namesake() {
        let own = own_vdso().unwrap();
        let all = functions(&own).unwrap();
        let named =
            |name: &str| *all.iter().find(|(_, names)| names.iter().any(|own| own == name)).unwrap().0;
        let time = named("__vdso_clock_gettime");
        let bytes = redirected(&own, &own, 0x7000_0000).unwrap();
        let at = |offset: u64| &bytes[offset as usize..][..JUMP_LEN];
        assert_eq!(at(time), jump(0x7000_0000 + time));
        assert_eq!(bytes.len(), own.len());
        let entries: Vec<u64> = all.keys().copied().collect();
        let elsewhere = (0..own.len()).filter(|&at| {
            entries.iter().all(|&entry| !(entry..entry + JUMP_LEN as u64).contains(&(at as u64)))
        });
        assert!({ elsewhere }.all(|at| bytes[at] == own[at]), "nothing else is changed");
        assert!(functions(&bytes).is_some_and(|again| again == all), "it still tells its functions");
    }

    #[test]
    fn a_thread_in_the_middle_of_it_is_seen() {
        let region = region_of(0x7000_0000, 2, 5, Backing::Kernel { name: "vdso".into() });
        let at = |rip: u64| {
            let mut registers = vec![0; 27];
            registers[16] = rip; // struct user_regs_struct (sys/user.h)
            is_inside(&region, &registers)
        };
        assert!(at(0x7000_0000) && at(0x7000_1fff) && !at(0x7000_2000) && !at(0x6fff_ffff));
        assert!(!is_inside(&region, &[]));
    }

    #[test]
    fn what_this_kernel_does_not_have_is_asked_of_it() {
        let names = |name: &str| vec![name.to_owned()];
        assert_eq!(call(&names("__vdso_getcpu"))[..8], [0xb8, 0x35, 1, 0, 0, 0x0f, 0x05, 0xc3]);
        assert_eq!(call(&names(GETRANDOM))[..5], [0xb8, 0x3e, 1, 0, 0]);
        assert_eq!(call(&names("__vdso_new"))[..8], [0x48, 0xc7, 0xc0, 0xda, 0xff, 0xff, 0xff, 0xc3]);
    }

    #[test]
    fn nonsense_is_refused() {
        let own = own_vdso().unwrap();
        assert!(redirected(&[], &own, 0).unwrap_err().contains("does not have"));
        assert!(redirected(&own, &[], 0).is_err());
        for at in 0..own.len() {
            let mut broken = own.clone();
            broken[at] ^= 0xff;
            let _ = redirected(&broken, &own, 0);
            let _ = redirected(&own[..at], &own, 0);
        }
    }
}
