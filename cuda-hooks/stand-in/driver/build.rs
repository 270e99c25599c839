//! The library's name is the driver's: whatever loads `libcuda.so.1` finds it by its folder alone. It is never
//! unloaded, for its threads run in it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
