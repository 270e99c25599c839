//! Names of system calls that are made in programs, for messages.

/// The name of a call that is made in programs; its number, if that is not in the list.
pub fn name(number: u32) -> String {
    let known = [
        (libc::SYS_arch_prctl, "arch_prctl"),
        (libc::SYS_brk, "brk"),
        (libc::SYS_clone, "clone"),
        (libc::SYS_close, "close"),
        (libc::SYS_connect, "connect"),
        (libc::SYS_exit_group, "exit_group"),
        (libc::SYS_get_mempolicy, "get_mempolicy"),
        (libc::SYS_get_robust_list, "get_robust_list"),
        (libc::SYS_getitimer, "getitimer"),
        (libc::SYS_keyctl, "keyctl"),
        (libc::SYS_madvise, "madvise"),
        (libc::SYS_membarrier, "membarrier"),
        (libc::SYS_mmap, "mmap"),
        (libc::SYS_modify_ldt, "modify_ldt"),
        (libc::SYS_mprotect, "mprotect"),
        (libc::SYS_openat, "openat"),
        (libc::SYS_personality, "personality"),
        (libc::SYS_prctl, "prctl"),
        (libc::SYS_pread64, "pread64"),
        (libc::SYS_read, "read"),
        (libc::SYS_rt_sigaction, "rt_sigaction"),
        (libc::SYS_rt_sigreturn, "rt_sigreturn"),
        (libc::SYS_sendmsg, "sendmsg"),
        (libc::SYS_seccomp, "seccomp"),
        (libc::SYS_sigaltstack, "sigaltstack"),
        (libc::SYS_socket, "socket"),
        (libc::SYS_tgkill, "tgkill"),
        (libc::SYS_timer_gettime, "timer_gettime"),
        (libc::SYS_userfaultfd, "userfaultfd"),
        (libc::SYS_waitid, "waitid"),
    ];
    let found = known.iter().find(|(call, _)| u32::try_from(*call) == Ok(number));
    found.map_or_else(|| format!("system call {number}"), |(_, name)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_its_name_or_its_number() {
        assert_eq!(name(u32::try_from(libc::SYS_keyctl).unwrap_or(0)), "keyctl");
        assert_eq!(name(9999), "system call 9999");
    }
}
