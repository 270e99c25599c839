//! The name by which programs that were linked with the library look for it.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libholdfast-client.so");
    println!("cargo:rerun-if-changed=build.rs");
}
