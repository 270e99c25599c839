//! Numbers that carry their unit in the type.
//!
//! Addresses of the traced program are never pointers of ours: [`Addr`] cannot be dereferenced.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Bytes in a page of x86-64. The agent checks `sysconf(_SC_PAGESIZE)` against it once, at start.
pub const PAGE_SIZE: u64 = holdfast_abi::PAGE as u64;

/// An address in the traced program (of this run or one before a restart), in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Addr(pub u64);

/// Bits of an address inside the address space of one process: user space of x86-64 with four-level page tables ends
/// one page below 2^47 (arch/x86/include/asm/page_64_types.h, TASK_SIZE_MAX).
pub const SPACE_BITS: u32 = 47;
/// Number of address spaces in a page index ([`crate::address_space`]).
pub const SPACES: u32 = 1 << 15;

impl Addr {
    /// First address after all address spaces of a page index.
    pub const END: Addr = Addr((SPACES as u64) << SPACE_BITS);
    /// `self + bytes`, or `None` past the end of the address space.
    pub fn checked_add(self, bytes: u64) -> Option<Addr> {
        self.0.checked_add(bytes).map(Addr)
    }
    /// Whether the address is the first byte of a page.
    pub fn is_page_aligned(self) -> bool {
        self.0.is_multiple_of(PAGE_SIZE)
    }
    /// The first byte of the page that holds this address.
    pub fn page_floor(self) -> Addr {
        Addr(self.0 & !(PAGE_SIZE - 1))
    }
}

impl fmt::Debug for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A number of pages of [`PAGE_SIZE`] bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PageCount(pub u64);

impl PageCount {
    /// The size in bytes, or `None` if it does not fit 64 bits (only possible for numbers read from a file).
    pub fn checked_bytes(self) -> Option<u64> {
        self.0.checked_mul(PAGE_SIZE)
    }
    /// The size in bytes of a count that describes memory that exists (saturating otherwise).
    pub fn bytes(self) -> u64 {
        self.0.saturating_mul(PAGE_SIZE)
    }
}

/// Number of an image within its job, counted from 1; also the epoch which that image ends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
