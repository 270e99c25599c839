//! What this kernel and this user can do: asked once, kept in one struct, printed by `holdfast doctor`.
//!
//! Each probe makes one harmless call and undoes what it made.

use crate::{attributes, clone, pagemap, spawn, userfault};
use std::fs;

/// The answers. A `false` says that the feature is missing or refused to this user.
#[derive(Clone, Debug)]
pub struct Probe {
    /// `uname -r`.
    pub kernel_release: String,
    /// PAGEMAP_SCAN (Linux 6.7).
    pub pagemap_scan: bool,
    /// userfaultfd with UFFD_USER_MODE_ONLY.
    pub userfaultfd_user: bool,
    /// userfaultfd without restriction (privileged).
    pub userfaultfd_full: bool,
    /// WP_ASYNC (Linux 6.7).
    pub userfaultfd_wp_async: bool,
    /// The kernel forgets the write protection of memory that mremap(2) moves, so that moved pages count as written.
    pub tracking_exact: bool,
    /// CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE: pids may be chosen here.
    pub can_choose_pid: bool,
    /// A user namespace with its own pid namespace can be made.
    pub user_namespace: bool,
    /// `/proc/sys/kernel/yama/ptrace_scope`; `None` without Yama.
    pub ptrace_scope: Option<u32>,
    /// kcmp(2).
    pub kcmp: bool,
    /// `/proc/PID/task/TID/children`.
    pub proc_children: bool,
    /// `/proc/PID/task/TID/sched` prints `se.exec_start`: timeouts are continued exactly.
    pub sched_exec_start: bool,
    /// memfds may be executed (`vm.memfd_noexec` below 2).
    pub memfd_exec: bool,
    /// Page size is the supported one.
    pub page_size_ok: bool,
}

/// Whether a userfaultfd can be made with these rights.
fn userfaultfd(user_mode_only: bool) -> bool {
    userfault::create(user_mode_only).is_ok()
}

fn scan_works() -> bool {
    let probe = 0_u8;
    let page = (&raw const probe) as u64 & !4095;
    fs::File::open("/proc/self/pagemap")
        .and_then(|file| {
            pagemap::scan(&file, page, page + 4096, pagemap::IS_PRESENT, pagemap::IS_PRESENT, |_| {})
        })
        .is_ok()
}

/// Whether an unprivileged user and pid namespace can be made, tried in a child that ends at once.
pub fn namespaces() -> bool {
    let flags = (libc::CLONE_NEWUSER | libc::CLONE_NEWPID | libc::CLONE_NEWNS).cast_unsigned();
    match clone::fork_with(u64::from(flags), 0) {
        Ok(0) => attributes::exit_now(0),
        Ok(pid) => {
            let _ = spawn::wait(pid, true);
            true
        }
        Err(_) => false,
    }
}

fn capability(bit: u32) -> bool {
    let pid = std::process::id().cast_signed();
    crate::procfs::Status::read(pid, pid).is_ok_and(|status| status.mask("CapEff") >> bit & 1 == 1)
}

/// CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE, effective: this thread may choose ids of new processes (`alloc_pid`,
/// kernel/pid.c; ids of its user namespace).
pub fn can_choose_pid() -> bool {
    const CAP_SYS_ADMIN: u32 = 21;
    const CAP_CHECKPOINT_RESTORE: u32 = 40;
    capability(CAP_SYS_ADMIN) || capability(CAP_CHECKPOINT_RESTORE)
}

fn sysctl(path: &str) -> Option<u32> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

impl Probe {
    /// Asks the kernel.
    pub fn ask() -> Probe {
        let pid = std::process::id().cast_signed();
        let page_size = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten();
        Probe {
            kernel_release: fs::read_to_string("/proc/sys/kernel/osrelease")
                .unwrap_or_default()
                .trim()
                .to_owned(),
            pagemap_scan: scan_works(),
            userfaultfd_user: userfaultfd(true),
            userfaultfd_full: userfaultfd(false),
            userfaultfd_wp_async: userfault::Userfault::of_this_process().is_ok(),
            tracking_exact: userfault::is_exact(),
            can_choose_pid: can_choose_pid(),
            user_namespace: namespaces(),
            ptrace_scope: sysctl("/proc/sys/kernel/yama/ptrace_scope"),
            kcmp: clone::order_of_descriptions(pid, 0, pid, 0).is_ok(),
            proc_children: fs::metadata(format!("/proc/{pid}/task/{pid}/children")).is_ok(),
            sched_exec_start: crate::procfs::own_sched_facts().is_some(),
            memfd_exec: sysctl("/proc/sys/vm/memfd_noexec").unwrap_or(0) < 2,
            page_size_ok: page_size == Some(4096),
        }
    }
}
