//! Which processes use CUDA, as /proc shows it: a libcuda that is mapped, and devices that are open or mapped.
//!
//! Called before a cut, by `check`, and where files and mappings are understood. A process that has libcuda but no
//! device has not begun to use it (cuInit opens /dev/nvidiactl), or is CHECKPOINTED: by another program, or because the
//! driver could not restore it. An image of that would be one of a program without CUDA; so it uses CUDA where
//! libholdfast has seen it begin, or the driver's thread is there, and the driver is asked what state it is in.
//! Nothing here fails: a process that has ended uses nothing.
//!
//! The driver of the tests, which needs no GPU, has memfds of their names for devices.

use holdfast_image::refusal::{Refusal, Subject};
use holdfast_sys::procfs::{self, Mapping, Status};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The libcuda of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Libcuda {
    /// Where it is.
    pub path: PathBuf,
    /// Which file that was when it was mapped.
    pub inode: u64,
}

impl Libcuda {
    /// Whether the file is still the one that was mapped.
    pub fn is_there(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|found| found.ino() == self.inode)
    }
}

/// A process that uses CUDA.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CudaUse {
    /// Its id.
    pub pid: i32,
    /// By this library.
    pub library: Libcuda,
}

/// See [`places`].
#[derive(Debug)]
pub struct Places {
    /// Of this process.
    pub pid: i32,
    /// Where devices are mapped: start and end.
    pub devices: Vec<(u64, u64)>,
    /// The same, and reservations.
    pub all: Vec<(u64, u64)>,
}

/// Whether a name from /proc is that of a device of the NVIDIA driver.
pub fn is_device(name: &[u8]) -> bool {
    const OTHERS: [&[u8]; 2] = [b"ctl", b"-uvm"];
    if name.starts_with(b"/dev/nvidia") {
        return true;
    }
    let rest = name.strip_prefix(b"/memfd:nvidia").and_then(|rest| rest.strip_suffix(b" (deleted)"));
    rest.is_some_and(|rest| {
        !rest.is_empty() && (rest.iter().all(u8::is_ascii_digit) || OTHERS.contains(&rest))
    })
}

/// Whether a path is that of a libcuda: "libcuda.so", "libcuda.so.1", "libcuda.so.580.159".
fn is_libcuda(path: &Path) -> bool {
    let name = path.file_name().map(OsStrExt::as_bytes).unwrap_or_default();
    name.strip_prefix(b"libcuda.so").is_some_and(|rest| rest.is_empty() || rest.starts_with(b"."))
}

/// The libcuda among mappings.
fn library_in(maps: &[Mapping]) -> Option<Libcuda> {
    let of_file = |mapping: &Mapping| {
        let path = Path::new(std::ffi::OsStr::from_bytes(&mapping.name));
        is_libcuda(path).then(|| Libcuda { path: path.to_owned(), inode: mapping.inode })
    };
    maps.iter().find_map(of_file)
}

fn maps(pid: i32) -> Vec<Mapping> {
    let look = |tid| procfs::maps(pid, tid).ok().filter(|maps| !maps.is_empty());
    procfs::by_any_thread(pid, look).unwrap_or_default()
}

/// Descriptors of devices: number and name.
fn open_devices(pid: i32) -> Vec<(i32, Vec<u8>)> {
    let target = |fd: i32| Some((fd, procfs::link(&format!("/proc/{pid}/fd/{fd}")).ok()?));
    let all = procfs::descriptors(pid, pid).unwrap_or_default().into_iter().filter_map(target);
    all.filter(|(_, name)| is_device(name)).collect()
}

/// What a process has of devices, one refusal each. None: an image of it can be made.
pub fn devices_of(pid: i32) -> Vec<Refusal> {
    let refusal = |subject| Refusal { subject, reason: crate::refuse::CUDA_DEVICE.to_owned() };
    let name = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
    let mapped = maps(pid).into_iter().filter(|mapping| is_device(&mapping.name));
    let mapped = mapped.map(|one| Subject::Mapping { start: one.start, end: one.end, name: name(&one.name) });
    let open = open_devices(pid).into_iter();
    let open = open.map(|(fd, target)| Subject::Descriptor { fd, name: name(&target) });
    mapped.chain(open).map(refusal).collect()
}

/// Descriptors of GPUDirect Storage (cuFile with nvidia-fs): reads and writes by these go to device memory past the
/// driver, and no call shows when they are done.
pub fn direct_storage(pid: i32) -> Vec<(i32, Vec<u8>)> {
    open_devices(pid).into_iter().filter(|(_, name)| is_direct_storage(name)).collect()
}

fn is_direct_storage(name: &[u8]) -> bool {
    name.starts_with(b"/dev/nvidia-fs")
}

/// Whether a process has mapped a library of this name, with any version behind it.
pub fn has_library(pid: i32, name: &str) -> bool {
    let is_it = |mapping: &Mapping| {
        let file = mapping.name.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        file.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"."))
    };
    maps(pid).iter().any(is_it)
}

/// Numbers of the devices that a process has mapped: N of /dev/nvidiaN.
pub fn device_numbers(pid: i32) -> Vec<u32> {
    let number = |mapping: Mapping| {
        let name = String::from_utf8(mapping.name).ok()?;
        let rest = name.strip_prefix("/dev/nvidia").or_else(|| name.strip_prefix("/memfd:nvidia"))?;
        rest.strip_suffix(" (deleted)").unwrap_or(rest).parse().ok()
    };
    let all: BTreeSet<u32> = maps(pid).into_iter().filter_map(number).collect();
    all.into_iter().collect()
}

/// Whether a process has the thread by which the driver answers while there is no device.
fn has_drivers_thread(pid: i32) -> bool {
    // As the drivers from 570 on name it, and the one of the tests.
    const NAME: &str = "cuda-EvtHandlr";
    let tasks = procfs::tasks(pid).unwrap_or_default();
    tasks.into_iter().any(|tid| {
        fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm")).is_ok_and(|name| name.trim_end() == NAME)
    })
}

/// A thread of a process by the number that it has for the process itself.
pub(super) fn thread(pid: i32, inner: i32) -> Option<i32> {
    let is = |tid: &i32| Status::read(pid, *tid).is_ok_and(|s| s.innermost("NSpid") == Some(inner));
    let all = || procfs::tasks(pid).ok().and_then(|tids| tids.into_iter().find(is));
    Some(inner).filter(is).or_else(all)
}

/// The thread that the driver names: by its number here, or in a namespace by that for the process itself.
pub(super) fn answering(pid: i32, tid: i32) -> Option<i32> {
    let is_here = procfs::tasks(pid).is_ok_and(|tids| tids.contains(&tid));
    if is_here { Some(tid) } else { thread(pid, tid) }
}

/// Which of these processes use CUDA. `begun`: libholdfast has seen one of them initialise the driver.
pub fn among(pids: &[i32], begun: impl Fn(i32) -> bool) -> Vec<CudaUse> {
    let look = |&pid: &i32| {
        let maps = maps(pid);
        let library = library_in(&maps)?;
        let is_mapped = maps.iter().any(|mapping| is_device(&mapping.name));
        let uses = is_mapped || !open_devices(pid).is_empty() || begun(pid) || has_drivers_thread(pid);
        uses.then_some(CudaUse { pid, library })
    };
    pids.iter().filter_map(look).collect()
}

/// The parts of `ranges` that nothing is mapped in now.
pub fn unmapped(pid: i32, ranges: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let maps = maps(pid);
    let mut left = Vec::new();
    for &(start, end) in ranges {
        let mut from = start;
        for mapping in maps.iter().filter(|mapping| mapping.start < end && start < mapping.end) {
            if mapping.start > from {
                left.push((from, mapping.start));
            }
            from = from.max(mapping.end);
        }
        if from < end {
            left.push((from, end));
        }
    }
    left
}

/// Whether nothing is there but addresses: the driver's reservations, or one that was made for it.
fn is_reservation(one: &Mapping) -> bool {
    one.prot == 0 && !one.shared && one.inode == 0 && one.name.is_empty()
}

/// Where a driver could leave places free for a while: its devices, and large reservations. Whose those are nothing
/// says.
pub fn places(pid: i32) -> Places {
    const LARGE: u64 = 2 << 20;
    let maps = maps(pid);
    let of = |is_one: &dyn Fn(&Mapping) -> bool| {
        maps.iter().filter(|one| is_one(one)).map(|one| (one.start, one.end)).collect()
    };
    let is_large = |one: &Mapping| is_reservation(one) && one.end - one.start >= LARGE;
    Places {
        pid,
        devices: of(&|one| is_device(&one.name)),
        all: of(&|one| is_device(&one.name) || is_large(one)),
    }
}

/// What of a process lies in `ranges` and is no reservation.
pub fn taken(pid: i32, ranges: &[(u64, u64)]) -> Option<(u64, u64)> {
    let lies_in = |one: &Mapping| ranges.iter().any(|&(start, end)| one.start < end && start < one.end);
    let is_in_the_way = |one: &Mapping| lies_in(one) && !is_reservation(one) && !is_device(&one.name);
    maps(pid).into_iter().find(is_in_the_way).map(|one| (one.start, one.end))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_sys::memfd;
    use std::os::fd::AsRawFd;

    #[test]
    fn devices_are_known_by_their_names() {
        for name in ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/memfd:nvidia0 (deleted)"] {
            assert!(is_device(name.as_bytes()), "{name}");
        }
        for name in
            ["/dev/null", "/dev/nvm0", "/memfd:nvidia (deleted)", "/memfd:nvidia0x (deleted)", "/nvidia0"]
        {
            assert!(!is_device(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn direct_storage_is_told_from_devices() {
        assert!(is_direct_storage(b"/dev/nvidia-fs0") && is_device(b"/dev/nvidia-fs15"));
        assert!(!is_direct_storage(b"/dev/nvidia0") && !is_direct_storage(b"/dev/nvidia-uvm"));
        assert_eq!(direct_storage(std::process::id().cast_signed()), []);
    }

    #[test]
    fn libraries_are_known_by_theirs() {
        let is = |name: &str| is_libcuda(Path::new(name));
        assert!(is("/usr/lib/libcuda.so.1") && is("libcuda.so") && is("/a b/libcuda.so.580.159"));
        assert!(!is("/usr/lib/libcudart.so.13") && !is("/usr/lib/libcuda.so.1/x") && !is("libcuda.so2"));
    }

    #[test]
    fn what_is_open_is_found_and_nothing_else_uses_cuda() {
        let own = std::process::id().cast_signed();
        assert_eq!(among(&[own, i32::MAX], |_| true), []);
        let device = memfd::unsealed(c"nvidia7").unwrap();
        let found = devices_of(own);
        let number = device.as_raw_fd();
        let is_it =
            |refusal: &Refusal| matches!(&refusal.subject, Subject::Descriptor { fd, .. } if *fd == number);
        assert!(found.iter().any(is_it), "{found:?}");
        // Without libcuda it is no use of CUDA.
        assert_eq!(among(&[own], |_| true), []);
    }

    #[test]
    fn holes_are_found() {
        let own = std::process::id().cast_signed();
        let mapping = maps(own)[0].clone();
        assert_eq!(unmapped(own, &[(mapping.start, mapping.end)]), []);
        // Below the first mapping there is none.
        let below = mapping.start - 0x1000;
        assert_eq!(unmapped(own, &[(below, mapping.end)]), [(below, mapping.start)]);
        assert_eq!(unmapped(i32::MAX, &[(1, 2)]), [(1, 2)]);
        assert_eq!(taken(own, &[(below, mapping.end)]), Some((mapping.start, mapping.end)));
        assert_eq!(taken(own, &[(below, mapping.start)]), None);
    }
}
