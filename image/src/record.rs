//! The process record: everything but the pages that a restart must restore.
//!
//! Written by `process::capture` at the stop, read by `process::rebuild`. Each part names its source in the kernel.
//! Ids are those that the processes of the job see (the last number of `NSpid` in `/proc/PID/status`), or two where a
//! program has made a pid namespace ([`crate::pid_namespaces`]).
//! Invariants: plain data; a record read from a file is checked by [`ProcessRecord::check`] before it is used.

use crate::address_space;
use crate::aio::AioContext;
use crate::attributes::{GuardRegion, ProcessAttributes, ThreadAttributes};
use crate::bytes::{Blob, Name};
use crate::confinement::{self, Confinement, FilterRecord};
use crate::credentials::Credentials;
use crate::cuda::CudaRecord;
pub use crate::files::*;
use crate::host_addresses::HostAddresses;
use crate::landlock::{self, LandlockLayer};
pub use crate::namespaces::RootFolder;
use crate::namespaces::{self, NamespaceRecord};
use crate::objects::ObjectRecord;
use crate::pid_namespaces::{self, InnerIds};
use crate::processor::{CpuLevel, XstatePart};
pub use crate::region::*;
use crate::sysv_shm;
pub use crate::timers::*;
pub use crate::zombie::*;
use crate::{Addr, PAGE_SIZE, attributes, contents};
use holdfast_abi::inject;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// One process, as it was at the cut.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ProcessRecord {
    /// Its id (thread group id).
    pub pid: i32,
    /// Parent at the cut; information only.
    pub ppid: i32,
    /// Process group.
    pub pgid: i32,
    /// Session.
    pub sid: i32,
    /// Its ids in the pid namespace that it is in, if a program of the job has made that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inner: Option<InnerIds>,
    /// The pid namespace of its children, if that is another one than its own: the id of process 1 there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub children_in: Option<i32>,
    /// The executable: target of `/proc/PID/exe`.
    pub exe: FileIdentity,
    /// Target of `/proc/PID/cwd`; of a removed directory where it was.
    pub cwd: Name,
    /// That directory was removed: its permission bits.
    #[serde(default)]
    pub cwd_deleted: Option<u32>,
    /// Which directory it was, and whose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd_inode: Option<Inode>,
    /// It is in a mount namespace that a program has made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd_within: Option<Within>,
    /// Directory and umask are those of its parent, in whichever of the two they are changed (clone(2) with CLONE_FS).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shares_folder: bool,
    /// Its root directory, if that is not the one of its job (chroot(2)).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<RootFolder>,
    /// The namespaces that it is in and that programs of the job have made: places in
    /// [`ProcessRecord::made_namespaces`] of the first process.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<u32>,
    /// In the record of the first process: all of those.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub made_namespaces: Vec<NamespaceRecord>,
    /// `Umask` of `/proc/PID/status`.
    pub umask: u32,
    /// `prlimit(2)`, all resources.
    pub limits: Vec<Limit>,
    /// Host on which it ran.
    pub host: HostRecord,
    /// Layout fields of the address space.
    pub layout: LayoutRecord,
    /// All mappings, ascending.
    pub regions: Vec<Region>,
    /// Guard regions in them, ascending.
    #[serde(default)]
    pub guards: Vec<GuardRegion>,
    /// All threads; the leader (tid == pid) first.
    pub threads: Vec<ThreadRecord>,
    /// Signal handling of the process.
    pub signals: SignalRecord,
    /// `getitimer(2)`: real, virtual, prof.
    pub itimers: [IntervalTimer; 3],
    /// POSIX timers (`timer_create`).
    #[serde(default)]
    pub posix_timers: Vec<PosixTimer>,
    /// Open files.
    pub files: FileTable,
    /// Where libholdfast reserved memory for the agent.
    pub inject: InjectArea,
    /// Flags of the process that its files in `/proc` tell.
    pub flags: ProcessFlags,
    /// Settings of the process that it tells itself.
    #[serde(default)]
    pub attributes: ProcessAttributes,
    /// Seccomp filters that its threads are under.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filters: Vec<FilterRecord>,
    /// The Landlock domain that it has made, the oldest layer first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub domain: Vec<LandlockLayer>,
    /// Its local descriptor table (modify_ldt(2)), as the processor has it.
    #[serde(default, skip_serializing_if = "Blob::is_empty")]
    pub ldt: Blob,
    /// Its contexts of Linux AIO (`io_setup(2)`), with nothing under way in them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aio: Vec<AioContext>,
    /// Who it is, if not who has started the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rights: Option<Credentials>,
    /// Its CUDA state is in its memory: the driver must restore it before its calls go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuda: Option<CudaRecord>,
    /// Number of its address space: where its pages are in the page index ([`crate::address_space`]).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub space: u32,
    /// Children that have ended and that were not waited for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub zombies: Vec<ZombieRecord>,
    /// In the record of the first process: all other processes of the job, each after its parent. They have neither
    /// `others` of their own nor descriptions: their descriptors refer to those of the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<ProcessRecord>,
    /// In the record of the first process, and of process 1 of a pid namespace: the id that was given last there, by
    /// then or a moment later. `None`: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_id: Option<i32>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// `prlimit(2)` of one resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Limit {
    /// `RLIMIT_*`.
    pub resource: u32,
    /// Soft limit.
    pub soft: u64,
    /// Hard limit.
    pub hard: u64,
}

/// What must be equal on the host of the restart.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HostRecord {
    /// `uname -r`.
    pub kernel_release: String,
    /// `uname -n`; information only.
    pub hostname: String,
    /// XXH3-64 of the bytes of the vdso.
    pub vdso_hash: u64,
    /// The bytes of the vdso: under another kernel its entries must still be where they were. Of the first process
    /// only.
    #[serde(default, skip_serializing_if = "Blob::is_empty")]
    pub vdso: Blob,
    /// Extended state features that the kernel enables (XCR0), as the NT_X86_XSTATE note reports it.
    pub xcr0: u64,
    /// CPU model name, for messages.
    pub cpu: String,
    /// Instruction sets that it has, by their names in `/proc/cpuinfo`.
    #[serde(default)]
    pub instructions: Vec<String>,
    /// Where it puts extended registers. Empty in images of old: not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub xstate: Vec<XstatePart>,
    /// The program was told to keep to what this level has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baseline: Option<CpuLevel>,
    /// What its environments have that no other user knows (`HOLDFAST_KEY`); empty but for jobs of root's.
    #[serde(default, skip_serializing_if = "Blob::is_empty")]
    pub key: Blob,
    /// Addresses of the host, of the first process only.
    #[serde(default, skip_serializing_if = "HostAddresses::is_none")]
    pub addresses: HostAddresses,
    /// CLOCK_MONOTONIC at the cut, nanoseconds.
    pub monotonic_ns: u64,
    /// CLOCK_REALTIME at the cut, nanoseconds.
    pub realtime_ns: u64,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
}

/// Fields for `prctl(PR_SET_MM, PR_SET_MM_MAP)`: struct prctl_mm_map (include/uapi/linux/prctl.h).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LayoutRecord {
    /// Start of program text.
    pub start_code: Addr,
    /// End of program text.
    pub end_code: Addr,
    /// Start of initialised data.
    pub start_data: Addr,
    /// End of initialised data.
    pub end_data: Addr,
    /// Start of the brk heap.
    pub start_brk: Addr,
    /// The program break, not rounded.
    pub brk: Addr,
    /// Bottom of the main stack.
    pub start_stack: Addr,
    /// argv strings.
    pub arg_start: Addr,
    /// End of argv strings.
    pub arg_end: Addr,
    /// Environment strings.
    pub env_start: Addr,
    /// End of environment strings.
    pub env_end: Addr,
    /// `/proc/PID/auxv`.
    pub auxv: Blob,
}

/// One thread.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ThreadRecord {
    /// Its id, as it knows itself.
    pub tid: i32,
    /// The same where the job lives, if its process is in a pid namespace that a program of the job has made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_tid: Option<i32>,
    /// Its name (`comm`).
    pub comm: Name,
    /// NT_PRSTATUS: struct user_regs_struct, 27 words in its order. As they are to be *set* at restart: interrupted
    /// calls are already turned into something that a new task can restart.
    pub registers: Vec<u64>,
    /// NT_X86_XSTATE, cut to the size that its features need.
    pub xstate: Blob,
    /// Blocked signals.
    pub signal_mask: u64,
    /// Signals pending for this thread: siginfo_t of 128 bytes each.
    pub pending: Vec<Blob>,
    /// `sigaltstack(2)`.
    pub alt_stack: AltStack,
    /// `get_robust_list(2)`.
    pub robust_list: Addr,
    /// Its length.
    pub robust_list_len: u64,
    /// `PR_GET_TID_ADDRESS` (clear_child_tid).
    pub clear_tid: Addr,
    /// Restartable sequence area, if registered.
    pub rseq: Option<Rseq>,
    /// The relative timeout that it was sleeping in, if any: continued by a slot of the injection area.
    pub wait: Option<TimedWait>,
    /// CPU affinity mask, little-endian 64-bit words.
    pub affinity: Vec<u64>,
    /// Nice value.
    pub nice: i32,
    /// `SCHED_*` policy.
    pub policy: u32,
    /// Static priority of real-time policies.
    pub priority: u32,
    /// Timer slack, nanoseconds.
    pub timer_slack_ns: u64,
    /// Other settings.
    #[serde(default)]
    pub attributes: ThreadAttributes,
    /// What it has forbidden itself.
    #[serde(default, skip_serializing_if = "Confinement::is_none")]
    pub confinement: Confinement,
    /// It is a main thread that has ended while others run: what wait(2) tells of it. All else here is that of another
    /// thread, or nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<i32>,
    /// A directory and a umask of its own (unshare(2) with CLONE_FS).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<OwnFolder>,
}

/// What a thread has for itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OwnFolder {
    /// Where it is.
    pub path: Name,
    /// Which that is, and whose.
    pub inode: Option<Inode>,
    /// `umask(2)`.
    pub umask: u32,
}

/// `stack_t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct AltStack {
    /// Lowest address.
    pub sp: Addr,
    /// SS_DISABLE, SS_ONSTACK, SS_AUTODISARM.
    pub flags: u32,
    /// Bytes.
    pub size: u64,
}

/// PTRACE_GET_RSEQ_CONFIGURATION.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Rseq {
    /// Address of struct rseq.
    pub addr: Addr,
    /// Registered length, bytes.
    pub len: u32,
    /// Signature before abort handlers.
    pub signature: u32,
}

/// Signal handling of a process.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SignalRecord {
    /// Raw `rt_sigaction` of every signal that is not at its default.
    pub actions: Vec<SignalAction>,
    /// Signals pending for the process: siginfo_t of 128 bytes each.
    pub pending: Vec<Blob>,
    /// The process was stopped by job control.
    pub job_stopped: bool,
    /// By this signal; 0: images made before it was recorded.
    #[serde(default)]
    pub stop_signal: i32,
    /// Its parent has been told so by wait(2).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stop_told: bool,
}

/// Kernel struct sigaction (arch/x86/include/uapi/asm/signal.h).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SignalAction {
    /// 1 to 64.
    pub signal: u32,
    /// SIG_DFL, SIG_IGN or address.
    pub handler: u64,
    /// SA_*.
    pub flags: u64,
    /// Restorer address.
    pub restorer: u64,
    /// Blocked while it runs.
    pub mask: u64,
}

/// Process-wide flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ProcessFlags {
    /// `NoNewPrivs` of the status file.
    pub no_new_privs: bool,
    /// `THP_enabled` of the status file is 0.
    pub thp_disabled: bool,
    /// `oom_score_adj`.
    pub oom_score_adj: i32,
    /// `coredump_filter`. Absent: not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coredump_filter: Option<u32>,
    /// `loginuid`, where it was not that of the agent: the program has set it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login_user: Option<u32>,
}

/// Memory in the program that libholdfast reserved for the agent, told when it registered.
///
/// `code` is mapped readable and executable, `scratch` readable and writable; both belong to the agent alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct InjectArea {
    /// First byte of the code range.
    pub code: Addr,
    /// Its length, bytes; at least [`InjectArea::MIN_CODE_LEN`].
    pub code_len: u64,
    /// First byte of the scratch range.
    pub scratch: Addr,
    /// Its length, bytes; at least [`InjectArea::MIN_SCRATCH_LEN`].
    pub scratch_len: u64,
    /// Address of the library's page of shared variables ([`holdfast_abi::SharedPage`]), 0 if none.
    pub shared: Addr,
}

impl InjectArea {
    /// See [`inject::MIN_CODE_LEN`].
    pub const MIN_CODE_LEN: u64 = inject::MIN_CODE_LEN as u64;
    /// See [`inject::MIN_SCRATCH_LEN`].
    pub const MIN_SCRATCH_LEN: u64 = inject::MIN_SCRATCH_LEN as u64;

    /// Whether the ranges are aligned, large enough and in user space.
    pub fn is_valid(&self) -> bool {
        let in_user_space = |start: Addr, len: u64| {
            start.is_page_aligned()
                && start.0 >= PAGE_SIZE
                && start.checked_add(len).is_some_and(|end| end.0 < 1 << 47)
        };
        in_user_space(self.code, self.code_len)
            && in_user_space(self.scratch, self.scratch_len)
            && self.code_len >= Self::MIN_CODE_LEN
            && self.scratch_len >= Self::MIN_SCRATCH_LEN
    }
}

impl ProcessRecord {
    /// The kind of record that this is, among those that a store keeps.
    pub const KIND: u32 = 1;

    /// All processes: this one first.
    pub fn processes(&self) -> impl Iterator<Item = &ProcessRecord> {
        std::iter::once(self).chain(&self.others)
    }

    /// The bytes that a store keeps: JSON, so that fields can be added.
    ///
    /// # Errors
    /// A value cannot be written as JSON.
    pub fn encode(&self) -> Result<Vec<u8>, String> {
        serde_json::to_vec(self).map_err(|error| error.to_string())
    }

    /// Reads what [`ProcessRecord::encode`] has written, and checks it.
    ///
    /// # Errors
    /// It is of another kind, cannot be decoded, or a restart could not compute with it.
    pub fn decode(kind: u32, bytes: &[u8]) -> Result<ProcessRecord, String> {
        if kind == ObjectRecord::KIND {
            return Err(
                "it has objects, which the program that has put them takes back itself; it has no processes \
                        to restart"
                    .into(),
            );
        }
        if kind != ProcessRecord::KIND {
            return Err(format!("the record is of kind {kind}: this is no image of processes"));
        }
        let record = ProcessRecord::decode_unchecked(bytes)?;
        record.check()?;
        Ok(record)
    }

    pub(crate) fn decode_unchecked(bytes: &[u8]) -> Result<ProcessRecord, String> {
        serde_json::from_slice(bytes).map_err(|error| error.to_string())
    }

    /// Checks what a hostile or broken file could have wrong and a restart would compute with.
    ///
    /// # Errors
    /// Says which field is wrong.
    pub fn check(&self) -> Result<(), String> {
        let descriptions = self.files.descriptions.len();
        let (mut ids, mut spaces) = (BTreeSet::new(), BTreeSet::new());
        for process in self.processes() {
            let pid = process.pid;
            let own = process.threads.iter().map(|thread| thread.job_tid.unwrap_or(thread.tid));
            for id in own.chain(process.zombies.iter().map(|zombie| zombie.pid)) {
                if !ids.insert(id) {
                    return Err(format!("id {id} is there twice"));
                }
            }
            if process.space >= address_space::DEVICES || !spaces.insert(process.space) {
                return Err(format!("process {pid} has no address space of its own"));
            }
            namespaces::check(&self.made_namespaces, &process.namespaces)
                .map_err(|what| format!("process {pid}: {what}"))?;
            process.check_alone(descriptions).map_err(|what| format!("process {pid}: {what}"))?;
        }
        pid_namespaces::check(&self.processes().map(ProcessRecord::ids).collect::<Vec<_>>())?;
        self.check_objects()?;
        self.host.addresses.check()?;
        contents::check(&self.files.contents)?;
        let regions = self.processes().flat_map(|process| &process.regions);
        sysv_shm::check(&self.files.segments, regions)?;
        sysv_shm::check_contents(&self.files.segments, &self.files.segment_contents)?;
        let has_what_is_kept_once = |other: &&ProcessRecord| {
            !other.others.is_empty()
                || !other.made_namespaces.is_empty()
                || other.files.has_what_is_kept_once()
        };
        match self.others.iter().find(has_what_is_kept_once) {
            Some(other) => Err(format!("process {} holds what only the first may", other.pid)),
            None => Ok(()),
        }
    }

    /// Files without a name and terminals, and who refers to them.
    fn check_objects(&self) -> Result<(), String> {
        let files = &self.files.nameless;
        for file in files {
            let mut floor = 0;
            for piece in &file.content {
                let end = piece.offset.checked_add(piece.data.0.len() as u64);
                if piece.offset < floor || end.is_none_or(|end| end > file.size) {
                    return Err(format!("{} has content out of place", file.name));
                }
                floor = end.unwrap_or(u64::MAX);
            }
        }
        let of_descriptions =
            self.files.descriptions.iter().filter_map(|description| match description.object {
                Object::Nameless { file, .. } => Some(file),
                _ => None,
            });
        let regions = self.processes().flat_map(|process| &process.regions);
        let of_regions = regions.filter_map(|region| match region.backing {
            Backing::Nameless { file, .. } => Some(file),
            _ => None,
        });
        if let Some(file) = of_descriptions.chain(of_regions).find(|&file| file as usize >= files.len()) {
            return Err(format!("there is no file {file} among those without a name"));
        }
        let of_descriptions =
            self.files.descriptions.iter().filter_map(|description| match description.object {
                Object::PtyMaster { pty } | Object::PtySlave { pty } => Some(pty),
                _ => None,
            });
        let controlling = self.processes().filter_map(|process| process.files.controlling);
        if let Some(pty) =
            of_descriptions.chain(controlling).find(|&pty| pty as usize >= self.files.ptys.len())
        {
            return Err(format!("there is no terminal {pty}"));
        }
        let mut of_descriptions =
            self.files.descriptions.iter().filter_map(|description| match description.object {
                Object::MessageQueue { queue } => Some(queue),
                _ => None,
            });
        if let Some(queue) = of_descriptions.find(|&one| one as usize >= self.files.queues.len()) {
            return Err(format!("there is no message queue {queue}"));
        }
        let mut passed = self.files.descriptions.iter().flat_map(|description| description.object.passed());
        if let Some(file) = passed.find(|&file| file as usize >= self.files.descriptions.len()) {
            return Err(format!("a message has a descriptor of description {file}, which there is not"));
        }
        let of_job = |pid: i32| {
            pid == -1
                || self.processes().any(|process| {
                    process.pid == pid || process.zombies.iter().any(|zombie| zombie.pid == pid)
                })
        };
        match self.files.descriptions.iter().find_map(|description| match description.object {
            Object::PidFd { pid, .. } | Object::ProcessFile { pid, .. } if !of_job(pid) => Some(pid),
            _ => None,
        }) {
            Some(pid) => Err(format!("a descriptor leads to process {pid}, which there is not")),
            None => Ok(()),
        }
    }

    /// See [`pid_namespaces`].
    pub(crate) fn ids(&self) -> pid_namespaces::Ids {
        pid_namespaces::Ids {
            pid: self.pid,
            ppid: self.ppid,
            inner: self.inner,
            children_in: self.children_in,
            threads: self.threads.iter().map(|thread| (thread.tid, thread.job_tid)).collect(),
            zombies: self.zombies.iter().filter_map(|zombie| zombie.inner_pid).collect(),
        }
    }

    fn check_alone(&self, descriptions: usize) -> Result<(), String> {
        if self.pid <= 1 {
            return Err(format!("pid {} is not one of a program", self.pid));
        }
        if self.threads.first().is_none_or(|t| t.tid != self.own_pid()) {
            return Err("the first thread is not the leader".into());
        }
        if !self.inject.is_valid() {
            return Err("the injection area is not valid".into());
        }
        self.check_threads()?;
        landlock::check(&self.domain)?;
        confinement::check(&self.filters, self.threads.iter().map(|thread| thread.confinement))?;
        self.check_regions()?;
        attributes::check_guards(&self.guards)?;
        self.check_files(descriptions)
    }

    fn check_threads(&self) -> Result<(), String> {
        for thread in &self.threads {
            let tid = thread.tid;
            if tid <= 0 {
                return Err(format!("thread id {tid} is not positive"));
            }
            if thread.registers.len() != 27 {
                return Err(format!("thread {tid} has {} registers, not 27", thread.registers.len()));
            }
            if thread.xstate.0.len() < 576 || thread.xstate.0.len() > 64 * 1024 {
                return Err(format!("thread {tid} has {} bytes of extended state", thread.xstate.0.len()));
            }
            if thread.pending.iter().any(|info| info.0.len() != 128) {
                return Err(format!("thread {tid} has a pending signal of the wrong size"));
            }
        }
        Ok(())
    }

    fn check_regions(&self) -> Result<(), String> {
        let mut floor = Addr(PAGE_SIZE);
        for region in &self.regions {
            let (start, end) = (region.start, region.end);
            if !start.is_page_aligned() || !end.is_page_aligned() || start >= end || end.0 > 1 << 47 {
                return Err(format!("mapping {start}-{end} is not a valid range"));
            }
            if start < floor {
                return Err(format!("mapping {start}-{end} overlaps the one before"));
            }
            floor = end;
            if let Backing::PrivateFile { file, .. } | Backing::SharedFile { file, .. } = region.backing
                && file as usize >= self.files.mapped.len()
            {
                return Err(format!("mapping {start}-{end} refers to unknown file {file}"));
            }
        }
        Ok(())
    }

    fn check_files(&self, descriptions: usize) -> Result<(), String> {
        if let Some(zombie) = self.zombies.iter().find(|zombie| zombie.pid <= 1) {
            return Err(format!("the id {} of a child is not one of a process", zombie.pid));
        }
        let mut last = -1;
        for descriptor in &self.files.descriptors {
            if descriptor.fd <= last || descriptor.fd >= 1 << 20 {
                return Err(format!("descriptor {} is out of order or too large", descriptor.fd));
            }
            last = descriptor.fd;
            if descriptor.description as usize >= descriptions {
                return Err(format!("descriptor {} refers to nothing", descriptor.fd));
            }
        }
        Ok(())
    }
}
