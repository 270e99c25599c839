//! What this kernel does for the areas of restartable sequences (rseq(2)) that threads have registered.
//!
//! Used by `agent::threads`, which registers them again, and for a note at a restart. How long an area may be has
//! changed: a kernel before 6.3 takes 32 bytes and nothing else; later ones take those, or any length from what they
//! keep in it on, at addresses aligned to what that needs, and say both in the auxiliary vector (kernel/rseq.c, of
//! rseq(2): 28 bytes and 32 in 6.3 to 6.18, 33 and 64 in 7.0). A program believes the vector that it was started with.

use holdfast_image::record::{ProcessRecord, Rseq};
use holdfast_sys::{procfs, proctext};
use std::sync::OnceLock;

/// What every kernel takes.
const ORIGINAL: u32 = 32;
/// AT_RSEQ_FEATURE_SIZE, AT_RSEQ_ALIGN (include/uapi/linux/auxvec.h).
const FEATURE_SIZE: u64 = 27;
const ALIGN: u64 = 28;

/// What a kernel says of itself; `None`: it is older than Linux 6.3.
type Kept = Option<(u64, u64)>;

/// Of an auxiliary vector.
fn kept(vector: &[u8]) -> Kept {
    procfs::auxiliary(vector, FEATURE_SIZE).zip(procfs::auxiliary(vector, ALIGN))
}

/// Of this host.
fn here() -> Kept {
    static HERE: OnceLock<Kept> = OnceLock::new();
    *HERE.get_or_init(|| proctext::record("/proc/self/auxv").ok().as_deref().and_then(kept))
}

/// The length with which an area is registered: its own, if the kernel takes that.
pub fn len(area: &Rseq) -> u32 {
    len_by(here(), area)
}

fn len_by(kernel: Kept, area: &Rseq) -> u32 {
    let fits =
        |(size, align): (u64, u64)| u64::from(area.len) >= size && area.addr.0.is_multiple_of(align.max(1));
    if kernel.is_some_and(fits) { area.len } else { ORIGINAL }
}

/// What the user should know: the program has areas in which its kernel kept what this one does not.
pub fn note(record: &ProcessRecord) -> Option<String> {
    let has_area =
        record.processes().flat_map(|process| &process.threads).any(|thread| thread.rseq.is_some());
    let size = |kept: Kept| kept.map_or(20, |(size, _)| size);
    let (was, now) = (size(kept(&record.layout.auxv.0)), size(here()));
    (has_area && now < was).then(|| {
        format!(
            "the kernel keeps {now} bytes of each thread's restartable sequences (rseq) up to date, and kept {was} \
             where the program was started: if it looks at more than its processor there, restart it under a \
             newer kernel"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_image::Addr;

    #[test]
    fn no_length_is_registered_that_the_kernel_does_not_take() {
        let len = |kernel, addr, len| len_by(kernel, &Rseq { addr: Addr(addr), len, signature: 0 });
        let (old, now, later) = (None, Some((28, 32)), Some((33, 64)));
        for kernel in [old, now, later] {
            assert_eq!(len(kernel, 0x1020, 32), 32);
        }
        assert_eq!((len(now, 0x1040, 64), len(later, 0x1040, 64)), (64, 64));
        assert_eq!(len(old, 0x1040, 64), 32, "glibc 2.41 of Linux 7.0, on Linux 5.15");
        assert_eq!(len(later, 0x1020, 64), 32, "aligned to less");
        assert_eq!((len(now, 0x1040, 33), len(later, 0x1040, 40)), (33, 40));
    }

    #[test]
    fn the_vector_tells_and_this_kernel_has_one() {
        let words = |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
        assert_eq!(kept(&words(&[3, 64, 27, 33, 28, 64, 0, 0])), Some((33, 64)));
        assert_eq!((kept(&words(&[3, 64, 0, 0])), kept(&[1, 2, 3])), (None, None));
        assert_eq!(here(), proctext::record("/proc/self/auxv").ok().as_deref().and_then(kept));
    }
}
