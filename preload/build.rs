//! How `libholdfast.so` is linked, so that a program that allocates nothing pays next to nothing for jemalloc: each
//! `exec` of a short-lived program loads the library anew.
//!
//! - jemalloc's own constructor is left out: it gets ready when the first block is wanted (`malloc.rs`), which costs
//!   some fifty page faults.
//! - its report of statistics is left out (`malloc.rs` has an empty one), and with it the tree of names of mallctl(3):
//!   five pages that the loader would have to relocate.

fn main() {
    let folder = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=link.ld");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-T,{folder}/link.ld");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--wrap=_rjem_je_stats_print");
}
