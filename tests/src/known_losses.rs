//! What is known to be lost by a restart, as data: `make support` writes it into docs/support.md.
//!
//! Used by `bin/support.rs`. What must hold: everything that the kernel tells of sockets, files and processes is in the
//! record, is refused, is no state ([`TOLD`]), or is in [`LOSSES`]. `tests/e2e/lists.rs` compares that with the
//! headers and with /proc of the machine that it runs on, up to the newest that is known here.

/// One thing that is not as it was after a restart.
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    /// What it belongs to.
    pub of: &'static str,
    /// What it is.
    pub what: &'static str,
    /// What a program may notice.
    pub effect: &'static str,
}

const fn loss(of: &'static str, what: &'static str, effect: &'static str) -> Loss {
    Loss { of, what, effect }
}

/// All that is known.
pub const LOSSES: &[Loss] = &[
    loss(
        "sockets",
        "the process in SO_PEERCRED, SO_PEERPIDFD, SO_PEERGROUPS, SO_PEERSEC of a connection",
        "the other end is the first process of the job; user and group in SO_PEERCRED are as they were",
    ),
    loss("sockets", "SO_TXTIME", "to be set again: whether it was set is not told"),
    loss("sockets", "SO_LOCK_FILTER", "the filter can be taken away again"),
    loss(
        "sockets",
        "SO_ATTACH_REUSEPORT_CBPF, SO_ATTACH_REUSEPORT_EBPF",
        "connections are spread by their hash",
    ),
    loss("sockets", "SO_INCOMING_CPU, SO_RESERVE_MEM, SO_DEBUG", "speed"),
    loss(
        "sockets",
        "SO_COOKIE, SO_MEMINFO, SO_INCOMING_NAPI_ID",
        "others: they name the socket or the moment",
    ),
    loss("TCP", "TCP_MAXSEG, TCP_WINDOW_CLAMP", "chosen by the kernel again: what was set is not told"),
    loss("TCP", "TCP_FASTOPEN_CONNECT, TCP_FASTOPEN_KEY, TCP_SAVED_SYN", "to be set again; gone"),
    loss("TCP", "TCP_MD5SIG, TCP authentication (TCP-AO)", "keys are not told: connections are made without"),
    loss("TCP", "TCP_TIMESTAMP, counters of TCP_INFO", "begin anew"),
    loss(
        "TCP",
        "SO_RCVBUF, SO_SNDBUF of a connection whose reader was slow at a checkpoint",
        "more, and less until the reader has caught up",
    ),
    loss("TCP", "the port of a connection that both ends have shut", "another one"),
    loss(
        "UDP",
        "datagrams that were not read, UDP_CORK with data, UDP_ENCAP",
        "lost, as the network may lose them",
    ),
    loss(
        "raw sockets",
        "packets that were not read, IP_ROUTER_ALERT, IPV6_ROUTER_ALERT, sockets of a multicast router (MRT_INIT)",
        "lost; to be set again",
    ),
    loss("TCP", "shutdown for writing alone, before it is connected", "open again: it was not told"),
    loss(
        "sockets",
        "the mark of a byte out of band that was received, behind all that waits in a unix stream",
        "gone: it was not told",
    ),
    loss(
        "sockets",
        "user in SO_PEERCRED of a unix connection that was not accepted yet, where another process than the one that \
         has it has made it",
        "the one that has it: who made it was not told",
    ),
    loss("UDP", "shutdown for writing, where the kernel has no diag of UDP", "open again"),
    loss(
        "IP",
        "IP_IPSEC_POLICY, IP_XFRM_POLICY, sticky IPv6 headers, flow labels, anycast",
        "to be set again",
    ),
    loss("IP", "IP_BIND_ADDRESS_NO_PORT", "to be set again"),
    loss("files", "F_SET_RW_HINT", "speed"),
    loss(
        "files",
        "number of a netlink port, of a pseudo-terminal, where another program has it",
        "another one; noted",
    ),
    loss("files", "access and change time, birth, inode and device of files that are made anew", "new ones"),
    loss("files", "directory notifications (F_NOTIFY)", "to be set again"),
    loss("memory", "home node of a NUMA policy (set_mempolicy_home_node)", "speed"),
    loss("memory", "which page is in which kind of memory, swapped, huge, merged, of which node", "speed"),
    loss("memory", "MADV_COLD, MADV_PAGEOUT, MADV_POPULATE and other advice for the moment", "speed"),
    loss("memory", "data of a mapping that is poisoned (MADV_HWPOISON)", "healthy memory"),
    loss("processes", "nice value of the session's autogroup", "that of a new session"),
    loss("processes", "core scheduling (PR_SCHED_CORE)", "no cookie"),
    loss(
        "processes",
        "CPU time, page faults, context switches, I/O counters, peak of memory, start time",
        "begin anew",
    ),
    loss("processes", "PR_SET_PTRACER (Yama)", "to be set again"),
    loss(
        "processes",
        "cgroup, CPU sets, audit session (sessionid), security label",
        "those of holdfast restart",
    ),
    loss("processes", "access to ports (iopl, ioperm; root)", "SIGSEGV at the next use of a port"),
    loss("processes", "keyring of the session", "that of holdfast restart"),
    loss("threads", "utilisation clamps of sched_setattr(2), SCHED_EXT", "none, SCHED_OTHER"),
];

/// What becomes of what the kernel tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    /// In the record.
    Recorded,
    /// Refused by name at a checkpoint where it is set.
    Refused,
    /// A fact of the object, another one's, or an action: no state of its own.
    Fact,
    /// In [`LOSSES`].
    Lost,
}

use Told::{Fact, Lost, Recorded, Refused};

/// By the names of the headers and of /proc; a prefix that ends in `*` stands for all that begin so.
pub const TOLD: &[(&[&str], Told)] = &[
    // getsockopt(2), asm-generic/socket.h.
    (
        &[
            "SO_REUSEADDR",
            "SO_DONTROUTE",
            "SO_BROADCAST",
            "SO_SNDBUF",
            "SO_RCVBUF",
            "SO_KEEPALIVE",
            "SO_OOBINLINE",
            "SO_NO_CHECK",
            "SO_PRIORITY",
            "SO_LINGER",
            "SO_REUSEPORT",
            "SO_PASSCRED",
            "SO_RCVLOWAT",
            "SO_RCVTIMEO*",
            "SO_SNDTIMEO*",
            "SO_BINDTODEVICE",
            "SO_BINDTOIFINDEX",
            "SO_ATTACH_FILTER",
            "SO_PASSSEC",
            "SO_MARK",
            "SO_RXQ_OVFL",
            "SO_WIFI_STATUS",
            "SO_NOFCS",
            "SO_PEEK_OFF",
            "SO_SELECT_ERR_QUEUE",
            "SO_BUSY_POLL*",
            "SO_PREFER_BUSY_POLL",
            "SO_MAX_PACING_RATE",
            "SO_ZEROCOPY",
            "SO_TIMESTAMP*",
            "SO_BUF_LOCK",
            "SO_TXREHASH",
            "SO_RCVMARK",
            "SO_PASSPIDFD",
            "SO_RCVPRIORITY",
            "SO_PASSRIGHTS",
            "SO_INQ",
            "SO_TYPE",
            "SO_PROTOCOL",
            "SO_DOMAIN",
            "SO_ACCEPTCONN",
            "SO_PEERNAME",
        ],
        Recorded,
    ),
    (&["SO_ATTACH_BPF", "SO_DEVMEM*"], Refused),
    (
        &[
            "SO_ERROR",
            "SO_SNDLOWAT",
            "SO_BSDCOMPAT",
            "SO_SECURITY_*",
            "SO_DETACH_*",
            "SO_BPF_EXTENSIONS",
            "SO_CNX_ADVICE",
            "SO_NETNS_COOKIE",
            "SO_SNDBUFFORCE",
            "SO_RCVBUFFORCE",
        ],
        Fact,
    ),
    (
        &[
            "SO_DEBUG",
            "SO_PEERCRED",
            "SO_PEERSEC",
            "SO_PEERGROUPS",
            "SO_PEERPIDFD",
            "SO_LOCK_FILTER",
            "SO_INCOMING_*",
            "SO_ATTACH_REUSEPORT_*",
            "SO_MEMINFO",
            "SO_COOKIE",
            "SO_TXTIME",
            "SO_RESERVE_MEM",
        ],
        Lost,
    ),
    // fcntl(2).
    (
        &[
            "F_GETFD",
            "F_GETFL",
            "F_GETLEASE",
            "F_GETLK*",
            "F_OFD_GETLK",
            "F_GETOWN",
            "F_GETOWN_EX",
            "F_GETSIG",
            "F_GETPIPE_SZ",
            "F_GET_SEALS",
        ],
        Recorded,
    ),
    (&["F_GETOWNER_UIDS", "F_GETDELEG"], Fact),
    (&["F_GET_RW_HINT", "F_GET_FILE_RW_HINT"], Lost),
    // /proc/PID/status.
    (
        &[
            "Name",
            "Umask",
            "State",
            "Tgid",
            "Pid",
            "PPid",
            "Uid",
            "Gid",
            "Groups",
            "NStgid",
            "NSpid",
            "NSpgid",
            "NSsid",
            "VmLck",
            "VmSize",
            "VmData",
            "VmStk",
            "VmExe",
            "VmLib",
            "HugetlbPages",
            "THP_enabled",
            "Threads",
            "SigPnd",
            "ShdPnd",
            "SigBlk",
            "SigIgn",
            "SigCgt",
            "CapInh",
            "CapPrm",
            "CapEff",
            "CapBnd",
            "CapAmb",
            "NoNewPrivs",
            "Speculation*",
            "Cpus_allowed*",
        ],
        Recorded,
    ),
    (&["Seccomp*"], Recorded),
    (&["TracerPid"], Refused),
    (
        &["Ngid", "FDSize", "Kthread", "SigQ", "CoreDumping", "untag_mask", "x86_Thread_features*", "VmPin"],
        Fact,
    ),
    (
        &["VmPeak", "VmHWM", "VmRSS", "Rss*", "VmPTE", "VmSwap", "Mems_allowed*", "*voluntary_ctxt_switches"],
        Lost,
    ),
    // prctl(2); what other architectures have is none of x86-64.
    (
        &[
            "PR_GET_CHILD_SUBREAPER",
            "PR_GET_DUMPABLE",
            "PR_GET_IO_FLUSHER",
            "PR_GET_KEEPCAPS",
            "PR_GET_NAME",
            "PR_GET_NO_NEW_PRIVS",
            "PR_GET_PDEATHSIG",
            "PR_GET_SECUREBITS",
            "PR_GET_SPECULATION_CTRL",
            "PR_GET_THP_DISABLE",
            "PR_GET_TID_ADDRESS",
            "PR_GET_TIMERSLACK",
            "PR_GET_TSC",
            "PR_GET_MDWE",
            "PR_GET_MEMORY_MERGE",
            "PR_GET_AUXV",
            "PR_MCE_KILL_GET",
        ],
        Recorded,
    ),
    (&["PR_GET_SECCOMP"], Recorded),
    (&["PR_GET_SHADOW_STACK_STATUS"], Refused),
    (
        &[
            "PR_GET_ENDIAN",
            "PR_GET_FPEMU",
            "PR_GET_FPEXC",
            "PR_GET_FP_MODE",
            "PR_GET_TAGGED_ADDR_CTRL",
            "PR_GET_TIMING",
            "PR_GET_UNALIGN",
            "PR_PAC_*",
            "PR_SME_*",
            "PR_SVE_*",
            "PR_RISCV_*",
            "PR_PPC_*",
        ],
        Fact,
    ),
    (&["PR_SCHED_CORE_GET"], Lost),
    // Options of prctl(2) that set what none of its options tells.
    (&["PR_SET_MM*", "PR_SET_VMA*"], Recorded),
    (&["PR_SET_SYSCALL_USER_DISPATCH"], Refused),
    (&["PR_SET_PTRACER*"], Lost),
];

/// The chapter for docs/support.md.
pub fn chapter() -> String {
    let rows = LOSSES.iter().map(|loss| format!("| {} | {} | {} |\n", loss.of, loss.what, loss.effect));
    let head = "\n## Known to be lost\n\nWhat is not as it was after a restart, and is neither refused nor noted \
                unless it says so (`tests/src/known_losses.rs`).\n\n\
                | of | what | what a program may notice |\n|---|---|---|\n";
    std::iter::once(head.to_owned()).chain(rows).collect()
}
