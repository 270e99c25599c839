//! Who a process is for the kernel, where that is not who has started the job: a server that was started by root and
//! has become another user.
//!
//! Part of [`crate::record::ProcessRecord`]; plain data.

use serde::{Deserialize, Serialize};

/// Ids and capabilities (credentials(7), capabilities(7)), those of the main thread.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Credentials {
    /// Real, effective and saved user id.
    pub users: [u32; 3],
    /// The same of the group.
    pub groups: [u32; 3],
    /// User and group id by which files are opened. `None`: the effective ones (images of old).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<[u32; 2]>,
    /// Supplementary groups.
    pub more_groups: Vec<u32>,
    /// Sets of capabilities, as bits: inheritable, permitted, effective, bounding, ambient.
    pub capabilities: [u64; 5],
}
