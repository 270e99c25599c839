//! The suite: every program of `tests/programs` that checks itself, with its arguments, and the feature that it
//! stands for.
//!
//! One list for all who run it: `tests/e2e/chains_programs.rs` and `rollback.rs` make their tests of it by
//! [`suite_tests!`](crate::suite_tests), and the conformance run (`bin/support.rs`) reads it as [`ENTRIES`]. Each line
//! is one feature in plain words; `open "…"` says why it does not work yet (its tests are ignored), `root "…"` why only
//! root can have it. `make test` runs those that are marked `#[short]`, a sample that has every kind of kernel object
//! and every topic (waits are in `stops.rs`, too, advice, guards, heap and locked memory in other chains); `make
//! test-full` runs all.

use crate::apps::App;
use crate::sandbox::User;

/// A program of the suite.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Name of its tests.
    pub name: &'static str,
    /// Heading of the table of supported features.
    pub group: &'static str,
    /// What it stands for.
    pub feature: &'static str,
    /// C program of `tests/programs`, its static build, or that for musl.
    pub program: &'static str,
    /// Its arguments.
    pub arguments: &'static [&'static str],
    /// Why it does not work yet.
    pub open: Option<&'static str>,
    /// Why an ordinary user cannot run it, with or without Holdfast.
    pub root: Option<&'static str>,
    /// Whether it is in the sample that `make test` runs.
    pub short: bool,
}

impl Entry {
    /// How it is started.
    pub fn app(&self) -> App {
        // Terminals have numbers that another program would take.
        App { alone: self.program.contains("pty"), ..App::program(self.program, self.arguments) }
    }
}

/// A test for each program and user, as `FUNCTION(NAME, USER)` runs it: those of a user are in a module of its name.
#[macro_export]
macro_rules! suite_tests {
    ($run:ident: $($group:literal { $($(#[$short:ident])? $test:ident: $program:literal $($argument:literal)*
        => $feature:literal $(, open $open:literal)? $(, root $root:literal)?;)* })*) => {
        mod root {
            use super::*;
            $($(#[test] $(#[ignore = $open])? fn $test() { $run(stringify!($test), User::Root); })*)*
        }
        mod ordinary {
            use super::*;
            $($(#[test] $(#[ignore = $open])? fn $test() { $run(stringify!($test), User::Ordinary); })*)*
        }
    };
}

/// Hands the list to a macro, after the name of a function if one is given: groups of lines
/// `[#[short]] NAME: PROGRAM ARGUMENTS => FEATURE [, open WHY] [, root WHY];`.
#[macro_export]
macro_rules! suite {
    ($($use:ident)::+ $(, $run:ident)?) => {
        $($use)::+! { $($run:)?
            "Processor and memory" {
                stencil: "stencil" => "OpenMP threads that compute";
                #[short] registers: "registers" "25" =>
                    "Vector, mask and floating-point registers, rounding modes, in eight threads";
                #[short] mainstack: "mainstack" => "64 MiB in use on the main stack; a raised stack limit";
                #[short] mappings: "mappings" "10000" "60" => "10 000 mappings of alternating protection";
                #[short] segments: "segments" => "System V shared memory";
                #[short] detached: "detached" "moments" =>
                    "System V shared memory that is attached for moments only (Perl's shmwrite)";
                detached_keyed: "detached" "keyed" => "The same with a key";
                detached_children: "detached" "children" => "The same by children only";
                detached_untouched: "detached" "untouched" => "The same that is not attached yet";
                detached_sparse: "detached" "sparse" => "The same, 32 MiB of which little is used";
                detached_static: "detached-static" "moments" => "The same in a statically linked program";
                sparse: "sparse" => "A sparse mapping of 2 GiB";
                #[short] shared_sparse: "shared_sparse" =>
                    "More than 1 GiB of shared memory, memfds, System V and deleted files of which little was touched";
                #[short] keys: "keys" => "Protection keys (pkey_alloc, pkey_mprotect)";
                #[short] aio: "aio" => "Contexts of Linux AIO, with events that were not taken yet";
                #[short] address_sanitizer: "heap-asan" => "A program built with -fsanitize=address";
                #[short] inspected: "inspected" => "A program that a part of itself traces (LeakSanitizer)";
                heap: "heap" => "malloc, calloc, realloc, aligned_alloc and free";
                #[short] brk: "break" => "The break, growing and shrinking";
                #[short] memory: "memory" =>
                    "PROT_NONE pages with content, shared anonymous memory, mappings of a file, advice that stays";
                beyond_deleted: "beyond" "deleted" => "A private mapping that reaches beyond the end of a deleted file";
                #[short] beyond_memfd: "beyond" "memfd" => "The same of a memfd";
                beyond_shared: "beyond" "shared" => "The same of a memfd that is mapped shared as well";
                beyond_anonymous: "beyond" "anonymous" => "The same of shared memory",
                    root "only root may open /proc/self/map_files";
                #[short] memfds: "memfds" => "memfds: holes, seals, several descriptions; an unlinked file in /dev/shm";
                mirror: "mirror" => "Open files of /proc/self (mem, maps)";
                advice: "advice" => "madvise(DONTNEED) and mremap";
                guards: "guards" => "Guard regions (MADV_GUARD_INSTALL)";
                ranges: "ranges" => "mlock, mlockall, hints, NUMA policies and names of memory";
                toucher: "toucher" "64" "40" "50" => "A large heap that keeps changing";
                general_numbers: "general" "numbers" => "General registers and flags";
                general_redzone: "general" "redzone" => "The 128 bytes below the stack pointer";
                general_gs: "general" "gs" => "The base of GS, one per thread";
                general_x87: "general" "x87" => "x87 registers and control word";
                environs: "environs" => "Floating-point environment: rounding, sticky exceptions";
                #[short] rseqs: "rseqs" => "Areas of restartable sequences of its own, without the C library's";
                #[short] processor: "processor" => "Restartable sequences (rseq): sched_getcpu stays right";
                chosen: "chosen" => "Functions chosen for the processor (ifunc), cpuid";
                data: "data" => "Data segments of the program: initialised, zero, read-only";
                jit_protect: "jit" "protect" => "Generated code, by mprotect";
                #[short] jit_dual: "jit" "dual" => "Generated code, by a memfd that is mapped twice";
                jit_open: "jit" "open" => "Memory that is writable and executable";
                #[short] growsdown: "growsdown" => "A mapping that grows downwards";
                leftovers_droppable: "leftovers" "droppable" => "Memory that may vanish (MAP_DROPPABLE)";
                followers_open: "followers" "open" =>
                    "Shared memory without a name, and a descriptor of it (/proc/self/map_files)",
                    root "map_files";
                followers_private: "followers" "private" =>
                    "Shared memory without a name, and a private mapping of it",
                    root "map_files";
                followers_both: "followers" "both" => "The same with a descriptor", root "map_files";
                followers_child: "followers" "child" => "The same in a child", root "map_files";
                sealed: "sealed" => "Sealed memory (mseal)";
                selectors: "selectors" => "A local descriptor table (modify_ldt), segment registers that lead into it";
                counted: "counted" => "Which memory is counted (MAP_NORESERVE), and what is mapped beside old memory";
                reserve: "reserve" => "64 GiB of reserved address space";
                hugepages: "hugepages" => "Transparent huge pages, whole, in part and split";
                explicit_private: "explicit" "private" =>
                    "Explicit huge pages (MAP_HUGETLB): given back, moved, protected";
                #[short] explicit_shared: "explicit" "shared" =>
                    "Explicit huge pages that processes share (ordinary pages after a restart)";
                explicit_kept: "explicit" "kept" => "System V shared memory of huge pages (SHM_HUGETLB)",
                    root "only root, or a group that root names (vm.hugetlb_shm_group), may have it";
                explicit_removed: "explicit" "removed" =>
                    "The same, removed while it is attached (ordinary pages after a restart)",
                    root "only root, or a group that root names (vm.hugetlb_shm_group), may have it";
                twice_shared: "twice" "shared" => "A file mapped shared at several places, with mremap";
                twice_private: "twice" "private" => "A file mapped privately that changes by a shared mapping";
                #[short] twice_removed: "twice" "removed" =>
                    "A file mapped shared that is removed after the checkpoint";
                #[short] auxiliary: "auxiliary" => "Auxiliary vector, AT_RANDOM, vdso";
                #[short] vdso_gone: "vdso" "gone" => "A vdso that was unmapped, with its data";
                vdso_code: "vdso" "code" => "A vdso whose code alone was unmapped";
                vdso_moved: "vdso" "moved" => "A vdso that was moved";
                words: "words" => "Arguments and environment, also those changed by the program";
                #[short] libraries: "libraries" => "dlopen, dlclose";
                #[short] sequences: "sequences" => "Pseudo-random sequences, getrandom, /dev/urandom";
                locales: "locales" => "Locale, iconv, time zone, stdio buffers";
                origin_copy: "origin" "copy" => "A program executed by a relative name";
                #[short] origin_link: "origin" "link" => "A program executed through a symbolic link";
                origin_descriptor: "origin" "descriptor" => "A program executed by fexecve";
            }
            "Threads and signals" {
                visitors: "visitors" => "Threads on stacks of the program's own, unmapped at their end";
                #[short] pingpong: "pingpong" =>
                    "Threads: mutexes, condition variables, thread-local storage, jump \
                    buffers, once-only initialisation";
                #[short] signals: "signals" =>
                    "Blocked, pending and queued signals, with siginfo; handlers on alternate stacks";
                #[short] robust: "robust" => "Robust and priority-inheriting mutexes";
                #[short] churn: "churn" => "Thousands of short threads beside idle ones";
                #[short] ids: "ids" => "Process and thread ids, by calls, inline instructions, /proc and mutexes";
                clones: "clones" => "Threads made by clone(2) without the C library";
                departures: "departures" => "Detached, cancelled and joined threads";
                #[short] registered: "registered" => "Robust list and clear_child_tid of each thread";
                stacks: "stacks" => "Stacks of threads: sizes, places, guards that catch overflows";
                #[short] locals: "locals" => "Thread-local storage, keys, errno, canary and pointer guard";
                jumps_setjmp: "jumps" "setjmp" => "setjmp and longjmp";
                #[short] jumps_contexts: "jumps" "contexts" => "Coroutines (makecontext, swapcontext)";
                jumps_atexit: "jumps" "atexit" => "Functions registered with atexit";
                handlers: "handlers" => "Actions of all signals: handlers, masks, flags, ignored";
                #[short] queued: "queued" => "Hundreds of queued real-time signals";
                handling_nested: "handling" "nested" => "Nested signal handlers";
                handling_left: "handling" "left" => "Handlers left by siglongjmp";
                #[short] handling_autodisarm: "handling" "autodisarm" => "SS_AUTODISARM";
                handling_inside: "handling" "inside" => "A program that lives in a signal handler";
                handling_all: "handling" "all" =>
                    "Handlers for every signal there is (the agent has no signal of its own then)";
                handling_faults: "handling" "faults" => "Handlers of SIGSEGV, SIGFPE, SIGILL and SIGBUS";
            }
            "Waits" {
                #[short] wait_nanosleep: "waits" "nanosleep" => "Asleep in nanosleep";
                wait_clock_nanosleep: "waits" "clock_nanosleep" => "Asleep in clock_nanosleep, relative";
                wait_clock_nanosleep_abs: "waits" "clock_nanosleep_abs" => "Asleep in clock_nanosleep, absolute";
                wait_poll: "waits" "poll" => "Asleep in poll";
                #[short] wait_ppoll: "waits" "ppoll" => "Asleep in ppoll";
                wait_select: "waits" "select" => "Asleep in select";
                wait_pselect: "waits" "pselect" => "Asleep in pselect";
                wait_epoll_wait: "waits" "epoll_wait" => "Asleep in epoll_wait";
                wait_epoll_pwait: "waits" "epoll_pwait" => "Asleep in epoll_pwait";
                wait_epoll_pwait2: "waits" "epoll_pwait2" => "Asleep in epoll_pwait2";
                wait_futex_timed: "waits" "futex_timed" => "Asleep in futex with a timeout";
                #[short] wait_futex_bitset: "waits" "futex_bitset" => "Asleep in futex with an absolute timeout";
                wait_sem_timedwait: "waits" "sem_timedwait" => "Asleep in sem_timedwait";
                wait_cond_timedwait: "waits" "cond_timedwait" => "Asleep in cond_timedwait";
                wait_sigtimedwait: "waits" "sigtimedwait" => "Asleep in sigtimedwait";
                #[short] wait_semtimedop: "waits" "semtimedop" => "Asleep in semtimedop";
                #[short] wait_recv_timeout: "waits" "recv_timeout" => "Asleep in recv with SO_RCVTIMEO";
                wait_timerfd: "waits" "timerfd" => "Asleep in read of a timerfd";
                wait_pipe_read: "waits" "pipe_read" => "Asleep in read of an empty pipe";
                wait_poll_endless: "waits" "poll_endless" => "Asleep in poll without a timeout";
                wait_epoll_endless: "waits" "epoll_endless" => "Asleep in epoll_wait without a timeout";
                wait_socket_recv: "waits" "socket_recv" => "Asleep in recv on an empty socket";
                wait_eventfd: "waits" "eventfd" => "Asleep in read of an eventfd";
                wait_futex: "waits" "futex" => "Asleep in futex without a timeout";
                wait_sigwaitinfo: "waits" "sigwaitinfo" => "Asleep in sigwaitinfo";
                wait_sigsuspend: "waits" "sigsuspend" => "Asleep in sigsuspend";
                wait_pause: "waits" "pause" => "Asleep in pause";
                wait_flock: "waits" "flock" => "Asleep in flock";
                wait_msgrcv: "waits" "msgrcv" => "Asleep in msgrcv";
                sleep_accept: "sleeps" "accept" => "Asleep in accept";
                sleep_recvmsg: "sleeps" "recvmsg" => "Asleep in recvmsg";
                #[short] sleep_recvmmsg: "sleeps" "recvmmsg" => "Asleep in recvmmsg";
                sleep_signalfd: "sleeps" "signalfd" => "Asleep in read of a signalfd";
                #[short] sleep_inotify: "sleeps" "inotify" => "Asleep in read of an inotify instance";
                sleep_join: "sleeps" "join" => "Asleep in pthread_join";
                sleep_barrier: "sleeps" "barrier" => "Asleep in pthread_barrier_wait";
                #[short] sleep_mutex: "sleeps" "mutex" => "Asleep in pthread_mutex_lock";
                sleep_inheriting: "sleeps" "inheriting" => "Asleep in pthread_mutex_lock with priority inheritance";
                sleep_rwlock: "sleeps" "rwlock" => "Asleep in pthread_rwlock_rdlock";
                sleep_sem_wait: "sleeps" "sem_wait" => "Asleep in sem_wait";
                sleep_select: "sleeps" "select" => "Asleep in select without a timeout";
                sleep_splice: "sleeps" "splice" => "Asleep in splice";
                sleep_tee: "sleeps" "tee" => "Asleep in tee";
                sleep_readv: "sleeps" "readv" => "Asleep in readv";
                sleep_futex_waitv: "sleeps" "futex_waitv" => "Asleep in futex_waitv";
                #[short] sleep_lock: "sleeps" "lock" => "Asleep in fcntl(F_OFD_SETLKW)";
                #[short] sleep_open: "sleeps" "open" => "Asleep in open of a named pipe";
                sleep_sigwait: "sleeps" "sigwait" => "Asleep in sigwait";
            }
            "Transfers" {
                transfer_write: "transfers" "write" => "Transfer that arrives whole: write to a pipe";
                #[short] transfer_writev: "transfers" "writev" => "Transfer that arrives whole: writev to a pipe";
                transfer_send: "transfers" "send" => "Transfer that arrives whole: send on a socket";
                transfer_sendmsg: "transfers" "sendmsg" => "Transfer that arrives whole: sendmsg on a socket";
                #[short] transfer_waitall: "transfers" "waitall" =>
                    "Transfer that arrives whole: recv with MSG_WAITALL";
                transfer_getrandom: "transfers" "getrandom" => "Transfer that arrives whole: getrandom, a large one";
                transfer_zero: "transfers" "zero" => "Transfer that arrives whole: read of /dev/zero, a large one";
            }
            "Files and folders" {
                #[short] files: "files" =>
                    "Regular files: offsets, O_APPEND, dup, close-on-exec, deleted files; \
                    limits, nice value, thread names";
                #[short] watches: "watches" => "inotify: watch numbers, masks, files and folders; pidfds";
                #[short] unnoticed: "unnoticed" "files" =>
                    "Files under inotify and leases, whatever they are used for: no checkpoint is an event there";
                #[short] locks: "locks" => "File locks: flock, POSIX, open file description, leases";
                #[short] fifos: "fifos" => "Named pipes with data in flight; pipes in packet mode";
                #[short] folder: "folder" => "A current directory that was removed; the umask";
                #[short] odd_names_newlines: "odd_names" "newlines" =>
                    "Mapped files whose names have newlines, or what /proc shows for them";
                gone_cwd: "gone" "cwd" => "A working folder that is gone at the restart";
                gone_dirfd: "gone" "dirfd" => "An open folder that is gone at the restart";
                gone_fifo: "gone" "fifo" => "A named pipe that is gone with its folder at the restart";
                gone_sharedmap: "gone" "sharedmap" =>
                    "A file that is mapped for writing, and gone with its folder at the restart";
                #[short] gone_reading: "gone" "reading" =>
                    "A small file that is open for reading, and gone with its folder at the restart";
                gone_writing: "gone" "writing" =>
                    "A small file that is open for writing, and gone with its folder at the restart";
                #[short] gone_readonly: "gone" "readonly" =>
                    "A file that one process maps for writing and another for reading, and gone with its folder at \
                    the restart";
                #[short] gone_appended: "gone" "appended" =>
                    "A large file that is appended to, and gone with its folder at the restart (rotated away)";
                gone_unreadable: "gone" "unreadable" =>
                    "A file that its own permission bits forbid to write, gone with its folder at the restart";
                plenty: "plenty" => "900 descriptors: socket pairs, pipes, event counters, duplicates";
                #[short] descriptors: "descriptors" => "600 descriptors, numbers up to 4000, shared positions";
                #[short] descriptors_high: "descriptors" "45" "high" =>
                    "600 descriptors at the last numbers that the hard limit allows (valgrind's own are there)";
                regular_far: "regular" "far" => "A sparse file of 100 GiB";
                #[short] regular_shrinks: "regular" "shrinks" => "Files that grow and shrink";
                regular_changed: "regular" "changed" => "Files that are written over in place";
                regular_streams: "regular" "streams" => "stdio streams in the middle of a line";
                regular_direct: "regular" "direct" => "O_DIRECT";
                regular_vectors: "regular" "vectors" => "preadv, pwritev";
                nameless_unnamed: "nameless" "unnamed" => "O_TMPFILE";
                #[short] leftovers_links: "leftovers" "links" => "A deleted file that was opened by two names";
                leftovers_linked: "leftovers" "linked" => "The same, opened by one of them and mapped by the other";
                leftovers_later: "leftovers" "later" =>
                    "A file that is mapped shared for reading, and may become writable";
                #[short] leftovers_grows: "leftovers" "grows" =>
                    "A file that is mapped shared for reading, and grows after the checkpoint";
                leftovers_times: "leftovers" "times" => "Owner, mode and time of a deleted file";
                nameless_twins: "nameless" "twins" => "Two open descriptions of a deleted file";
                nameless_replaced: "nameless" "replaced" => "A deleted file whose name another one has";
                nameless_holes: "nameless" "holes" => "A deleted sparse file";
                #[short] nameless_mapped: "nameless" "mapped" => "A deleted file that is mapped";
                opened_path: "opened" "path" => "O_PATH";
                opened_flags: "opened" "flags" => "O_SYNC, O_DSYNC, O_NOATIME, O_NONBLOCK, O_APPEND";
                #[short] opened_owner: "opened" "owner" => "F_SETOWN, F_SETSIG, O_ASYNC";
                opened_listing: "opened" "listing" => "A directory read in the middle";
                opened_namespaces: "opened" "namespaces" => "Its own namespaces, open (/proc/self/ns)";
                #[short] opened_places: "opened" "places" =>
                    "A symbolic link held by O_PATH; a removed directory, open";
                #[short] opened_others: "opened" "others" =>
                    "Files and folders of /proc about other processes, and about one that has ended";
                opened_kernel: "opened" "kernel" => "Netlink sockets for sockets of the host and for audit";
                opened_reading: "opened" "reading" => "A read-only file whose mode was changed";
                wandering: "wandering" => "A current directory and a umask that change";
                own_proc_thread: "own_proc" "thread" => "/proc/thread-self: files and a folder, open";
                own_proc_folder: "own_proc" "folder" => "/proc/self as the working folder";
                own_proc_task: "own_proc" "task" => "/proc/thread-self as the working folder";
                #[short] own_proc_child: "own_proc" "child" => "/proc/self and /proc/thread-self of a child";
                mirrors: "mirrors" => "/proc/self: exe, maps, fd, status, limits";
                standard_closed: "standard" "closed" => "Closed standard streams";
                #[short] renamed: "renamed" =>
                    "Files that get another name after the checkpoint, and whose name another one gets";
                standard_reopened: "standard" "reopened" => "Standard input from a file, read in pieces";
                standard_copied: "standard" "copied" => "Standard output under other numbers";
                #[short] standard_piped: "standard" "piped" => "Standard input from a pipe of the program's own";
            }
            "Pipes, sockets, terminals, event objects" {
                #[short] plumbing: "plumbing" => "Pipes, socket pairs, epoll, eventfd, timerfd and signalfd together";
                #[short] ptys: "ptys" =>
                    "Pseudo-terminals: settings, size, packet mode, locks, a closed slave, a controlling terminal";
                #[short] pty_data: "pty_data" =>
                    "Unread output and input of pseudo-terminals: lines, bytes, ends of files, packet mode";
                #[short] handed: "handed" =>
                    "Descriptors in unread messages: streams, packets, datagrams, sockets that have some in turn";
                #[short] datagrams: "datagrams" => "UDP (IPv4, IPv6) and unix datagram sockets";
                #[short] echoes_raw: "echoes" "raw" =>
                    "Raw sockets of IPv4: filters, headers, addresses, connected without a port", root "CAP_NET_RAW";
                #[short] echoes_lite: "echoes" "lite" => "UDP-Lite";
                echoes_ping: "echoes" "ping" => "Sockets for echoes (IPPROTO_ICMP), connected";
                #[short] echoes_frames: "echoes" "frames" =>
                    "Packet sockets: device, protocol, filter; in a network namespace of its own";
                #[short] messages: "messages" => "Unix datagrams in flight from several senders; netlink sockets";
                sockets_tcp4: "sockets" "tcp4" =>
                    "TCP to oneself (IPv4): listener, connection with data in flight, options";
                #[short] sockets_tcp6: "sockets" "tcp6" => "TCP to oneself (IPv6)";
                sockets_mapped: "sockets" "mapped" => "TCP from IPv4 to an IPv6 listener";
                sockets_unix: "sockets" "unix" => "Unix stream sockets with a path";
                sockets_abstract: "sockets" "abstract" => "Unix stream sockets with an abstract name";
                sockets_packets: "sockets" "packets" => "Unix SEQPACKET sockets";
                sockets_shut: "sockets" "shut" => "Half-closed TCP connections";
                #[short] pipes_full: "pipes" "full" => "A pipe of 1 MiB that is full";
                pipes_ended: "pipes" "ended" => "A pipe whose writer has gone, with data left";
                pipes_deaf: "pipes" "deaf" => "A pipe whose reader has gone";
                pipes_empty: "pipes" "empty" => "Non-blocking pipes";
                pipes_spliced: "pipes" "spliced" => "vmsplice, tee and splice between pipes";
                pipes_many: "pipes" "many" => "200 pipes with data";
                pipes_reopened: "pipes" "reopened" => "A pipe opened again by /proc/self/fd";
                events_oneshot: "events" "oneshot" => "EPOLLONESHOT, disabled entries";
                events_edge: "events" "edge" => "EPOLLET";
                #[short] events_nested: "events" "nested" => "An epoll in an epoll";
                events_closed: "events" "closed" => "A watched descriptor that is closed while a duplicate lives";
                events_reused: "events" "reused" =>
                    "The same, and its number is another file's by now, which is watched too";
                #[short] events_taken: "events" "taken" =>
                    "Watched under numbers that are closed, and that a restart needs itself";
                events_ended: "events" "ended" => "A pidfd that is watched under a number that is closed";
                events_many: "events" "many" => "An epoll of 300 descriptors, EPOLLEXCLUSIVE";
                events_semaphore: "events" "semaphore" => "EFD_SEMAPHORE";
                events_brim: "events" "brim" => "An eventfd that is full";
                #[short] events_signals: "events" "signals" => "signalfd with signals that wait";
                #[short] leftovers_over: "leftovers" "over" => "A TCP connection that both ends have shut for writing";
                leftovers_udp: "leftovers" "udp" => "UDP sockets that were shut down";
                leftovers_pair: "leftovers" "pair" => "A pair of datagram sockets of which one was shut for reading";
                #[short] leftovers_filter: "leftovers" "filter" => "A socket filter (SO_ATTACH_FILTER)";
                leftovers_gone: "leftovers" "gone" => "A unix datagram server whose name was removed, and its client";
                leftovers_rebound: "leftovers" "rebound" => "Two unix listeners of one name, the first without it";
                leftovers_bound: "leftovers" "bound" => "A listener at an address that the host does not have";
                leftovers_stamps: "leftovers" "stamps" => "Time stamps and other rare options of UDP sockets";
                unixes_shut: "unixes" "shut" => "A socket pair with one direction closed";
                unixes_unlinked: "unixes" "unlinked" => "A unix listener whose file was deleted";
                unixes_renamed: "unixes" "renamed" => "A unix listener whose file was renamed";
                #[short] gone_listener: "gone" "listener" =>
                    "A unix listener whose folder is gone at the restart";
                gone_dgram: "gone" "dgram" => "A unix datagram socket whose folder is gone at the restart";
                gone_accepted: "gone" "accepted" => "A unix connection whose folder is gone at the restart";
                gone_before: "gone" "before" => "A unix listener whose folder had gone before the checkpoint";
                unixes_credentials: "unixes" "credentials" => "SO_PEERCRED, SO_PASSCRED";
                #[short] unixes_backlog: "unixes" "backlog" => "Unix connections that were not accepted yet";
                #[short] unixes_handed: "unixes" "handed" => "Descriptors received by SCM_RIGHTS";
                unixes_buffers: "unixes" "buffers" => "Socket buffers of chosen sizes, full";
                unixes_shrunk: "unixes" "shrunk" => "A socket buffer that is smaller than what waits";
                unixes_options: "unixes" "options" => "Options of unix sockets";
                internet_backlog: "internet" "backlog" => "TCP connections that were not accepted yet";
                internet_group: "internet" "group" => "SO_REUSEPORT";
                internet_regrouped: "internet" "regrouped" =>
                    "Two listeners at one port, without SO_REUSEPORT by now";
                #[short] internet_ungrouped: "internet" "ungrouped" =>
                    "Two listeners at one port, of which one has SO_REUSEPORT still";
                internet_reused: "internet" "reused" => "Ports that were shared by SO_REUSEADDR, which is gone by now";
                internet_waiting: "internet" "waiting" => "A TCP connection with 20 kB that wait";
                internet_urgent: "internet" "urgent" => "Urgent data of TCP";
                urgent_unix: "urgent" "unix" => "A byte out of band that waits in a unix stream";
                urgent_unix_front: "urgent" "unix_front" => "One of a unix stream, with nothing before it";
                urgent_unix_inline: "urgent" "unix_inline" => "One of a unix stream, in line (SO_OOBINLINE)";
                urgent_unix_received: "urgent" "unix_received" => "One of a unix stream, received: its mark";
                #[short] urgent_tcp: "urgent" "tcp" => "A byte out of band that waits in a TCP connection";
                urgent_tcp_front: "urgent" "tcp_front" => "One of a TCP connection, with nothing before it";
                urgent_tcp_inline: "urgent" "tcp_inline" => "One of a TCP connection, in line (SO_OOBINLINE)";
                urgent_tcp_received: "urgent" "tcp_received" => "One of a TCP connection, received: its mark";
                shut_unix: "shut" "unix" => "A unix socket that was shut down before it is connected";
                shut_listener: "shut" "listener" => "A unix listener that was shut down";
                shut_tcp: "shut" "tcp" => "A TCP socket that was shut down before it is connected";
                #[short] shut_reading: "shut" "reading" => "A TCP connection of which one end was shut for reading";
                shut_both: "shut" "both" =>
                    "A TCP connection of which one end was shut for reading and writing";
                names_lower: "names" "lower" => "A unix listener whose name another one with a lower number has";
                names_swapped: "names" "swapped" => "Two unix listeners that have each other's name";
                names_sender: "names" "sender" => "Unix datagrams in flight whose senders were closed";
                internet_reset: "internet" "reset" => "A TCP connection that was reset";
                internet_bound: "internet" "bound" => "A bound TCP port without a listener";
                #[short] internet_multicast: "internet" "multicast" => "Multicast groups";
                internet_wildcard: "internet" "wildcard" => "A TCP listener at all addresses, without SO_REUSEADDR";
                internet_options: "internet" "options" => "Options of TCP and IP";
                internet_pending: "internet" "pending" => "A TCP connection made without waiting";
                #[short] ipc_semaphores: "ipc" "semaphores" => "System V semaphores";
                ipc_lock: "ipc" "lock" => "SEM_UNDO: a lock that is free, taken by one process after the other";
                ipc_waiting: "ipc" "waiting" => "A thread that waits for a System V message";
                #[short] mqueues: "mqueues" => "POSIX message queues, with what waits in them; one that was removed";
                #[short] ipc_messages: "ipc" "messages" => "System V message queues";
                ipc_named: "ipc" "named" => "POSIX semaphores with a name";
            }
            "Timers and settings" {
                #[short] timers: "timers" => "Interval timers (real, virtual, prof) and alarm";
                #[short] attributes: "attributes" =>
                    "Settings of process and threads (prctl, scheduling, affinity, timer slack, ...)";
                clockworks_signal: "clockworks" "signal" => "timer_create with a signal";
                #[short] clockworks_thread: "clockworks" "thread" => "SIGEV_THREAD";
                clockworks_one: "clockworks" "one" => "SIGEV_THREAD_ID, CLOCK_BOOTTIME";
                clockworks_silent: "clockworks" "silent" => "SIGEV_NONE";
                clockworks_computing: "clockworks" "computing" => "A timer of CPU time";
                clockworks_absolute: "clockworks" "absolute" => "A timer at an absolute time";
                clockworks_numbers: "clockworks" "numbers" => "Numbers of timers";
                clockworks_overrun: "clockworks" "overrun" => "Overruns of a timer",
                    open "expirations while the program was not running are not counted";
                alarms_periodic: "alarms" "periodic" => "A periodic timerfd";
                alarms_absolute: "alarms" "absolute" => "A timerfd at an absolute time, TFD_TIMER_CANCEL_ON_SET";
                #[short] alarms_expired: "alarms" "expired" => "A timerfd that has expired and was not read";
                alarms_disarmed: "alarms" "disarmed" => "A timerfd that is set and disarmed";
                #[short] clocks: "clocks" => "Clocks do not go back; vdso and kernel agree";
                consumed: "consumed" => "Clocks of CPU time do not go back",
                    open "the CPU time of a new process begins at 0";
                #[short] limits: "limits" => "All resource limits";
                scheduling_batch: "scheduling" "batch" => "SCHED_BATCH";
                scheduling_idle: "scheduling" "idle" => "SCHED_IDLE";
                scheduling_nice: "scheduling" "nice" => "Nice values of threads";
                #[short] scheduling_affinity: "scheduling" "affinity" => "Affinity of threads";
                scheduling_realtime: "scheduling" "realtime" => "SCHED_FIFO, SCHED_RR", root "needs CAP_SYS_NICE";
                scheduling_turns: "scheduling" "turns" => "Turns of a length of their own (sched_setattr)";
                login: "login" => "loginuid, set by the program itself";
                scheduling_deadline: "scheduling" "deadline" => "SCHED_DEADLINE",
                    root "needs CAP_SYS_NICE";
                credentials_dropped: "credentials" "dropped" => "Root that has become an ordinary user",
                    root "only root may change who it is";
                credentials_effective: "credentials" "effective" => "Real, effective and saved ids that differ",
                    root "only root may change who it is";
                credentials_groups: "credentials" "groups" => "Supplementary groups",
                    root "only root may change who it is";
                #[short] credentials_capabilities: "credentials" "capabilities" => "Capability sets",
                    root "only root may change who it is";
                credentials_threads: "credentials" "threads" => "A thread with ids of its own",
                    open "what a thread has set for itself, past the C library, is not brought back",
                    root "only root may change who it is";
                personal_personality: "personal" "personality" => "personality(2)";
                leftovers_settings: "leftovers" "settings" => "coredump_filter, PR_SET_MEMORY_MERGE";
                personal_memory_errors: "personal" "memory_errors" => "PR_MCE_KILL";
                personal_speculation: "personal" "speculation" => "PR_SET_SPECULATION_CTRL";
                personal_no_new_privileges: "personal" "no_new_privileges" => "PR_SET_NO_NEW_PRIVS";
                personal_timestamps: "personal" "timestamps" => "PR_SET_TSC";
                personal_cpuid: "personal" "cpuid" => "ARCH_SET_CPUID";
            }
            "Processes" {
                tree_compute: "tree_compute" => "Children that compute; their exit codes by wait";
                #[short] tree_spawn: "tree_spawn" => "fork + exec, vfork + exec, posix_spawn";
                #[short] tree_deep: "tree_deep" => "A chain of seven generations; all ids stay";
                #[short] rooted_inside: "rooted" "inside" => "Another root directory", root "chroot";
                rooted_outside: "rooted" "outside" => "The same with a working folder outside", root "chroot";
                #[short] rooted_child: "rooted" "child" => "A child with another root directory", root "chroot";
                apart_names: "apart" "names" => "A uts namespace of its own";
                apart_objects: "apart" "objects" => "An ipc namespace of its own";
                apart_loopback: "apart" "loopback" => "A network namespace of its own with loopback, without sockets";
                networks_own: "networks" "own" => "A network namespace of its own with sockets of all kinds";
                #[short] networks_both: "networks" "both" =>
                    "A child in a network namespace of its own, with the addresses of its parent, connected to it";
                apart_root: "apart" "root" => "A user namespace of its own, as root inside (unshare -Ur)";
                apart_same: "apart" "same" => "The same, as who it was";
                #[short] apart_all: "apart" "all" => "All four of them, and a cgroup namespace";
                #[short] apart_threads: "apart" "threads" => "Threads in a user namespace of their own";
                #[short] filters_all: "filters" "all" "25" =>
                    "Seccomp filters, one over the other, of all threads (SECCOMP_FILTER_FLAG_TSYNC)";
                #[short] filters_threads: "filters" "threads" "25" => "Threads with seccomp filters of their own";
                #[short] filters_forked: "filters" "forked" "25" => "A child with a seccomp filter more";
                filters_executed: "filters" "executed" "25" => "A program that was executed under a seccomp filter",
                    root "only root is told of it";
                #[short] filters_narrow: "filters" "narrow" "25" =>
                    "A seccomp filter that ends the program at all calls but four",
                    root "no call of a checkpoint is allowed";
                #[short] domains_own: "domains" "own" =>
                    "Landlock domains, one over the other, for files, folders and ports; with a thread";
                #[short] domains_child: "domains" "child" => "A child in a Landlock domain, with a layer more";
                filters_strict: "filters" "strict" "25" => "A thread in seccomp's strict mode",
                    root "no call of a checkpoint is allowed";
                #[short] apart_child: "apart" "child" => "A child in namespaces of its own";
                mounted_copy: "mounted" "copy" =>
                    "A mount namespace of its own, with file systems that are nowhere else";
                mounted_root: "mounted" "root" => "The same as root of a user namespace (unshare -Urm)";
                #[short] mounted_pivot: "mounted" "pivot" => "The same with another root (pivot_root)";
                #[short] mounted_child: "mounted" "child" => "A child in a mount namespace of its own";
                inner_plain: "inner" "plain" => "A child in a pid namespace of its own (unshare -pf)";
                #[short] inner_proc: "inner" "proc" =>
                    "The same with a mount namespace and its own /proc (bwrap --unshare-pid --proc)";
                tree_many: "tree_many" => "Twenty workers with pipes";
                tree_pairs_stream: "tree_pairs" "stream" =>
                    "Stream socket pairs between processes; descriptors handed over";
                tree_pairs_datagram: "tree_pairs" "datagram" => "Datagram socket pairs between processes";
                #[short] tree_pairs_packet: "tree_pairs" "packet" => "SEQPACKET socket pairs between processes";
                #[short] tree_server_tcp4: "tree_server" "tcp4" =>
                    "TCP server and clients, processes of one job (IPv4)";
                tree_server_tcp6: "tree_server" "tcp6" => "TCP server and clients, processes of one job (IPv6)";
                tree_server_unix: "tree_server" "unix" => "Unix socket server and clients, by path";
                tree_server_abstract: "tree_server" "abstract" => "Unix socket server and clients, by abstract name";
                tree_mutex: "tree_mutex" => "Mutex and condition variables in shared memory";
                tree_robust: "tree_robust" => "Robust mutexes between processes";
                #[short] tree_futex: "tree_futex" => "Futexes and semaphores between processes, named and unnamed";
                tree_memory_anonymous: "tree_memory" "anonymous" => "Shared anonymous memory between processes";
                tree_memory_posix: "tree_memory" "posix" => "POSIX shared memory between processes";
                tree_memory_unlinked: "tree_memory" "unlinked" => "Unlinked POSIX shared memory between processes";
                #[short] tree_memory_memfd: "tree_memory" "memfd" => "A memfd mapped by several processes";
                tree_memory_file: "tree_memory" "file" => "A file mapped shared by several processes";
                #[short] tree_links: "tree_links" =>
                    "Files that lost their first name after they got another one; named semaphores (sem_open)";
                #[short] tree_rights_stream: "tree_rights" "stream" => "Descriptors in flight in a stream socket";
                tree_rights_packet: "tree_rights" "packet" => "Descriptors in flight in a SEQPACKET socket";
                tree_rights_queued: "tree_rights" "queued" =>
                    "Descriptors in flight in connections that were not accepted yet";
                tree_queue: "tree_queue" => "Connections in a listener's queue whose makers are gone";
                tree_segments_kept: "tree_segments" "kept" => "System V shared memory between processes";
                #[short] tree_segments_removed: "tree_segments" "removed" =>
                    "System V shared memory that was removed (IPC_RMID) while it is attached";
                #[short] tree_offsets: "tree_offsets" => "One open file description in two processes";
                #[short] folder_of_a_thread: "unshared" "folder" =>
                    "A thread with a directory of its own (unshare CLONE_FS)";
                #[short] folder_of_two_processes: "unshared" "shared" =>
                    "A directory shared with a child (clone CLONE_FS)";
                #[short] castoffs: "castoffs" => "Orphans that have written over their environment";
                #[short] mainless: "mainless" => "Main threads that have ended while others run";
                #[short] tree_groups: "tree_groups" => "Process groups and sessions";
                tree_leaderless: "tree_leaderless" => "Groups and sessions whose leader has ended";
                leftovers_group: "leftovers" "group" => "A child that has ended in a group whose leader is gone";
                #[short] tree_zombies: "tree_zombies" => "Children that ended and were not waited for";
                tree_sigchld: "tree_sigchld" => "SIGCHLD, once for each end, also when blocked";
                tree_ignored: "tree_ignored" => "Ignored SIGCHLD, SA_NOCLDWAIT";
                #[short] tree_bareclone: "tree_bareclone" => "Children made by the system call clone(2) itself";
                #[short] tree_orphans: "tree_orphans" => "Orphans and daemons";
                tree_daemons: "tree_daemons" => "Programs that are orphans before they begin";
                tree_users_servants: "tree_users" "servants" => "Children of root that have become somebody else",
                    root "only root may change who it is";
                tree_users_heirs: "tree_users" "heirs" => "A process that has become somebody else, and its children",
                    root "only root may change who it is";
                tree_users_families: "tree_users" "families" => "Processes that have become somebody else and fork",
                    root "only root may change who it is";
                #[short] tree_subreaper: "tree_subreaper" => "A child subreaper";
                tree_signals: "tree_signals" =>
                    "Signals between processes: to one, to a group, queued with values, blocked";
                tree_stopped_turns: "tree_stopped" "turns" => "Children stopped and continued in turns";
                tree_stopped_lasting: "tree_stopped" "lasting" => "A child that stays stopped, its stop told";
                tree_stopped_paused: "tree_stopped" "paused" =>
                    "A child that a terminal's signal has stopped, its stop not told yet";
                tree_stopped_unseen: "tree_stopped" "unseen" => "A child that stays stopped, its stop not told yet";
                tree_stopped_early: "tree_stopped" "early" => "A child stopped as soon as fork has made it";
                #[short] tree_stopped_group: "tree_stopped" "group" => "A stopped process group";
                tree_waits_wait: "tree_waits" "wait" => "Asleep in wait";
                tree_waits_waitpid: "tree_waits" "waitpid" => "Asleep in waitpid";
                tree_waits_wait4: "tree_waits" "wait4" => "Asleep in wait4, with usage";
                tree_waits_waitid: "tree_waits" "waitid" => "Asleep in waitid";
                tree_waits_group: "tree_waits" "group" => "Asleep in waitpid for a group";
                #[short] tree_waits_thread: "tree_waits" "thread" => "Asleep in wait in a thread";
                tree_waits_nowait: "tree_waits" "nowait" => "Asleep in waitid with WNOWAIT";
                tree_waits_pidfd: "tree_waits" "pidfd" => "Asleep in waitid of a pidfd";
                tree_waits_poll: "tree_waits" "poll" => "Asleep in poll of a pidfd";
                tree_waits_all: "tree_waits" "all" => "Asleep in wait for several";
                tree_waits_vfork: "tree_waits" "vfork" => "Asleep in vfork, the parent suspended";
                executed: "executed" => "A memfd that is executed all the time";
                tree_ended: "tree_ended" => "pidfds of processes that have ended: one inode for each process";
                #[short] tree_pidfd: "tree_pidfd" => "pidfds of children: poll, waitid, pidfd_send_signal";
                tree_events: "tree_events" => "epoll, eventfd and timerfd shared over fork";
                tree_heap: "tree_heap" => "Copy on write after fork";
                tree_common: "tree_common" =>
                    "Memory that processes have in common since fork: written, given back, moved, forked again";
                tree_limits: "tree_limits" =>
                    "Limits, umask, directory, nice value, affinity, ignored signals of each process";
                tree_busy: "tree_busy" => "Short programs started all the time";
                tree_churn: "tree_churn" => "A tree whose shape changes all the time";
                #[short] forks: "forks" =>
                    "Fork handlers that allocate, registered before all others, beside threads that allocate";
                tree_threads: "tree_threads" => "Threads that fork; children with threads";
                tree_deathsig: "tree_deathsig" => "PR_SET_PDEATHSIG between processes of the job";
                #[short] tree_locks: "tree_locks" => "File locks of several processes; one that waits for a lock";
                tree_timers: "tree_timers" => "Timers of each process";
                tree_fifo: "tree_fifo" => "Named pipes between processes; a sleep in open";
                tree_blocked_pipe: "tree_blocked" "pipe" => "Sleeps in write and read of a pipe between processes";
                tree_blocked_stream: "tree_blocked" "stream" =>
                    "Sleeps in write and read of a socket pair between processes";
                tree_blocked_tcp: "tree_blocked" "tcp" =>
                    "Sleeps in write and read of a TCP connection between processes";
                #[short] tree_slow_reader: "tree_slow" "reader" =>
                    "A TCP connection between processes whose reader is slow: what waits at the sender";
                tree_slow_closed: "tree_slow" "closed" => "The same of a sender that has closed its end";
                tree_slow_both: "tree_slow" "both" => "The same, both ways, when both ends have sent their last";
                #[short] tree_exec: "tree_exec" => "exec in a tree; pipes stay";
                tree_eof: "tree_eof" => "The end of pipes and connections comes when the last holder lets go";
                #[short] tree_pty: "tree_pty" => "Sessions, foreground groups and unread input of a pseudo-terminal";
            }
            "Programs without libholdfast" {
                #[short] tree_bare: "tree_bare" =>
                    "Processes with and without libholdfast that make and become each other";
                static_tree_bare: "tree_bare-static" => "The same, and the first is statically linked";
                musl_pingpong: "pingpong-musl" => "For another C library (musl): threads";
                #[short] musl_tree_spawn: "tree_spawn-musl" =>
                    "For another C library (musl): fork + exec, vfork + exec, posix_spawn";
                #[short] static_castoffs: "castoffs-static" =>
                    "Statically linked: orphans that have written over their environment";
                static_mainless: "mainless-static" =>
                    "Statically linked: main threads that have ended while others run";
                static_plain: "plain-static" => "Statically linked: numbers, heap and output";
                #[short] static_pingpong: "pingpong-static" => "Statically linked: threads";
                static_queued: "queued-static" => "Statically linked: queued signals";
                static_handling_all: "handling-static" "all" => "Statically linked: handlers for every signal";
                static_nanosleep: "waits-static" "nanosleep" => "Statically linked: asleep in nanosleep";
                static_epoll_wait: "waits-static" "epoll_wait" => "Statically linked: asleep in epoll_wait";
                static_sleep_join: "sleeps-static" "join" => "Statically linked: asleep in pthread_join";
                static_timers: "timers-static" => "Statically linked: timers";
                static_clocks: "clocks-static" => "Statically linked: clocks";
                static_files: "files-static" => "Statically linked: files";
                static_pipes: "pipes-static" "full" => "Statically linked: pipes";
                #[short] static_sockets: "sockets-static" "tcp4" => "Statically linked: TCP";
                static_toucher: "toucher-static" "64" "40" "50" =>
                    "Statically linked: a large heap that keeps changing";
                static_tree_spawn: "tree_spawn-static" => "Statically linked: fork + exec, vfork + exec, posix_spawn";
                static_tree_futex: "tree_futex-static" => "Statically linked: futexes between processes";
                static_tree_memory: "tree_memory-static" "anonymous" =>
                    "Statically linked: shared memory between processes";
                static_tree_groups: "tree_groups-static" => "Statically linked: process groups and sessions";
                static_tree_churn: "tree_churn-static" => "Statically linked: a tree whose shape changes all the time";
                #[short] static_tree_threads: "tree_threads-static" => "Statically linked: threads that fork";
                static_tree_orphans: "tree_orphans-static" => "Statically linked: orphans and daemons";
                static_tree_daemons: "tree_daemons-static" =>
                    "Statically linked: programs that are orphans before they begin";
                static_tree_zombies: "tree_zombies-static" => "Statically linked: zombies";
            }
        }
    };
}

macro_rules! entries {
    ($($group:literal { $($(#[$short:ident])? $name:ident: $program:literal $($argument:literal)* => $feature:literal
        $(, open $open:literal)? $(, root $root:literal)?;)* })*) => {
        /// All programs of the suite.
        pub const ENTRIES: &[Entry] = &[$($(Entry {
            name: stringify!($name),
            group: $group,
            feature: $feature,
            program: $program,
            arguments: &[$($argument),*],
            open: [None, $(Some($open))?][entries!(@count $($open)?)],
            root: [None, $(Some($root))?][entries!(@count $($root)?)],
            short: [false, $(entries!(@$short))?][entries!(@count $($short)?)],
        }),*),*];
    };
    (@count) => { 0 };
    (@count $one:tt) => { 1 };
    (@short) => { true };
}
suite!(entries);

impl Entry {
    /// Whose turn it is in the short form: the two users take turns in the list.
    pub fn turn(&self) -> User {
        let before = ENTRIES.iter().take_while(|entry| entry.name != self.name);
        let place = before.filter(|entry| entry.short == self.short).count();
        if place % 2 == 0 || self.root.is_some() { User::Root } else { User::Ordinary }
    }
}
