//! What other processes have of the device: with `STAND_IN_DEVICE` (a folder) the processes that are told the same
//! folder are on one device, and a number of bytes in its file `others` is memory of programs that are not seen.
//! Without it each process has a device of its own. Used by `memory::physical`, and by NVML's question (`nvml`).
//!
//! A process's file has its bytes, and its name the process's id and the time of its birth: so what a killed process
//! has left does not count, and a restored one, which has the old id, begins anew.
//! Fails by: what cannot be read counts as none.

use std::fs;
use std::path::Path;

use crate::settings::settings;
use crate::system;

/// A process by its files in /proc: its id as it sees it itself, and its birth (proc_pid_stat(5), field 22).
fn name_of(folder: &str) -> Option<String> {
    let status = fs::read_to_string(format!("{folder}/status")).ok()?;
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    let own = ids.split_whitespace().next_back()?;
    let stat = fs::read_to_string(format!("{folder}/stat")).ok()?;
    let born = stat.rsplit_once(") ")?.1.split(' ').nth(19)?;
    Some(format!("{own}-{born}"))
}

/// So many bytes of the device are this process's from now on.
pub fn tell(bytes: u64) {
    let Some(folder) = settings().device.as_deref() else { return };
    if let Some(name) = name_of("/proc/self") {
        let _ = fs::write(Path::new(folder).join(name), bytes.to_string());
    }
}

/// Another program takes all that is free.
pub fn crowd() {
    let Some(folder) = settings().device.as_deref() else { return };
    let free = settings().memory.saturating_sub(others());
    let path = Path::new(folder).join("others");
    let before: u64 = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    let _ = fs::write(path, (before + free).to_string());
}

/// Bytes of all others.
pub fn others() -> u64 {
    let Some(folder) = settings().device.as_deref() else { return 0 };
    let read = |name: &str| -> u64 {
        let text = fs::read_to_string(Path::new(folder).join(name)).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    };
    let own = system::ids().0.to_string();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let processes = processes.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()) && *name != own);
    let named = processes.filter_map(|pid| name_of(&format!("/proc/{pid}")));
    read("others") + named.map(|name| read(&name)).sum::<u64>()
}
