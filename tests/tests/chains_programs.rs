//! Each C program of `tests/programs`, as root and as ordinary user: chained checkpoint, kill -9, restart rounds at random
//! moments; the joined output must be that of an undisturbed run.
#![allow(clippy::panic, clippy::expect_used, clippy::unwrap_used)]

use holdfast_tests::apps::App;
use holdfast_tests::bed::User;
use holdfast_tests::chain::{Memory, Plan, chain, many};

macro_rules! programs {
    ($($test:ident: $program:literal $($argument:literal)*;)*) => {
        mod root {
            use super::*;
            $(#[test] fn $test() { chain(&App::program($program, &[$($argument),*]), User::Root, Plan::of(many())); })*
        }
        mod ordinary {
            use super::*;
            $(#[test] fn $test() { chain(&App::program($program, &[$($argument),*]), User::Ordinary, Plan::of(many())); })*
        }
    };
}

programs! {
    pingpong: "pingpong";
    stencil: "stencil";
    registers: "registers";
    signals: "signals";
    timers: "timers";
    mainstack: "mainstack";
    mappings: "mappings";
    sparse: "sparse";
    heap: "heap";
    brk: "break";
    files: "files";
    plumbing: "plumbing";
    memory: "memory";
    mirror: "mirror";
    robust: "robust";
    churn: "churn";
    advice: "advice";
    toucher: "toucher" "64" "40" "50";
    transfer_write: "transfers" "write";
    transfer_writev: "transfers" "writev";
    transfer_send: "transfers" "send";
    transfer_sendmsg: "transfers" "sendmsg";
    transfer_waitall: "transfers" "waitall";
    transfer_getrandom: "transfers" "getrandom";
    transfer_zero: "transfers" "zero";
    wait_nanosleep: "waits" "nanosleep";
    wait_clock_nanosleep: "waits" "clock_nanosleep";
    wait_clock_nanosleep_abs: "waits" "clock_nanosleep_abs";
    wait_poll: "waits" "poll";
    wait_ppoll: "waits" "ppoll";
    wait_select: "waits" "select";
    wait_pselect: "waits" "pselect";
    wait_epoll_wait: "waits" "epoll_wait";
    wait_epoll_pwait: "waits" "epoll_pwait";
    wait_epoll_pwait2: "waits" "epoll_pwait2";
    wait_futex_timed: "waits" "futex_timed";
    wait_futex_bitset: "waits" "futex_bitset";
    wait_sem_timedwait: "waits" "sem_timedwait";
    wait_cond_timedwait: "waits" "cond_timedwait";
    wait_sigtimedwait: "waits" "sigtimedwait";
    wait_semtimedop: "waits" "semtimedop";
    wait_recv_timeout: "waits" "recv_timeout";
    wait_timerfd: "waits" "timerfd";
    wait_pipe_read: "waits" "pipe_read";
    wait_poll_endless: "waits" "poll_endless";
    wait_epoll_endless: "waits" "epoll_endless";
    wait_socket_recv: "waits" "socket_recv";
    wait_eventfd: "waits" "eventfd";
    wait_futex: "waits" "futex";
    wait_sigwaitinfo: "waits" "sigwaitinfo";
    wait_sigsuspend: "waits" "sigsuspend";
}

/// Every page that can be is mapped from the image, at every restart.
mod lazy {
    use super::*;

    fn lazily(program: &str, user: User) {
        let plan = Plan { rounds: many(), options: &["--no-compress"], memory: Memory::Lazy };
        chain(&App::program(program, &[]), user, plan);
    }
    #[test]
    fn advice_as_root() {
        lazily("advice", User::Root);
    }
    #[test]
    fn advice_as_ordinary_user() {
        lazily("advice", User::Ordinary);
    }
    #[test]
    fn heap_as_root() {
        lazily("heap", User::Root);
    }
    #[test]
    fn heap_as_ordinary_user() {
        lazily("heap", User::Ordinary);
    }
}
