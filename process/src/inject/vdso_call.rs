//! Single system calls in a stopped process that has no memory for the stub yet.
//!
//! Used by `adopt`, for the few calls that map it. They run in the vdso: the last bytes of its last page
//! are empty, it is executable in every process, and a tracer may write to it (VM_MAYWRITE,
//! arch/x86/entry/vdso/vma.c, "to be able to set breakpoints"). Afterwards the bytes are as they were. What must
//! hold: all threads of the process are stopped; the thread is in an event stop. At every instant the thread, let
//! go by the death of the agent, makes the call that it is at and then finds its own way back: mask, registers and
//! instruction pointer are constants in the code, because there is no memory that a signal frame could lie in.

use super::frame;
use super::live_thread::LiveThread;
use super::remote_thread::{Patience, Step};
use super::stub::Row;
use crate::error::TraceError;
use holdfast_sys::fault;
use holdfast_sys::procmem::ForcedMemory;
use holdfast_sys::ptrace::{self, Registers, Wait};
use std::io;
use std::ops::Range;
use std::time::Duration;

/// Bytes that are used.
const LEN: usize = 256;
/// Empty bytes that must be there: what is used, and as many again, so that it is no table's last entries.
const EMPTY: usize = 2 * LEN;
/// Where the name of that memory begins.
const NAME: usize = LEN - 16;
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// None of the calls waits for anything.
const LIMIT: Duration = Duration::from_secs(2);

/// See the head of the file.
pub struct VdsoCalls<'a> {
    host: &'a LiveThread,
    memory: &'a ForcedMemory,
    at: u64,
}

impl<'a> VdsoCalls<'a> {
    /// Where there are empty bytes in a vdso; `None`: nowhere. `read`: its memory.
    ///
    /// # Errors
    /// The memory cannot be read.
    pub fn find(
        vdso: &Range<u64>,
        read: impl Fn(u64, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<Option<u64>> {
        let mut there = [0_u8; EMPTY];
        let Some(from) = vdso.end.checked_sub(EMPTY as u64).filter(|from| vdso.contains(from)) else {
            return Ok(None);
        };
        read(from, &mut there)?;
        Ok(there.iter().all(|byte| *byte == 0).then_some(vdso.end - LEN as u64))
    }

    /// Puts the code there. `name`: what calls may be given, 15 bytes at most. `None`: there are none.
    ///
    /// # Errors
    /// The memory cannot be read or written.
    pub fn take(
        host: &'a LiveThread,
        memory: &'a ForcedMemory,
        vdso: &Range<u64>,
        name: &[u8],
    ) -> io::Result<Option<VdsoCalls<'a>>> {
        let Some(at) = VdsoCalls::find(vdso, |at, bytes| memory.read(at, bytes))? else { return Ok(None) };
        let mut bytes = code(&frame::rewound(&host.alone), host.mask);
        bytes.resize(NAME, 0);
        bytes.extend_from_slice(&name[..name.len().min(LEN - NAME - 1)]);
        memory.write(at, &bytes)?;
        Ok(Some(VdsoCalls { host, memory, at }))
    }

    /// Address of the name, a C string.
    pub fn name(&self) -> u64 {
        self.at + NAME as u64
    }

    /// Whether seccomp filters of the process's own allow a call.
    pub fn allows(&self, number: libc::c_long, args: &[u64]) -> bool {
        self.host.permission.forbidden(&[Row::new(number, args)]).is_none()
    }

    /// Makes a call; its result, as the kernel gives it. The thread is stopped at its end.
    ///
    /// # Errors
    /// The thread died or is stuck; the call was not made then.
    pub fn call(&self, number: libc::c_long, args: [u64; 6]) -> Result<i64, TraceError> {
        // And the way back.
        let mask = Row::new(libc::SYS_rt_sigprocmask, &[2, self.at, 0, 8]);
        self.host.permission.ask(self.host.thread.inner.1, &[Row::new(number, &args), mask])?;
        self.try_call(number, args).or_else(|error| {
            self.host.thread.halt()?;
            // Late, but made: what it yields is still to be given back.
            let regs = ptrace::registers(self.host.thread.tid)?;
            let is_made = regs.rip == self.at + SYSCALL.len() as u64;
            if is_made { Ok(regs.rax.cast_signed()) } else { Err(error) }
        })
    }

    fn try_call(&self, number: libc::c_long, args: [u64; 6]) -> Result<i64, TraceError> {
        let tid = self.host.thread.tid;
        let [rdi, rsi, rdx, r10, r8, r9] = args;
        let (rax, orig_rax) = (number.cast_unsigned(), u64::MAX);
        let regs = Registers { rip: self.at, rax, orig_rax, rdi, rsi, rdx, r10, r8, r9, ..self.host.regs };
        ptrace::set_registers(tid, &regs)?;
        ptrace::set_signal_mask(tid, !0)?;
        // Its beginning, then its end.
        for _ in 0..2 {
            fault::point("foothold");
            ptrace::cont_to_call(tid, 0)?;
            if fault::fails("foothold") {
                return Err(TraceError::Stuck { tid });
            }
            self.wait_for(|stop| stop == Wait::Syscall)?;
        }
        Ok(ptrace::registers(tid)?.rax.cast_signed())
    }

    /// Puts thread and memory back as they were, whatever the last call has come to.
    ///
    /// # Errors
    /// As [`VdsoCalls::call`].
    pub fn leave(self) -> Result<(), TraceError> {
        self.host.thread.halt()?;
        self.host.put_back()?;
        self.memory.write(self.at, &[0; LEN])?;
        Ok(())
    }

    /// Waits for a stop that is wanted; all others are passed over, and all calls on the way are stops.
    fn wait_for(&self, is_wanted: impl Fn(Wait) -> bool) -> Result<(), TraceError> {
        let patience = Patience { limit: LIMIT, look_after: None, yield_for: Duration::ZERO };
        let thread = self.host.thread;
        thread.run_until(patience, |stop| match stop {
            Wait::Exited(_) => Err(TraceError::Died { tid: thread.tid }),
            stop if is_wanted(stop) => Ok(Step::Done),
            Wait::Signal(signal) => Ok(Step::ToCall(signal)),
            _ => Ok(Step::ToCall(0)),
        })
    }
}

/// `syscall`, and what lets the thread go on with `back` and `mask` by itself.
fn code(back: &Registers, mask: u64) -> Vec<u8> {
    let mut code = SYSCALL.to_vec();
    // rt_sigprocmask(SIG_SETMASK, &mask, NULL, 8): mov eax, 14; mov edi, 2; mov edx, 0; mov r10d, 8. No instruction
    // changes the flags, and the call keeps them.
    code.extend([0xb8, 14, 0, 0, 0, 0xbf, 2, 0, 0, 0, 0xba, 0, 0, 0, 0, 0x41, 0xba, 8, 0, 0, 0]);
    // lea rsi, [rip + ...], filled in below.
    code.extend([0x48, 0x8d, 0x35]);
    let distance = code.len();
    code.extend([0; 4]);
    code.extend(SYSCALL);
    // mov REGISTER, CONSTANT for all that calls change, or their arguments.
    let registers: [([u8; 2], u64); 9] = [
        ([0x48, 0xb8], back.rax),
        ([0x48, 0xb9], back.rcx),
        ([0x48, 0xba], back.rdx),
        ([0x48, 0xbe], back.rsi),
        ([0x48, 0xbf], back.rdi),
        ([0x49, 0xb8], back.r8),
        ([0x49, 0xb9], back.r9),
        ([0x49, 0xba], back.r10),
        ([0x49, 0xbb], back.r11),
    ];
    for (opcode, value) in registers {
        code.extend(opcode);
        code.extend(value.to_le_bytes());
    }
    // jmp [rip + 0]
    code.extend([0xff, 0x25, 0, 0, 0, 0]);
    code.extend(back.rip.to_le_bytes());
    let offset = (code.len() - distance - 4) as u32;
    code[distance..distance + 4].copy_from_slice(&offset.to_le_bytes());
    code.extend(mask.to_le_bytes());
    code
}
