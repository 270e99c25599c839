//! The stub: position-independent code that works through a table of system calls.
//!
//! It uses no stack, touches only the table, and ends by `rt_sigreturn` on the frame that rsp points to: if the agent
//! dies at any instruction, the thread finishes the calls and returns to where it was (docs/stop.md, B.1). The agent
//! takes the thread back earlier, at the *marker*: the last call of a table is `tgkill(self, marker)` of a signal that
//! the program ignores by default; for a tracer it is a stop, for the program it is nothing.
//!
//! A row is 64 bytes, little-endian u64 each: number and flags, six arguments, result.
//! Entry: rip = stub, rbx = first row, rsp = frame.
//!
//! # Safety
//! The code below is data to this process: it is copied as bytes into the traced one and never called here.
#![allow(unsafe_code)]

/// One system call of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Row {
    /// System call number.
    pub number: u32,
    /// [`PREVIOUS`], [`LEAVE_CHILD`], [`PREVIOUS_BUT_ONE`].
    pub flags: u32,
    /// Arguments.
    pub args: [u64; 6],
}

/// Argument 0 is the result of the row before.
pub const PREVIOUS: u32 = 1;
/// The call creates a process: where it returns 0 the stub leaves by `exit_group`, so that a copy that is not traced
/// does not run on as a second program.
pub const LEAVE_CHILD: u32 = 2;
/// Argument 0 is the result of the row before the one before.
pub const PREVIOUS_BUT_ONE: u32 = 4;
/// Bytes of a row in memory.
pub const ROW_LEN: usize = 64;

impl Row {
    /// A call with the given arguments (missing ones are 0).
    pub fn new(number: libc::c_long, args: &[u64]) -> Row {
        let mut row = Row { number: u32::try_from(number).unwrap_or(u32::MAX), ..Row::default() };
        row.args[..args.len()].copy_from_slice(args);
        row
    }
    /// The same with flags.
    pub fn with(self, flags: u32) -> Row {
        Row { flags, ..self }
    }
    /// What the stub has written into a row, as its call returned it.
    pub fn result_of(row: &[u8]) -> i64 {
        row.get(56..ROW_LEN).and_then(|word| word.try_into().ok()).map_or(0, i64::from_le_bytes)
    }
    /// As the stub reads it.
    pub fn to_bytes(self) -> [u8; ROW_LEN] {
        let mut bytes = [0; ROW_LEN];
        let head = u64::from(self.flags) << 32 | u64::from(self.number);
        bytes[..8].copy_from_slice(&head.to_le_bytes());
        for (slot, arg) in bytes[8..56].chunks_exact_mut(8).zip(self.args) {
            slot.copy_from_slice(&arg.to_le_bytes());
        }
        bytes
    }
}

/// The row that ends a table: the stub goes on to `rt_sigreturn`.
pub const END: [u8; 8] = u64::MAX.to_le_bytes();

core::arch::global_asm!(
    ".pushsection .rodata.holdfast_stub,\"a\"",
    ".globl holdfast_stub_start",
    ".globl holdfast_stub_end",
    ".hidden holdfast_stub_start",
    ".hidden holdfast_stub_end",
    "holdfast_stub_start:",
    "2:  mov r13, [rbx]",
    "    test r13, r13",
    "    js 5f",
    "    mov rdi, [rbx + 8]",
    "    bt r13, 32",
    "    jnc 3f",
    "    mov rdi, [rbx - 8]", // result of the row before
    "3:  bt r13, 34",
    "    jnc 7f",
    "    mov rdi, [rbx - 72]", // of the one before that
    "7:  mov rsi, [rbx + 16]",
    "    mov rdx, [rbx + 24]",
    "    mov r10, [rbx + 32]",
    "    mov r8,  [rbx + 40]",
    "    mov r9,  [rbx + 48]",
    "    mov eax, r13d",
    "    syscall",
    "    bt r13, 33",
    "    jnc 4f",
    "    test rax, rax",
    "    jz 6f",
    "4:  mov [rbx + 56], rax",
    "    add rbx, 64",
    "    jmp 2b",
    "5:  mov eax, 15", // rt_sigreturn
    "    syscall",
    "6:  xor edi, edi",
    "    mov eax, 231", // exit_group
    "    syscall",
    "    ud2",
    "holdfast_stub_end:",
    ".popsection",
);

unsafe extern "C" {
    static holdfast_stub_start: u8;
    static holdfast_stub_end: u8;
}

/// The bytes of the stub.
pub fn code() -> &'static [u8] {
    // SAFETY: both symbols are defined by the block above, in this order, in one read-only section.
    unsafe {
        let start = &raw const holdfast_stub_start;
        let len = (&raw const holdfast_stub_end).offset_from_unsigned(start);
        std::slice::from_raw_parts(start, len)
    }
}

/// Where in [`code`] a system call is made.
pub fn call_offset() -> u64 {
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    code().windows(2).position(|bytes| bytes == SYSCALL).map_or(0, |at| at as u64)
}

/// A whole table: rows, then the marker to the calling thread, then the end.
pub fn table(rows: &[Row], pid: i32, tid: i32, marker: i32) -> Vec<u8> {
    let arg = |n: i32| u64::from(n.cast_unsigned());
    let last = Row::new(libc::SYS_tgkill, &[arg(pid), arg(tid), arg(marker)]);
    let mut bytes: Vec<u8> = rows.iter().copied().chain([last]).flat_map(Row::to_bytes).collect();
    bytes.extend_from_slice(&END);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stub_fits_its_page_and_begins_with_the_table_walk() {
        assert!(code().len() > 60 && code().len() < 256, "{}", code().len());
        assert_eq!(&code()[..3], &[0x4c, 0x8b, 0x2b], "mov r13, [rbx]");
        let at = call_offset() as usize;
        assert_eq!(&code()[at - 3..at + 2], &[0x44, 0x89, 0xe8, 0x0f, 0x05], "mov eax, r13d; syscall");
    }

    #[test]
    fn a_table_ends_with_marker_and_end() {
        let bytes = table(&[Row::new(39, &[])], 7, 8, 23);
        assert_eq!(bytes.len(), 2 * ROW_LEN + 8);
        assert_eq!(bytes[0], 39);
        assert_eq!(&bytes[64..72], &234_u64.to_le_bytes());
        assert_eq!(&bytes[128..], &END);
    }
}
