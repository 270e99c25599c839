//! Contexts of Linux AIO, made anew at the addresses of their rings, which are their ids. Runs in the agent, by tables
//! in the program's injection area, when pages and descriptors are there and threads are not.
//!
//! The kernel keeps the place of the next event for itself (fs/aio.c, `kioctx.tail`); only requests that end move it
//! on. So as many are made as bring it to where it was: writes of a byte into a memfd, which end at once. Then the
//! events of the image are written over theirs, and the ring moves to its old place, and with it the id
//! (aio_ring_mremap). How it fails: a limit (fs.aio-max-nr), or a host with so many processors that the kernel makes a
//! larger ring; the error says so.

use super::remote_calls::{Need, SeedThread};
use crate::inject::stub::Row;
use crate::rebuild::error::RebuildError;
use holdfast_image::Addr;
use holdfast_image::aio::AioContext;
use holdfast_image::record::ProcessRecord;
use holdfast_sys::clock;
use holdfast_sys::procmem::ForcedMemory;
use std::io;

/// Most requests of one call. Few: the kernel hands out a ring's places in portions, and what is left of the last one
/// belongs to none (fs/aio.c, `__get_reqs_available`); what was taken can be used again in the next call.
const AT_ONCE: u32 = 16;
/// include/uapi/linux/aio_abi.h: struct iocb, and its command to write.
const IOCB_LEN: usize = 64;
const IOCB_CMD_PWRITE: u16 = 1;
/// Where a ring says up to where its events were taken.
const HEAD: u64 = 8;

/// Makes all contexts.
///
/// # Errors
/// Names the call, and the context.
pub fn restore(
    leader: SeedThread,
    record: &ProcessRecord,
    memory: &ForcedMemory,
) -> Result<(), RebuildError> {
    if record.aio.is_empty() {
        return Ok(());
    }
    let _here = OnOneProcessor::pin(leader.remote.tid)?;
    record.aio.iter().try_for_each(|context| restore_one(leader, memory, context))
}

/// While it lives, a thread runs on one processor: the portions of places are per processor, and those that a thread
/// has left behind on another one are lost to it: a full ring could not be filled again.
struct OnOneProcessor {
    tid: i32,
    before: Vec<u64>,
}

impl OnOneProcessor {
    fn pin(tid: i32) -> Result<OnOneProcessor, RebuildError> {
        let before =
            clock::affinity(tid).map_err(RebuildError::io("reading the affinity of the new thread"))?;
        clock::set_affinity(tid, &first_of(&before))
            .map_err(RebuildError::io("having the new thread run on one processor"))?;
        Ok(OnOneProcessor { tid, before })
    }
}

impl Drop for OnOneProcessor {
    fn drop(&mut self) {
        // The thread's own affinity is set later, as the image has it; if it is gone, that is noticed there.
        let _ = clock::set_affinity(self.tid, &self.before);
    }
}

/// The first processor of a mask, alone.
fn first_of(mask: &[u64]) -> Vec<u64> {
    let mut found = false;
    let alone = mask.iter().map(|word| {
        let bit = if found { 0 } else { word & word.wrapping_neg() };
        found |= bit != 0;
        bit
    });
    alone.collect()
}

fn wrong(context: &AioContext, why: &str) -> RebuildError {
    RebuildError::Call {
        what: format!("make a context of Linux AIO at {}", context.start),
        source: io::Error::other(why.to_owned()),
    }
}

fn restore_one(leader: SeedThread, memory: &ForcedMemory, context: &AioContext) -> Result<(), RebuildError> {
    if !context.is_valid() {
        return Err(wrong(context, "the image says nonsense of it"));
    }
    let io = |what: &str| RebuildError::io(format!("{what} the ring of a context of Linux AIO"));
    let at = context.start.0;
    let mut events = vec![0; usize::try_from(context.len).unwrap_or(0)];
    memory.read(at, &mut events).map_err(io("reading"))?;
    let (made, file) = make(leader, memory, context)?;
    let mut ring = [0; 20];
    memory.read(made, &mut ring).map_err(io("reading"))?;
    if AioContext::of_ring(Addr(made), context.len, &ring).is_none_or(|new| new.room != context.room) {
        return Err(wrong(context, "the kernel makes another ring here: this host has more processors"));
    }
    // Up to the first event that waits; those are taken at once.
    let taken = |count| memory.write(made + HEAD, &u32::to_le_bytes(count)).map_err(io("writing"));
    let mut count = 0;
    while count < context.head {
        let step = AT_ONCE.min(context.head - count);
        submit(leader, made, file, step, context)?;
        count += step;
        taken(count)?;
    }
    let mut waiting = context.waiting();
    while waiting > 0 {
        let step = AT_ONCE.min(waiting);
        submit(leader, made, file, step, context)?;
        waiting -= step;
    }
    let first = AioContext::EVENT;
    let own = events.get(first as usize..).unwrap_or(&[]);
    memory.write(made + first, own).map_err(io("writing"))?;
    let mut batch = leader.batch();
    let flags = u64::from((libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED).cast_unsigned());
    let args = [made, context.len, context.len, flags, at];
    batch.call(libc::SYS_mremap, &args, Need::Must("move the ring of a context of Linux AIO to", at))?;
    batch.call(libc::SYS_close, &[file], Need::Must("close descriptor", file))?;
    batch.finish().map(|_| ())
}

/// A new context, and a memfd.
fn make(leader: SeedThread, memory: &ForcedMemory, context: &AioContext) -> Result<(u64, u64), RebuildError> {
    let mut batch = leader.batch();
    batch.reserve(64)?;
    let (at, name) = (batch.data(&[0; 8]), batch.data(b"holdfast-aio\0"));
    batch.row(
        Row::new(libc::SYS_io_setup, &[u64::from(context.requests()), at]),
        Need::Must(
            "make a context of Linux AIO (its number is limited by fs.aio-max-nr) at",
            context.start.0,
        ),
    );
    batch.row(Row::new(libc::SYS_memfd_create, &[name, 0]), Need::MustOn("make", "a memfd".to_owned()));
    let (results, _) = batch.finish()?;
    let mut made = [0; 8];
    memory.read(at, &mut made).map_err(RebuildError::io("reading the id of a context of Linux AIO"))?;
    let file = results.get(1).copied().unwrap_or(-1);
    Ok((u64::from_le_bytes(made), u64::try_from(file).unwrap_or(u64::MAX)))
}

/// Has the kernel end so many requests.
fn submit(
    leader: SeedThread,
    made: u64,
    file: u64,
    count: u32,
    context: &AioContext,
) -> Result<(), RebuildError> {
    let mut batch = leader.batch();
    let pointers = 8 * count as usize;
    batch.reserve(IOCB_LEN + 64 + pointers)?;
    let byte = batch.data(&[0]);
    let request = batch.data(&iocb(file, byte));
    let all: Vec<u8> = (0..count).flat_map(|_| request.to_le_bytes()).collect();
    let list = batch.data(&all);
    let row = Row::new(libc::SYS_io_submit, &[made, u64::from(count), list]);
    batch.row(row, Need::Must("give work to a new context of Linux AIO at", context.start.0));
    let (results, _) = batch.finish()?;
    if results == [i64::from(count)] {
        return Ok(());
    }
    Err(wrong(context, "it does not take as many requests as it should"))
}

/// A request that writes a byte to the beginning of a file (struct iocb).
fn iocb(file: u64, byte: u64) -> [u8; IOCB_LEN] {
    let mut bytes = [0; IOCB_LEN];
    bytes[16..18].copy_from_slice(&IOCB_CMD_PWRITE.to_le_bytes());
    bytes[20..24].copy_from_slice(&(file as u32).to_le_bytes());
    bytes[24..32].copy_from_slice(&byte.to_le_bytes());
    bytes[32..40].copy_from_slice(&1_u64.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::first_of;

    #[test]
    fn the_first_processor_of_a_mask_is_alone() {
        assert_eq!(first_of(&[0b1100, 0b1]), [0b100, 0]);
        assert_eq!(first_of(&[0, 1 << 63]), [0, 1 << 63]);
        assert!(first_of(&[]).is_empty());
    }
}
