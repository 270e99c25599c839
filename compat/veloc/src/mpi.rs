//! The few calls of MPI that are needed, found at run time in the library that the program has.
//!
//! A communicator is a pointer in Open MPI and an `int` in MPICH and what is made of it (Intel MPI, MVAPICH, Cray): it
//! is passed on as it came, in a value of the size of a register. So are the type and the operation of a reduction: in
//! Open MPI addresses of symbols, in MPICH numbers of its ABI.
//!
//! # Safety
//! A function is called with the types that the MPI standard gives it, under its name of the standard. Both kinds of
//! handles are passed in the same registers (System V ABI: an `int` is the lower half of its register). It is looked at
//! whether the library is of one of the two kinds.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};

/// `int` and the smallest of them, in the ABI of MPICH.
const MPICH_INT: usize = 0x4c00_0405;
const MPICH_MIN: usize = 0x5800_0002;
/// What libraries of that ABI call themselves.
const MPICH_NAMES: &[&str] = &["MPICH", "Intel(R) MPI", "MVAPICH"];
/// Where the library is, for programs that have it, but not for all (Python's modules).
const LIBRARIES: &[&CStr] = &[c"libmpi.so.40", c"libmpich.so.12", c"libmpi.so.12", c"libmpi.so"];

type OfComm = unsafe extern "C" fn(usize, *mut c_int) -> c_int;
type Allreduce = unsafe extern "C" fn(*const c_void, *mut c_void, c_int, usize, usize, usize) -> c_int;
type Dup = unsafe extern "C" fn(usize, *mut usize) -> c_int;
type Version = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;

/// Room for what a library says it is: more than MPI_MAX_LIBRARY_VERSION_STRING of any.
const VERSION_ROOM: usize = 16 << 10;

/// A communicator of the program.
#[derive(Debug)]
pub struct Mpi {
    comm: usize,
    allreduce: Allreduce,
    int: usize,
    min: usize,
    /// This rank.
    pub rank: u32,
    /// How many there are.
    pub ranks: u32,
}

fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a name that ends with a zero; the libraries are only looked for among those that are loaded.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    let places = LIBRARIES.iter().map(|library| {
        // SAFETY: likewise; its count goes up by one, and the library stays.
        unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) }
    });
    let mut found = Some(found).filter(|found| !found.is_null());
    for place in places.filter(|place| !place.is_null()) {
        // SAFETY: a library that is loaded.
        found =
            found.or_else(|| Some(unsafe { libc::dlsym(place, name.as_ptr()) }).filter(|it| !it.is_null()));
    }
    found
}

fn needed(name: &CStr) -> Result<*mut c_void, String> {
    symbol(name).ok_or_else(|| {
        format!(
            "the program has no {}: VELOC_Init needs MPI; VELOC_Init_single does not",
            name.to_string_lossy()
        )
    })
}

/// Type and operation of a reduction to the smallest `int`.
fn handles() -> Result<(usize, usize), String> {
    if let (Some(int), Some(min)) = (symbol(c"ompi_mpi_int"), symbol(c"ompi_mpi_op_min")) {
        return Ok((int as usize, min as usize));
    }
    let (mut text, mut len) = (vec![0_u8; VERSION_ROOM], 0);
    // SAFETY: the function's type in the standard.
    let version: Version = unsafe { std::mem::transmute(needed(c"MPI_Get_library_version")?) };
    // SAFETY: there is room for the longest text of any library.
    unsafe { version(text.as_mut_ptr().cast(), &raw mut len) };
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(0);
    let name = String::from_utf8_lossy(&text[..end]);
    match MPICH_NAMES.iter().any(|known| name.contains(known)) {
        true => Ok((MPICH_INT, MPICH_MIN)),
        false => Err(format!("MPI is \"{}\", neither Open MPI nor of MPICH's ABI", name.trim())),
    }
}

impl Mpi {
    /// The communicator that the program gives, or rather a duplicate: our messages do not meet the program's.
    ///
    /// # Errors
    /// There is no MPI, or one that is not known; it fails.
    pub fn of(comm: usize) -> Result<Mpi, String> {
        let (int, min) = handles()?;
        // SAFETY: each has this type in the standard.
        let (size, rank, dup, allreduce) = unsafe {
            (
                std::mem::transmute::<*mut c_void, OfComm>(needed(c"MPI_Comm_size")?),
                std::mem::transmute::<*mut c_void, OfComm>(needed(c"MPI_Comm_rank")?),
                std::mem::transmute::<*mut c_void, Dup>(needed(c"MPI_Comm_dup")?),
                std::mem::transmute::<*mut c_void, Allreduce>(needed(c"MPI_Allreduce")?),
            )
        };
        let (mut own, mut numbers) = (0_usize, [0; 2]);
        // SAFETY: a communicator of the program, as the caller of VELOC_Init says; a handle has at most the size of
        // `own`, and all of it is written where it is a pointer.
        let failed = unsafe {
            dup(comm, &raw mut own) != 0
                || rank(comm, &raw mut numbers[0]) != 0
                || size(comm, &raw mut numbers[1]) != 0
        };
        let [rank, ranks] = numbers.map(|number| u32::try_from(number).unwrap_or(0));
        match failed || ranks == 0 {
            true => {
                Err("MPI fails with the communicator of VELOC_Init: is MPI_Init called before it?".into())
            }
            false => Ok(Mpi { comm: own, allreduce, int, min, rank, ranks }),
        }
    }

    /// The smallest of all ranks' numbers; all call it.
    ///
    /// # Errors
    /// MPI fails.
    pub fn smallest(&self, number: i32) -> Result<i32, String> {
        let mut least = number;
        // SAFETY: one `int` to be read, one to be written; handles of this library.
        let failed = unsafe {
            (self.allreduce)(
                (&raw const number).cast(),
                (&raw mut least).cast(),
                1,
                self.int,
                self.min,
                self.comm,
            )
        };
        match failed {
            0 => Ok(least),
            error => Err(format!("MPI_Allreduce fails with {error}")),
        }
    }

    /// Whether all ranks are on one machine; all call it.
    ///
    /// # Errors
    /// MPI fails.
    pub fn is_one_host(&self) -> Result<bool, String> {
        let id = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let hash = id.iter().fold(7_i32, |sum, byte| (sum.wrapping_mul(31) ^ i32::from(*byte)) & 0x3fff_ffff);
        Ok(self.smallest(hash)? == -self.smallest(-hash)?)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_program_without_mpi_is_told_so() {
        let error = Mpi::of(0).unwrap_err();
        assert!(error.contains("MPI_Get_library_version") && error.contains("VELOC_Init_single"), "{error}");
    }
}
