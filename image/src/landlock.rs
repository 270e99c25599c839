//! The Landlock domain that a process has made (landlock(7)): which rule sets, one layer over the other.
//!
//! Part of the process record. Written by `process::capture::landlock`, read by `process::rebuild`. Invariants: plain
//! data; layers of the host, which were there before `holdfast run`, are not in it ([`check`]).

use crate::bytes::Name;
use crate::inode::Inode;
use serde::{Deserialize, Serialize};

/// Most layers (security/landlock/limits.h).
const LAYERS: usize = 16;

/// A layer: a rule set as it was when the process restricted itself by it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LandlockLayer {
    /// LANDLOCK_ACCESS_FS_*: what is forbidden unless a rule allows it.
    #[serde(default)]
    pub files: u64,
    /// LANDLOCK_ACCESS_NET_*, likewise.
    #[serde(default)]
    pub network: u64,
    /// LANDLOCK_RESTRICT_SELF_*.
    #[serde(default)]
    pub flags: u32,
    /// What is allowed.
    pub rules: Vec<LandlockRule>,
}

/// What a layer allows.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LandlockRule {
    /// LANDLOCK_RULE_PATH_BENEATH.
    Path {
        /// To which access.
        access: u64,
        /// The file or folder, from the root of the process.
        path: Name,
        /// Which one it was. `None`: of /proc, where a restart has others.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        inode: Option<Inode>,
    },
    /// LANDLOCK_RULE_NET_PORT.
    Port {
        /// To which access.
        access: u64,
        /// The port.
        port: u64,
    },
}

/// Whether a domain is one that a kernel could have.
///
/// # Errors
/// Says what is wrong.
pub fn check(domain: &[LandlockLayer]) -> Result<(), String> {
    if domain.len() > LAYERS {
        return Err(format!("a Landlock domain of {} layers", domain.len()));
    }
    Ok(())
}
