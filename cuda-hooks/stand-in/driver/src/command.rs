//! What can be queued on a stream, or be a node of a graph. Run by `context`, on the stream's worker.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::callback::{HostFunction, StreamCallback};
use crate::code::{Answer, Code};
use crate::event::Event;
use crate::graph_memory::GraphMemory;
use crate::launch::Kernel;
use crate::memory::copy::{Copy, Fill, Staged};
use crate::memory::{heap, space};

/// A piece of work; what it needs was copied when it was submitted.
#[derive(Clone)]
pub enum Command {
    /// Only a place in the stream.
    Nothing,
    /// A copy between what the device can reach.
    Copy(Copy),
    /// A copy from pageable memory, whose bytes were taken when it was submitted.
    Staged(Copy, Arc<Staged>),
    /// A fill.
    Fill(Fill),
    /// A kernel.
    Launch(Arc<Kernel>),
    /// A function of the program.
    Host(HostFunction),
    /// A function of the program that is told how the stream is doing.
    Callback(StreamCallback),
    /// An event, and which record of it.
    Record(Arc<Event>, u64),
    /// A value of 4 or 8 bytes into memory.
    WriteValue(u64, u32, u64),
    /// Until a value in memory compares well.
    WaitValue(Comparison),
    /// Memory of a graph, from here on, and up to here.
    TakeMemory(Arc<GraphMemory>),
    /// See `TakeMemory`.
    GiveMemory(Arc<GraphMemory>),
    /// Memory of a pool that nothing may use behind this place.
    Free(u64),
    /// Until an event was recorded; only in graphs, and resolved when one is launched.
    WaitEvent(Arc<Event>),
    /// A graph, in one of the orders that its edges allow.
    Graph(Arc<Vec<Command>>),
}

/// What `cuStreamWaitValue32` and its like wait for (`CUstreamWaitValue_flags`).
#[derive(Clone, Copy, Debug)]
pub struct Comparison {
    /// Where.
    pub at: u64,
    /// 4 or 8.
    pub bytes: u32,
    /// With what.
    pub value: u64,
    /// How: GEQ 0, EQ 1, AND 2, NOR 3.
    pub how: u32,
}

impl Comparison {
    fn holds(&self) -> Answer<bool> {
        let mut bytes = [0; 8];
        let read = space::view().read(self.at, self.bytes.into())?;
        bytes[..read.len()].copy_from_slice(&read);
        let (now, value) = (u64::from_le_bytes(bytes), self.value);
        let bits = 8 * self.bytes;
        Ok(match self.how & 3 {
            // "(int32_t)(*addr - value) >= 0": a cyclic comparison
            0 => (now.wrapping_sub(value) >> (bits - 1)) & 1 == 0,
            1 => now == value,
            2 => now & value != 0,
            _ => !(now | value) & (u64::MAX >> (64 - bits)) != 0,
        })
    }
}

impl Command {
    /// Runs it, unless its context is ending; the seed is for the order of a kernel's threads.
    pub fn run(&self, ending: &AtomicBool, seed: u64) -> Answer {
        match self {
            Command::Nothing | Command::WaitEvent(_) => Ok(()),
            Command::Copy(copy) => copy.run(&space::view()),
            Command::Staged(copy, bytes) => copy.run_from(&space::view(), bytes),
            Command::Fill(fill) => fill.run(&space::view()),
            Command::Launch(kernel) => kernel.run(ending, seed),
            Command::Host(function) => {
                function.call();
                Ok(())
            }
            Command::Callback(callback) => {
                callback.call(0);
                Ok(())
            }
            Command::Record(event, number) => {
                event.happened(*number);
                Ok(())
            }
            Command::WriteValue(at, bytes, value) => {
                space::view().write(*at, &value.to_le_bytes()[..*bytes as usize])
            }
            Command::WaitValue(comparison) => {
                while !comparison.holds()? {
                    if ending.load(Ordering::Relaxed) {
                        return Err(Code::CONTEXT_IS_DESTROYED);
                    }
                    std::thread::sleep(Duration::from_micros(100));
                }
                Ok(())
            }
            Command::Free(base) => {
                heap::free(heap::forget(*base, |kind| matches!(kind, heap::Kind::Linear { .. }))?);
                Ok(())
            }
            Command::TakeMemory(memory) => memory.take(),
            Command::GiveMemory(memory) => memory.give(),
            Command::Graph(commands) => commands.iter().try_for_each(|command| command.run(ending, seed)),
        }
    }

    /// What has to happen although the context has had a fault.
    pub fn after_fault(&self, code: Code) {
        match self {
            // "the callback is passed an appropriate error code" (cuStreamAddCallback); a host function "is not called
            // in the event of an error in the CUDA context" (cuLaunchHostFunc)
            Command::Callback(callback) => callback.call(code.0),
            Command::Record(event, number) => event.happened(*number),
            _ => {}
        }
    }
}
