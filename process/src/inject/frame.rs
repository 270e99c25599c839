//! The rt_sigframe that takes a thread back by itself when the agent dies during an injected call.
//!
//! Layout: struct rt_sigframe of x86-64 (arch/x86/include/asm/sigframe.h) without the return address that a real one
//! starts with: ucontext (uapi/asm/ucontext.h), siginfo, then the extended state in standard format. The kernel reads
//! it from `rsp - 8` (arch/x86/kernel/signal_64.c, sys_rt_sigreturn), so rsp = address of the ucontext.
//!
//! Invariants: the alternate stack of the frame is filled by the first call of the table (`sigaltstack` with the old
//! value going straight into the frame): setting what is already set changes nothing.

use holdfast_sys::ptrace::Registers;

/// Where in the frame the table must put the old alternate stack (uc_stack).
pub const ALT_STACK_OFFSET: u64 = 16;

const UC_FP_XSTATE: u64 = 1;
const UC_SIGCONTEXT_SS: u64 = 2;
const UC_STRICT_RESTORE_SS: u64 = 4;
const FP_XSTATE_MAGIC1: u32 = 0x4650_5853;
const FP_XSTATE_MAGIC2: u32 = 0x4650_5845;
/// sizeof(struct ucontext) with an 8-byte mask + sizeof(siginfo_t), rounded up to the alignment of XSAVE.
const XSTATE_OFFSET: usize = 448;

/// The registers with which an interrupted thread goes on by itself: what the kernel's restart logic would have made
/// of them (arch/x86/kernel/signal.c, arch_do_signal_or_restart).
pub fn rewound(regs: &Registers) -> Registers {
    let mut out = *regs;
    if regs.orig_rax.cast_signed() >= 0 {
        match regs.rax.cast_signed() {
            -514..=-512 => {
                out.rax = regs.orig_rax;
                out.rip = regs.rip.wrapping_sub(2);
            }
            -516 => {
                out.rax = libc::SYS_restart_syscall.cast_unsigned();
                out.rip = regs.rip.wrapping_sub(2);
            }
            _ => {}
        }
    }
    out
}

/// The bytes of a frame at `address` (64-byte aligned) that resumes `regs` with `mask` and `xstate` (standard format,
/// already cut to what the task has: the kernel drops everything above SSE of a state that is larger than the task's
/// own, docs/stop.md, B.1).
pub fn bytes(address: u64, regs: &Registers, mask: u64, xstate: &[u8]) -> Vec<u8> {
    let mut frame = vec![0_u8; XSTATE_OFFSET];
    let mut put = |offset: usize, value: u64| frame[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
    put(0, UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS);
    // uc_stack at 16..40 is filled by the table; sigcontext begins at 40.
    let general = [
        regs.r8,
        regs.r9,
        regs.r10,
        regs.r11,
        regs.r12,
        regs.r13,
        regs.r14,
        regs.r15,
        regs.rdi,
        regs.rsi,
        regs.rbp,
        regs.rbx,
        regs.rdx,
        regs.rax,
        regs.rcx,
        regs.rsp,
        regs.rip,
        regs.eflags,
    ];
    for (index, value) in general.into_iter().enumerate() {
        put(40 + index * 8, value);
    }
    put(184, (regs.cs & 0xffff) | (regs.ss & 0xffff) << 48);
    put(224, address + XSTATE_OFFSET as u64); // fpstate pointer
    put(296, mask);
    frame.extend_from_slice(xstate);
    let header = &mut frame[XSTATE_OFFSET..];
    let features =
        u64::from_le_bytes(crate::stop::xstate::array(header, 512)) | crate::stop::xstate::static_features();
    let len = xstate.len() as u32;
    // struct _fpx_sw_bytes at 464 of the legacy area: magic1, extended_size, xfeatures, xstate_size.
    header[464..468].copy_from_slice(&FP_XSTATE_MAGIC1.to_le_bytes());
    header[468..472].copy_from_slice(&(len + 4).to_le_bytes());
    header[472..480].copy_from_slice(&features.to_le_bytes());
    header[480..484].copy_from_slice(&len.to_le_bytes());
    frame.extend_from_slice(&FP_XSTATE_MAGIC2.to_le_bytes());
    frame
}
