//! The tier that an address means.
//!
//! Called by whatever has an address: commands, the agent, restarts. Invariant: to open a tier writes nothing there;
//! what writing needs is made, and tried, by the first write.

use super::address::Address;
use super::{FolderTier, LocalTier, RemoteTier, Tier, TierError};

/// The tier that an address means.
///
/// # Errors
/// What it means cannot be used. A server that is down is no error.
pub fn open(address: &Address) -> Result<Box<dyn Tier>, TierError> {
    match address {
        Address::Folder(path) => {
            let folder = FolderTier::open(path, address.to_string())?;
            if folder.is_private_disk() { Ok(Box::new(LocalTier::open(path)?)) } else { Ok(Box::new(folder)) }
        }
        Address::Bucket { .. } | Address::Http { .. } => Ok(Box::new(RemoteTier::open(address)?)),
    }
}
