//! What is refused after a look at /proc, in the words of a refused checkpoint.
//!
//! Called by the cut, before and inside the stop, and by `check`, which looks at a program that runs on: what both find
//! they must call the same. Mappings and open files have their refusals where they are understood (`capture`). Nothing
//! here fails: what has ended meanwhile is no reason to refuse.

use crate::capture::{filter_counts, namespaces, root};
use crate::error::CutError;
use crate::namespaces::{MADE_ANEW, Namespaces};
use crate::thread_pool;
use holdfast_image::record::InjectArea;
use holdfast_image::refusal::{Refusal, Subject};
use holdfast_image::spare_numbers::SpareNumbers;
use holdfast_sys::attributes;
use holdfast_sys::clone::{Common, have_in_common};
use holdfast_sys::elf::{self, ElfError, Running};
use holdfast_sys::procfs::{self, Status};
use holdfast_sys::ptrace;
use holdfast_sys::seccomp;
use holdfast_sys::unix_socket;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

/// A ring of io_uring, open or mapped.
pub const IO_URING: &str = "io_uring is not supported, and this program has a ring although `holdfast run` hides them \
(--io-uring off, the default): it is static, or makes system calls of its own, or was started with --io-uring keep; \
many programs can be told to do without (Node.js: UV_USE_IO_URING=0, MariaDB: --innodb-use-native-aio=0, PostgreSQL: \
io_method=worker)";

/// A context of Linux AIO of which libholdfast knows nothing.
pub const AIO: &str = "a context of Linux AIO that was made past the C library and libaio, or beside sixteen others: \
whether something is under way in it is not known; `holdfast run --aio off` hides AIO from programs that go another \
way without it";

/// Shared memory, mapped, of which pages may be mapped nowhere.
pub const HIDDEN: &str = "shared memory of which pages may have no address: remap_file_pages(2) was called, and some \
pages have several; try again, or map a memfd several times instead";

/// An open buffer of a server of objects: a client has them mapped, and open only while it maps one.
pub const OBJECTS: &str = "a buffer of a server of objects (holdfast serve), which a program has open only for a \
moment: the server itself is not supported in a job, start it outside or leave that to the program";

/// Whether this is a buffer of a server of objects, or another file of its folder.
pub fn is_of_objects(path: &[u8]) -> bool {
    path.starts_with(b"/dev/shm/holdfast-objects-")
}

/// A device of the NVIDIA driver, open or mapped, at a moment when the CUDA driver has given back all that are its own.
pub const CUDA_DEVICE: &str = "a device of the NVIDIA driver that the CUDA driver does not close: NVML, \
Vulkan or a parent process has opened it, or the process does not use libcuda; close it first \
(nvmlShutdown), or start children by exec";

/// Bit of a capability set (include/uapi/linux/capability.h).
const CAP_SYS_RESOURCE: u64 = 1 << 24;

/// Refuses the cut if there is anything to refuse.
///
/// # Errors
/// There is.
pub fn unless_empty(refusals: impl IntoIterator<Item = Refusal>) -> Result<(), CutError> {
    let refusals: Vec<Refusal> = refusals.into_iter().collect();
    if refusals.is_empty() { Ok(()) } else { Err(CutError::Refused(refusals)) }
}

/// The name of a process; empty if it has ended.
pub fn name_of(pid: i32) -> String {
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(name.trim_ascii_end()).into_owned()
}

/// Refuses a process as a whole.
pub fn process(pid: i32, reason: impl fmt::Display) -> Refusal {
    Refusal { subject: Subject::Process { pid, comm: name_of(pid) }, reason: reason.to_string() }
}

/// Refuses a thread, by its id as it knows it.
pub fn thread(tid: i32, reason: impl fmt::Display) -> Refusal {
    Refusal { subject: Subject::Thread { tid }, reason: reason.to_string() }
}

/// No room for the agent to work in.
pub fn area(pid: i32, area: &InjectArea) -> Option<Refusal> {
    (!area.is_valid()).then(|| process(pid, "its libholdfast reserved no usable memory for the agent"))
}

/// What a thread is confined by, other than its job.
struct Confinement {
    tid: i32,
    /// The id as the thread knows it.
    inner: i32,
    /// Why calls of ours cannot be made in it.
    seccomp: Option<String>,
    /// It is under filters of its own.
    is_filtered: bool,
    namespaces: Namespaces,
}

impl Confinement {
    fn of(pid: i32, tid: i32, area: Option<&InjectArea>) -> Option<Confinement> {
        let status = Status::read(pid, tid).ok().filter(|status| !status.has_ended())?;
        let seccomp = match filter_counts::unseen(pid, &status, area) {
            Some(why) => Some(why),
            // A call of ours could end it.
            None if status.number("Seccomp") == Some(2)
                && filter_counts::of_the_host() > 0
                && host_ends_processes() =>
            {
                Some(HOST_ENDS.into())
            }
            None => None,
        };
        let is_filtered = filter_counts::is_confined(&status);
        let inner = status.innermost("NSpid").unwrap_or(tid);
        Some(Confinement { tid, inner, seccomp, is_filtered, namespaces: Namespaces::of(pid, tid) })
    }

    /// `process`: the first thread of its process, if it is another one.
    fn reasons(&self, job: &Namespaces, process: Option<&Confinement>) -> Vec<String> {
        let mut differing = self.namespaces.differing(job);
        let alike = |kind: &&str| {
            process.is_none_or(|process| process.namespaces.inode(kind) == self.namespaces.inode(kind))
        };
        differing.retain(|kind| !MADE_ANEW.contains(kind) || !alike(kind));
        let others = match process {
            None if differing.is_empty() => namespaces::others(self.tid, &self.namespaces, job).err(),
            _ => None,
        };
        let namespaces = (!differing.is_empty()).then(|| {
            format!(
                "it has left the namespaces of its job ({}), which is not supported: start `holdfast run` inside the \
                 new ones",
                differing.join(", ")
            )
        });
        // In another mount namespace it is another one by nature.
        let root = if differing.is_empty() { root::of(self.tid, job).err() } else { None };
        self.seccomp.clone().into_iter().chain(namespaces).chain(others).chain(root).collect()
    }
}

/// Whether the filter of the host ends a process.
fn host_ends_processes() -> bool {
    static ENDS: OnceLock<bool> = OnceLock::new();
    *ENDS.get_or_init(seccomp::ends_processes)
}

const HOST_ENDS: &str = "the seccomp filter of its host ends a process at a call that it does not allow, where that of \
                         a container lets the call fail (systemd: SystemCallErrorNumber=EPERM)";

/// /proc does not tell a file of such a name from a deleted one, and what is mapped of it is known by its name alone.
pub const CALLED_DELETED: &str =
    "its name ends as /proc writes those of deleted files, which is not supported: rename it";

/// Whether a file that /proc shows as deleted is there under that very name.
pub fn is_only_called_deleted(shown: &[u8], (device, inode): (Option<u64>, u64)) -> bool {
    let is_it = |now: fs::Metadata| now.ino() == inode && device.is_none_or(|device| device == now.dev());
    shown.starts_with(b"/")
        && shown.ends_with(b" (deleted)")
        && fs::symlink_metadata(OsStr::from_bytes(shown)).is_ok_and(is_it)
}

/// A process, or threads of it (`tids`), under a seccomp filter, in other namespaces than its job, or with a root
/// directory that no restart could find. What the first thread has is told of the process, once. `area`: of the
/// process, if it has told of one.
pub fn confined(pid: i32, tids: &[i32], area: Option<&InjectArea>, job: &Namespaces) -> Confined {
    let look = |&tid: &i32| Confinement::of(pid, tid, area);
    let all: Vec<Confinement> =
        thread_pool::map(tids, thread_pool::workers(), look).into_iter().flatten().collect();
    let is_filtered = all.iter().any(|one| one.is_filtered);
    let Some(first) = all.iter().find(|one| one.tid == pid).or(all.first()) else {
        return Confined::default();
    };
    let of_process = first.reasons(job, None);
    let of_threads = all.iter().flat_map(|one| {
        let own = one.reasons(job, Some(first)).into_iter().filter(|reason| !of_process.contains(reason));
        own.map(|reason| thread(one.inner, reason)).collect::<Vec<_>>()
    });
    let of_threads: Vec<Refusal> = of_threads.collect();
    let refusals = of_process.iter().map(|reason| process(pid, reason)).chain(of_threads).collect();
    Confined { refusals, is_filtered }
}

/// What [`confined`] finds.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Confined {
    /// What cannot be restored.
    pub refusals: Vec<Refusal>,
    /// A thread is under seccomp filters of the program's own.
    pub is_filtered: bool,
}

/// Whether a tracer is a thread of this process: the program is being stopped, or resumed.
pub fn is_own_thread(tracer: i64) -> bool {
    std::fs::exists(format!("/proc/self/task/{tracer}")).unwrap_or(false)
}

/// Whether a tracer shares the memory of what it traces: it is the program itself that looks at its own threads, for a
/// moment. LeakSanitizer does so when the program ends (compiler-rt, sanitizer_stoptheworld_linux_libcdep.cpp,
/// StopTheWorld: clone with CLONE_VM, then PTRACE_ATTACH to each thread).
/// One that has ended meanwhile was no debugger that stays.
pub fn is_part_of(tracer: i64, pid: i32) -> bool {
    let Ok(tracer) = i32::try_from(tracer) else { return false };
    // Asked in this order: it may end between the two.
    have_in_common(tracer, pid, Common::Memory).unwrap_or(false)
        || match Status::read(tracer, tracer) {
            Ok(status) => status.has_ended(),
            Err(error) => matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)),
        }
}

/// What such a program is.
pub fn inspected(tracer: i64) -> String {
    format!("traced by a part of itself, process {tracer} (a sanitizer, at its end?)")
}

fn debugger(tracer: i64) -> String {
    format!("traced by process {tracer} (a debugger?): end that first")
}

/// A process that another process traces.
pub fn traced(pid: i32, tracer: i64) -> Refusal {
    process(pid, debugger(tracer))
}

/// The processes that are refused as a whole.
pub fn processes(refusals: &[Refusal]) -> Vec<i32> {
    let pid = |refusal: &Refusal| match refusal.subject {
        Subject::Process { pid, .. } => Some(pid),
        _ => None,
    };
    refusals.iter().filter_map(pid).collect()
}

/// A thread that another process traces.
pub fn traced_thread(tid: i32, tracer: i64) -> Refusal {
    thread(tid, debugger(tracer))
}

/// A thread that may not be traced.
pub fn untraceable(tid: i32, error: &io::Error) -> Refusal {
    thread(tid, format!("cannot be traced: {error}. `holdfast doctor` shows what this system allows"))
}

/// A process that works in the folder of another process or thread in /proc.
pub fn folder_of_another(pid: i32, other: i32) -> Refusal {
    process(
        pid,
        format!(
            "its working folder is in /proc, of process or thread {other}, which has ended or is another one, so that \
             a restart would not find it: have it change its folder, or try again"
        ),
    )
}

/// A process that is not dumpable: its own user may not look at it. The status file is open to everybody, the mappings
/// are not (fs/proc/base.c, proc_mem_open).
pub fn closed(pid: i32) -> Option<Refusal> {
    let maps = std::fs::File::open(format!("/proc/{}/maps", procfs::shown_by(pid)));
    let denied = maps.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
    denied.then(|| {
        process(pid, "it forbids its own user to look at it (PR_SET_DUMPABLE 0); only root can checkpoint it")
    })
}

/// A process of the job that the agent has not heard of.
pub fn stranger(pid: i32) -> Refusal {
    match Running::of(pid).map(|program| elf::segments(&program)) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && is_own(pid) => process(
            pid,
            "it may be of the job, and its own user may not look into it (set-group-id, file capabilities, or \
             PR_SET_DUMPABLE 0: ssh-agent, gpg-agent): end it; or, if it is not of the job, start the job in a control \
             group of its own (systemd-run --user --scope holdfast run), or that process before it",
        ),
        Ok(Err(error @ (ElfError::Small | ElfError::Machine(_)))) => process(pid, error),
        _ => process(pid, NOT_REGISTERED),
    }
}

const NOT_REGISTERED: &str = "it is not registered: it was not started by holdfast (libholdfast is not loaded in it), \
                              or it is set-user-id or another user's, which cannot be checkpointed";

/// Whether this is about a process of which no more is known than that it has not registered: it may have been made, or
/// have executed a program, just now.
pub fn is_unregistered(refusal: &Refusal) -> bool {
    matches!(refusal.subject, Subject::Process { .. }) && refusal.reason == NOT_REGISTERED
}

/// Whether a process runs as our user.
fn is_own(pid: i32) -> bool {
    let effective = Status::read(pid, pid).ok().and_then(|status| {
        status.get("Uid").unwrap_or_default().split_whitespace().nth(1).and_then(|id| id.parse().ok())
    });
    effective == Some(unix_socket::effective_user())
}

/// A process in which there is no room for the agent to work in, nor can any be made.
pub fn no_area(pid: i32, why: impl fmt::Display) -> Refusal {
    process(pid, format!("the agent finds no memory in it for injected calls: {why}"))
}

/// A child of a process whose main thread has ended.
pub fn parent_death(pid: i32) -> Refusal {
    process(
        pid,
        "it gets a signal when the thread that has made it ends (PR_SET_PDEATHSIG), and its parent's main thread has \
         ended while others run: a restart would send that signal",
    )
}

/// Keys that only the process or a thread of it has; `threads`: those that have some, as they know themselves.
pub fn keys(pid: i32, of_process: bool, threads: impl Iterator<Item = i32>) -> Vec<Refusal> {
    let reason = |whose| {
        format!("it has keys of its own (a {whose} keyring, keyctl(2)), which no restart can restore")
    };
    let own = of_process.then(|| process(pid, reason("process")));
    own.into_iter().chain(threads.map(|inner| thread(inner, reason("thread")))).collect()
}

/// In the words of a refusal.
fn in_a_domain(why: &str) -> String {
    format!(
        "it has confined itself by a Landlock domain (landlock_restrict_self) {why}: the program could do what the \
         domain forbids; start `holdfast run` inside the domain, or the program without one"
    )
}

/// A process that is in a Landlock domain of its own.
pub fn landlock(pid: i32, why: &str) -> Refusal {
    process(pid, in_a_domain(why))
}

/// A thread that is in a Landlock domain of its own, by its id as it knows itself.
pub fn landlock_of_thread(inner: i32, why: &str) -> Refusal {
    thread(inner, in_a_domain(why))
}

/// A thread that runs code of another kind than of 64 bits, in which no call of ours can be made.
pub fn other_code(inner: i32) -> Refusal {
    thread(
        inner,
        "it runs 32-bit or 16-bit code just now (Wine, an emulator?), which is not supported: try again",
    )
}

/// Why a restart cannot give a thread a directory and a umask of its own.
pub const FOLDER_OF_SOME: &str = "has them together with some threads, not with all";
/// See [`FOLDER_OF_SOME`].
pub const FOLDER_GONE: &str =
    "is where a restart would not find it: removed, in /proc, or under another root";
/// See [`FOLDER_OF_SOME`].
pub const FOLDER_IN_A_NAMESPACE: &str = "is in a namespace that its job has made";

/// A thread whose own directory a restart cannot give it.
pub fn own_folder(inner: i32, why: &str) -> Refusal {
    thread(
        inner,
        format!(
            "it has a directory and a umask of its own (unshare CLONE_FS), and {why}, which is not supported"
        ),
    )
}

/// Threads that have descriptors for themselves, by their ids and as they know themselves. What the kernel
/// does not tell is no reason to refuse.
pub fn unshared(threads: &[(i32, i32)]) -> Vec<Refusal> {
    let Some((&(first, _), others)) = threads.split_first() else { return Vec::new() };
    let differs = |tid, what| have_in_common(first, tid, what).is_ok_and(|common| !common);
    let reason = "it has descriptors of its own (unshare CLONE_FILES), which is not supported";
    let own = others.iter().filter(|(tid, _)| differs(*tid, Common::Files));
    own.map(|&(_, inner)| thread(inner, reason)).collect()
}

/// A process that has descriptors together with its parent, as threads have: a child by clone(2) with CLONE_FILES. What
/// the kernel does not tell is no reason to refuse.
pub fn shared_with_parent(pid: i32, status: &Status) -> Vec<Refusal> {
    let parent = status.number("PPid").and_then(|parent| i32::try_from(parent).ok());
    let Some(parent) = parent.filter(|parent| *parent > 0) else { return Vec::new() };
    let (parent, by) = (procfs::shown_by(parent), procfs::shown_by(pid));
    let shares = |what| have_in_common(parent, by, what).unwrap_or(false);
    // One that shares its memory, too, has no injection area of its own and is refused for that, or executes a
    // program in a moment (vfork).
    if shares(Common::Memory) {
        return Vec::new();
    }
    let reason = |what, flag| {
        process(
            pid,
            format!(
                "it shares {what} with its parent, process {parent} (clone {flag}), which is not supported"
            ),
        )
    };
    let files = shares(Common::Files).then(|| reason("its descriptors", "CLONE_FILES"));
    files.into_iter().collect()
}

/// A process that has its directory together with its parent, where a restart cannot make it so.
pub fn shared_folder(pid: i32) -> Refusal {
    process(
        pid,
        "it shares its directory and umask with its parent (clone CLONE_FS), and has left the namespaces or the \
         root of its job, which is not supported together",
    )
}

/// Threads whose system calls are sent back to the program, ours in them too; by their ids and as they know themselves.
pub fn dispatched(threads: &[(i32, i32)]) -> Vec<Refusal> {
    let reason = "its system calls are dispatched (PR_SET_SYSCALL_USER_DISPATCH), which is not supported";
    // A kernel before 6.4 does not tell.
    let is_on = |&&(tid, _): &&(i32, i32)| ptrace::user_dispatch(tid).unwrap_or(false);
    threads.iter().filter(is_on).map(|&(_, inner)| thread(inner, reason)).collect()
}

/// More open files than a restart can make under the limit of the caller, which is that of `holdfast run`.
pub fn open_numbers(pid: i32, spare: &SpareNumbers) -> Option<Refusal> {
    let (_, hard) = attributes::limit(0, libc::RLIMIT_NOFILE).ok()?;
    if spare.limit <= hard {
        return None;
    }
    let own = std::process::id().cast_signed();
    let capabilities = Status::read(own, own).ok()?.get("CapEff").map(|text| u64::from_str_radix(text, 16));
    let largest = std::fs::read_to_string("/proc/sys/fs/nr_open").ok()?.trim().parse::<u64>().ok()?;
    let may_raise = capabilities?.is_ok_and(|bits| bits & CAP_SYS_RESOURCE != 0);
    if may_raise && spare.limit <= largest {
        return None;
    }
    Some(process(
        pid,
        format!(
            "a restart needs RLIMIT_NOFILE {} for the descriptors of all processes, and here the hard limit is {hard}: \
             start `holdfast run` under a higher one (ulimit -Hn), which `holdfast restart` needs, too",
            spare.limit
        ),
    ))
}

/// The file of the program, when nothing can be known of it.
pub fn executable(path: &[u8]) -> Refusal {
    Refusal {
        subject: Subject::Executable { path: String::from_utf8_lossy(path).into_owned() },
        reason: "it was deleted or cannot be read".into(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_unusable_is_refused() {
        let own = std::process::id().cast_signed();
        assert!(area(own, &InjectArea::default()).unwrap().to_string().contains("no usable memory"));
        assert_eq!(Status::read(own, own).unwrap().tracer(), None);
        assert!(is_own_thread(i64::from(own)) && !is_own_thread(1));
    }

    #[test]
    fn what_is_as_its_job_is_not_refused() {
        let own = std::process::id().cast_signed();
        let tids = holdfast_sys::procfs::tasks(own).unwrap();
        assert_eq!(confined(own, &tids, None, &Namespaces::own()), Confined::default());
        let nothing = confined(own, &tids, None, &Namespaces::default());
        assert_eq!(nothing, Confined::default(), "nothing is known of the job");
        let status = |pid| Status::read(pid, pid).unwrap();
        assert_eq!(shared_with_parent(own, &status(own)), []);
        let mut child = std::process::Command::new("sleep").arg("20").spawn().unwrap();
        let pid = child.id().cast_signed();
        let alike = (confined(pid, &[pid], None, &Namespaces::own()), shared_with_parent(pid, &status(pid)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(alike, (Confined::default(), Vec::new()));
    }
}
