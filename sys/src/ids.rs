//! The id that a pid namespace has given last: the next new process or thread gets one behind it (kernel/pid.c,
//! alloc_pid).
//!
//! Used at a checkpoint, and by a restart, which goes on from there. Both files are about the namespace of the process
//! that reads or writes them, whatever /proc they are in (fs/proc/loadavg.c; kernel/pid_namespace.c,
//! pid_ns_ctl_handler).

use crate::proctext;
use std::fs;
use std::io;

/// Its last number is the id; any process may read it.
pub const LOADAVG: &str = "/proc/loadavg";
/// Longest text in it, bytes.
pub const LOADAVG_LEN: usize = 128;

/// The id in the text of [`LOADAVG`].
pub fn last_in(text: &[u8]) -> Option<i32> {
    let text = std::str::from_utf8(text).ok()?;
    text.strip_suffix('\n')?.rsplit(' ').next()?.parse().ok().filter(|id| *id > 0)
}

/// The id that was given last in the caller's namespace. `None`: /proc does not tell.
pub fn last() -> Option<i32> {
    last_in(&proctext::record(LOADAVG).ok()?)
}

/// Has the caller's namespace go on behind that id (pid_namespaces(7), ns_last_pid). Ids that are chosen with set_tid
/// change nothing in it.
///
/// # Errors
/// EPERM without CAP_CHECKPOINT_RESTORE over the namespace; EINVAL: there are not so many ids; ENOENT: this kernel
/// cannot.
pub fn go_on_behind(id: i32) -> io::Result<()> {
    fs::write("/proc/sys/kernel/ns_last_pid", id.to_string())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_is_the_id() {
        assert_eq!(last_in(b"0.20 0.18 0.12 1/80 11206\n"), Some(11206));
        for wrong in [
            &b""[..],
            b"\n",
            b"0.20 0.18 0.12 1/80 112",
            b"1/80 -3\n",
            b"1 0\n",
            b"1 99999999999\n",
            b"\xff 1\n",
        ] {
            assert_eq!(last_in(wrong), None, "{wrong:?}");
        }
        assert!(proctext::record(LOADAVG).unwrap().len() < LOADAVG_LEN);
    }

    #[test]
    fn a_new_process_is_behind_it() {
        let before = last().unwrap();
        let child = std::process::Command::new("true").spawn().unwrap();
        let (id, after) = (child.id().cast_signed(), last().unwrap());
        child.wait_with_output().unwrap();
        // Unless the numbers have begun anew just now.
        assert!(after < before || before < id && id <= after, "{before} {id} {after}");
    }
}
