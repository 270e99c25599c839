//! Flags of mappings (`VmFlags`, proc_pid_smaps(5)) at the instant of the stop, put together from looks before and
//! after it.
//!
//! Used by `build_record`, after the stop. Fails by: a flag that changed between two looks; the cut is tried again.

use super::maps::{Flags, Kind, Mapped, flags_at};
use holdfast_sys::procfs::{self, Mapping};

/// Flags of `VmFlags` that a restart sets again (proc_pid_smaps(5)), and `procfs::HUGE_PAGES`; those of
/// `procfs::KEY` besides.
const KEPT_FLAGS: [&str; 17] = [
    "gd", "hg", "nh", "dc", "wf", "dd", "lo", "lf", "mg", "sr", "rr", "dp", "hp21", "hp30", "sl", "nr",
    ACCOUNTED,
];
/// Memory that the kernel counts (vm.overcommit_memory): private memory has it from the first time that it may be
/// written on (mm/mprotect.c, mprotect_fixup), so that it comes by itself.
const ACCOUNTED: &str = "ac";

/// The flags of a mapping that has exactly these borders.
fn flags_of<'a>(flags: &'a Flags, mapping: &Mapping) -> Option<&'a [String]> {
    let index = flags.partition_point(|&(start, _, _)| start < mapping.start);
    flags
        .get(index)
        .filter(|entry| (entry.0, entry.1) == (mapping.start, mapping.end))
        .map(|entry| &entry.2[..])
}

/// Those that a restart sets again; others come and go without the program (`uw`: tracked).
pub fn kept_flags(flags: &[String]) -> impl Iterator<Item = &String> {
    flags.iter().filter(|flag| KEPT_FLAGS.contains(&flag.as_str()) || flag.starts_with(procfs::KEY))
}

/// Those of them that only a call about the flag itself changes.
fn settled_flags(flags: &[String]) -> impl Iterator<Item = &String> {
    kept_flags(flags).filter(|flag| *flag != ACCOUNTED)
}

/// Whether a look before the stop knows the flags of all mappings; those of new ones only a frozen copy shows.
pub fn all_known(all: &[Mapped], before: &Flags) -> bool {
    all.iter().all(|mapped| mapped.kind == Kind::Kernel || flags_of(before, &mapped.mapping).is_some())
}

/// The flags of all mappings at the stop. `copy`: those of the frozen copy (or of the program, held), which are the
/// ones of that instant but for what was kept out of the copy. The rest was looked at before the stop and after it;
/// locks before it ([`super::mlock`] checks them); what was mapped since is locked as `lock_future` says.
///
/// # Errors
/// A flag changed between the two looks: which came first, the change or the stop, is not known.
pub fn settle_flags(
    all: &[Mapped],
    before: &Flags,
    copy: Option<&Flags>,
    lock_future: u32,
    after: impl FnOnce() -> std::io::Result<Flags>,
) -> Result<Flags, String> {
    let future = [(libc::MCL_FUTURE, "lo"), (libc::MCL_ONFAULT, "lf")];
    let in_force = future.iter().filter(|(bit, _)| lock_future & bit.cast_unsigned() != 0);
    let fresh: Vec<String> = in_force.map(|(_, flag)| (*flag).to_owned()).collect();
    let mut settled = Vec::with_capacity(all.len());
    let mut open = Vec::new();
    for mapped in all {
        let (start, end) = (mapped.mapping.start, mapped.mapping.end);
        match copy.map(|copy| flags_at(copy, start)).filter(|flags| !flags.is_empty()) {
            Some(flags) => {
                let of_copy = |lock: &&String| !flags.contains(lock);
                let known = flags_at(before, start);
                let known = if known.is_empty() { &fresh } else { known };
                let locks = known.iter().filter(|flag| super::mlock::LOCKS.contains(&flag.as_str()));
                settled.push((start, end, flags.iter().chain(locks.filter(of_copy)).cloned().collect()));
            }
            None => open.push(&mapped.mapping),
        }
    }
    if !open.is_empty() {
        let after = after().map_err(|error| format!("looking at the flags of mappings again: {error}"))?;
        for mapping in open {
            let flags = match (flags_of(before, mapping), flags_of(&after, mapping)) {
                (Some(then), Some(now)) if settled_flags(then).ne(settled_flags(now)) => {
                    return Err(format!("the flags of mapping {:#x} changed meanwhile", mapping.start));
                }
                (Some(flags), _) | (None, Some(flags)) => flags,
                (None, None) => return Err(format!("mapping {:#x} came and went", mapping.start)),
            };
            settled.push((mapping.start, mapping.end, flags.to_vec()));
        }
    }
    settled.sort_unstable_by_key(|entry| entry.0);
    Ok(settled)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::maps::classify;
    use super::*;
    use crate::mapped_files::MappedFiles;
    use holdfast_sys::procfs::parse_maps;

    fn flags(entries: &[(u64, u64, &str)]) -> Flags {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect();
        entries.iter().map(|&(start, end, text)| (start, end, words(text))).collect()
    }

    fn settle(before: &Flags, copy: Option<&Flags>, after: &Flags) -> Result<Flags, String> {
        let text = b"1000-3000 rw-p 00000000 00:00 0 \n5000-6000 rw-p 00000000 00:00 0 \n";
        let all = classify(parse_maps(text).unwrap(), before, &MappedFiles::default()).unwrap();
        settle_flags(&all, before, copy, libc::MCL_FUTURE.cast_unsigned(), || Ok(after.clone()))
    }

    #[test]
    fn flags_are_those_of_the_stop_or_the_cut_is_tried_again() {
        let before = flags(&[(0x1000, 0x3000, "rd hg"), (0x5000, 0x6000, "rd wf")]);
        let tracked = flags(&[(0x1000, 0x3000, "rd hg uw"), (0x5000, 0x6000, "rd wf uw")]);
        assert_eq!(settle(&before, None, &tracked).unwrap(), before);
        // The copy knows better, where it has the mapping at all, whatever its borders are there.
        let copy = flags(&[(0x1000, 0x2000, "rd nh")]);
        let settled = settle(&before, Some(&copy), &tracked).unwrap();
        assert_eq!(settled, flags(&[(0x1000, 0x3000, "rd nh"), (0x5000, 0x6000, "rd wf")]));
        // But of locks, which it does not inherit.
        let locked = flags(&[(0x1000, 0x3000, "rd lo lf")]);
        let copy = flags(&[(0x1000, 0x3000, "rd"), (0x5000, 0x6000, "rd")]);
        let settled = settle(&locked, Some(&copy), &tracked).unwrap();
        assert_eq!(settled, flags(&[(0x1000, 0x3000, "rd lo lf"), (0x5000, 0x6000, "rd lo")]));
        // Changed between the looks: before the stop or after it?
        let changed = flags(&[(0x1000, 0x3000, "rd hg"), (0x5000, 0x6000, "rd")]);
        assert!(settle(&before, None, &changed).unwrap_err().contains("0x5000"));
        let written = flags(&[(0x1000, 0x3000, "rd hg ac"), (0x5000, 0x6000, "rd wf")]);
        assert_eq!(settle(&before, None, &written).unwrap(), before, "it was made writable meanwhile");
        // Unmapped since, or new at the stop.
        assert_eq!(settle(&before, None, &flags(&[(0x1000, 0x3000, "rd hg")])).unwrap(), before);
        assert_eq!(settle(&flags(&[(0x1000, 0x3000, "rd hg")]), None, &before).unwrap(), before);
        assert!(settle(&flags(&[]), None, &flags(&[])).is_err());
    }
}
