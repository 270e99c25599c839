//! Loads, stores and atomics of one thread: which memory an address is of, and whether it may be used.

use super::machine::Machine;
use super::thread::Thread;
use crate::error::FaultKind;
use crate::memory::{Memory, load, store};
use crate::types::{LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, Space, WINDOW};

/// Where something lies that may be accessed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    Global(u64),
    Shared(usize),
    Local(usize),
    KernelParameter(usize),
    Parameter(usize),
}

/// A generic address as its state space and the address there.
pub(super) fn specific(address: u64) -> (Space, u64) {
    let window = |base: u64| address.checked_sub(base).filter(|&offset| offset < WINDOW);
    if let Some(offset) = window(SHARED_WINDOW) {
        (Space::Shared, offset)
    } else if let Some(offset) = window(LOCAL_WINDOW) {
        (Space::Local, offset)
    } else if let Some(offset) = window(PARAM_WINDOW) {
        (Space::KernelParam, offset)
    } else {
        (Space::Global, address)
    }
}

/// What a thread can access: the machine, its block's shared memory, its own.
pub(super) struct Reach<'r, M: ?Sized> {
    pub(super) machine: &'r Machine<'r, M>,
    pub(super) shared: &'r mut [u8],
    pub(super) thread: &'r mut Thread,
}

impl<M: Memory + ?Sized> Reach<'_, M> {
    /// `bytes` is the size of the whole access, a power of two.
    #[inline]
    pub(super) fn place(&self, space: Space, address: u64, bytes: u32) -> Result<Place, FaultKind> {
        if address & u64::from(bytes - 1) != 0 {
            return Err(FaultKind::MisalignedAddress { space, address, bytes });
        }
        let (of, at) = match space {
            Space::Generic => specific(address),
            _ => (space, address),
        };
        let inside = |from: usize, length: usize| {
            let at = usize::try_from(at).ok()?.checked_add(from)?;
            (at.checked_add(bytes as usize)? <= length).then_some(at)
        };
        let place = match of {
            Space::Shared => inside(0, self.shared.len()).map(Place::Shared),
            Space::Local => inside(0, self.thread.local_top as usize).map(Place::Local),
            Space::KernelParam => inside(0, self.machine.launch.parameters.len()).map(Place::KernelParameter),
            Space::Param => {
                inside(self.thread.parameter_base, self.thread.parameters.len()).map(Place::Parameter)
            }
            _ => Some(Place::Global(at)),
        };
        place.ok_or(FaultKind::IllegalAddress { space, address, bytes })
    }

    #[inline]
    pub(super) fn load(&self, place: Place, bytes: u32) -> Result<u64, FaultKind> {
        let n = bytes as usize;
        Ok(match place {
            Place::Global(address) => {
                self.machine.memory.load(address, bytes).map_err(|_| illegal(address, bytes))?
            }
            Place::Shared(at) => load(&self.shared[at..at + n]),
            Place::Local(at) => load(&self.thread.local[at..at + n]),
            Place::KernelParameter(at) => load(&self.machine.launch.parameters[at..at + n]),
            Place::Parameter(at) => load(&self.thread.parameters[at..at + n]),
        })
    }

    #[inline]
    pub(super) fn store(&mut self, place: Place, bytes: u32, value: u64) -> Result<(), FaultKind> {
        let n = bytes as usize;
        match place {
            Place::Global(address) => {
                let value = value & (u64::MAX >> (64 - 8 * bytes));
                self.machine.memory.store(address, bytes, value).map_err(|_| illegal(address, bytes))?;
            }
            Place::Shared(at) => store(&mut self.shared[at..at + n], value),
            Place::Local(at) => store(&mut self.thread.local[at..at + n], value),
            Place::KernelParameter(at) => return Err(FaultKind::ReadOnly { address: at as u64 }),
            Place::Parameter(at) => store(&mut self.thread.parameters[at..at + n], value),
        }
        Ok(())
    }

    /// Replaces a value, and gives the old one.
    pub(super) fn update(
        &mut self,
        place: Place,
        bytes: u32,
        new: impl Fn(u64) -> u64,
    ) -> Result<u64, FaultKind> {
        if let Place::Global(address) = place {
            let mask = u64::MAX >> (64 - 8 * bytes);
            let updated = self.machine.memory.update(address, bytes, &mut |old| new(old) & mask);
            return updated.map_err(|_| illegal(address, bytes));
        }
        let old = self.load(place, bytes)?;
        self.store(place, bytes, new(old))?;
        Ok(old)
    }

    /// The place `by` bytes further, inside an access that was checked as a whole.
    pub(super) fn next(place: Place, by: u32) -> Place {
        let n = by as usize;
        match place {
            Place::Global(address) => Place::Global(address.wrapping_add(u64::from(by))),
            Place::Shared(at) => Place::Shared(at + n),
            Place::Local(at) => Place::Local(at + n),
            Place::KernelParameter(at) => Place::KernelParameter(at + n),
            Place::Parameter(at) => Place::Parameter(at + n),
        }
    }
}

fn illegal(address: u64, bytes: u32) -> FaultKind {
    FaultKind::IllegalAddress { space: Space::Global, address, bytes }
}
