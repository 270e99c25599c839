//! Memory of graphs: nodes that allocate, and that free. Used by `graph`, `api::graph`, `api::memory`, `api::pool`.
//!
//! A node that allocates has its addresses from the beginning. Memory is there from its turn in a launch to that of a
//! node that frees it, of the same graph or of another one, or to a cuMemFree or cuMemFreeAsync of the program ("Graph
//! Memory Nodes", CUDA C++ Programming Guide).
//! Invariants: what a launch will allocate counts as allocated when it is submitted, and the same for what will be
//! freed: so a second launch is refused at once.
//! Fails by: CUDA_ERROR_OUT_OF_MEMORY of the work.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::code::{Answer, Code};
use crate::memory::physical::{GRANULARITY, Physical};
use crate::memory::space::{self, Access, Backing, Mapping};

/// The memory of one node.
#[derive(Debug)]
pub struct GraphMemory {
    /// First address.
    pub at: u64,
    length: u64,
}

/// By address: all, and those that are allocated, which outlive their graphs.
static ALL: Mutex<BTreeMap<u64, Weak<GraphMemory>>> = Mutex::new(BTreeMap::new());
static ALLOCATED: Mutex<BTreeMap<u64, Arc<GraphMemory>>> = Mutex::new(BTreeMap::new());

/// The memory that begins at an address, allocated or not.
pub fn of(at: u64) -> Option<Arc<GraphMemory>> {
    ALL.lock().get(&at)?.upgrade()
}

/// The same, if it is allocated.
pub fn allocated(at: u64) -> Option<Arc<GraphMemory>> {
    ALLOCATED.lock().get(&at).cloned()
}

impl GraphMemory {
    /// Addresses for so many bytes.
    pub fn new(size: u64) -> Answer<Arc<GraphMemory>> {
        let length =
            size.checked_next_multiple_of(GRANULARITY).filter(|_| size > 0).ok_or(Code::INVALID_VALUE)?;
        let at = space::reserve(length, GRANULARITY, 0)?;
        let memory = Arc::new(GraphMemory { at, length });
        ALL.lock().insert(at, Arc::downgrade(&memory));
        Ok(memory)
    }

    /// Work was submitted that allocates it, or frees it.
    pub fn will_be(self: &Arc<GraphMemory>, there: bool) {
        let mut allocated = ALLOCATED.lock();
        // what was there is dropped when nothing is locked any more
        let _gone = match there {
            true => allocated.insert(self.at, Arc::clone(self)),
            false => allocated.remove(&self.at),
        };
        drop(allocated);
    }

    /// The turn of the node that allocates it.
    pub fn take(&self) -> Answer {
        let physical = Physical::new(self.length)?;
        let backing = Backing::Device { physical, offset: 0 };
        space::map(self.at, Mapping { length: self.length, backing, access: Access::Write })
    }

    /// The turn of what frees it.
    pub fn give(&self) -> Answer {
        space::unmap(self.at).map(drop).ok_or(Code::INVALID_VALUE)
    }
}

impl Drop for GraphMemory {
    fn drop(&mut self) {
        ALL.lock().remove(&self.at);
        drop(space::unmap(self.at));
        // of a context that has ended, perhaps: nothing is left to be done
        let _ = space::release(self.at, self.length);
    }
}
