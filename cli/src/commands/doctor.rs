//! `holdfast doctor`: what this host and this user can do, and what would make more work; with `--job`, what of a
//! program could not be checkpointed.

use crate::cuda::caller;
use crate::cuda::client::Caller;
use crate::cuda::messages::Question;
use crate::cuda::release;
use crate::exit::{Exit, Failure};
use crate::helper::null;
use crate::keeper::{packer, probe};
use crate::{front, inspect, report};
use holdfast_image::cuda::version;
use holdfast_process::cuda::uses;
use holdfast_sys::cgroup::{self, Room};
use holdfast_sys::probe::Probe;
use holdfast_sys::{fd, unix_socket};
use holdfast_tiers::Store;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Debug, Serialize)]
struct Finding {
    what: &'static str,
    good: bool,
    /// Without it nothing works.
    required: bool,
    value: String,
    /// What is done without it, or what to do about it.
    advice: &'static str,
}

/// Prints the findings.
///
/// # Errors
/// Holdfast does not work here; output cannot be written; the job or process that was named cannot be looked at.
pub fn run(program: Option<&str>, json: bool, root: Option<&Path>) -> Result<(), Failure> {
    let probe = Probe::ask();
    let mut findings = host(&probe);
    findings.extend(installation(root));
    let cuda = cuda();
    let of_keeper = cuda.good.then(|| [keeper(), nvcomp()]);
    findings.push(cuda);
    findings.extend(of_keeper.into_iter().flatten());
    let inspected = program.map(|program| inspect::find(program, root)).transpose()?;
    let works = findings.iter().all(|finding| finding.good || !finding.required);
    if json {
        let program = inspected.as_ref().map(inspect::Inspected::to_json);
        report::print_json("host", serde_json::json!({ "host": findings, "program": program }))?;
    } else {
        report::print(&text(&probe, &findings, works, inspected.as_ref()))?;
    }
    let is_checkpointable = inspected.as_ref().is_none_or(inspect::Inspected::is_checkpointable);
    // It was said.
    if works && is_checkpointable { Ok(()) } else { Err(Failure::new(Exit::Refused, "")) }
}

fn text(probe: &Probe, findings: &[Finding], works: bool, inspected: Option<&inspect::Inspected>) -> String {
    let mut text =
        format!("Linux {}, user {}, {}\n\n", probe.kernel_release, unix_socket::effective_user(), cpu());
    for finding in findings {
        let mark = match (finding.good, finding.required) {
            (true, _) => "ok     ",
            (false, true) => "MISSING",
            (false, false) => "no     ",
        };
        text.push_str(&format!("{mark}  {}: {}\n", finding.what, finding.value));
        if !finding.good {
            text.push_str(&format!("         {}\n", finding.advice));
        }
    }
    text.push_str(if works {
        "\nCheckpoint and restart work for you here.\n"
    } else {
        "\nHoldfast does not work for you here.\n"
    });
    if let Some(inspected) = inspected {
        text.push_str(&format!("\n{inspected}"));
    }
    text
}

fn yes(value: bool) -> String {
    if value { "yes" } else { "no" }.to_owned()
}

fn host(probe: &Probe) -> Vec<Finding> {
    let scope = probe.ptrace_scope;
    let restricted = scope.is_some_and(|scope| scope >= 2) && unix_socket::effective_user() != 0;
    let ids = match (probe.can_choose_pid, probe.user_namespace) {
        (true, _) => "the same as before, in place",
        (false, true) => "the same as before, in a user and pid namespace",
        (false, false) => {
            "virtual, at the boundary to the C library; in a new container the same, of processes"
        }
    };
    let device = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    let can_serve = device.is_ok() && (probe.user_namespace || unix_socket::effective_user() == 0);
    vec![
        Finding {
            what: "page size of 4096 bytes",
            good: probe.page_size_ok,
            required: true,
            value: yes(probe.page_size_ok),
            advice: "only x86-64 with 4 KiB pages is supported",
        },
        Finding {
            what: "ptrace",
            good: !restricted,
            required: true,
            value: scope
                .map_or_else(|| "not restricted".to_owned(), |scope| format!("yama/ptrace_scope is {scope}")),
            advice: "have the administrator set kernel.yama.ptrace_scope to 0 or 1",
        },
        Finding {
            what: "process ids after a restart",
            good: probe.can_choose_pid || probe.user_namespace,
            required: false,
            value: ids.to_owned(),
            advice: "allow unprivileged user namespaces, or give holdfast CAP_CHECKPOINT_RESTORE, \
                 to get the same ids back",
        },
        Finding {
            what: "user namespaces",
            good: probe.user_namespace,
            required: false,
            value: yes(probe.user_namespace),
            advice: "sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces or AppArmor forbid them",
        },
        Finding {
            what: "any memory can be restored lazily (FUSE)",
            good: can_serve,
            required: false,
            value: yes(can_serve),
            advice: "without it holdfast restart --lazy copies compressed or scattered memory; it needs \
                /dev/fuse, open to this user (mode 0666 by udev's rules), and root or user namespaces",
        },
        Finding {
            what: "ids may be chosen (CAP_CHECKPOINT_RESTORE)",
            good: probe.can_choose_pid,
            required: false,
            value: yes(probe.can_choose_pid),
            advice: "a user namespace is used instead: inside, files of other users have owner 65534, \
                files can have the groups of /etc/subgid only, and the parent process is 1",
        },
        Finding {
            what: "memory file systems may be executed (memfd)",
            good: probe.memfd_exec,
            required: true,
            value: yes(probe.memfd_exec),
            advice: "sysctl vm.memfd_noexec=1 or 0: the seed of a restart is executed from memory",
        },
        tracker(probe),
        Finding {
            what: "children listed in /proc",
            good: probe.proc_children,
            required: false,
            value: yes(probe.proc_children),
            advice: "the kernel was built without CONFIG_PROC_CHILDREN: child processes are not noticed \
                 at a checkpoint",
        },
        Finding {
            what: "exact rest of interrupted timeouts",
            good: probe.sched_exec_start,
            required: false,
            value: yes(probe.sched_exec_start),
            advice: "the kernel does not print se.exec_start: a sleeping thread may sleep longer after a checkpoint",
        },
        Finding {
            what: "kcmp",
            good: probe.kcmp,
            required: false,
            value: yes(probe.kcmp),
            advice: "the kernel was built without CONFIG_KCMP, or a container forbids it: in a container copies of \
                the descriptors tell which share an offset, else Holdfast guesses",
        },
    ]
}

/// How the pages are found that a program wrote since the image before, and why so.
fn tracker(probe: &Probe) -> Finding {
    let (value, advice) = match probe {
        Probe { pagemap_scan: false, .. } => (
            "found by content: the kernel has no PAGEMAP_SCAN",
            "each checkpoint reads all memory, and stores the changed pages; Linux 6.7 or later tracks writes",
        ),
        Probe { userfaultfd_user: false, .. } => (
            "found by content: userfaultfd is refused to this user",
            "each checkpoint reads all memory, and stores the changed pages; have the seccomp filter (of a \
             container) allow userfaultfd, or use a kernel with CONFIG_USERFAULTFD",
        ),
        Probe { userfaultfd_wp_async: false, .. } => (
            "found by content: userfaultfd cannot write-protect asynchronously",
            "each checkpoint reads all memory, and stores the changed pages; Linux 6.7 or later, with \
             CONFIG_PTE_MARKER_UFFD_WP, tracks writes",
        ),
        Probe { tracking_exact: false, .. } => (
            "found by content: this kernel loses track of memory that mremap moves",
            "each checkpoint reads all memory, and stores the changed pages; Linux 6.13 or later tracks writes",
        ),
        _ => ("tracked by the kernel (userfaultfd, PAGEMAP_SCAN)", ""),
    };
    Finding {
        what: "pages that changed since the image before",
        good: advice.is_empty(),
        required: false,
        value: value.to_owned(),
        advice,
    }
}

fn installation(root: Option<&Path>) -> Vec<Finding> {
    let library = front::environment::library();
    let place = root.map_or_else(Store::default_root, Path::to_owned);
    let store = crate::names::open_store(root);
    vec![
        Finding {
            what: "libholdfast.so",
            good: library.is_ok(),
            required: true,
            value: match &library {
                Ok(path) => path.display().to_string(),
                Err(failure) => failure.to_string(),
            },
            advice: "install it next to holdfast or in ../lib/holdfast, or set HOLDFAST_LIB",
        },
        memory(cgroup::tightest(std::process::id()).as_ref()),
        Finding {
            what: "store",
            good: store.is_ok(),
            required: true,
            value: match &store {
                Ok(store) => describe(store.root()),
                Err(failure) => format!("{}: {failure}", place.display()),
            },
            advice: "name a folder of yours with --store or HOLDFAST_STORE",
        },
        space(store.as_ref().map_or(&place, |store| store.root())),
    ]
}

/// Whether a first image is likely to fit.
fn space(folder: &Path) -> Finding {
    /// Less is no room for the memory of most programs.
    const LITTLE: u64 = 1 << 30;
    let room = fd::disk_room(folder);
    Finding {
        what: "free space in the store",
        good: room.as_ref().is_ok_and(|room| room.free >= LITTLE),
        required: false,
        value: match room {
            Ok(room) => format!("{} of {}", report::size(room.free), report::size(room.all)),
            Err(error) => error.to_string(),
        },
        advice: "an image needs as much space as the program's memory, compressed: free space, name \
            another store, or limit jobs by --keep and --max-space",
    }
}

/// Whether programs that use CUDA can be checkpointed: two processes are started that use the driver, and one asks for
/// the state of the other, as an agent asks for a program's.
fn cuda() -> Finding {
    let finding = |good, value| Finding {
        what: "CUDA programs",
        good,
        required: false,
        value,
        advice: "a checkpoint of a CUDA program needs NVIDIA's driver 570 (CUDA 12.8) or later, and this \
            user's right to call it for another process (docs/cuda.md)",
    };
    match ask_driver() {
        Ok(found) => finding(true, found),
        Err(why) => finding(false, why),
    }
}

/// Whether device memory may be a keeper's: a process is checkpointed that has had some.
fn keeper() -> Finding {
    let (good, value) = match probe::ask() {
        Ok(()) => (true, "works with this driver (HOLDFAST_CUDA_DATA=keeper or auto)".to_owned()),
        Err(why) => (false, why),
    };
    Finding {
        what: "device memory in a process of its own",
        good,
        required: false,
        value,
        advice: "libholdfast keeps device memory in the program: a checkpoint copies its changes to the \
            host while the program waits (docs/cuda.md)",
    }
}

/// Whether device memory can be packed where it is.
fn nvcomp() -> Finding {
    let (good, value) = match packer::load() {
        Ok(nvcomp) => (true, format!("nvCOMP {}, for a keeper's device memory", nvcomp.version())),
        Err(why) => (false, why),
    };
    Finding {
        what: "compression on devices",
        good,
        required: false,
        value,
        advice: "the host's processors compress images; nvCOMP is in NVIDIA's package \
            nvidia-libnvcomp-cu13 (PyPI): \
                 install it, and set HOLDFAST_NVCOMP to the path of its libnvcomp.so.6 (docs/cuda.md)",
    }
}

fn ask_driver() -> Result<String, String> {
    // Where the loader finds it, as programs do.
    const LIBRARY: &str = "libcuda.so.1";
    const QUESTION: Duration = Duration::from_secs(30);
    let start = || {
        let null = null().map_err(|failure| failure.message)?;
        Caller::start(Path::new(LIBRARY), null)
    };
    let other = start()?;
    let version = version(other.facts.api_version);
    let release = release();
    let driver = if release.is_empty() { String::new() } else { format!(" ({release})") };
    let driver = format!("driver for CUDA {version}{driver}");
    if !other.facts.can_checkpoint {
        return Err(format!("{driver}, without the checkpoint API"));
    }
    // As of a program: by the path that it has mapped.
    let found = uses::among(&[other.pid], |_| true).pop();
    found
        .map_or(Ok(()), |found| caller::trust(&found.library.path))
        .map_err(|why| format!("{driver}, but {why}"))?;
    let state = start()?.ask(Question::State { pid: other.pid }, QUESTION);
    state.map_err(|cause| format!("{driver}, which this user cannot call for another process: {cause}"))?;
    let devices: Vec<String> = other.facts.devices.iter().map(|device| device.name.clone()).collect();
    let devices = if devices.is_empty() { "no device".to_owned() } else { devices.join(", ") };
    Ok(format!("{driver} with the checkpoint API, {devices}"))
}

/// How much a checkpoint may take beside the program. The figures are those of `agent/headroom.rs`.
fn memory(room: Option<&Room>) -> Finding {
    let mib = |bytes: u64| bytes >> 20;
    Finding {
        what: "memory beside the program",
        // Of a gigabyte's copies, by default.
        good: room.is_none_or(|room| room.left() >= 128 << 20),
        required: false,
        value: room.map_or_else(
            || "not limited by a control group".to_owned(),
            |room| {
                let (group, left, limit) = (room.group.display(), mib(room.left()), mib(room.limit));
                format!("{left} MiB left of {limit} MiB ({group})")
            },
        ),
        advice: "a checkpoint needs 22 MiB and the program's shared memory; with less than 5 % of the program's size \
                 besides (--cow) the program waits for the flush more often",
    }
}

fn describe(folder: &Path) -> String {
    const KNOWN: [(u64, &str); 8] = [
        (0xEF53, "ext4"),
        (0x5846_5342, "xfs"),
        (0x9123_683E, "btrfs"),
        (0x0102_1994, "tmpfs: does not survive a reboot"),
        (0x794C_7630, "overlayfs"),
        (0x2FC1_2FC1, "zfs"),
        (0x6969, "nfs"),
        (0x0BD0_0BD0, "lustre"),
    ];
    let folder: PathBuf = folder.into();
    let kind = fd::file_system_type(&folder).unwrap_or(0);
    let name =
        KNOWN.iter().find(|(number, _)| *number == kind).map_or("another file system", |(_, name)| name);
    format!("{} ({name})", folder.display())
}

fn cpu() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or_else(|| "unknown processor".to_owned(), |(_, name)| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tracker_is_named_with_its_reason_and_remedy() {
        let good = Probe {
            pagemap_scan: true,
            userfaultfd_user: true,
            userfaultfd_wp_async: true,
            tracking_exact: true,
            ..Probe::ask()
        };
        let found = tracker(&good);
        assert!(found.good && !found.required && found.value.starts_with("tracked"));
        for (probe, reason, remedy) in [
            (Probe { pagemap_scan: false, ..good.clone() }, "PAGEMAP_SCAN", "6.7"),
            (Probe { userfaultfd_user: false, ..good.clone() }, "refused", "seccomp"),
            (Probe { userfaultfd_wp_async: false, ..good.clone() }, "asynchronously", "6.7"),
            (Probe { tracking_exact: false, ..good.clone() }, "mremap", "6.13"),
        ] {
            let found = tracker(&probe);
            assert!(!found.good && !found.required);
            assert!(found.value.contains(reason), "{}", found.value);
            assert!(found.advice.contains(remedy), "{}", found.advice);
        }
    }
}
