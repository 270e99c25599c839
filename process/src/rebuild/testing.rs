//! Records for unit tests.
#![allow(clippy::unwrap_used)]

use holdfast_image::record::{Backing, ProcessRecord, Region};
use holdfast_image::{Addr, PAGE_SIZE};

/// Memory with nothing special about it.
pub fn region(start: u64, pages: u64, prot: u32, backing: Backing) -> Region {
    let end = Addr(start + pages * PAGE_SIZE);
    Region { start: Addr(start), end, prot, backing, vm_flags: Vec::new(), name: None, memory_policy: None }
}

/// A process without threads and files.
pub fn record(regions: Vec<Region>) -> ProcessRecord {
    let empty = serde_json::json!({
        "pid": 5, "ppid": 1, "pgid": 5, "sid": 5,
        "exe": {"path": "/x", "size": 0, "mtime_ns": 0, "build_id": null}, "cwd": "/", "umask": 0, "limits": [],
        "host": {"kernel_release": "", "hostname": "", "vdso_hash": 0, "xcr0": 0, "cpu": "",
                 "monotonic_ns": 0, "realtime_ns": 0, "boot_id": ""},
        "layout": {"start_code": 0, "end_code": 0, "start_data": 0, "end_data": 0, "start_brk": 0, "brk": 0,
                   "start_stack": 0, "arg_start": 0, "arg_end": 0, "env_start": 0, "env_end": 0, "auxv": ""},
        "regions": [], "threads": [], "signals": {"actions": [], "pending": [], "job_stopped": false},
        "itimers": [{"interval_us": 0, "value_us": 0}, {"interval_us": 0, "value_us": 0},
                    {"interval_us": 0, "value_us": 0}],
        "files": {"descriptors": [], "descriptions": [], "mapped": []},
        "inject": {"code": 0, "code_len": 0, "scratch": 0, "scratch_len": 0, "shared": 0},
        "flags": {"no_new_privs": false, "thp_disabled": false, "oom_score_adj": 0}
    });
    ProcessRecord { regions, ..serde_json::from_value(empty).unwrap() }
}
