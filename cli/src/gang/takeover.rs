//! What is done when the leader is lost after it has committed its part: the members that are left make the image of
//! the gang themselves.
//!
//! Each part is a file in the gang's folder (`committed-MARK-MEMBER`): the leader's is there before it waits for the
//! others, another's when it has lost the leader. Who finds that all are there makes the image. Called by the
//! checkpoint thread ([`crate::agent::gang`]). Invariants: parts of one mark are of one round, whose cut all members
//! have made; what is named is committed; two that make the image make one, as its name is taken once. Fails by: words;
//! the images of the round do not count then.

use super::folder::GangFolder;
use super::image::{GangImage, MemberImage, Remote};
use crate::exit::{Exit, Failure};
use crate::file_system;
use holdfast_image::control::Secret;
use holdfast_sys::clock;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;

const PREFIX: &str = "committed-";
/// How often a number is asked for that another one has taken meanwhile.
const TRIES: u32 = 16;

/// What a member has committed in a round.
#[derive(Serialize, Deserialize)]
struct Part {
    mark: String,
    image: MemberImage,
    /// Of the leader.
    leads: Option<Leads>,
}

/// What the leader alone knows of the gang.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Leads {
    /// How the host of each member is reached, as an image of the gang has it.
    pub reached: Vec<Option<Remote>>,
    /// The key of an open gang.
    pub key: Option<Secret>,
}

/// The parts of one round.
pub struct Parts<'a> {
    folder: &'a GangFolder,
    mark: &'a str,
}

impl<'a> Parts<'a> {
    /// Those of the round that the leader has given this mark.
    ///
    /// # Errors
    /// It is none.
    pub fn of(folder: &'a GangFolder, mark: &'a str) -> Result<Parts<'a>, String> {
        let is_one =
            !mark.is_empty() && mark.len() <= 64 && mark.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_one
            .then_some(Parts { folder, mark })
            .ok_or_else(|| "the leader has not marked the round".to_owned())
    }

    fn path(&self, member: u32) -> PathBuf {
        self.folder.path().join(format!("{PREFIX}{}-{member}", self.mark))
    }

    /// Writes one down.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, image: &MemberImage, leads: Option<Leads>) -> Result<(), Failure> {
        let (part, path) =
            (Part { mark: self.mark.to_owned(), image: image.clone(), leads }, self.path(image.member));
        serde_json::to_vec_pretty(&part)
            .map_err(io::Error::from)
            .and_then(|text| file_system::write_own(&path, &text))
            .map_err(|error| Failure::system(format_args!("writing {}", path.display()), &error))
    }

    fn read(&self, member: u32) -> Result<Option<Part>, Failure> {
        let path = self.path(member);
        let Some(text) = super::folder::read_own(&path)? else { return Ok(None) };
        let wrong = |why: String| Failure::new(Exit::BadImage, format!("{}: {why}", path.display()));
        let part: Part = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
        if part.mark != self.mark || part.image.member != member {
            return Err(wrong("it is another one's".into()));
        }
        Ok(Some(part))
    }

    /// Makes the image of the gang, if all parts are there: its number.
    ///
    /// # Errors
    /// A part cannot be read, or the image not be made.
    pub fn make_image(&self) -> Result<Option<u64>, Failure> {
        let Some(Part { image, leads: Some(leads), .. }) = self.read(0)? else { return Ok(None) };
        let mut images = vec![image];
        for (member, _) in (0_u32..).zip(&leads.reached).skip(1) {
            let Some(part) = self.read(member)? else { return Ok(None) };
            images.push(part.image);
        }
        publish(self.folder, images, &leads).map(|(number, _)| Some(number))
    }
}

/// The newest image of the gang, if this is a part of it.
pub fn names(folder: &GangFolder, own: &MemberImage) -> Option<u64> {
    let last = *folder.images().ok()?.last()?;
    let of = |one: &MemberImage| (one.member, one.epoch, one.run_ns);
    let is_it = |one: &MemberImage| of(one) == of(own) && one.digest == own.digest;
    folder.image(last).ok()?.members.iter().any(is_it).then_some(last)
}

/// The files of rounds before are of no use any more. Called by the leader.
pub fn clear(folder: &GangFolder) {
    let Ok(listed) = std::fs::read_dir(folder.path()) else { return };
    let is_one = |name: &std::ffi::OsStr| name.to_str().is_some_and(|name| name.starts_with(PREFIX));
    for entry in listed.flatten().filter(|entry| is_one(&entry.file_name())) {
        // What stays is of no other round: its mark says so.
        let _ = std::fs::remove_file(entry.path());
    }
}

/// Makes an image of the gang, with the next number, if another member has not made it already. Its number, and what
/// tells it from others.
///
/// # Errors
/// It is not known to be there.
pub fn publish(
    folder: &GangFolder,
    mut parts: Vec<MemberImage>,
    leads: &Leads,
) -> Result<(u64, String), Failure> {
    for (part, reached) in parts.iter_mut().zip(&leads.reached) {
        part.ssh.clone_from(reached);
    }
    let mut failed = Failure::new(Exit::Internal, "no number is left for an image of the gang");
    for _ in 0..TRIES {
        let last = folder.images()?.last().copied().unwrap_or(0);
        // One that cannot be read is another one: this one has the next number.
        if last > 0
            && let Some(made) = folder.image(last).ok().filter(|image| image.members == parts)
        {
            return Ok((last, made.id()));
        }
        let number = last.saturating_add(1);
        let image = GangImage::new(folder.name(), number, clock::realtime_ns(), parts.clone());
        let image = GangImage { key: leads.key.clone(), ..image };
        GangImage::decode(&image.gang, number, &image.encode())
            .map_err(|why| Failure::new(Exit::Internal, format!("the image of the gang: {why}")))?;
        match folder.publish(&image) {
            Ok(()) => {
                tracing::info!("image {number} of gang {} is there", image.gang);
                return Ok((number, image.id()));
            }
            Err(failure) if failure.exit == Exit::Refused => failed = failure,
            Err(failure) => return Err(failure),
        }
    }
    Err(failed)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::settings::GangPlace;
    use holdfast_image::Epoch;
    use holdfast_tiers::Store;
    use std::fs;

    /// The folder of a gang of three, which goes at the end of the test.
    struct Home(PathBuf, GangFolder);

    impl Home {
        fn new(name: &str) -> Home {
            let root = std::env::temp_dir().join(format!("holdfast-takeover-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&root);
            let (listen, hosts, start) = (None, Vec::new(), None);
            let place = GangPlace {
                name: "sim".into(),
                member: 0,
                members: 3,
                open: false,
                start,
                hosts,
                listen,
                wait_s: 60,
                folder: None,
                protect: None,
            };
            let folder = GangFolder::make(&Store::open(&root).unwrap(), &place).unwrap();
            Home(root, folder)
        }
    }

    impl Drop for Home {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn part(member: u32, epoch: u64) -> MemberImage {
        let (host, digest) = (format!("host{member}"), format!("{epoch:064x}"));
        MemberImage { member, host, epoch: Epoch(epoch), run_ns: 1, digest, ssh: None }
    }

    fn leads() -> Leads {
        let one = Some(Remote { host: "b".into(), port: 7, options: Vec::new() });
        Leads { reached: vec![None, one, None], key: Some(Secret("k".into())) }
    }

    #[test]
    fn the_last_part_makes_the_image_with_what_the_leader_alone_knew() {
        let Home(_, folder) = &Home::new("last");
        let parts = Parts::of(folder, "ab").unwrap();
        parts.write(&part(0, 4), Some(leads())).unwrap();
        assert_eq!(parts.make_image().unwrap(), None);
        parts.write(&part(2, 6), None).unwrap();
        // One of another round does not count.
        Parts::of(folder, "ac").unwrap().write(&part(1, 4), None).unwrap();
        assert_eq!(parts.make_image().unwrap(), None);
        assert!(folder.images().unwrap().is_empty());
        parts.write(&part(1, 5), None).unwrap();
        assert_eq!(parts.make_image().unwrap(), Some(1));
        let image = folder.image(1).unwrap();
        assert_eq!(image.members.iter().map(|one| one.epoch.0).collect::<Vec<_>>(), [4, 5, 6]);
        assert_eq!((&image.members[1].ssh, &image.key), (&leads().reached[1], &leads().key));
        // Another one that does the same makes no second image.
        assert_eq!(parts.make_image().unwrap(), Some(1));
        assert_eq!(folder.images().unwrap(), [1]);
        assert_eq!((names(folder, &part(1, 5)), names(folder, &part(1, 6))), (Some(1), None));
    }

    #[test]
    fn several_that_make_it_at_once_make_one() {
        let Home(_, folder) = &Home::new("once");
        let all = (0..3).map(|member| part(member, 4)).collect::<Vec<_>>();
        let numbers = std::thread::scope(|scope| {
            let made = (0..8).map(|_| scope.spawn(|| publish(folder, all.clone(), &leads()).unwrap()));
            made.collect::<Vec<_>>().into_iter().map(|made| made.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(numbers.iter().all(|(number, id)| (*number, id) == (1, &numbers[0].1)), "{numbers:?}");
        assert_eq!(folder.images().unwrap(), [1]);
    }

    #[test]
    fn a_part_that_cannot_be_read_is_named_and_is_not_one_that_is_not_there() {
        let Home(_, folder) = &Home::new("wrong");
        let parts = Parts::of(folder, "ab").unwrap();
        parts.write(&part(0, 4), Some(leads())).unwrap();
        parts.write(&part(1, 4), None).unwrap();
        parts.write(&part(2, 4), None).unwrap();
        fs::copy(parts.path(1), parts.path(2)).unwrap();
        assert!(parts.make_image().unwrap_err().message.contains("committed-ab-2: it is another one's"));
        fs::write(parts.path(2), "half").unwrap();
        assert!(parts.make_image().unwrap_err().message.contains("committed-ab-2: "));
        assert!(folder.images().unwrap().is_empty());
        clear(folder);
        assert_eq!(parts.make_image().unwrap(), None);
        for mark in ["", "../x", "xyz", &"a".repeat(65)] {
            assert!(Parts::of(folder, mark).is_err(), "{mark}");
        }
    }
}
