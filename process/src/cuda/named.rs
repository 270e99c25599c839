//! What no driver checkpoints and what shows before one is asked: GPUDirect Storage, MIG, MPS.
//!
//! Called by the agent before a checkpoint and by `check`, of processes that use CUDA. The driver would refuse MIG and
//! MPS by a code that has no name ("not supported"), after its locks; GPUDirect Storage it would not refuse at all, and
//! what comes to a device while its memory is copied would be lost. Sources: CRIU, plugins/cuda/README (MPS); the
//! manual of MPS, "Environment Variables", and of MIG, "CUDA_VISIBLE_DEVICES" (an instance is named "MIG-" and its
//! UUID). What is looked at is the environment that a process began with; what it has set since is not seen.
//! Fails by: nothing; what cannot be read is left to the driver.

use super::uses;
use crate::refuse;
use holdfast_image::refusal::Refusal;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Where the pipes of an MPS daemon are, unless its users are told otherwise.
const PIPES: &str = "/tmp/nvidia-mps";

/// What forbids a checkpoint of these processes. `release`: of the driver, 0: not known; newer ones may do more, and
/// are asked.
pub fn obstacles(pids: &[i32], release: u32) -> Vec<Refusal> {
    let mut found = Vec::new();
    for &pid in pids {
        if let Some((fd, name)) = uses::direct_storage(pid).first() {
            let name = String::from_utf8_lossy(name);
            found.push(refuse::process(
                pid,
                format!(
                    "it uses GPUDirect Storage (cuFile; descriptor {fd} is {name}), which writes device memory past \
                     the driver: set CUFILE_FORCE_COMPAT_MODE=true and restart it"
                ),
            ));
        }
        let Ok(environment) = fs::read(format!("/proc/{pid}/environ")) else { continue };
        if release < LATER {
            found.extend(of_environment(&environment, has_daemon).map(|why| refuse::process(pid, why)));
        }
    }
    found
}

/// Drivers from this one on are asked: what they do with MIG and MPS is not known here.
const LATER: u32 = 590;

/// Whether a daemon of MPS that lives has its pipes in this folder. One in another namespace of ids is not found.
fn has_daemon(folder: &Path) -> bool {
    let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
    let pid: Option<u32> = read(folder.join("nvidia-cuda-mps-control.pid")).trim().parse().ok();
    pid.is_some_and(|pid| read(format!("/proc/{pid}/comm").into()).starts_with("nvidia-cuda-mps"))
}

/// `has_daemon`: whether the pipes of one are in a folder.
fn of_environment(environment: &[u8], has_daemon: impl Fn(&Path) -> bool) -> Option<String> {
    let value = |name: &[u8]| {
        let of = |entry: &'_ [u8]| entry.strip_prefix(name)?.strip_prefix(b"=").map(<[u8]>::to_vec);
        environment.split(|&byte| byte == 0).find_map(of)
    };
    let visible = value(b"CUDA_VISIBLE_DEVICES").unwrap_or_default();
    if visible.split(|&byte| byte == b',').any(|one| one.starts_with(b"MIG-")) {
        let visible = String::from_utf8_lossy(&visible).into_owned();
        return Some(format!(
            "it runs on a MIG instance (CUDA_VISIBLE_DEVICES={visible}), which this driver does not checkpoint: give \
             it a whole device"
        ));
    }
    let pipes = value(b"CUDA_MPS_PIPE_DIRECTORY").filter(|value| !value.is_empty());
    let folder = pipes.map_or_else(|| PathBuf::from(PIPES), |path| PathBuf::from(OsStr::from_bytes(&path)));
    has_daemon(&folder).then(|| {
        format!(
            "it is a client of MPS (its daemon's pipes are in {}), which this driver does not checkpoint: end the \
             daemon (`echo quit | nvidia-cuda-mps-control`), and restart it",
            folder.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mig_and_mps_are_known_by_the_environment() {
        let none = |_: &Path| false;
        assert_eq!(of_environment(b"A=1\0CUDA_VISIBLE_DEVICES=0,GPU-12\0", none), None);
        let mig = of_environment(b"CUDA_VISIBLE_DEVICES=MIG-c7384736-a75d\0", none).unwrap_or_default();
        assert!(mig.contains("MIG instance (CUDA_VISIBLE_DEVICES=MIG-c7384736-a75d)"), "{mig}");
        let at = |wanted: &'static str| move |path: &Path| path.as_os_str() == wanted;
        let usual = of_environment(b"", at("/tmp/nvidia-mps")).unwrap_or_default();
        assert!(usual.contains("client of MPS (its daemon's pipes are in /tmp/nvidia-mps)"), "{usual}");
        let told = b"CUDA_MPS_PIPE_DIRECTORY=/run/mps\0";
        assert!(of_environment(told, at("/run/mps")).is_some());
        assert_eq!(of_environment(told, at("/tmp/nvidia-mps")), None, "its own, or none");
    }

    #[test]
    fn a_process_without_any_of_it_is_no_obstacle_and_a_newer_driver_is_asked() {
        let own = std::process::id().cast_signed();
        assert_eq!(obstacles(&[own, i32::MAX], LATER), []);
        assert!(!has_daemon(Path::new("/nothing/here")));
    }
}
