//! What no driver checkpoints and what shows before one is asked: GPUDirect Storage, MIG, MPS, graphs with NCCL.
//!
//! Called by the agent before a checkpoint and by `check`, of processes that use CUDA. The driver would refuse MIG and
//! MPS by a code that has no name ("not supported"), after its locks; GPUDirect Storage it would not refuse at all, and
//! what comes to a device while its memory is copied would be lost; graphs with NCCL it restores, and the first replay
//! hangs (driver 580, two devices: NVIDIA/nvcf, pull request 1184). Sources: CRIU, plugins/cuda/README (MPS); the
//! manual of MPS, "Environment Variables", and of MIG, "CUDA_VISIBLE_DEVICES" (an instance is named "MIG-" and its
//! UUID); of cuFile, "cuFile Configuration", and its log: without nvidia-fs it is "running in compatible mode", and
//! has disks write to devices only where use_pci_p2pdma is set, which it is not by itself (1.20.0). What is looked at
//! is the environment that a process began with; what it has set since is not seen.
//! Fails by: nothing; what cannot be read is left to the driver.

use super::uses;
use crate::refuse;
use holdfast_image::refusal::Refusal;
use std::collections::BTreeSet;
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
        if uses::has_library(pid, "libcufile.so") {
            let read = |path: &Path| {
                let path = path.strip_prefix("/").unwrap_or(path);
                fs::read(Path::new(&format!("/proc/{pid}/root")).join(path)).unwrap_or_default()
            };
            found.extend(past_driver(&environment, read).map(|why| refuse::process(pid, why)));
        }
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

fn value(environment: &[u8], name: &str) -> Option<Vec<u8>> {
    let of = |entry: &'_ [u8]| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=").map(<[u8]>::to_vec);
    environment.split(|&byte| byte == 0).find_map(of)
}

/// What a process with cuFile has disks write to its devices by. `read`: the content of its file.
fn past_driver(environment: &[u8], read: impl Fn(&Path) -> Vec<u8>) -> Option<String> {
    let is_set = |name: &str| value(environment, name).is_some_and(|value| is_true(&value));
    if is_set("CUFILE_FORCE_COMPAT_MODE") {
        return None;
    }
    let by = if is_set("CUFILE_USE_PCIP2PDMA") {
        "CUFILE_USE_PCIP2PDMA".to_owned()
    } else {
        let path = value(environment, "CUFILE_ENV_PATH_JSON").filter(|path| !path.is_empty());
        let path = path.map_or_else(|| PathBuf::from(CUFILE), |path| PathBuf::from(OsStr::from_bytes(&path)));
        has_p2pdma(&read(&path)).then(|| format!("use_pci_p2pdma in {}", path.display()))?
    };
    Some(format!(
        "it uses GPUDirect Storage (cuFile with {by}), by which disks write device memory past the driver: set \
         CUFILE_FORCE_COMPAT_MODE=true and restart it"
    ))
}

/// Settings of cuFile, where its users are not told otherwise.
const CUFILE: &str = "/etc/cufile.json";

fn is_true(value: &[u8]) -> bool {
    value.trim_ascii().eq_ignore_ascii_case(b"true") || value.trim_ascii() == b"1"
}

/// Whether cuFile's settings, JSON with comments, allow it for any file system or disk.
fn has_p2pdma(settings: &[u8]) -> bool {
    let lines = settings.split(|&byte| byte == b'\n').map(|line| String::from_utf8_lossy(line).into_owned());
    let text: String = lines.map(|line| line.split("//").next().unwrap_or_default().to_owned()).collect();
    text.split("\"use_pci_p2pdma\"").skip(1).any(|rest| {
        let rest = rest.trim_start().strip_prefix(':').unwrap_or_default().trim_start();
        is_true(rest.split([',', '}']).next().unwrap_or_default().as_bytes())
    })
}

/// Which of these processes have graphs that NCCL may be a part of: of each how many it has. NCCL is the library, where
/// the processes that have it have several devices; whether they have communicators nothing shows.
pub fn graphs_with_nccl(graphs: &[(i32, u64)]) -> Vec<Refusal> {
    let graphs: Vec<_> = graphs.iter().filter(|(_, count)| *count > 0).collect();
    if graphs.is_empty() {
        return Vec::new();
    }
    let has_it = |pid: i32| uses::has_library(pid, "libnccl.so");
    let having: Vec<&(i32, u64)> = graphs.into_iter().filter(|(pid, _)| has_it(*pid)).collect();
    let devices: BTreeSet<u32> = having.iter().flat_map(|(pid, _)| uses::device_numbers(*pid)).collect();
    if devices.len() < 2 && !having.iter().any(|(pid, _)| has_others(*pid)) {
        return Vec::new();
    }
    let refusal = |(pid, count): &(i32, u64)| {
        refuse::process(
            *pid,
            format!(
                "it has {count} executable graphs, and NCCL with several devices: after a restore the first launch of \
                 such a graph hangs (driver 580); let it destroy its graphs, or use none (vLLM: --enforce-eager)"
            ),
        )
    };
    having.into_iter().map(refusal).collect()
}

/// Whether a launcher has told a process that it is one of several.
fn has_others(pid: i32) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let number = |name: &str| String::from_utf8(value(&environment, name)?).ok()?.trim().parse().ok();
    ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"]
        .iter()
        .any(|name| number(name).is_some_and(|count: u32| count > 1))
}

/// `has_daemon`: whether the pipes of one are in a folder.
fn of_environment(environment: &[u8], has_daemon: impl Fn(&Path) -> bool) -> Option<String> {
    let value = |name: &str| value(environment, name);
    let visible = value("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    if visible.split(|&byte| byte == b',').any(|one| one.starts_with(b"MIG-")) {
        let visible = String::from_utf8_lossy(&visible).into_owned();
        return Some(format!(
            "it runs on a MIG instance (CUDA_VISIBLE_DEVICES={visible}), which this driver does not checkpoint: give \
             it a whole device"
        ));
    }
    let pipes = value("CUDA_MPS_PIPE_DIRECTORY").filter(|value| !value.is_empty());
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
    fn cufile_that_goes_past_the_driver_is_known_by_its_settings() {
        let file = |text: &'static str| {
            move |path: &Path| if path == Path::new("/here") { text.into() } else { Vec::new() }
        };
        assert_eq!(past_driver(b"A=1\0CUFILE_USE_PCIP2PDMA=false\0", file("")), None);
        let why = past_driver(b"CUFILE_USE_PCIP2PDMA=true\0", file("")).unwrap_or_default();
        assert!(
            why.contains("cuFile with CUFILE_USE_PCIP2PDMA") && why.contains("CUFILE_FORCE_COMPAT_MODE=true")
        );
        assert_eq!(past_driver(b"CUFILE_USE_PCIP2PDMA=1\0CUFILE_FORCE_COMPAT_MODE=True\0", file("")), None);
        let set = b"CUFILE_ENV_PATH_JSON=/here\0";
        let off = "{ // \"use_pci_p2pdma\": true\n\"properties\": { \"use_pci_p2pdma\": false } }";
        assert_eq!((past_driver(set, file(off)), past_driver(b"", file("x"))), (None, None));
        let on = "{ \"properties\": { \"use_pci_p2pdma\" : false },\n \"fs\": {\"use_pci_p2pdma\":true}}";
        assert!(past_driver(set, file(on)).unwrap_or_default().contains("use_pci_p2pdma in /here"));
    }

    #[test]
    fn graphs_without_nccl_are_no_obstacle() {
        let own = std::process::id().cast_signed();
        assert_eq!(graphs_with_nccl(&[(own, 3), (own, 0)]), []);
        assert!(!has_others(own) && !uses::has_library(own, "libnccl.so"));
    }

    #[test]
    fn a_process_without_any_of_it_is_no_obstacle_and_a_newer_driver_is_asked() {
        let own = std::process::id().cast_signed();
        assert_eq!(obstacles(&[own, i32::MAX], LATER), []);
        assert!(!has_daemon(Path::new("/nothing/here")));
    }
}
