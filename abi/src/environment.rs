//! Environment variables that libholdfast reads. The front (`holdfast run`, `holdfast restart`) sets most of them.

/// Path of the agent's socket. It also ties a process to its job.
pub const ENV_SOCKET: &str = "HOLDFAST_SOCKET";
/// A secret of a job that root has started, 32 hexadecimal digits: it ties processes to the job that have other ids.
/// libholdfast does not read it.
pub const ENV_KEY: &str = "HOLDFAST_KEY";
/// As [`ENV_SOCKET`], which it comes before: of what `holdfast rsh` has started on another host. Launchers give their
/// own variables to what they start there (Hydra, `-genvall`), and those name the agent of the launcher's host.
pub const ENV_MEMBER_SOCKET: &str = "HOLDFAST_MEMBER_SOCKET";
/// As [`ENV_KEY`], of the job of [`ENV_MEMBER_SOCKET`].
pub const ENV_MEMBER_KEY: &str = "HOLDFAST_MEMBER_KEY";
/// How many seccomp filters were over the program before it began: a container's. Absent: none.
pub const ENV_FILTERS: &str = "HOLDFAST_FILTERS";
/// Engine that the program was started for; only [`ENGINE_SLOTS`] means something to libholdfast.
pub const ENV_ENGINE: &str = "HOLDFAST_ENGINE";
/// Value of [`ENV_ENGINE`] that makes libholdfast ready for engine `slots` when it is loaded.
pub const ENGINE_SLOTS: &str = "slots";
/// Number of the signal at which libholdfast asks for a checkpoint.
pub const ENV_SIGNAL: &str = "HOLDFAST_SIGNAL";
/// Number of the signal at which it asks for a checkpoint and the end of the program.
pub const ENV_ON_STOP: &str = "HOLDFAST_ON_STOP";
/// Value (si_value) that comes with that signal when the checkpoint has failed: what the program does at this signal
/// itself is to be done now. "HOLDFAST" in ASCII.
pub const ON_STOP_FAILED: u64 = 0x484f_4c44_4641_5354;
/// Which allocator serves the program: [`MALLOC_SYSTEM`], or anything else for the one in libholdfast.
pub const ENV_MALLOC: &str = "HOLDFAST_MALLOC";
/// Value of [`ENV_MALLOC`]: the C library's.
pub const MALLOC_SYSTEM: &str = "system";
/// Value of [`ENV_MALLOC`]: the one in libholdfast.
pub const MALLOC_JEMALLOC: &str = "jemalloc";
/// [`CUDA_OFF`]: the program gets the CUDA driver's own functions, and nothing is seen of what it does with them.
pub const ENV_CUDA: &str = "HOLDFAST_CUDA";
/// Value of [`ENV_CUDA`].
pub const CUDA_OFF: &str = "off";
/// Sizes of allocations of device memory that are not in images: least and most, bytes, `MIN..MAX`.
pub const ENV_CUDA_SKIP: &str = "HOLDFAST_CUDA_SKIP";
/// Who owns the memory of cuMemAlloc: [`CUDA_DATA_DRIVER`], [`CUDA_DATA_LIBRARY`], [`CUDA_DATA_KEEPER`]; else
/// libholdfast where it is known to work.
pub const ENV_CUDA_DATA: &str = "HOLDFAST_CUDA_DATA";
/// Value of [`ENV_CUDA_DATA`]: a keeper where the agent has found that the driver is one for it, else as without it.
pub const CUDA_DATA_AUTO: &str = "auto";
/// Value of [`ENV_CUDA_DATA`]: the driver; the program's calls are passed on.
pub const CUDA_DATA_DRIVER: &str = "driver";
/// Value of [`ENV_CUDA_DATA`]: libholdfast, also without an agent and with several devices.
pub const CUDA_DATA_LIBRARY: &str = "library";
/// Value of [`ENV_CUDA_DATA`]: a keeper, a process of the agent's.
pub const CUDA_DATA_KEEPER: &str = "keeper";
/// Whether the program finds Linux AIO: not with [`AIO_OFF`].
pub const ENV_AIO: &str = "HOLDFAST_AIO";
/// Value of [`ENV_AIO`]: as on a kernel without it.
pub const AIO_OFF: &str = "off";
/// Whether the program finds io_uring: [`IO_URING_KEEP`], or anything else for a kernel without it.
pub const ENV_IO_URING: &str = "HOLDFAST_IO_URING";
/// Value of [`ENV_IO_URING`]: the kernel's io_uring; a checkpoint is refused while there is a ring.
pub const IO_URING_KEEP: &str = "keep";
/// Folder with one file per protected region, after a restart from protected memory.
pub const ENV_PROTECTED_DIR: &str = "HOLDFAST_PROTECTED_DIR";
/// Set: a program that was started with nothing but LD_PRELOAD starts no agent.
pub const ENV_NO_AGENT: &str = "HOLDFAST_NO_AGENT";
/// Path of the binary `holdfast` that such a program starts as its agent.
pub const ENV_BIN: &str = "HOLDFAST_BIN";
/// `1`: libholdfast says on standard error what came of its start; set at all: its agent keeps standard error.
pub const ENV_DEBUG: &str = "HOLDFAST_DEBUG";
