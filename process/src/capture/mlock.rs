//! Locks of memory (mlock(2)), which a frozen copy does not inherit (kernel/fork.c, dup_mmap): looked at before the
//! stop and after it.
//!
//! Called by `build_record`, after the stop, for a program that has locked anything. How it fails: a lock that
//! changed between the two looks; which came first, the change or the stop, is not known, and the cut is tried again.

use super::maps::{self, Flags, Kind, Mapped};

/// Locked; when it is touched.
pub const LOCKS: [&str; 2] = ["lo", "lf"];

fn locks(flags: &[String]) -> impl Iterator<Item = &String> {
    flags.iter().filter(|flag| LOCKS.contains(&flag.as_str()))
}

/// Whether a look found any.
pub fn any(flags: &Flags) -> bool {
    flags.iter().any(|(_, _, flags)| locks(flags).next().is_some())
}

/// Checks the locks of the look before the stop against those after it; mappings that only the second look knows have
/// those.
///
/// # Errors
/// See the head of the file.
pub fn settle(all: &[Mapped], before: &Flags, after: &Flags, settled: &mut Flags) -> Result<(), String> {
    for mapping in all.iter().filter(|mapped| mapped.kind != Kind::Kernel).map(|mapped| &mapped.mapping) {
        let (then, now) = (maps::flags_at(before, mapping.start), maps::flags_at(after, mapping.start));
        if now.is_empty() {
            continue;
        }
        if then.is_empty() {
            let own = settled.iter_mut().filter(|entry| entry.0 == mapping.start);
            own.for_each(|(_, _, flags)| {
                flags.retain(|flag| !LOCKS.contains(&flag.as_str()));
                flags.extend(locks(now).cloned());
            });
        } else if locks(then).ne(locks(now)) {
            return Err(format!("the lock of memory at {:#x} changed meanwhile", mapping.start));
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::mapped_files::MappedFiles;
    use holdfast_sys::procfs::parse_maps;

    fn flags(all: &[(u64, u64, &str)]) -> Flags {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect();
        all.iter().map(|&(start, end, text)| (start, end, words(text))).collect()
    }

    #[test]
    fn locks_that_changed_are_not_guessed() {
        let text = b"1000-3000 rw-p 00000000 00:00 0 \n5000-6000 rw-p 00000000 00:00 0 \n";
        let all = maps::classify(parse_maps(text).unwrap(), &Vec::new(), &MappedFiles::default()).unwrap();
        let before = flags(&[(0x1000, 0x3000, "rd lo")]);
        let same = flags(&[(0x1000, 0x3000, "rd hg lo"), (0x5000, 0x6000, "rd lo lf")]);
        assert!(any(&before) && !any(&flags(&[(0x1000, 0x3000, "rd hg")])));
        let mut settled = flags(&[(0x1000, 0x3000, "rd lo"), (0x5000, 0x6000, "rd lo")]);
        settle(&all, &before, &same, &mut settled).unwrap();
        assert_eq!(settled, flags(&[(0x1000, 0x3000, "rd lo"), (0x5000, 0x6000, "rd lo lf")]));
        for changed in ["rd", "rd lo lf"] {
            let after = flags(&[(0x1000, 0x3000, changed)]);
            assert!(settle(&all, &before, &after, &mut settled).unwrap_err().contains("0x1000"));
        }
        // It is not mapped any more.
        settle(&all, &before, &flags(&[]), &mut settled).unwrap();
    }
}
