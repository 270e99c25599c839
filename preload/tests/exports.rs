//! What the finished library shows to the program, and what is in it.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;
use std::collections::BTreeSet;
use std::process::Command;

fn nm(options: &[&str]) -> Vec<String> {
    let output = Command::new("nm").args(options).arg(common::library()).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// The C API, the malloc family, life cycle, memory, ids: nothing of Rust and nothing of jemalloc.
#[test]
fn only_the_intended_names_are_exported() {
    let expected: BTreeSet<&str> = "
        aligned_alloc calloc free malloc malloc_usable_size memalign posix_memalign pvalloc realloc reallocarray valloc
        holdfast_checkpoint holdfast_checkpoint_start holdfast_cuda_discard holdfast_cuda_keep holdfast_free_protected
        holdfast_malloc_protected
        holdfast_restarted holdfast_restore_protected
        __register_atfork daemon dlopen dlsym dlvsym setsid sigaltstack madvise mremap prctl personality mlockall
        munlockall alarm setitimer ualarm pthread_create
        io_uring_queue_init io_uring_queue_init_params io_uring_queue_init_mem io_uring_setup io_uring_get_probe
        io_setup io_submit io_destroy inotify_add_watch remap_file_pages
        shmget shmat shmctl semget semop semtimedop semctl msgget msgsnd msgrcv msgctl
        munmap mprotect mmap mmap64 sigaction signal sigprocmask pthread_sigmask
        read pread pread64 readv preadv preadv64 recv recvfrom recvmsg getrandom fread fread_unlocked __read_chk
        __pread_chk __pread64_chk __recv_chk __recvfrom_chk __fread_chk poll epoll_wait stat fstat lstat fstatat
        stat64 fstat64 lstat64 fstatat64 readlink readlinkat getcwd waitpid sigsuspend ppoll pselect epoll_pwait
        getpgid getpgrp getpid getppid getpriority getsid gettid kill sched_getaffinity sched_getparam
        sched_getscheduler sched_setaffinity sched_setparam sched_setscheduler setpgid setpriority sigqueue syscall
        tgkill
        connect bind getsockname getpeername accept accept4 sendto sendmsg sendmmsg recvmmsg
    "
    .split_whitespace()
    .collect();
    // And the functions of the CUDA driver that have wrappers.
    let driver = holdfast_cuda_hooks::table::ROWS.iter().filter(|row| row.has_wrapper());
    let driver: Vec<&str> = driver.map(|row| row.symbol().to_str().unwrap()).collect();
    assert!(driver.len() > 300);
    let expected: BTreeSet<&str> = expected.into_iter().chain(driver).collect();
    let lines = nm(&["-D", "--defined-only"]);
    let found: BTreeSet<&str> = lines.iter().filter_map(|line| line.split_whitespace().nth(2)).collect();
    assert_eq!(found, expected);
}

/// A panic inside somebody else's program is not to be: no way to it is left.
#[test]
fn there_is_no_path_to_a_panic() {
    let lines = nm(&[]);
    assert!(lines.iter().any(|line| line.ends_with(" malloc")), "the library is not stripped");
    let panics: Vec<_> =
        lines.iter().filter(|line| line.contains("panicking") || line.contains("begin_unwind")).collect();
    assert!(panics.is_empty(), "{panics:?}");
}

/// It brings no other library into the program.
#[test]
fn it_needs_the_c_library_only() {
    let output = Command::new("readelf").arg("-d").arg(common::library()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let needed: Vec<_> = text.lines().filter(|line| line.contains("(NEEDED)")).collect();
    assert!(
        needed.iter().all(|line| line.contains("[libc.so.6]") || line.contains("[ld-linux")),
        "{needed:?}"
    );
}

/// The numbers in the header are those of the code.
#[test]
fn the_header_has_the_codes_of_the_library() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = std::fs::read_to_string(root.join("include/holdfast.h")).unwrap();
    // Those of libholdfast, and of libholdfast-client, which has some in common with it.
    let code = ["src/api.rs", "../compat/native/src/api.rs"]
        .map(|file| std::fs::read_to_string(root.join(file)).unwrap());
    let mut counts = [0; 2];
    for line in header.lines().filter(|line| line.starts_with("#define HOLDFAST_E_")) {
        let mut words = line.split_whitespace().skip(1);
        let name = words.next().unwrap().trim_start_matches("HOLDFAST_E_");
        let value = words.next().unwrap().trim_matches(['(', ')']);
        for (count, code) in counts.iter_mut().zip(&code) {
            if code.contains(&format!("const {name}: c_int = ")) {
                let right = format!("const {name}: c_int = {value};");
                assert!(code.contains(&right), "{name} is not {value} in api.rs");
                *count += 1;
            }
        }
    }
    assert_eq!(counts, [9, 7]);
}
