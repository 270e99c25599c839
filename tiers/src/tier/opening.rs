//! The tier that an address means.
//!
//! Called by whatever has an address: commands, the agent, restarts.

use super::address::Address;
use super::{FolderTier, LocalTier, RemoteTier, Tier, TierError};

/// The tier that an address means.
///
/// # Errors
/// The address makes no sense ([`TierError::Settings`]), or what it means cannot be used. A server that is down is no
/// error.
pub fn open(address: &str) -> Result<Box<dyn Tier>, TierError> {
    let parsed = Address::parse(address)?;
    match &parsed {
        Address::Folder(path) => {
            let folder = FolderTier::open(path, parsed.to_string())?;
            if folder.is_private_disk() { Ok(Box::new(LocalTier::open(path)?)) } else { Ok(Box::new(folder)) }
        }
        Address::Bucket { .. } | Address::Http { .. } => Ok(Box::new(RemoteTier::open(&parsed)?)),
        Address::Memory(_) => {
            let why =
                "memory is the first tier of a job that runs: the job's images are listed with its store";
            Err(TierError::Settings { object: parsed.to_string(), why: why.to_owned() })
        }
    }
}
