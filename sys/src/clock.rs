//! Clocks and processor placement of the calling thread.
//!
//! By hand: affinity, of which `nix` knows 1024 processors; a mask has the length that the kernel's has.
//!
//! # Safety
//! All calls write only into locals of the right type.
#![allow(unsafe_code)]

use nix::sched::CloneFlags;
use nix::time::ClockId;
use std::io;
use std::time::Instant;

/// `clock_gettime` in nanoseconds; 0 for a clock that there is not.
pub fn now_ns(clock: libc::clockid_t) -> u64 {
    let Ok(time) = ClockId::from_raw(clock).now() else { return 0 };
    time.tv_sec().cast_unsigned().saturating_mul(1_000_000_000).saturating_add(time.tv_nsec().cast_unsigned())
}

/// CLOCK_MONOTONIC in nanoseconds.
pub fn monotonic_ns() -> u64 {
    now_ns(libc::CLOCK_MONOTONIC)
}

/// CLOCK_REALTIME in nanoseconds: the stamp of the present.
pub fn realtime_ns() -> u64 {
    now_ns(libc::CLOCK_REALTIME)
}

/// Nanoseconds since a moment.
pub fn elapsed_ns(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// How far CLOCK_MONOTONIC and CLOCK_BOOTTIME of a process (and of its children) are ahead of the host's, nanoseconds
/// (`/proc/PID/timens_offsets`, time_namespaces(7)). Zeros where the kernel has no time namespaces.
pub fn time_offsets_ns(pid: i32) -> [i64; 2] {
    let text = std::fs::read_to_string(format!("/proc/{pid}/timens_offsets")).unwrap_or_default();
    ["monotonic", "boottime"].map(|clock| {
        let line = text.lines().find_map(|line| line.strip_prefix(clock));
        let mut words = line.unwrap_or_default().split_whitespace().map(str::parse::<i64>);
        match (words.next(), words.next()) {
            (Some(Ok(seconds)), Some(Ok(ns))) => seconds.saturating_mul(1_000_000_000).saturating_add(ns),
            _ => 0,
        }
    })
}

/// From the next exec on the caller's clocks are `ahead_ns` ahead of what they are now (a time namespace of its own;
/// needs CAP_SYS_ADMIN and CAP_SYS_TIME over the caller's user namespace; Linux 6.0 for the exec).
///
/// # Errors
/// EPERM, ENOSYS, or the kernel refuses the offset.
pub fn move_ahead_at_exec(ahead_ns: u64) -> io::Result<()> {
    nix::sched::unshare(CloneFlags::from_bits_retain(libc::CLONE_NEWTIME))?;
    let pid = i32::try_from(std::process::id()).unwrap_or(0);
    let ahead = i64::try_from(ahead_ns).unwrap_or(i64::MAX);
    let [monotonic, boottime] = time_offsets_ns(pid).map(|offset| offset.saturating_add(ahead));
    let line = |clock: &str, ns: i64| {
        format!("{clock} {} {}\n", ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000))
    };
    let text = line("monotonic", monotonic) + &line("boottime", boottime);
    std::fs::write("/proc/self/timens_offsets", text)
}

/// The affinity mask of a thread (0: the caller) as little-endian words.
///
/// # Errors
/// ESRCH if there is no such thread.
pub fn affinity(tid: i32) -> io::Result<Vec<u64>> {
    let mut words = [0_u64; 128];
    // SAFETY: the raw call writes at most the given number of bytes into `words` and returns how many.
    let bytes =
        unsafe { libc::syscall(libc::SYS_sched_getaffinity, tid, size_of_val(&words), words.as_mut_ptr()) };
    let bytes = crate::check(bytes)?;
    Ok(words[..usize::try_from(bytes).unwrap_or(0) / 8].to_vec())
}

/// Sets the affinity mask of a thread (0: the caller).
///
/// # Errors
/// EINVAL if no processor of the mask exists here.
pub fn set_affinity(tid: i32, words: &[u64]) -> io::Result<()> {
    // SAFETY: the call reads the given number of bytes of `words`.
    let result =
        unsafe { libc::syscall(libc::SYS_sched_setaffinity, tid, size_of_val(words), words.as_ptr()) };
    crate::check(result).map(|_| ())
}

/// The processor that the calling thread runs on.
pub fn processor() -> Option<usize> {
    nix::sched::sched_getcpu().ok()
}

/// The id of the calling thread.
pub fn own_thread() -> i32 {
    nix::unistd::gettid().as_raw()
}

/// Lets short sleeps of the calling thread end on time (PR_SET_TIMERSLACK, prctl(2); the default is 50 us late).
pub fn no_timer_slack() {
    // The smallest, in nanoseconds. Cannot fail.
    let _ = nix::sys::prctl::set_timerslack(1);
}
