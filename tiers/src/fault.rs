//! Named steps of a commit, at which a test may have the agent killed.
//!
//! This crate may not depend on `sys`, where fault points live: the agent hands its function over once.

use std::sync::OnceLock;

static HOOK: OnceLock<fn(&str)> = OnceLock::new();

/// The steps, in the order in which a flush and commit pass them. `segment-created` and `segment-half` (after the
/// first frame) are passed once per segment file.
pub const POINTS: &[&str] =
    &["segment-created", "segment-half", "segment-synced", "manifest-temp", "manifest-renamed"];

/// The steps of the cascade (down) and of a fetch (up): after each piece of a segment, each segment, the recipe, the
/// manifest; and of what a lower tier, or memory, gives up: after each blob.
pub const STACK_POINTS: &[&str] = &[
    "cascade-piece",
    "cascade-segment",
    "cascade-recipe",
    "cascade-manifest",
    "remove-manifest",
    "remove-recipe",
    "remove-segment",
    "memory-left",
    "fetch-piece",
    "fetch-segment",
    "fetch-recipe",
    "fetch-manifest",
];

/// The steps of a repair: the new blob is beside the damaged one, that is removed, the new one has its name; of a prune
/// on a lower tier, after each blob; of an import, after each segment and the manifest.
pub const HYGIENE_POINTS: &[&str] = &[
    "repair-mended",
    "repair-removed",
    "repair-named",
    "prune-manifest",
    "prune-recipe",
    "prune-segment",
    "prune-leftover",
    "import-segment",
    "import-manifest",
];

/// The steps in which a member's stream is rebuilt: a file has its name, or is beside a damaged one; all bytes were
/// right; a damaged one is removed; what was beside it has its name.
pub const REBUILD_POINTS: &[&str] = &["guard-file", "guard-right", "guard-removed", "guard-named"];

/// Sets the function that is called with each name of [`POINTS`], [`STACK_POINTS`], [`HYGIENE_POINTS`] and
/// [`REBUILD_POINTS`]. The first call wins.
pub fn set_fault_hook(hook: fn(&str)) {
    let _ = HOOK.set(hook);
}

pub(crate) fn point(name: &str) {
    if let Some(hook) = HOOK.get() {
        hook(name);
    }
}
