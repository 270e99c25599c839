//! An image of a gang: which image of each member, with the digest of its manifest.
//!
//! Made by the leader when all members have committed theirs; read by restarts, by what removes images, by `list`.
//! Invariants: it names every member once, in order; what it names was committed before it was there. Fails by: words
//! that say what is wrong with it.

use crate::settings::member_job;
use holdfast_image::Epoch;
use holdfast_image::control::Secret;
use holdfast_tiers::tier::TierError;
use holdfast_tiers::{Store, StoreError};
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
    /// Of an open gang: what its servers prove. It is in their memory, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Secret>,
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
    /// How its host is reached, if it was added to an open gang.
    #[serde(default)]
    pub ssh: Option<Remote>,
}

/// How a host is reached.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Remote {
    /// In the words of ssh.
    pub host: String,
    /// Where its server listens.
    pub port: u16,
    /// What its launcher has given to ssh besides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

impl GangImage {
    /// A new one.
    pub fn new(gang: &str, image: u64, created_ns: u64, members: Vec<MemberImage>) -> GangImage {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        GangImage { format: FORMAT, gang: gang.to_owned(), image, created_ns, version, members, key: None }
    }

    /// What tells it from all others: SHA-256 of its bytes, in hexadecimal digits.
    pub fn id(&self) -> String {
        digest_of(&self.encode())
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

    /// The number of a member's image in it.
    pub fn part_of(&self, member: u32) -> Option<u64> {
        self.members.iter().find(|one| one.member == member).map(|one| one.epoch.0)
    }

    /// Whether a member's part in it is of this run of its job.
    pub fn is_of(&self, member: u32, run_ns: u64) -> bool {
        self.members.iter().any(|one| one.member == member && one.run_ns == run_ns)
    }

    /// Whether members are added to the gang.
    pub fn is_open(&self) -> bool {
        self.key.is_some()
    }

    /// Whether each member's image is in the store as it was. Where each host has a store of its own (`is_shared`),
    /// what this one lacks may be in another one: those members are named.
    ///
    /// # Errors
    /// What is missing or damaged, of whom.
    pub fn check(&self, store: &Store, is_shared: bool) -> Result<Vec<u32>, String> {
        let mut elsewhere = Vec::new();
        for member in &self.members {
            match member.find(store, &self.gang)? {
                Found::AsItWas => {}
                Found::Damaged(why) if is_shared => return Err(member.unusable(&self.gang, &why)),
                Found::Another | Found::Nothing(_) if is_shared => elsewhere.push(member.member),
                Found::Another | Found::Damaged(_) => {
                    let (one, epoch, name) = (member.member, member.epoch, member.job(&self.gang));
                    let what = "is not the one that was made for the gang";
                    return Err(format!("image {epoch} of member {one}, job {name}, {what}"));
                }
                Found::Nothing(why) => return Err(member.unusable(&self.gang, &why)),
            }
        }
        Ok(elsewhere)
    }
}

/// What a store has of a member's part.
pub enum Found {
    /// The image, as it was.
    AsItWas,
    /// One of its number that is not the one.
    Another,
    /// It is damaged; in words.
    Damaged(String),
    /// None; in words.
    Nothing(String),
}

impl MemberImage {
    /// Its job.
    pub fn job(&self, gang: &str) -> String {
        member_job(gang, self.member)
    }

    /// Looks for the image.
    ///
    /// # Errors
    /// It cannot be looked at.
    pub fn find(&self, store: &Store, gang: &str) -> Result<Found, String> {
        let job = match store.job(&self.job(gang)) {
            Err(error @ StoreError::NotAJob { .. }) => return Ok(Found::Nothing(error.to_string())),
            job => job.map_err(|error| error.to_string())?,
        };
        match job.folder().manifest(self.epoch) {
            Ok(bytes) if digest_of(&bytes) == self.digest => Ok(Found::AsItWas),
            Ok(_) => {
                Ok(job.image(self.epoch).map_or_else(|e| Found::Damaged(e.to_string()), |_| Found::Another))
            }
            Err(error @ TierError::NotFound { .. }) => Ok(Found::Nothing(error.to_string())),
            Err(error) => Err(self.unusable(gang, &error.to_string())),
        }
    }

    fn unusable(&self, gang: &str, why: &str) -> String {
        let (member, epoch, name) = (self.member, self.epoch, self.job(gang));
        format!("image {epoch} of member {member}, job {name}, cannot be used: {why}")
    }
}

/// SHA-256, as hexadecimal digits: of the manifest of a member's image.
pub fn digest_of(bytes: &[u8]) -> String {
    super::key::hex(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref())
}
