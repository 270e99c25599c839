//! The malloc family, whoever serves.
#![allow(clippy::unwrap_used)]

mod common;
use common::{Folder, alone, output, plain};

#[test]
fn the_family_keeps_what_its_man_pages_promise() {
    let folder = Folder::new();
    let family = folder.compile("family", &[]);
    assert_eq!(output(&mut plain(&family)), "ok\n", "the test itself is wrong");
    assert_eq!(output(alone(&family).arg("strict")), "ok\n");
}

#[test]
fn the_programs_own_allocator_is_left_alone_when_asked() {
    let folder = Folder::new();
    let family = folder.compile("family", &[]);
    assert_eq!(output(alone(&family).env("HOLDFAST_MALLOC", "system")), "ok\n");
    for options in [&[][..], &["-no-pie"]] {
        let size = folder.compile("size", options);
        assert_eq!(output(&mut plain(&size)), "1000\n", "the test itself is wrong");
        assert_eq!(output(alone(&size).env("HOLDFAST_MALLOC", "system")), "1000\n", "{options:?}");
        assert_eq!(output(&mut alone(&size)), "1024\n", "{options:?}");
        assert_eq!(output(alone(&size).env("HOLDFAST_MALLOC", "jemalloc")), "1024\n", "{options:?}");
    }
}

/// The interpreter that most people use is linked at a fixed address on some systems.
#[test]
fn python_is_served() {
    let text = "import ctypes; c = ctypes.CDLL(None); c.malloc.restype = ctypes.c_void_p\n\
                print(c.malloc_usable_size(ctypes.c_void_p(c.malloc(1000))))";
    assert_eq!(output(alone("/usr/bin/python3").args(["-c", text])), "1024\n");
}

#[test]
fn a_program_with_an_allocator_of_its_own_keeps_it() {
    let folder = Folder::new();
    let own = folder.compile("own", &["-fno-builtin"]);
    assert_eq!(output(&mut plain(&own)), "own\n", "the test itself is wrong");
    assert_eq!(output(&mut alone(&own)), "own\n");
}
