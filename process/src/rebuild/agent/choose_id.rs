//! System V objects with ids that are chosen: the next one that is made can be told its id by who may write to the
//! kernel's file for that (ipc/util.c, ipc_idr_alloc; CAP_CHECKPOINT_RESTORE). Others get another id.
//!
//! Used by [`super::sysv_shm`] and [`super::ipc`], in the agent. How it fails: by what making fails with; nothing
//! is left behind.

use std::fs;
use std::io;

/// How often an id is tried: another process may make an object in between.
const TRIES: u32 = 5;

/// Makes an object, with the id that is wanted if that can be had. `next_id`: the kernel's file.
///
/// # Errors
/// Of `create`, or of `remove`, which gets what came out with another id.
pub fn with_id(
    next_id: &str,
    wanted: Option<i32>,
    create: impl Fn() -> io::Result<i32>,
    remove: impl Fn(i32) -> io::Result<()>,
) -> io::Result<i32> {
    let mut tries = 0;
    loop {
        let chosen = wanted.filter(|id| fs::write(next_id, id.to_string()).is_ok());
        let made = create().inspect_err(|_| {
            // Or it would be the id of another program's next.
            let _ = fs::write(next_id, "-1");
        })?;
        tries += 1;
        if chosen.is_none() || chosen == Some(made) || tries == TRIES {
            return Ok(made);
        }
        remove(made)?;
    }
}
