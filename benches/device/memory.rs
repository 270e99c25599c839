//! The bytes of three tiers: memory of the device, pinned memory of the host, a file. All in slots of one size.
//!
//! Copies are made by the CUDA driver, each thread with a stream of its own.
//! Invariant: a slot is free when nobody has it any more.
//! Fails by: a panic, when a policy wants more slots than a tier has: it has promised room that is not there.

use crate::{cu, ok};
use parking_lot::{Mutex, RwLock};
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;

/// CU_STREAM_NON_BLOCKING: not ordered by the default stream (driver API, stream management).
const NON_BLOCKING: u32 = 1;

/// See the head of the file.
pub struct Memory {
    bytes: usize,
    device: u64,
    /// The application's, on the device.
    buffer: u64,
    host: Vec<RwLock<Vec<u8>>>,
    file: File,
    /// By tier: slots that nobody has.
    free: [Arc<Mutex<Vec<usize>>>; 3],
    context: usize,
}

/// Room for a segment on a tier.
pub struct Slot {
    tier: usize,
    index: usize,
    free: Arc<Mutex<Vec<usize>>>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.free.lock().push(self.index);
    }
}

/// A file without a name, in the folder for what is temporary.
pub fn file() -> File {
    let mut options = File::options();
    options.read(true).write(true).custom_flags(libc::O_TMPFILE).open(std::env::temp_dir()).unwrap()
}

/// One end of a copy: the application's buffer on the device, or a slot.
#[derive(Clone)]
pub enum End {
    Buffer,
    Slot(Arc<Slot>),
}

/// What a thread needs for copies.
pub struct Hand {
    stream: usize,
    staging: Vec<u8>,
}

enum Bytes<'a> {
    Device(u64),
    Host(&'a RwLock<Vec<u8>>),
    File(u64),
}

impl Memory {
    /// So many slots on the device, on the host and in the file.
    pub fn new(bytes: usize, slots: [usize; 3], file: File) -> Memory {
        let context = crate::driver::start();
        let host: Vec<_> = (0..slots[1]).map(|_| RwLock::new(vec![0; bytes])).collect();
        for slot in &host {
            ok!("cuMemHostRegister" 6050, slot.write().as_mut_slice(), bytes, 0u32);
        }
        Memory {
            bytes,
            device: crate::driver::allocate(bytes * slots[0]),
            buffer: crate::driver::allocate(bytes),
            host,
            file,
            free: slots.map(|count| Arc::new(Mutex::new((0..count).collect()))),
            context,
        }
    }

    /// The application's buffer.
    pub fn buffer(&self) -> u64 {
        self.buffer
    }

    /// Room on a tier.
    pub fn slot(&self, tier: usize) -> Arc<Slot> {
        let free = Arc::clone(&self.free[tier]);
        let index = free.lock().pop().unwrap_or_else(|| panic!("tier {tier} has no room for a copy to it"));
        Arc::new(Slot { tier, index, free })
    }

    /// For the calling thread.
    pub fn hand(&self) -> Hand {
        ok!("cuCtxSetCurrent" 4000, self.context);
        Hand { stream: crate::driver::stream(NON_BLOCKING), staging: vec![0; self.bytes] }
    }

    fn of<'a>(&'a self, end: &End) -> Bytes<'a> {
        match end {
            End::Buffer => Bytes::Device(self.buffer),
            End::Slot(slot) => match slot.tier {
                0 => Bytes::Device(self.device + (slot.index * self.bytes) as u64),
                1 => Bytes::Host(&self.host[slot.index]),
                _ => Bytes::File((slot.index * self.bytes) as u64),
            },
        }
    }

    /// Copies a segment, and returns when it is there.
    pub fn copy(&self, hand: &mut Hand, from: &End, to: &End) {
        let (stream, len) = (hand.stream, self.bytes);
        match (self.of(from), self.of(to)) {
            (Bytes::Device(from), Bytes::Device(to)) => {
                ok!("cuMemcpyDtoDAsync" 3020, to, from, len, stream);
                ok!("cuStreamSynchronize" 2000, stream);
            }
            (Bytes::Device(from), Bytes::Host(to)) => hand.read(from, &mut to.write()),
            (Bytes::Host(from), Bytes::Device(to)) => hand.write(&from.read(), to),
            (Bytes::Host(from), Bytes::File(to)) => self.file.write_all_at(&from.read(), to).unwrap(),
            (Bytes::File(from), Bytes::Host(to)) => self.file.read_exact_at(&mut to.write(), from).unwrap(),
            (Bytes::Device(from), Bytes::File(to)) => {
                let mut staging = std::mem::take(&mut hand.staging);
                hand.read(from, &mut staging);
                self.file.write_all_at(&staging, to).unwrap();
                hand.staging = staging;
            }
            (Bytes::File(from), Bytes::Device(to)) => {
                let mut staging = std::mem::take(&mut hand.staging);
                self.file.read_exact_at(&mut staging, from).unwrap();
                hand.write(&staging, to);
                hand.staging = staging;
            }
            (Bytes::Host(_), Bytes::Host(_)) | (Bytes::File(_), Bytes::File(_)) => {
                panic!("a copy within a tier")
            }
        }
    }
}

/// What fails here is no matter: the next one starts with memory of its own.
impl Drop for Memory {
    fn drop(&mut self) {
        for slot in &mut self.host {
            let _ = cu!("cuMemHostUnregister" 4000, slot.get_mut().as_mut_slice());
        }
        for at in [self.device, self.buffer] {
            let _ = cu!("cuMemFree" 3020, at);
        }
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        let _ = cu!("cuStreamDestroy" 4000, self.stream);
    }
}

impl Hand {
    /// From the device.
    pub fn read(&self, from: u64, to: &mut [u8]) {
        ok!("cuMemcpyDtoHAsync" 3020, &mut *to, from, to.len(), self.stream);
        ok!("cuStreamSynchronize" 2000, self.stream);
    }

    /// To the device.
    pub fn write(&self, from: &[u8], to: u64) {
        ok!("cuMemcpyHtoDAsync" 3020, to, from, from.len(), self.stream);
        ok!("cuStreamSynchronize" 2000, self.stream);
    }
}
