//! A pid namespace of a test's own, for tests that choose the id of the next process.
//!
//! Where ids go on (`ns_last_pid`) is the same for all tests of a namespace. One that sets it back would have another
//! test's new process get the id of one that has just ended, and a test that still has that id in hand, to kill it or
//! to ask for it, would meet the wrong one.

use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Set in the inner run, to what tells it from others.
const INNER: &str = "HOLDFAST_TEST_OWN_IDS";

/// Runs `part` of the test called `name` (with its module) in a process of its own with a pid namespace and /proc of
/// its own, by running the whole test there. Without root nothing is run: nobody else may choose ids.
///
/// # Errors
/// It fails there, or a namespace cannot be made.
pub fn with_own_ids(name: &str, part: impl FnOnce() -> Result<()>) -> Result<()> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    if is_inner() {
        return part();
    }
    if !am_root() {
        println!("not run: this part needs root");
        return Ok(());
    }
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the tests folder has a parent")?;
    let test = std::env::current_exe()?;
    // The reaper is the first process there: the ids of orphans become free at once.
    let status = Command::new("unshare")
        .args(["--pid", "--fork", "--kill-child", "--mount-proc", "/usr/bin/python3"])
        .arg(checkout.join("scripts/reaper.py"))
        .arg(test)
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(INNER, format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)))
        .status()
        .context("unshare")?;
    ensure!(status.success(), "{name} failed in a pid namespace of its own: {status}");
    Ok(())
}

/// Whether this is the inner run: what needs no ids of its own has been done outside.
pub fn is_inner() -> bool {
    std::env::var_os(INNER).is_some()
}

/// What tells this process from all others of the tests: in a namespace of its own it has an id that others have, too.
pub fn of_process() -> String {
    std::env::var(INNER).unwrap_or_else(|_| std::process::id().to_string())
}

/// Whether the tests themselves run as root.
pub fn am_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0)
}
