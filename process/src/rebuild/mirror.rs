//! Files of /proc that show the memory of the process which has them open: opened again by the program's own process.
//!
//! Such a file belongs to the memory that its opener had at that time (fs/proc/base.c: `proc_mem_open`), and the new
//! process has opened its files before its exec: memory that is gone since, and of which all reads and writes do nothing.
//! Called by [`super::finish`](fn@super::finish) before descriptors become close-on-exec.
//! Fails by: an error that names the descriptor.

use super::error::RebuildError;
use super::files::NOT_AGAIN;
use super::hand::{Batch, Hand, Need, Task, Workplace};
use crate::inject::stub::Row;
use holdfast_image::record::{Object, ProcessRecord};

/// The files of /proc/PID and /proc/PID/task/TID that are bound to memory when they are opened.
const OF_MEMORY: [&[u8]; 8] =
    [b"mem", b"environ", b"auxv", b"maps", b"smaps", b"smaps_rollup", b"numa_maps", b"pagemap"];

fn shows_memory(path: &[u8]) -> bool {
    path.strip_prefix(b"/proc/self/").is_some_and(|rest| {
        let mut parts = rest.rsplit(|byte| *byte == b'/');
        parts.next().is_some_and(|name| OF_MEMORY.contains(&name))
    })
}

/// Opens them again, at their numbers and offsets.
///
/// # Errors
/// Names the descriptor that cannot be opened.
pub fn reopen(
    hand: &Hand,
    place: Workplace,
    leader: Task,
    record: &ProcessRecord,
) -> Result<(), RebuildError> {
    let files = &record.files;
    for (index, description) in files.descriptions.iter().enumerate() {
        let Object::Regular { path, position, .. } = &description.object else { continue };
        if !shows_memory(&path.0) {
            continue;
        }
        let holders = files.descriptors.iter().filter(|holder| holder.description as usize == index);
        let holders: Vec<u64> = holders.map(|holder| u64::from(holder.fd.cast_unsigned())).collect();
        let Some(first) = holders.first() else { continue };
        let mut batch = Batch::new(hand, place, leader);
        let name = batch.data(&[&path.0[..], b"\0"].concat());
        let flags = u64::from(description.flags & !NOT_AGAIN);
        batch.row(
            Row::new(libc::SYS_open, &[name, flags, 0]),
            Need::Must("open its own memory in /proc again, descriptor", *first),
        );
        let (results, _) = batch.finish()?;
        let opened = results.first().copied().unwrap_or(-1).cast_unsigned();
        let mut batch = Batch::new(hand, place, leader);
        // Texts are made as they are read: where the old offset was in the middle of a line, it is now as well as may be.
        batch.call(libc::SYS_lseek, &[opened, *position, libc::SEEK_SET as u64], Need::May)?;
        for fd in holders {
            batch.call(libc::SYS_dup2, &[opened, fd], Need::Must("put in place the descriptor", fd))?;
        }
        batch.call(libc::SYS_close, &[opened], Need::May)?;
        batch.finish()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_memory_are_told_from_others() {
        for path in ["/proc/self/mem", "/proc/self/maps", "/proc/self/task/12/smaps", "/proc/self/environ"] {
            assert!(shows_memory(path.as_bytes()), "{path}");
        }
        for path in ["/proc/self/stat", "/proc/1/mem", "/tmp/mem", "/proc/self/fdinfo/3", "/proc/meminfo"] {
            assert!(!shows_memory(path.as_bytes()), "{path}");
        }
    }
}
