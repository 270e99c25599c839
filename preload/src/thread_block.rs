//! Thread-local storage by hand, of the initial-exec model: a crate without the standard library has none.
//!
//! One instruction away, no allocation, zero in a new thread (ELF Handling For Thread-Local Storage, 4.4.6). The loader
//! gives every preloaded library its place in it. Used by `filters` and `guard/thread`, each for one block. Invariants:
//! the type is atomics throughout, of which all zeros is a value; the symbol is of that block alone.

/// Makes `offset()`, where the block lies relative to the fs base, and `own()`, that of the calling thread. `symbol`:
/// its name; `align`: as the type is aligned, a power of two; `of`: the type.
macro_rules! thread_block {
    ($symbol:literal, align $align:literal, of $block:ty) => {
        const _: () = assert!(align_of::<$block>() <= 1 << $align);

        core::arch::global_asm!(
            concat!(".pushsection .tbss.", $symbol, ",\"awT\",@nobits"),
            ".p2align {align}",
            concat!(".hidden ", $symbol),
            concat!(".globl ", $symbol),
            concat!(".type ", $symbol, ",@object"),
            concat!(".size ", $symbol, ", {len}"),
            concat!($symbol, ": .zero {len}"),
            ".popsection",
            align = const $align,
            len = const size_of::<$block>(),
        );

        /// Where the block lies, relative to the fs base.
        pub fn offset() -> i64 {
            let offset: i64;
            // SAFETY: loads one word of the library's own table of addresses.
            unsafe {
                core::arch::asm!(
                    concat!("mov {}, qword ptr [rip + ", $symbol, "@GOTTPOFF]"),
                    out(reg) offset,
                    options(pure, readonly, nostack)
                );
            }
            offset
        }

        /// The block of the calling thread.
        #[inline(always)]
        pub fn own() -> &'static $block {
            let place: usize;
            // SAFETY: the word at the fs base is its own address (System V ABI, AMD64 supplement, thread-local
            // storage).
            unsafe {
                core::arch::asm!(
                    concat!("mov {0}, qword ptr [rip + ", $symbol, "@GOTTPOFF]"),
                    "add {0}, qword ptr fs:[0]",
                    out(reg) place,
                    options(pure, readonly, nostack)
                );
            }
            // SAFETY: aligned bytes of this thread, zero at its start, which are atomics throughout. They live as long
            // as the thread; nothing keeps the reference longer.
            unsafe { &*core::ptr::with_exposed_provenance::<$block>(place) }
        }
    };
}

pub(crate) use thread_block;
