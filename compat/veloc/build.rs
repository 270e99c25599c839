//! The name by which programs that were linked with the library look for it.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libveloc-client.so");
    println!("cargo:rerun-if-changed=build.rs");
}
