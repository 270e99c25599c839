//! Copies between devices and the copy on the host, through pinned memory: several are under way at once.
//!
//! Runs in: the service thread; helpers ([`super::crew`]) copy between the ring and the copy on the host, and call
//! nothing of the driver's. What is not pinned the calling thread copies piece by piece (1.4 GB/s into new pages on an
//! H200, where pinned memory takes 55), and to pin all of the copy takes as long (2.9 GB/s). So there is one *ring* of
//! some MiB, made once: when the first block is, in the program's own thread ([`prepare`]), or at a checkpoint if it
//! ended with its context. It has slots, and room for the tables of the hasher. It is memory of the program, hence of
//! its images: all of it is zero when a command is done. Memory of which the driver does not know any more that it is
//! pinned is copied all the same, at the other speed.
//!
//! A slot is in one of three states for each piece that it gets ([`Turn`]), and only who the state names touches it:
//!
//! | state | out of the device | into the device |
//! | --- | --- | --- |
//! | `DEVICE` | the driver writes to it | the driver reads it, or no one has it |
//! | `HELPER` | a helper copies it to the host | a helper fills it from the host |
//! | `DONE` | free | the driver may read it |
//!
//! Invariants: when [`Ring::end`] returns, no copy is under way, no helper is there, and the slots are zero. Fails by:
//! [`Failed`] of the driver's function.
//!
//! # Safety
//! The ring is this module's own reservation, never unmapped but in a child made by fork. Addresses of the host that
//! are given to [`Ring::add`] are parts of the copy on the host, which nothing else uses meanwhile.
#![allow(unsafe_code)]

use super::calls::{self, Failed, Outcome};
use super::crew::{self, Crew};
use crate::platform;
use core::hint::spin_loop;
use core::ptr::{copy_nonoverlapping, write_bytes};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use holdfast_abi::CudaData;

/// Bytes of a slot: at 55 GB/s 19 us of the device, and little beside what calls take.
const SLOT: u64 = 1 << 20;
/// Slots.
const SLOTS: u64 = 16;
/// Copies of the device's that are under way at once; helpers have the other slots.
const DEPTH: u64 = 4;
/// Room for the tables of the hasher.
pub const TABLES: usize = 3 << 20;
/// Bytes of a huge page: the ring begins at a multiple.
const HUGE: usize = 2 << 20;
/// Bytes of the ring.
const LEN: usize = (SLOT * SLOTS) as usize + TABLES;
/// So many bytes are worth a helper.
const EACH: u64 = 4 * SLOT;
/// CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED.
const ALREADY: u64 = 712;
/// No context.
const REFUSED: u64 = u64::MAX;
/// Looks before a thread sleeps, and how long it does.
const SPINS: u32 = 2000;
const NAP_NS: i64 = 200_000;

/// Where the ring is; 0: there is none.
static START: AtomicU64 = AtomicU64::new(0);
/// The context in which it was pinned; 0: it is not; [`REFUSED`]: the driver does not.
static PINNED: AtomicU64 = AtomicU64::new(0);
/// A thread is pinning it.
static BUSY: AtomicBool = AtomicBool::new(false);

/// Sees to it that there is a ring, and that it is pinned, for all contexts. `context` is the current one. False:
/// there is no memory for it.
pub fn prepare(context: u64) -> bool {
    if PINNED.load(Acquire) == 0 && !BUSY.swap(true, AcqRel) {
        if START.load(Relaxed) == 0 {
            START.store(reserve(), Release);
        }
        let start = START.load(Relaxed);
        if start != 0 {
            match calls::register(start, LEN as u64) {
                Ok(()) => PINNED.store(context, Release),
                Err(failed) if failed.result == ALREADY => PINNED.store(context, Release),
                Err(_) => PINNED.store(REFUSED, Release),
            }
        }
        BUSY.store(false, Release);
    }
    START.load(Acquire) != 0
}

fn reserve() -> u64 {
    let start = platform::reserve(LEN + HUGE).expose_provenance();
    if start == 0 {
        return 0;
    }
    let aligned = start.next_multiple_of(HUGE);
    platform::prefer_huge(aligned, LEN);
    aligned as u64
}

/// What was pinned in a context ends with it.
pub fn context_ended(context: u64) {
    let _ = PINNED.compare_exchange(context, 0, AcqRel, Relaxed);
}

/// In a child made by fork: it has the memory of its parent, and no devices.
pub fn forget() {
    let start = START.swap(0, Relaxed) as usize;
    PINNED.store(0, Relaxed);
    BUSY.store(false, Relaxed);
    if start != 0 {
        // SAFETY: the ring, which nothing in the child needs.
        unsafe { platform::unmap(start, LEN) };
    }
}

/// The room for the tables of the hasher, zero; 0: there is no ring.
pub fn tables() -> u64 {
    match START.load(Acquire) {
        0 => 0,
        start => start + SLOT * SLOTS,
    }
}

/// Which way pieces go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From the device.
    Out,
    /// To the device.
    In,
}

/// State of a slot: four times the number of pieces that it has had, and one of these. Never overflows: 2^30 pieces of
/// a MiB in each slot.
struct Turn;

impl Turn {
    const DEVICE: u32 = 0;
    const HELPER: u32 = 1;
    const DONE: u32 = 2;

    fn of(piece: u64, state: u32) -> u32 {
        ((piece / SLOTS) as u32).wrapping_mul(4) | state
    }
}

struct Slot {
    turn: AtomicU32,
    host: AtomicU64,
    bytes: AtomicU64,
    device: AtomicU64,
}

/// What the service thread and its helpers share.
struct Board {
    slots: [Slot; SLOTS as usize],
    /// Pieces that helpers have taken.
    claimed: AtomicU64,
    /// How many pieces helpers get; not known yet: the most.
    count: AtomicU64,
    /// How many slots were used.
    used: AtomicU64,
    /// Slots that were made zero.
    cleared: AtomicU64,
    inward: AtomicBool,
}

static BOARD: Board = Board {
    slots: [const {
        Slot {
            turn: AtomicU32::new(0),
            host: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            device: AtomicU64::new(0),
        }
    }; SLOTS as usize],
    claimed: AtomicU64::new(0),
    count: AtomicU64::new(u64::MAX),
    used: AtomicU64::new(0),
    cleared: AtomicU64::new(0),
    inward: AtomicBool::new(false),
};

/// A slot, and where it is.
fn slot(piece: u64) -> (&'static Slot, u64) {
    // As many as the modulus.
    let index = (piece % SLOTS) as usize;
    (&BOARD.slots[index % SLOTS as usize], START.load(Relaxed) + index as u64 * SLOT)
}

/// Waits until a slot has a turn. `over`: it will not. False: so it was.
fn await_turn(slot: &Slot, turn: u32, over: impl Fn() -> bool) -> bool {
    loop {
        for _ in 0..SPINS {
            if slot.turn.load(Acquire) == turn {
                return true;
            }
            spin_loop();
        }
        if over() {
            return false;
        }
        let now = slot.turn.load(Acquire);
        if now != turn {
            platform::wait(&slot.turn, now, NAP_NS);
        }
    }
}

fn set_turn(slot: &Slot, turn: u32) {
    slot.turn.store(turn, Release);
    platform::wake(&slot.turn);
}

/// Copies between a slot and the host.
fn copy(piece: u64) {
    let (slot, at) = slot(piece);
    let [host, bytes] = platform::loaded([&slot.host, &slot.bytes]);
    let (host, ring, bytes) = (calls::host(host), calls::host(at), bytes.min(SLOT) as usize);
    // SAFETY: the slot is the caller's now, the host's part that of the copy (head of the file); they do not overlap.
    unsafe {
        if BOARD.inward.load(Relaxed) {
            copy_nonoverlapping(host, ring, bytes);
        } else {
            copy_nonoverlapping(ring, host, bytes);
        }
    }
    set_turn(slot, Turn::of(piece, Turn::DONE));
}

/// What a helper does.
extern "C" fn help() {
    loop {
        let piece = BOARD.claimed.fetch_add(1, Relaxed);
        let over = || piece >= BOARD.count.load(Acquire);
        if !await_turn(slot(piece).0, Turn::of(piece, Turn::HELPER), over) {
            break;
        }
        copy(piece);
    }
    clear();
}

/// Makes slots that were used zero: an image would have them.
fn clear() {
    let used = BOARD.used.load(Acquire);
    loop {
        let number = BOARD.cleared.fetch_add(1, Relaxed);
        if number >= used {
            break;
        }
        // SAFETY: a slot of the ring that no copy has any more.
        unsafe { write_bytes(calls::host(slot(number).1), 0, SLOT as usize) };
    }
}

/// See the head of the file. One at a time; ended by [`Ring::end`] alone.
pub struct Ring {
    way: Way,
    crew: Crew,
    events: [u64; SLOTS as usize],
    /// Pieces that have a slot, that the driver has, and that it is done with.
    given: u64,
    issued: u64,
    landed: u64,
}

impl Ring {
    /// For so many bytes, in the current context.
    ///
    /// # Errors
    /// There is no memory for the ring.
    pub fn begin(way: Way, context: u64, bytes: u64) -> Outcome<Ring> {
        if !prepare(context) {
            return Err(Failed::with(CudaData::FAULT_SYSTEM | libc::ENOMEM as u64));
        }
        BOARD.slots.iter().for_each(|slot| slot.turn.store(Turn::of(0, Turn::DEVICE), Relaxed));
        BOARD.claimed.store(0, Relaxed);
        BOARD.cleared.store(0, Relaxed);
        BOARD.count.store(u64::MAX, Relaxed);
        BOARD.inward.store(way == Way::In, Relaxed);
        let crew = Crew::of(crew::useful(bytes / EACH), help);
        Ok(Ring { way, crew, events: [0; SLOTS as usize], given: 0, issued: 0, landed: 0 })
    }

    /// Copies so many bytes between a device and the host: done when [`Ring::end`] has returned. `called_off`: it is
    /// not wanted any more.
    ///
    /// # Errors
    /// The driver's, perhaps of an earlier part; `FAULT_COMMAND`: called off.
    pub fn add(&mut self, device: u64, host: *mut u8, bytes: u64, called_off: &impl Fn() -> bool) -> Outcome {
        let host = host.expose_provenance() as u64;
        let mut done = 0;
        while done < bytes {
            if called_off() {
                return Err(Failed::with(CudaData::FAULT_COMMAND));
            }
            let more = SLOT.min(bytes - done);
            match self.way {
                Way::Out => self.take(device + done, host + done, more)?,
                Way::In => self.give(device + done, host + done, more)?,
            }
            done += more;
        }
        Ok(())
    }

    /// The slot of a piece that is in it from now on.
    fn assign(&mut self, device: u64, host: u64, bytes: u64) -> (u64, &'static Slot, u64) {
        let piece = self.given;
        let (slot, at) = slot(piece);
        if piece >= SLOTS {
            await_turn(slot, Turn::of(piece - SLOTS, Turn::DONE), || false);
        }
        slot.host.store(host, Relaxed);
        slot.bytes.store(bytes, Relaxed);
        slot.device.store(device, Relaxed);
        self.given += 1;
        (piece, slot, at)
    }

    fn take(&mut self, device: u64, host: u64, bytes: u64) -> Outcome {
        if self.issued - self.landed >= DEPTH {
            self.land()?;
        }
        let (piece, slot, at) = self.assign(device, host, bytes);
        slot.turn.store(Turn::of(piece, Turn::DEVICE), Relaxed);
        // SAFETY: the slot, which only the driver has until it has landed.
        unsafe { calls::from_device_later(calls::host(at), device, bytes) }?;
        self.mark()
    }

    fn give(&mut self, device: u64, host: u64, bytes: u64) -> Outcome {
        while self.given - self.landed >= SLOTS {
            if self.issued == self.landed {
                self.issue()?;
            }
            self.land()?;
        }
        let (piece, slot, _) = self.assign(device, host, bytes);
        self.pass_on(piece, slot);
        while self.given - self.issued > SLOTS - DEPTH {
            self.issue()?;
        }
        Ok(())
    }

    /// Has a helper copy a piece; without one it is done here.
    fn pass_on(&self, piece: u64, slot: &Slot) {
        if self.crew.is_empty() {
            copy(piece);
        } else {
            set_turn(slot, Turn::of(piece, Turn::HELPER));
        }
    }

    /// Has the driver read the next piece.
    fn issue(&mut self) -> Outcome {
        let (slot, at) = slot(self.issued);
        await_turn(slot, Turn::of(self.issued, Turn::DONE), || false);
        let [device, bytes] = platform::loaded([&slot.device, &slot.bytes]);
        // SAFETY: the slot, which nothing writes to until it has landed.
        unsafe { calls::to_device_later(device, calls::host(at), bytes) }?;
        self.mark()
    }

    /// A copy was given to the driver: its end is an event.
    fn mark(&mut self) -> Outcome {
        let index = (self.issued % SLOTS) as usize;
        self.issued += 1;
        let Some(event) = self.events.get_mut(index) else { return Ok(()) };
        if *event == 0 {
            *event = calls::event()?;
        }
        calls::record(*event)
    }

    /// Waits for the oldest copy that is under way.
    fn land(&mut self) -> Outcome {
        let piece = self.landed;
        let event = self.events.get((piece % SLOTS) as usize).copied().unwrap_or(0);
        calls::await_event(event)?;
        self.landed += 1;
        if self.way == Way::Out {
            self.pass_on(piece, slot(piece).0);
        }
        Ok(())
    }

    fn rest(&mut self) -> Outcome {
        while self.way == Way::In && self.issued < self.given {
            self.issue()?;
        }
        while self.landed < self.issued {
            self.land()?;
        }
        Ok(())
    }

    /// Waits until all is done, or, where something has failed (`so_far`), until nothing is under way.
    ///
    /// # Errors
    /// The first.
    pub fn end(mut self, so_far: Outcome) -> Outcome {
        let result = so_far.and_then(|()| self.rest());
        if result.is_err() {
            let _ = calls::synchronize();
        }
        // What helpers have they finish; what has no turn of theirs they do not take.
        let theirs = match (self.crew.is_empty(), self.way) {
            (true, _) => 0,
            (false, Way::Out) => self.landed,
            (false, Way::In) => self.given,
        };
        for piece in theirs.saturating_sub(SLOTS)..theirs {
            await_turn(slot(piece).0, Turn::of(piece, Turn::DONE), || false);
        }
        BOARD.used.store(self.given.min(SLOTS), Release);
        BOARD.count.store(theirs, Release);
        clear();
        self.crew.end();
        for event in self.events.into_iter().filter(|event| *event != 0) {
            let _ = calls::end_event(event);
        }
        result
    }
}
