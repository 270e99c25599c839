//! Device memory that libholdfast owns: cuMemAlloc is served from blocks of the virtual memory management API, mapped
//! at addresses that stay the same, so that the content can be taken out of the driver's hands for a checkpoint.
//!
//! Called by: wrappers whose row says `served` (`functions.txt`), inside the gate, any thread of the program; [`serve`]
//! says whether the call is answered, else the driver's function is called. What is here is what the program sees:
//! allocating, freeing, questions. The agent and the service thread work on the table of blocks
//! ([`holdfast_abi::CudaData`]) while the gate is closed.
//! Invariants: a program does not notice: answers are those of the driver for memory that it had allocated itself.
//! What cannot be served, the driver does: calls within a capture, contexts that are not tracked, devices without
//! virtual memory management, a full table, no memory. Several devices: only if the user has asked for it, until access
//! between devices has been seen on hardware.
//! Fails by: passing on.
//!
//! | file | what it is |
//! | --- | --- |
//! | `memory.rs` | allocating and freeing |
//! | `discard.rs` | memory that an image need not have |
//! | `query.rs` | questions about pointers |
//! | `peers.rs` | access between devices |
//! | `tables.rs`, `lists.rs`, `small.rs` | what is where; blocks with room, blocks that leave; shared blocks |
//! | `calls.rs` | the driver's functions |
//!
//! # Safety
//! Arguments are those of the driver's header, by position; words that it writes are written where it would.
#![allow(unsafe_code)]

mod calls;
mod discard;
mod lists;
mod memory;
mod peers;
mod query;
mod small;
mod tables;

pub use calls::primary_is_active;
pub use memory::{Refused, keep, leave_out};

use crate::{lent, platform, service, thread};
use core::ptr::{self, with_exposed_provenance};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use holdfast_abi::CudaData;

static DATA: CudaData = CudaData::new();
/// For the service thread.
static WORK: service::Work =
    service::Work { data: &DATA, make: memory::make_again, discarded: discard::chunks };
/// The program shares memory in a way that ours cannot be shared: new memory is the driver's.
static SHARES: AtomicBool = AtomicBool::new(false);

/// See [`settle`].
static SETTLES: AtomicBool = AtomicBool::new(false);

/// What a row's function is served as.
#[derive(Clone, Copy, Debug)]
pub enum Served {
    /// cuMemAlloc(&address, bytes).
    Alloc,
    /// cuMemAllocPitch(&address, &pitch, width, height, element).
    AllocPitch,
    /// cuMemFree(address).
    Free,
    /// cuMemFreeAsync(address, stream).
    FreeAsync,
    /// cuMemGetAddressRange(&base, &size, address).
    AddressRange,
    /// cuPointerGetAttribute(&value, attribute, address).
    Attribute,
    /// cuPointerGetAttributes(count, attributes, values, address).
    Attributes,
    /// cuPointerSetAttribute(&value, attribute, address).
    SetAttribute,
    /// A function of the virtual memory management API; this argument is an address, where ours are not the program's.
    Mapping(u8),
    /// cuIpcGetMemHandle(&handle, address).
    Share,
    /// cuCtxEnablePeerAccess(context, flags).
    Peer,
    /// cuCtxDisablePeerAccess(context).
    PeerEnd,
}

/// The words that the agent reads.
pub fn words() -> &'static CudaData {
    &DATA
}

/// Their address.
pub fn address() -> u64 {
    ptr::from_ref(&DATA).addr() as u64
}

/// Whether allocations are ours; decided at the first one.
fn is_owner() -> bool {
    if words().owner.load(Relaxed) == CudaData::UNDECIDED {
        let owner = match platform::wished_owner() {
            wish @ (CudaData::BY_DRIVER | CudaData::BY_LIBRARY) => wish,
            CudaData::OFF => CudaData::BY_DRIVER,
            CudaData::BY_KEEPER if lent::is_there() => CudaData::BY_KEEPER,
            // A keeper that was asked for and is not there, too.
            _ if platform::agent_is_there() && calls::device_count() == Ok(1) => CudaData::BY_LIBRARY,
            _ => CudaData::BY_DRIVER,
        };
        let owner = if owner != CudaData::BY_DRIVER && tables::prepare() && service::start(&WORK) {
            owner
        } else {
            CudaData::BY_DRIVER
        };
        let _ = words().owner.compare_exchange(CudaData::UNDECIDED, owner, Relaxed, Relaxed);
    }
    memory::is_owned() && !SHARES.load(Relaxed)
}

/// Serves a call; `None`: the driver's function has to be called. `real` calls it with one argument replaced.
pub fn serve(
    what: Served,
    arguments: &[usize],
    real: &impl Fn(Option<(usize, usize)>) -> u32,
) -> Option<u32> {
    if thread::passes() {
        return None;
    }
    let a = |index: usize| arguments.get(index).copied().unwrap_or(0);
    let ours = |index: usize| tables::is_ours(a(index) as u64);
    let at = |index: usize| move |address: usize| real(Some((index, address)));
    match what {
        Served::Alloc => allocate(a(0), a(1) as u64),
        Served::AllocPitch => allocate_pitch(&[a(0), a(1), a(2), a(3), a(4)]),
        Served::Free if ours(0) => Some(memory::free(a(0) as u64, || real(None))),
        Served::FreeAsync if ours(0) => Some(memory::free_in_stream(a(0) as u64, || real(None))),
        Served::AddressRange if ours(2) => Some(query::address_range(a(0), a(1), a(2), at(2))),
        Served::Attribute if ours(2) => Some(query::attribute(a(0), a(1) as u32, a(2), at(2))),
        Served::Attributes if ours(3) => Some(query::attributes([a(0), a(1), a(2)], a(3), at(3))),
        Served::SetAttribute if ours(2) => Some(query::set_attribute(a(0), a(1) as u32, a(2), at(2))),
        Served::Mapping(index) if ours(index.into()) => Some(memory::INVALID_VALUE),
        Served::Peer | Served::PeerEnd if memory::is_owned() => {
            let result = real(None);
            match what {
                _ if result != calls::SUCCESS => Some(result),
                Served::Peer => Some(peers::enabled(a(0) as u64)),
                _ => {
                    peers::disabled();
                    Some(result)
                }
            }
        }
        Served::Share if ours(1) => {
            SHARES.store(true, Relaxed);
            None
        }
        _ => None,
    }
}

/// A synchronous operation of a default stream has returned. Where the program wants such operations to be over then,
/// and the driver does not see to that for memory of ours, it is waited for.
#[inline(always)]
pub fn settle(result: u32, per_thread: bool) -> u32 {
    if result == calls::SUCCESS && SETTLES.load(Relaxed) { calls::settle(per_thread) } else { result }
}

/// The driver has no memory for a call of the program's: gives back what only we keep, and has a keeper give its cache
/// back. Whether that was anything. Inside the gate, no lock held.
#[cold]
pub fn makes_room() -> bool {
    if !memory::is_owned() || thread::passes() {
        return false;
    }
    let kept = words().owner.load(Relaxed) == CudaData::BY_KEEPER && lent::yield_cache();
    memory::give_way() || kept
}

/// From now on it is.
fn begin_to_settle() {
    SETTLES.store(true, Relaxed);
}

fn allocate(place: usize, bytes: u64) -> Option<u32> {
    if place == 0 || !is_owner() {
        return None;
    }
    let address = memory::allocate(bytes)?;
    memory::by_size(address, bytes);
    // SAFETY: where the driver would have written the address.
    unsafe { with_exposed_provenance::<u64>(place).cast_mut().write_unaligned(address) };
    Some(calls::SUCCESS)
}

/// Rows begin at multiples of the alignment of textures, as the driver's do (observed; the API promises what is
/// efficient).
fn allocate_pitch(&[place, pitch, width, height, element]: &[usize; 5]) -> Option<u32> {
    if pitch == 0 || width == 0 || ![4, 8, 16].contains(&(element as u32)) || !is_owner() {
        return None;
    }
    let device = calls::current_device().ok()?;
    let alignment = usize::try_from(calls::attribute(device, calls::TEXTURE_ALIGNMENT)).ok()?;
    let row = width.checked_next_multiple_of(alignment.max(1))?;
    let result = allocate(place, row.checked_mul(height)? as u64)?;
    // SAFETY: where the driver would have written the pitch.
    unsafe { with_exposed_provenance::<usize>(pitch).cast_mut().write_unaligned(row) };
    Some(result)
}

/// A context has ended, and with it its memory.
pub fn context_ended(context: u64) {
    if memory::is_owned() {
        memory::context_ended(context);
    }
}

/// In a child made by fork: what the parent has is not the child's.
pub fn forked() {
    service::forked(&DATA);
    tables::forked();
    discard::forget();
    SHARES.store(false, Relaxed);
    SETTLES.store(false, Relaxed);
    DATA.clear();
}
