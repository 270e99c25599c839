//! The members of an open gang that were added to it: how their hosts are reached, and what their servers prove.
//!
//! The leader has it; what it needs after a restart is in the image of the gang. Invariant: the key is that which the
//! servers have in their memory. Fails by: an image whose key is none.

use super::image::{GangImage, MemberImage, Remote};
use super::key::Key;
use crate::exit::{Exit, Failure};
use holdfast_image::control::Secret;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// See the head of the file.
#[derive(Debug)]
pub struct Added {
    key: Secret,
    members: Mutex<BTreeMap<u32, Remote>>,
}

impl Added {
    /// Of a gang that starts afresh.
    ///
    /// # Errors
    /// The kernel gives no random bytes.
    pub fn new() -> Result<Added, Failure> {
        let key =
            Key::new().map_err(|error| Failure::system("making the key of the gang's servers", &error))?;
        Ok(Added { key: Secret(key.text()), members: Mutex::default() })
    }

    /// Of one that goes on from an image; `hosts`: where its members are now, if that was said.
    ///
    /// # Errors
    /// The image has no key.
    pub fn of_image(image: &GangImage, hosts: &[String]) -> Result<Added, Failure> {
        let Some(key) = image.key.clone().filter(|key| Key::read(&key.0).is_some()) else {
            let what = format!("image {} of gang {} has no key of its servers", image.image, image.gang);
            return Err(Failure::new(Exit::BadImage, what));
        };
        let of = |(at, member): (usize, &MemberImage)| {
            let old = member.ssh.clone()?;
            let host = hosts.get(at).cloned().unwrap_or_else(|| old.host.clone());
            Some((member.member, Remote { host, ..old }))
        };
        let members = image.members.iter().enumerate().filter_map(of).collect();
        Ok(Added { key, members: Mutex::new(members) })
    }

    /// What the servers prove.
    pub fn key(&self) -> &Secret {
        &self.key
    }

    /// The member on a host.
    pub fn on(&self, host: &str) -> Option<(u32, u16)> {
        let members = self.members.lock();
        members.iter().find(|(_, remote)| remote.host == host).map(|(member, remote)| (*member, remote.port))
    }

    /// How a member is reached.
    pub fn of(&self, member: u32) -> Option<Remote> {
        self.members.lock().get(&member).cloned()
    }

    /// All of them.
    pub fn all(&self) -> Vec<(u32, Remote)> {
        self.members.lock().iter().map(|(member, remote)| (*member, remote.clone())).collect()
    }

    /// One was added.
    pub fn add(&self, member: u32, remote: Remote) {
        self.members.lock().insert(member, remote);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_image::Epoch;

    #[test]
    fn what_an_image_has_of_it_is_found_again() {
        let added = Added::new().unwrap();
        let remote = |host: &str| Remote { host: host.into(), port: 7, options: vec!["-A".into()] };
        added.add(1, remote("b"));
        let member = |member| MemberImage {
            member,
            host: "n".into(),
            epoch: Epoch(1),
            run_ns: 0,
            digest: String::new(),
            ssh: added.of(member),
        };
        let image = GangImage::new("sim", 1, 0, vec![member(0), member(1)]);
        assert!(Added::of_image(&image, &[]).is_err());
        let image = GangImage { key: Some(added.key().clone()), ..image };
        let image = GangImage::decode("sim", 1, &image.encode()).unwrap();
        let again = Added::of_image(&image, &[]).unwrap();
        assert_eq!((again.key(), again.on("b"), again.on("n")), (added.key(), Some((1, 7)), None));
        let moved = Added::of_image(&image, &["a".into(), "c".into()]).unwrap();
        assert_eq!((moved.on("b"), moved.all()), (None, vec![(1, remote("c"))]));
        assert!(!format!("{image:?}{added:?}").contains(&added.key().0), "keys are in no log");
    }
}
