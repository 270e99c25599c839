//! Fault points: named places at which a test may have the process killed.
//!
//! `HOLDFAST_FAULT=name` or `name:3` (the third pass) makes [`point`] send SIGKILL to its own process. Compiled in
//! always: the cost without the variable is one atomic load. Called by the agent only, never inside the program.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// All points, in the order in which a checkpoint and a restart pass them (`holdfast __faults` prints them).
/// `inject` and `resume` are passed many times: use `inject:N`.
pub const POINTS: &[&str] = &[
    "seized",
    "interrupted",
    "stopped",
    "registers",
    "inject",
    "inject-done",
    "clone-born",
    "clone-done",
    "copy-owned",
    "resume",
    "resumed",
    "release",
    "segment-created",
    "segment-half",
    "segment-synced",
    "manifest-temp",
    "manifest-renamed",
    "seed-born",
    "seed-ready",
    "seed-memory",
    "seed-threads",
    "seed-let-go",
];

struct Plan {
    name: String,
    left: AtomicU64,
}

fn plan() -> Option<&'static Plan> {
    static PLAN: OnceLock<Option<Plan>> = OnceLock::new();
    PLAN.get_or_init(|| {
        let text = std::env::var("HOLDFAST_FAULT").ok()?;
        let (name, count) = text.split_once(':').unwrap_or((&text, "1"));
        Some(Plan { name: name.to_owned(), left: AtomicU64::new(count.parse().unwrap_or(1)) })
    })
    .as_ref()
}

/// Dies here by SIGKILL if the environment asks for it.
pub fn point(name: &str) {
    let Some(plan) = plan() else { return };
    if plan.name == name && plan.left.fetch_sub(1, Ordering::Relaxed) == 1 {
        let _ = crate::ptrace::kill(std::process::id().cast_signed(), libc::SIGKILL);
        loop {
            std::thread::park();
        }
    }
}
