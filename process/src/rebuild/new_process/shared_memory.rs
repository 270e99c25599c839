//! Shared memory without a name that several processes map, and what processes have in common by copy-on-write:
//! files in memory, made by the first of the new processes.
//!
//! All inherit them at numbers that both halves of a restart know ([`kept_fds`]), over the exec: the agent has
//! shared memory mapped where the process had it, and fills what is in common
//! ([`crate::rebuild::shared_memfd`]). Memory that one process has alone is made by its seed.

use crate::rebuild::error::RebuildError;
use crate::rebuild::job::Job;
use crate::rebuild::kept_fds::{self, SharedObject};
use holdfast_sys::{memfd, objects};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{File, Permissions};
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;

/// Makes them, with numbers of at least `floor`.
///
/// # Errors
/// There is no memory for so large a file.
pub fn make(
    wanted: &BTreeMap<u64, SharedObject>,
    floor: i32,
) -> Result<BTreeMap<u64, (SharedObject, OwnedFd)>, RebuildError> {
    let make = |object: &SharedObject| {
        let file = File::from(memfd::unsealed(c"holdfast-shared")?);
        file.set_len(object.size)?;
        objects::duplicate_above(file.as_raw_fd(), floor)
    };
    let io =
        |size: u64| RebuildError::io(format!("making {size} bytes of memory that several processes share"));
    wanted
        .iter()
        .map(|(number, object)| Ok((*number, (*object, make(object).map_err(io(object.size))?))))
        .collect()
}

/// Makes it, empty, with a number of at least `floor`.
///
/// # Errors
/// EMFILE, ENOMEM.
pub fn make_common(job: &Job<'_>, floor: i32) -> Result<Option<OwnedFd>, RebuildError> {
    if !kept_fds::has_common(job) {
        return Ok(None);
    }
    let made = || {
        // By the name mappings are known as ours: no program can guess it.
        let mut random = [0; 16];
        File::open("/dev/urandom")?.read_exact(&mut random)?;
        let name = CString::new(format!("holdfast-common-{:032x}", u128::from_le_bytes(random)))?;
        let file = File::from(memfd::create(&name, false)?);
        file.set_permissions(Permissions::from_mode(0o600))?;
        objects::duplicate_above(file.as_raw_fd(), floor)
    };
    made().map(Some).map_err(RebuildError::io("making the memory that the processes have in common"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::rebuild::testing::{record, region};
    use holdfast_image::record::{Backing, Descriptor};

    #[test]
    fn only_what_several_processes_map_is_made_for_all() {
        let shared = |object, offset| Backing::SharedAnonymous { object, offset, object_size: 8192 };
        let mut first =
            record(vec![region(0x10000, 2, 3, shared(7, 0)), region(0x20000, 1, 3, shared(8, 0))]);
        let mut other = record(vec![
            region(0x10000, 1, 3, shared(9, 0)),
            region(0x30000, 1, 3, shared(9, 4096)),
            region(0x40000, 4, 1, shared(7, 0)),
        ]);
        other.files.descriptors.push(Descriptor { fd: 40, cloexec: false, description: 0 });
        first.others.push(other);
        let job = Job::new(&first);
        let several = kept_fds::of_several(&job);
        assert_eq!(several, BTreeMap::from([(7, SharedObject { number: 41, size: 4 * 4096 })]));
        let made = make(&several, 50).unwrap();
        let (_, file) = &made[&7];
        assert!(file.as_raw_fd() >= 50);
        assert_eq!(File::from(file.try_clone().unwrap()).metadata().unwrap().len(), 4 * 4096);
    }
}
