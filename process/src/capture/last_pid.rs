//! Which id was given last in the pid namespace of a job: a restart goes on behind it.
//!
//! Programs remember processes by id, also after their end: a shell keeps the statuses of its jobs so. A new
//! namespace would give the same ids again at once, where a kernel takes all others first. Used by `state`, inside
//! the stop, and by `build_record`.

use crate::error::TraceError;
use crate::inject::stub::{PREVIOUS, PREVIOUS_BUT_ONE, Row};
use holdfast_sys::{ids, procmem};

/// Bytes that the calls of [`rows`] read and write.
pub const LEN: usize = PATH + ids::LOADAVG_LEN;
const PATH: usize = 16;

/// Calls that tell it, if the job is in another namespace than we are. [`prepare`] comes first. Whatever happens to us
/// meanwhile, the thread closes what it has opened.
pub fn rows(buffer: u64) -> [Row; 3] {
    let (flags, text) = (libc::O_RDONLY | libc::O_CLOEXEC, buffer + PATH as u64);
    let open = [i64::from(libc::AT_FDCWD).cast_unsigned(), buffer, u64::from(flags.cast_unsigned())];
    [
        Row::new(libc::SYS_openat, &open),
        Row::new(libc::SYS_read, &[0, text, ids::LOADAVG_LEN as u64]).with(PREVIOUS),
        Row::new(libc::SYS_close, &[]).with(PREVIOUS_BUT_ONE),
    ]
}

/// Writes what the calls need.
///
/// # Errors
/// The process is gone.
pub fn prepare(tid: i32, buffer: u64) -> Result<(), TraceError> {
    let mut path = [0_u8; PATH];
    path[..ids::LOADAVG.len()].copy_from_slice(ids::LOADAVG.as_bytes());
    Ok(procmem::write(tid, buffer, &path)?)
}

/// What they told; nothing where the program has no /proc, or may open no more files.
pub fn told(results: &[i64], bytes: &[u8]) -> Option<i32> {
    let len = usize::try_from(*results.get(1)?).ok()?;
    ids::last_in(bytes.get(PATH..PATH + len)?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_text_tells() {
        let mut bytes = [0_u8; LEN];
        let text = b"0.20 0.18 0.12 1/80 112\n";
        bytes[PATH..PATH + text.len()].copy_from_slice(text);
        assert_eq!(told(&[5, text.len() as i64, 0], &bytes), Some(112));
        for results in [&[][..], &[-2, -9, -9], &[5, 0, 0], &[5, text.len() as i64 - 1, 0], &[5, 4096, 0]] {
            assert_eq!(told(results, &bytes), None, "{results:?}");
        }
        assert!(ids::LOADAVG.len() < PATH);
    }
}
