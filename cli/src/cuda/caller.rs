//! `holdfast __cuda`: the process that calls the CUDA driver for an agent.
//!
//! Started by [`super::client`], once per agent, when a process of the job uses CUDA; it loads the same libcuda as that
//! process, initialises it once (which takes seconds on a real driver, and is why it stays), and answers questions
//! until its agent closes the socket. What must hold: an agent that ends, however it ends, leaves no process locked:
//! what was locked or checkpointed by this caller is then restored and unlocked. How it fails: it says why, and ends; a
//! call that hangs hangs here, and the agent has a deadline for that.

use super::messages::{self, Answer, DeviceRoom, Facts, Question};
use crate::args::CudaArgs;
use crate::exit::Failure;
use holdfast_image::cuda::{CudaDevice, uuid};
use holdfast_process::cuda::driver::names;
use holdfast_process::cuda::{Cause, CudaState, DriverCheckpoint, DriverError, settle_all};
use holdfast_sys::cuda::{Action, DevicePair, Driver, SUCCESS, describe};
use holdfast_sys::nvml::{self, Nvml};
use holdfast_sys::{attributes, fd, procfs, signals, unix_socket};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Of a lock without an end, where the agent is gone.
const NO_TIMEOUT: u32 = 0;

/// The driver, and the processes that it has locked for this caller.
struct Direct {
    driver: Driver,
    /// Ids, with the time of their start: an id may be given again.
    touched: Mutex<BTreeMap<i32, u64>>,
    /// Onto which devices a restore goes: as the agent has last said.
    onto: Mutex<Vec<DevicePair>>,
    /// The library of the driver.
    library: PathBuf,
    /// What says how much memory is free; loaded when that is first asked.
    nvml: OnceLock<Result<Nvml, String>>,
}

/// NVML of the same folder as the driver's library, where there is one: both are installed together.
fn load_nvml(library: &Path) -> Result<Nvml, String> {
    let beside = fs::canonicalize(library).ok().and_then(|path| Some(path.parent()?.join(nvml::NAME)));
    match beside.filter(|path| path.exists()) {
        Some(path) => trust(&path).and_then(|()| Nvml::load(&path)),
        None => Nvml::load(Path::new(nvml::NAME)),
    }
}

impl Direct {
    fn room(&self) -> Result<Vec<DeviceRoom>, String> {
        let nvml = self.nvml.get_or_init(|| load_nvml(&self.library)).as_ref().map_err(String::clone)?;
        let of = |(bytes, _): ([u8; 16], String)| {
            let gpu = uuid(&bytes);
            // Of a part of a device the driver gives the same kind of number, and NVML has another word for it.
            let part = gpu.replacen("GPU-", "MIG-", 1);
            let room = nvml.room(&gpu).or_else(|why| nvml.room(&part).map_err(|_| why))?;
            Ok(DeviceRoom { uuid: bytes, minor: room.minor, free: room.free, total: room.total })
        };
        self.driver.devices().into_iter().map(of).collect()
    }

    fn act(&self, function: &'static str, action: Action<'_>, pid: i32) -> Result<(), DriverError> {
        // Before the call, in which the agent may die. What another caller has begun counts, too.
        if let Some(began) = procfs::start_time(pid) {
            self.touched.lock().insert(pid, began);
        }
        match self.driver.act(action, pid) {
            SUCCESS => Ok(()),
            code => Err(DriverError { function, cause: Cause::Code(code) }),
        }
    }
}

impl DriverCheckpoint for Direct {
    fn state(&self, pid: i32) -> Result<CudaState, DriverError> {
        let error = |code| DriverError { function: names::STATE, cause: Cause::Code(code) };
        self.driver.state(pid).map(CudaState::from).map_err(error)
    }
    fn restore_thread(&self, pid: i32) -> Result<i32, DriverError> {
        let error = |code| DriverError { function: names::RESTORE_THREAD, cause: Cause::Code(code) };
        self.driver.restore_thread(pid).map_err(error)
    }
    fn lock(&self, pid: i32) -> Result<(), DriverError> {
        self.act(names::LOCK, Action::Lock(NO_TIMEOUT), pid)
    }
    fn checkpoint(&self, pid: i32) -> Result<(), DriverError> {
        self.act(names::CHECKPOINT, Action::Checkpoint, pid)
    }
    fn restore(&self, pid: i32) -> Result<(), DriverError> {
        let onto = self.onto.lock().clone();
        self.act(names::RESTORE, Action::Restore(&onto), pid)
    }
    fn unlock(&self, pid: i32) -> Result<(), DriverError> {
        self.act(names::UNLOCK, Action::Unlock, pid)?;
        self.over(pid);
        Ok(())
    }
    fn over(&self, pid: i32) {
        self.touched.lock().remove(&pid);
    }
}

/// Answers until the agent has closed its end.
///
/// # Errors
/// The driver cannot be used: the agent has been told.
pub fn run(args: &CudaArgs) -> Result<(), Failure> {
    let agent = fd::inherited(args.agent)
        .map_err(|error| Failure::system("taking over the agent's socket", &error))?;
    attributes::leave_no_core();
    // Its end would leave processes locked: it ends by itself.
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
        signals::set_ignored(signal, true);
    }
    let direct = match load(&args.library) {
        Ok((direct, facts)) => {
            let _ = messages::send(agent.as_fd(), &Answer::Ready(facts));
            direct
        }
        Err(why) => {
            let _ = messages::send(agent.as_fd(), &Answer::Unusable { why: why.clone() });
            return Err(Failure::new(crate::exit::Exit::Internal, why));
        }
    };
    serve(&direct, &agent);
    undo(&direct);
    Ok(())
}

fn load(library: &Path) -> Result<(Direct, Facts), String> {
    if library.is_absolute() {
        trust(library)?;
    }
    let driver = Driver::load(library).map_err(|error| error.to_string())?;
    match driver.init() {
        SUCCESS => {}
        code => return Err(format!("{}: cuInit: {}", library.display(), describe(code))),
    }
    let device = |(bytes, name): ([u8; 16], String)| CudaDevice { uuid: uuid(&bytes), name };
    let facts = Facts {
        api_version: driver.version(),
        can_checkpoint: driver.can_checkpoint(),
        devices: driver.devices().into_iter().map(device).collect(),
    };
    let (touched, onto, nvml) = Default::default();
    Ok((Direct { driver, touched, onto, library: library.to_owned(), nvml }, facts))
}

/// Whether a file's owner is a user of whom this user namespace knows nothing: the kernel shows one number for all of
/// them (user_namespaces(7), "Unmapped user and group IDs"), which no user here has. `map`: /proc/self/uid_map.
fn is_outside(owner: u32, overflow: &str, map: &str) -> bool {
    let numbers = |line: &str| -> Option<(u64, u64)> {
        let mut words = line.split_whitespace().map(str::parse);
        let (first, _, count) = (words.next()?.ok()?, words.next()?, words.next()?.ok()?);
        Some((first, count))
    };
    let has = |(first, count): (u64, u64)| (first..first.saturating_add(count)).contains(&u64::from(owner));
    overflow.trim().parse() == Ok(owner) && !map.lines().filter_map(numbers).any(has)
}

/// Whether code of this file may run here: only if no other user, but root, can have written it or put it there. A job
/// of root's may have processes of other users, with libraries of theirs. In a user namespace (Apptainer) root's files
/// are of a user outside: whose they are is not known, but no process in here is that user's.
pub fn trust(library: &Path) -> Result<(), String> {
    let own = unix_socket::effective_user();
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let (overflow, map) = (read("/proc/sys/kernel/overflowuid"), read("/proc/self/uid_map"));
    let real = fs::canonicalize(library).map_err(|error| format!("{}: {error}", library.display()))?;
    for path in real.ancestors() {
        let is = fs::metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let sticky = is.is_dir() && is.mode() & 0o1000 != 0;
        let is_foreign = is.uid() != 0 && is.uid() != own && !is_outside(is.uid(), &overflow, &map);
        if is_foreign || (is.mode() & 0o022 != 0 && !sticky) {
            let (library, path) = (library.display(), path.display());
            return Err(format!(
                "{library} is not loaded, as other users may change it: {path} must be root's or your own, and \
                 writable for nobody else"
            ));
        }
    }
    Ok(())
}

fn serve(direct: &Direct, agent: &OwnedFd) {
    while let Ok(Some(question)) = messages::receive::<Question>(agent.as_fd()) {
        let value = match question {
            Question::State { pid } => direct.state(pid).map(i32::from),
            Question::RestoreThread { pid } => direct.restore_thread(pid),
            Question::Lock { pid, timeout_ms } => {
                direct.act(names::LOCK, Action::Lock(timeout_ms), pid).map(|()| 0)
            }
            Question::Checkpoint { pid } => direct.checkpoint(pid).map(|()| 0),
            Question::Restore { pid, onto } => {
                *direct.onto.lock() = onto;
                direct.restore(pid).map(|()| 0)
            }
            Question::Unlock { pid } => direct.unlock(pid).map(|()| 0),
            Question::Over { pid } => {
                direct.over(pid);
                continue;
            }
            Question::Room => {
                let answer = match direct.room() {
                    Ok(devices) => Answer::Room { devices },
                    Err(why) => Answer::NoRoom { why },
                };
                if messages::send(agent.as_fd(), &answer).is_err() {
                    return;
                }
                continue;
            }
        };
        let answer = match value {
            Ok(value) => Answer::Done { value },
            Err(DriverError { cause: Cause::Code(code), .. }) => Answer::Failed { code },
            Err(_) => Answer::Failed { code: -1 },
        };
        if messages::send(agent.as_fd(), &answer).is_err() {
            return;
        }
    }
}

/// The agent is gone.
fn undo(direct: &Direct) {
    let touched = std::mem::take(&mut *direct.touched.lock());
    let still = |(pid, began): (i32, u64)| (procfs::start_time(pid) == Some(began)).then_some(pid);
    let pids: Vec<i32> = touched.into_iter().filter_map(still).collect();
    if let Err(left) = settle_all(direct, &pids) {
        crate::report::warn(&left);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn users_outside_of_a_namespace_are_known_by_their_number() {
        let outside = |owner, map| is_outside(owner, "65534\n", map);
        assert!(outside(65534, "      1000       1000          1\n"));
        assert!(outside(65534, "0 1000 1\n1 100000 65533\n") && outside(65534, ""));
        // One that is mapped may be anybody's, and another number is that of a user here.
        assert!(!outside(65534, "0 1000 1\n1 100000 65536\n") && !outside(65534, "0 0 4294967295\n"));
        assert!(!outside(1001, "1000 1000 1\n") && !is_outside(65534, "", "1000 1000 1\n"));
    }

    #[test]
    fn only_libraries_that_no_other_user_can_change_are_loaded() {
        let folder = std::env::temp_dir().join(format!("cuda-trust-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        let library = folder.join("libcuda.so.1");
        assert!(trust(&library).unwrap_err().contains("libcuda.so.1: "));
        fs::write(&library, "").unwrap();
        fs::set_permissions(&library, fs::Permissions::from_mode(0o644)).unwrap();
        trust(&library).unwrap();
        for (path, mode) in [(&library, 0o664), (&library, 0o646), (&folder, 0o777)] {
            let before = fs::metadata(path).unwrap().permissions();
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
            assert!(trust(&library).unwrap_err().contains("other users may change it"), "{path:?}");
            fs::set_permissions(path, before).unwrap();
        }
        // Sticky, as /tmp is: no user can replace what is another's.
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o1777)).unwrap();
        trust(&library).unwrap();
        fs::remove_dir_all(folder).unwrap();
    }
}
