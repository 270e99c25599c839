//! Landlock (landlock(7)): rule sets that the program makes, and the domain that it goes into, are noted, because the
//! kernel tells neither ([`LandlockNotes`]).
//!
//! Runs in: the host program, any thread. The calls have no functions in the C library: they come by syscall(2).
//! Invariants: the call and its result are the kernel's; the domain is noted only for a process with one thread, so
//! that all threads and children have it from there; how many layers there were before is counted in a child, by going
//! into more until the kernel's limit. Fails by: a domain that is not known (`is_unknown`), which the agent refuses.
//!
//! # Safety
//! What the program hands to a call is read only after the kernel has read it.
#![allow(unsafe_code)]

use crate::message::Text;
use crate::{filters, shared, sys};
use core::ffi::{c_int, c_long};
use core::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};
use holdfast_abi::{LandlockLayer, LandlockNotes, LandlockRule, LandlockRuleset, SharedPage};

// include/uapi/linux/landlock.h
const RULE_PATH_BENEATH: usize = 1;
const RULE_NET_PORT: usize = 2;
const CREATE_VERSION: usize = 1;
/// LANDLOCK_RESTRICT_SELF_TSYNC.
const TSYNC: usize = 1 << 3;
const MAKE_SYM: u64 = 1 << 12;

/// Laid out as [`LandlockNotes`].
#[repr(C)]
struct Notes {
    is_unknown: AtomicU64,
    before: AtomicU64,
    layers: AtomicU64,
    domain: [Layer; LandlockNotes::LAYERS],
    sets: AtomicU64,
    rulesets: [Ruleset; LandlockNotes::SETS],
    used: AtomicU64,
    rules: [Rule; LandlockNotes::RULES],
    taken: AtomicU64,
    text: [AtomicU8; LandlockNotes::TEXT],
}

#[repr(C)]
struct Layer {
    set: AtomicU32,
    flags: AtomicU32,
    rules: AtomicU64,
}

#[repr(C)]
struct Ruleset {
    fd: AtomicU64,
    files: AtomicU64,
    network: AtomicU64,
    scoped: AtomicU64,
}

#[repr(C)]
struct Rule {
    set: AtomicU32,
    kind: AtomicU32,
    access: AtomicU64,
    value: AtomicU64,
    len: AtomicU64,
    device: AtomicU64,
    inode: AtomicU64,
}

const _: () = assert!(
    size_of::<Notes>() == LandlockNotes::LEN
        && size_of::<Layer>() == size_of::<LandlockLayer>()
        && size_of::<Ruleset>() == size_of::<LandlockRuleset>()
        && size_of::<Rule>() == size_of::<LandlockRule>()
);

static NOTES: Notes = Notes {
    is_unknown: AtomicU64::new(0),
    before: AtomicU64::new(0),
    layers: AtomicU64::new(0),
    domain: [const { Layer { set: AtomicU32::new(0), flags: AtomicU32::new(0), rules: AtomicU64::new(0) } };
        LandlockNotes::LAYERS],
    sets: AtomicU64::new(0),
    rulesets: [const {
        Ruleset {
            fd: AtomicU64::new(0),
            files: AtomicU64::new(0),
            network: AtomicU64::new(0),
            scoped: AtomicU64::new(0),
        }
    }; LandlockNotes::SETS],
    used: AtomicU64::new(0),
    rules: [const {
        Rule {
            set: AtomicU32::new(0),
            kind: AtomicU32::new(0),
            access: AtomicU64::new(0),
            value: AtomicU64::new(0),
            len: AtomicU64::new(0),
            device: AtomicU64::new(0),
            inode: AtomicU64::new(0),
        }
    }; LandlockNotes::RULES],
    taken: AtomicU64::new(0),
    text: [const { AtomicU8::new(0) }; LandlockNotes::TEXT],
};

/// Makes one of the calls, and takes note; `None`: it is another one.
///
/// # Safety
/// As for the system call.
pub unsafe fn by_number(number: c_long, args: [usize; 6]) -> Option<isize> {
    // SAFETY: the caller's promise.
    let call = || unsafe { sys::raw(number, args) };
    match number {
        libc::SYS_landlock_create_ruleset => {
            let result = call();
            if result >= 0 && args[2] & CREATE_VERSION == 0 && args[0] != 0 {
                // SAFETY: the kernel has read so many bytes there.
                known(unsafe { created(result as u64, args[0], args[1]) });
            }
            Some(result)
        }
        libc::SYS_landlock_add_rule => {
            let result = call();
            if result == 0 {
                // SAFETY: the kernel has read the attributes of this kind there.
                known(unsafe { added(args[0], args[1], args[2]) });
            }
            Some(result)
        }
        // Without a rule set (-1) it goes into none (LANDLOCK_RESTRICT_SELF_LOG_SUBDOMAINS_OFF).
        libc::SYS_landlock_restrict_self if args[0] as c_int >= 0 => {
            let before = if is_alone() { layers_now() } else { None };
            shared::word(SharedPage::FACT_GENERATION).fetch_add(1, SeqCst);
            let result = call();
            shared::word(SharedPage::FACT_GENERATION).fetch_add(1, SeqCst);
            if result == 0 {
                shared::word(SharedPage::LANDLOCK).fetch_add(1, SeqCst);
                known(before.and_then(|before| entered(args[0], args[1], before)));
                shared::word(SharedPage::DOMAIN).store(core::ptr::from_ref(&NOTES).addr() as u64, SeqCst);
            }
            Some(result)
        }
        _ => None,
    }
}

fn known(noted: Option<()>) {
    if noted.is_none() {
        NOTES.is_unknown.store(1, SeqCst);
    }
}

/// # Safety
/// `attributes` leads to `size` bytes of a `struct landlock_ruleset_attr`.
unsafe fn created(fd: u64, attributes: usize, size: usize) -> Option<()> {
    let at = core::ptr::with_exposed_provenance::<u8>(attributes);
    let mut words = [0_u64; 3];
    for (place, word) in words.iter_mut().enumerate().take(size / 8) {
        // SAFETY: the caller's promise. The kernel asks for no alignment.
        *word = unsafe { at.add(8 * place).cast::<u64>().read_unaligned() };
    }
    // What a later kernel knows.
    // SAFETY: the caller's promise.
    let more = (size_of_val(&words)..size).any(|place| unsafe { at.add(place).read() } != 0);
    let number = NOTES.sets.fetch_add(1, SeqCst);
    let set = NOTES.rulesets.get(usize::try_from(number).ok()?)?;
    set.files.store(words[0], Relaxed);
    set.network.store(words[1], Relaxed);
    set.scoped.store(words[2], Relaxed);
    set.fd.store(fd, SeqCst);
    (!more).then_some(())
}

/// The rule set at a descriptor: the last that was made there.
fn set_at(fd: usize) -> Option<u32> {
    let count = usize::try_from(NOTES.sets.load(Acquire)).ok()?;
    let sets = NOTES.rulesets.get(..count)?;
    let found = sets.iter().rposition(|set| set.fd.load(Relaxed) == u64::from(fd as u32))?;
    u32::try_from(found).ok()
}

/// # Safety
/// `attributes` leads to those of a rule of this kind.
unsafe fn added(fd: usize, kind: usize, attributes: usize) -> Option<()> {
    let at = core::ptr::with_exposed_provenance::<u8>(attributes);
    // SAFETY: the caller's promise: both kinds begin with what is allowed.
    let access = unsafe { at.cast::<u64>().read_unaligned() };
    let rule = NOTES.rules.get(usize::try_from(NOTES.used.load(Relaxed)).ok()?)?;
    rule.set.store(set_at(fd)?, Relaxed);
    rule.kind.store(kind as u32, Relaxed);
    rule.access.store(access, Relaxed);
    match kind {
        RULE_PATH_BENEATH => {
            // SAFETY: the caller's promise: a packed structure of a word and a descriptor.
            let parent = unsafe { at.add(8).cast::<c_int>().read_unaligned() };
            path_of(rule, parent)?;
        }
        RULE_NET_PORT => {
            // SAFETY: the caller's promise: two words.
            rule.value.store(unsafe { at.add(8).cast::<u64>().read_unaligned() }, Relaxed);
        }
        _ => return None,
    }
    NOTES.used.fetch_add(1, SeqCst);
    Some(())
}

/// Where a descriptor leads to.
fn path_of(rule: &Rule, fd: c_int) -> Option<()> {
    let mut link = Text::<32>::new();
    link.push(b"/proc/self/fd/").push_number(u64::try_from(fd).ok()?).push(b"\0");
    let start = usize::try_from(NOTES.taken.load(Relaxed)).ok()?;
    let room = NOTES.text.get(start..)?;
    let mut path = [0_u8; 4096];
    let name = link.as_bytes().as_ptr().expose_provenance();
    let args = [name, path.as_mut_ptr().expose_provenance(), path.len(), 0, 0, 0];
    // SAFETY: the kernel reads a text that ends with NUL, and writes at most so many bytes.
    let len = usize::try_from(unsafe { sys::raw(libc::SYS_readlink, args) }).ok()?;
    if len == path.len() || path.first() != Some(&b'/') || len > room.len() {
        return None;
    }
    // SAFETY: all zero is one.
    let mut told: libc::stat = unsafe { core::mem::zeroed() };
    let args = [fd as usize, (&raw mut told).expose_provenance(), 0, 0, 0, 0];
    // SAFETY: the kernel writes a `struct stat`.
    if unsafe { sys::raw(libc::SYS_fstat, args) } != 0 {
        return None;
    }
    for (slot, byte) in room.iter().zip(path.iter().take(len)) {
        slot.store(*byte, Relaxed);
    }
    rule.value.store(start as u64, Relaxed);
    rule.len.store(len as u64, Relaxed);
    rule.device.store(told.st_dev, Relaxed);
    rule.inode.store(told.st_ino, Relaxed);
    NOTES.taken.fetch_add(len as u64, SeqCst);
    Some(())
}

/// `before`: layers that the process was in.
fn entered(fd: usize, flags: usize, before: u64) -> Option<()> {
    let number = NOTES.layers.load(Relaxed);
    if number == 0 {
        NOTES.before.store(before, Relaxed);
    } else if NOTES.before.load(Relaxed) + number != before {
        return None; // some were made past the C library
    }
    let layer = NOTES.domain.get(usize::try_from(number).ok()?)?;
    layer.set.store(set_at(fd)?, Relaxed);
    layer.flags.store((flags & !TSYNC) as u32, Relaxed);
    layer.rules.store(NOTES.used.load(Relaxed), Relaxed);
    NOTES.layers.store(number + 1, SeqCst);
    Some(())
}

/// Whether this is the only thread of the process.
fn is_alone() -> bool {
    let mut room = [0_u8; 4096];
    sys::own_status(&mut room).and_then(|text| filters::number_in(text, b"\nThreads:")) == Some(1)
}

/// How many layers the thread is in: as many fewer can be added as the kernel's limit (E2BIG). `None`: it cannot be
/// told.
fn layers_now() -> Option<u64> {
    // SAFETY: the child makes system calls alone, and ends.
    let child = unsafe { sys::fork_quietly() }.ok()?;
    if child == 0 {
        sys::exit(add_layers().unwrap_or(FAILED));
    }
    let status = sys::reap(child)?;
    let added = u64::from(libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))?.cast_unsigned());
    (LandlockNotes::LAYERS as u64).checked_sub(added)
}

const FAILED: c_int = 255;

/// Goes into more layers until there can be no more: how many.
fn add_layers() -> Option<c_int> {
    let attributes = [MAKE_SYM];
    let args = [attributes.as_ptr().expose_provenance(), size_of_val(&attributes), 0, 0, 0, 0];
    // SAFETY: the kernel reads one word.
    let made = unsafe { sys::raw(libc::SYS_landlock_create_ruleset, args) };
    let fd = usize::try_from(made).ok()?;
    for added in 0..FAILED {
        // SAFETY: numbers alone.
        match unsafe { sys::raw(libc::SYS_landlock_restrict_self, [fd, 0, 0, 0, 0, 0]) } {
            0 => {}
            error if error == -(libc::E2BIG as isize) => return Some(added),
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Makes a call as the C library's syscall(2) does.
    fn call(number: c_long, args: [usize; 3]) -> isize {
        // SAFETY: what the tests point to lives.
        unsafe { by_number(number, [args[0], args[1], args[2], 0, 0, 0]) }.unwrap()
    }

    #[test]
    fn rule_sets_and_rules_are_noted() {
        let attributes = [MAKE_SYM, 0];
        let at = attributes.as_ptr().expose_provenance();
        let fd = call(libc::SYS_landlock_create_ruleset, [at, size_of_val(&attributes), 0]);
        let Ok(fd) = usize::try_from(fd) else { return }; // a kernel without
        let set = set_at(fd).unwrap();
        assert_eq!(NOTES.rulesets[set as usize].files.load(Relaxed), MAKE_SYM);
        let folder = sys::open(c"/usr", libc::O_PATH).unwrap();
        let mut rule = [0_u8; 12];
        rule[..8].copy_from_slice(&MAKE_SYM.to_ne_bytes());
        rule[8..].copy_from_slice(&folder.to_ne_bytes());
        let at = rule.as_ptr().expose_provenance();
        assert_eq!(call(libc::SYS_landlock_add_rule, [fd, RULE_PATH_BENEATH, at]), 0);
        assert_eq!(call(libc::SYS_landlock_add_rule, [fd, 77, at]), -(libc::EINVAL as isize));
        assert_eq!((NOTES.used.load(Relaxed), NOTES.is_unknown.load(Relaxed)), (1, 0));
        let noted = &NOTES.rules[0];
        let (start, len) = (noted.value.load(Relaxed) as usize, noted.len.load(Relaxed) as usize);
        let path: Vec<u8> = NOTES.text[start..start + len].iter().map(|byte| byte.load(Relaxed)).collect();
        assert_eq!(
            (path, noted.set.load(Relaxed), noted.access.load(Relaxed)),
            (b"/usr".to_vec(), set, MAKE_SYM)
        );
        sys::close(folder);
        sys::close(fd as c_int);
        assert!(!is_alone(), "tests have threads");
    }
}
