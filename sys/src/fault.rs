//! Fault points: named places at which a test may have the process killed, or delayed.
//!
//! `HOLDFAST_FAULT=name` or `name:3` (the third pass) makes [`point`] send SIGKILL to its own process; with `+300` at
//! the end it sleeps so many milliseconds instead; with `!` what calls [`fails`] there fails. Compiled in always: the
//! cost without the variable is one atomic load. Called by the agent and, where the name says so, by the front; never
//! inside the program.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// All points, in the order in which a checkpoint and a restart pass them (`holdfast __faults` prints them).
/// Those of the cascade and of what fetches an image come last: only jobs with tiers pass them; then those of a gang,
/// that of a page server, those of programs that use CUDA, and those of a rollback, of which `rollback-changed` can
/// fail as well.
/// `inject` and `resume` are passed many times: use `inject:N`; `foothold` only in a program without libholdfast.
pub const POINTS: &[&str] = &[
    "foothold",
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
    "front-hears",
    "seed-born",
    "seed-ready",
    "seed-memory",
    "seed-threads",
    "seed-folders",
    "seed-filtered",
    "seed-restricted",
    "seed-let-go",
    "seed-resuming",
    "seed-resumed",
    "cascade-piece",
    "cascade-segment",
    "cascade-recipe",
    "cascade-manifest",
    "remove-manifest",
    "remove-recipe",
    "remove-segment",
    "fetch-piece",
    "fetch-segment",
    "fetch-manifest",
    "gang-gathered",
    "gang-prepared",
    "gang-committed",
    "gang-all-committed",
    "gang-named",
    "gang-known",
    "guard-group",
    "guard-encoded",
    "guard-file",
    "guard-right",
    "guard-removed",
    "guard-named",
    "guard-rebuilt",
    "pages-ready",
    "cuda-data-away",
    "cuda-keeper-asked",
    "cuda-keeper-lent",
    "cuda-keeper-open",
    "cuda-keeper-read",
    "cuda-locked",
    "cuda-checkpointed",
    "cuda-restored",
    "rollback-ready",
    "rollback-changed",
    "rollback-done",
];

/// All points of a checkpoint at which a step can fail, in the order in which they are passed (`holdfast __faults
/// --failing` prints them). `inject`: a table of calls that does not come to its end in time.
pub const FAILING: &[&str] = &[
    "foothold",
    "foothold-made",
    "inject",
    "clone-child",
    "clone-born",
    "clone-owned",
    "clone-done",
    "copy-call",
];

struct Plan {
    name: String,
    left: AtomicU64,
    delay: Option<Duration>,
    fails: bool,
}

fn plan() -> Option<&'static Plan> {
    static PLAN: OnceLock<Option<Plan>> = OnceLock::new();
    PLAN.get_or_init(|| {
        let text = std::env::var("HOLDFAST_FAULT").ok()?;
        let (text, fails) = text.strip_suffix('!').map_or((text.as_str(), false), |rest| (rest, true));
        let (place, delay) = match text.split_once('+') {
            Some((place, delay_ms)) => (place, Some(Duration::from_millis(delay_ms.parse().unwrap_or(0)))),
            None => (text, None),
        };
        let (name, count) = place.split_once(':').unwrap_or((place, "1"));
        Some(Plan { name: name.to_owned(), left: AtomicU64::new(count.parse().unwrap_or(1)), delay, fails })
    })
    .as_ref()
}

/// Whether something that is not a place in the code is asked for: `HOLDFAST_FAULT=other-vdso` takes this kernel's vdso
/// for another one than that of any image; `host-full`: device memory finds no room in the host's.
pub fn is_asked(name: &str) -> bool {
    plan().is_some_and(|plan| plan.name == name)
}

/// On standard error, the agent's log: tests must know a death by a fault from an end that came by itself.
fn say(name: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "killed at the fault point {name}");
}

/// Dies here by SIGKILL, or sleeps, if the environment asks for it.
pub fn point(name: &str) {
    let Some(plan) = plan() else { return };
    if !plan.fails && plan.name == name && plan.left.fetch_sub(1, Ordering::Relaxed) == 1 {
        if let Some(delay) = plan.delay {
            return std::thread::sleep(delay);
        }
        say(name);
        let _ = crate::ptrace::kill(std::process::id().cast_signed(), libc::SIGKILL);
        loop {
            std::thread::park();
        }
    }
}

/// Whether what is done here is to fail, if the environment asks for it.
pub fn fails(name: &str) -> bool {
    let Some(plan) = plan() else { return false };
    let fails = plan.fails && plan.name == name && plan.left.fetch_sub(1, Ordering::Relaxed) == 1;
    if fails {
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), "failed at the fault point {name}");
    }
    fails
}
