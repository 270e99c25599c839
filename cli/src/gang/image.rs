//! An image of a gang: which image of each member, with the digest of its manifest.
//!
//! Made by the leader when all members have committed theirs; read by restarts, by what removes images, by `list`.
//! Invariants: it names every member once, in order; what it names was committed before it was there. Fails by: words
//! that say what is wrong with it.

use crate::exit::Failure;
use crate::settings::member_job;
use holdfast_image::Epoch;
use holdfast_tiers::{Job, Store};
use serde::{Deserialize, Serialize};

/// Longer ones are not ours: bytes.
pub const MOST_BYTES: u64 = 16 << 20;
/// What this version writes and reads.
const FORMAT: u32 = 1;

/// See the head of the file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GangImage {
    /// Of this description.
    pub format: u32,
    /// Name of the gang.
    pub gang: String,
    /// Number of the image.
    pub image: u64,
    /// CLOCK_REALTIME of the leader when it was made, nanoseconds.
    pub created_ns: u64,
    /// The version of Holdfast that made it.
    pub version: String,
    /// The members, in order.
    pub members: Vec<MemberImage>,
}

/// A member's part.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemberImage {
    /// The member.
    pub member: u32,
    /// The host that it was on.
    pub host: String,
    /// The number of its image.
    pub epoch: Epoch,
    /// The run of its job that it is of.
    pub run_ns: u64,
    /// SHA-256 of the image's manifest, in hexadecimal digits.
    pub digest: String,
}

impl GangImage {
    /// A new one.
    pub fn new(gang: &str, image: u64, created_ns: u64, members: Vec<MemberImage>) -> GangImage {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        GangImage { format: FORMAT, gang: gang.to_owned(), image, created_ns, version, members }
    }

    /// The bytes of its file.
    pub fn encode(&self) -> Vec<u8> {
        // Plain data with names as keys: always encoded.
        serde_json::to_vec_pretty(self).unwrap_or_default()
    }

    /// Reads it.
    ///
    /// # Errors
    /// What is wrong.
    pub fn decode(gang: &str, number: u64, bytes: &[u8]) -> Result<GangImage, String> {
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let version: Version = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if version.format != FORMAT {
            return Err(format!("format {}, and this version of Holdfast reads {FORMAT}", version.format));
        }
        let image: GangImage = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if (image.gang.as_str(), image.image) != (gang, number) {
            return Err(format!("it is image {} of gang {:?}", image.image, image.gang));
        }
        let in_order = (0_u32..).zip(&image.members).all(|(member, one)| one.member == member);
        if image.members.is_empty() || !in_order {
            return Err("it does not name every member once, in order".into());
        }
        Ok(image)
    }

    /// Whether each member's image is in the store as it was.
    ///
    /// # Errors
    /// What is missing, of whom.
    pub fn check_whole(&self, store: &Store) -> Result<(), String> {
        for member in &self.members {
            let name = member_job(&self.gang, member.member);
            let job = store.job(&name).map_err(|error| error.to_string())?;
            member.check(&job)?;
        }
        Ok(())
    }
}

impl MemberImage {
    /// Whether the image is there, as it was.
    ///
    /// # Errors
    /// It is not, or it cannot be read.
    pub fn check(&self, job: &Job) -> Result<(), String> {
        let (member, epoch, name) = (self.member, self.epoch, job.name());
        let found = digest(job, epoch).map_err(|error| {
            format!("image {epoch} of member {member}, job {name}, cannot be used: {error}")
        })?;
        if found == self.digest {
            return Ok(());
        }
        Err(format!(
            "image {epoch} of member {member}, job {name}, is not the one that was made for the gang"
        ))
    }
}

/// SHA-256 of the manifest of an image, as hexadecimal digits.
///
/// # Errors
/// It cannot be read.
pub fn digest(job: &Job, epoch: Epoch) -> Result<String, Failure> {
    let bytes = job.folder().manifest(epoch)?;
    let digest = ring::digest::digest(&ring::digest::SHA256, &bytes);
    Ok(super::key::hex(digest.as_ref()))
}
