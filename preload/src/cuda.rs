//! What `cuda-hooks/` needs of this library: the way to the agent. It may use `abi` only, so the linker joins the two
//! by hidden names.
//!
//! Runs in: the host program: [`announce`] when the CUDA driver is found, [`owner`] at the first allocation,
//! [`agent_is_there`] then and in a thread that waits at the closed gate, [`ask_keeper`] where device memory is made
//! and had again. Invariants: as `agent.rs`.
//!
//! # Safety
//! The hidden names are jumps to functions of this file, whose types `cuda-hooks/src/platform.rs` has, too.
#![allow(unsafe_code)]

use crate::{agent, host, shared};
use core::ffi::c_int;
use core::sync::atomic::Ordering::Release;
use holdfast_abi::environment::{
    CUDA_DATA_AUTO, CUDA_DATA_DRIVER, CUDA_DATA_KEEPER, CUDA_DATA_LIBRARY, CUDA_OFF, ENV_CUDA, ENV_CUDA_DATA,
    ENV_CUDA_SKIP,
};
use holdfast_abi::{CudaData, KeeperAnswer, KeeperQuestion, SharedPage};

/// Whether an agent answers.
extern "C" fn agent_is_there() -> bool {
    host::keep_errno(agent::is_there)
}

/// Where the area of the CUDA hooks is.
extern "C" fn announce(area: u64) {
    shared::word(SharedPage::CUDA_AREA).store(area, Release);
}

/// Asks the keeper of the job's device memory. The descriptor that came along, or a negative number; without an answer
/// `answer` is left as it is.
///
/// # Safety
/// Both point to one of theirs.
unsafe extern "C" fn ask_keeper(question: *const KeeperQuestion, answer: *mut KeeperAnswer) -> c_int {
    // SAFETY: the caller's promise.
    let question = unsafe { *question };
    match host::keep_errno(|| agent::ask_keeper(&question)) {
        Ok((told, passed)) => {
            // SAFETY: as above.
            unsafe { answer.write(told) };
            passed.unwrap_or(-1)
        }
        Err(_) => -1,
    }
}

/// Who is to own device memory: [`ENV_CUDA_DATA`], unless [`ENV_CUDA`] wants nothing of it.
extern "C" fn owner() -> u64 {
    if host::variable_is(ENV_CUDA, CUDA_OFF) {
        return CudaData::OFF;
    }
    let is_left_to_us =
        host::variable(ENV_CUDA_DATA).is_none() || host::variable_is(ENV_CUDA_DATA, CUDA_DATA_AUTO);
    if is_left_to_us && host::environment_has(is_one_of_many) {
        return CudaData::BY_DRIVER;
    }
    if host::variable_is(ENV_CUDA_DATA, CUDA_DATA_DRIVER) {
        CudaData::BY_DRIVER
    } else if host::variable_is(ENV_CUDA_DATA, CUDA_DATA_LIBRARY) {
        CudaData::BY_LIBRARY
    } else if host::variable_is(ENV_CUDA_DATA, CUDA_DATA_KEEPER)
        || host::variable_is(ENV_CUDA_DATA, CUDA_DATA_AUTO)
    {
        // Where the agent has started none, hooks find none.
        CudaData::BY_KEEPER
    } else {
        CudaData::UNDECIDED
    }
}

/// Sizes of allocations that are not in images: the least (0), or the most (1); 0 and 0: none.
extern "C" fn skip(which: u64) -> u64 {
    host::variable(ENV_CUDA_SKIP)
        .and_then(|text| sizes(text.to_bytes()))
        .map_or(0, |(least, most)| if which == 0 { least } else { most })
}

/// Two numbers with two points between.
fn sizes(text: &[u8]) -> Option<(u64, u64)> {
    // By hand: what the library has for it leaves ways to a panic.
    let (mut least, mut most, mut points) = (None, None, 0);
    for byte in text {
        let place = match (byte, points) {
            (b'.', _) => {
                points += 1;
                continue;
            }
            (_, 0) => &mut least,
            (_, 2) => &mut most,
            _ => return None,
        };
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
        let more: Option<u64> = *place;
        *place = Some(more.unwrap_or(0).checked_mul(10)?.checked_add(digit.into())?);
    }
    if points == 2 { least.zip(most) } else { None }
}

/// Whether an entry of the environment says that a launcher has started several processes for one program: they may
/// give each other memory by cuIpcGetMemHandle, which works on memory of the driver's alone. torchrun (PyTorch,
/// "torchrun", environment variables), Open MPI, MPICH and others with PMI, MVAPICH2, Slurm (srun(1)).
fn is_one_of_many(entry: &[u8]) -> bool {
    const COUNTS: [&[u8]; 5] = [
        b"WORLD_SIZE=",
        b"OMPI_COMM_WORLD_SIZE=",
        b"PMI_SIZE=",
        b"MV2_COMM_WORLD_SIZE=",
        b"SLURM_STEP_NUM_TASKS=",
    ];
    let count = COUNTS.iter().find_map(|name| entry.strip_prefix(*name));
    count.is_some_and(|count| !matches!(count, b"" | b"0" | b"1"))
}

/// In a child made by fork: what its parent made at the driver is not its own.
pub fn forked() {
    if shared::word(SharedPage::CUDA_AREA).load(core::sync::atomic::Ordering::Relaxed) != 0 {
        holdfast_cuda_hooks::forked();
    }
}

// Hidden: none of the program's business.
#[cfg(not(test))]
core::arch::global_asm!(
    ".pushsection .text.holdfast_cuda,\"ax\",@progbits",
    ".hidden holdfast_cuda_agent_is_there",
    ".globl holdfast_cuda_agent_is_there",
    ".type holdfast_cuda_agent_is_there, @function",
    "holdfast_cuda_agent_is_there: jmp {is_there}",
    ".size holdfast_cuda_agent_is_there, . - holdfast_cuda_agent_is_there",
    ".hidden holdfast_cuda_announce",
    ".globl holdfast_cuda_announce",
    ".type holdfast_cuda_announce, @function",
    "holdfast_cuda_announce: jmp {announce}",
    ".size holdfast_cuda_announce, . - holdfast_cuda_announce",
    ".hidden holdfast_cuda_ask_keeper",
    ".globl holdfast_cuda_ask_keeper",
    ".type holdfast_cuda_ask_keeper, @function",
    "holdfast_cuda_ask_keeper: jmp {ask_keeper}",
    ".size holdfast_cuda_ask_keeper, . - holdfast_cuda_ask_keeper",
    ".hidden holdfast_cuda_owner",
    ".globl holdfast_cuda_owner",
    ".type holdfast_cuda_owner, @function",
    "holdfast_cuda_owner: jmp {owner}",
    ".size holdfast_cuda_owner, . - holdfast_cuda_owner",
    ".hidden holdfast_cuda_skip",
    ".globl holdfast_cuda_skip",
    ".type holdfast_cuda_skip, @function",
    "holdfast_cuda_skip: jmp {skip}",
    ".size holdfast_cuda_skip, . - holdfast_cuda_skip",
    ".popsection",
    is_there = sym agent_is_there,
    announce = sym announce,
    owner = sym owner,
    skip = sym skip,
    ask_keeper = sym ask_keeper,
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!(sizes(b"1048576..18446744073709551615"), Some((1 << 20, u64::MAX)));
        for wrong in ["", "1", "1..", "..1", "a..b", "1.2"] {
            assert_eq!(sizes(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn launchers_of_several_processes_are_known() {
        for entry in ["WORLD_SIZE=2", "OMPI_COMM_WORLD_SIZE=16", "PMI_SIZE=8", "SLURM_STEP_NUM_TASKS=3"] {
            assert!(is_one_of_many(entry.as_bytes()), "{entry}");
        }
        for entry in ["WORLD_SIZE=1", "WORLD_SIZE=", "LOCAL_WORLD_SIZE=4", "PMI_SIZES=4", "WORLD_SIZE"] {
            assert!(!is_one_of_many(entry.as_bytes()), "{entry}");
        }
    }
}
