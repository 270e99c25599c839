//! What a file system outlives, by its kind.
//!
//! Called when a folder is opened as a tier. The numbers are those of statfs(2) and of the kernel's
//! include/uapi/linux/magic.h; Lustre, GPFS, BeeGFS, PanFS and Weka are not in the kernel: the numbers are those that
//! their own modules put into super_block.s_magic.

use crate::tier::{Survives, TierError};
use nix::sys::statfs::statfs;
use std::path::Path;

const MEMORY: &[u64] = &[
    0x0102_1994, // tmpfs
    0x8584_58f6, // ramfs
];

const SEVERAL_HOSTS: &[u64] = &[
    0x6969,      // NFS
    0x0bd0_0bd0, // Lustre
    0x4750_4653, // GPFS
    0x1983_0326, // BeeGFS
    0xaad7_aaea, // PanFS
    0x00c3_6400, // Ceph
    0x2003_0528, // OrangeFS
    0x0116_1970, // GFS2
    0x7461_636f, // OCFS2
    0x5346_414f, // AFS
    0x6b41_4653, // AFS of the kernel
    0x517b,      // SMB
    0xff53_4d42, // CIFS
    0xfe53_4d42, // SMB2
    0x0102_1997, // 9P
    0x6573_5546, // FUSE: GlusterFS, MooseFS, sshfs; of a local one at worst nothing is mapped
];

/// What the file system of an existing path outlives.
pub(super) fn survives(path: &Path) -> Result<Survives, TierError> {
    let of =
        statfs(path).map_err(|errno| TierError::io("look at", path.display().to_string())(errno.into()))?;
    // A __fsword_t may be 32 bits with a sign.
    let kind = of.filesystem_type().0 as u64 & 0xffff_ffff;
    Ok(if MEMORY.contains(&kind) {
        Survives::Program
    } else if SEVERAL_HOSTS.contains(&kind) {
        Survives::Site
    } else {
        Survives::Host
    })
}
