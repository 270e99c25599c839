//! What a member had whose host was lost: its streams, of what the other members of its groups have.
//!
//! Called on the host where it is to be restarted, with the lock of its job, before the restart. Invariants: what was
//! read is compared with the sums that were made when parity was, and a member of which that is not true counts as
//! lost, too; the image is there last, when its manifest is the one that the gang's image names. Fails by: words, with
//! who is missing; of a stream that is not right nothing stays.

use super::super::image::{MemberImage, digest_of};
use super::super::message::Wanted;
use super::encode::{Desk, NOT_WANTED, encode, piece, pieces};
use super::peers::{Absent, Peers, Problem};
use holdfast_sys::fault;
use holdfast_tiers::StoreError;
use holdfast_tiers::redundancy::{
    ChunkSum, Code, GroupFile, Layout, MemberStream, Part, Place, StreamWriter, StripeSums, head_manifest,
    number_of, put_group, put_image, sets,
};
use std::collections::BTreeSet;

/// A set that a member lost.
#[derive(Clone, Debug)]
pub struct LostSet {
    /// Which.
    pub set: String,
    /// Members of its group that have all of it.
    pub there: BTreeSet<u32>,
}

/// Rebuilds the stream of a member in a set. Bytes that were written.
///
/// # Errors
/// In words.
pub fn stream(desk: &Desk<'_>, member: u32, lost: &LostSet, peers: &mut Peers) -> Result<u64, String> {
    let first = lost.there.iter().next().ok_or("no member has the set any more")?;
    let bytes = peers.read(&lost.set, &[(*first, Wanted::Group)]);
    let bytes = bytes.map_err(|absent| format!("{}: {}", peers.named(absent.member), absent.why))?;
    let file = GroupFile::decode(bytes.first().map_or(&[], Vec::as_slice))?;
    let own = file.members.iter().position(|one| one.member == member);
    let own = own.filter(|_| file.set == lost.set).ok_or("what a member has of the set is another set")?;
    let file = GroupFile { own, ..file };
    file.check()?;
    let failed = |error: StoreError| error.to_string();
    // Before anything is written: what has its number is not another one.
    number_of(desk.job, &file).map_err(failed)?;
    let files = file.own().map_or(&[][..], |own| &own.files);
    let number = file.own().map_or(0, |own| own.epoch);
    if head_manifest(desk.job, number).is_ok() && is_as_it_was(desk, &file, &lost.there, peers) {
        put_group(desk.job, desk.lock, &file).map_err(failed)?;
        return Ok(0);
    }
    let mut there = lost.there.clone();
    loop {
        let mut writer = StreamWriter::new(desk.job, desk.lock, files).map_err(failed)?;
        match of_others(desk, &file, &there, peers, &mut writer) {
            Ok(()) => {
                let written = writer.finish().map_err(failed)?;
                fault::point("guard-rebuilt");
                put_group(desk.job, desk.lock, &file).map_err(failed)?;
                return Ok(written);
            }
            Err(Problem::Of(absent)) if there.remove(&absent.member) => {
                tracing::warn!("{}: {}", peers.named(absent.member), absent.why);
                writer.abandon().map_err(failed)?;
                if file.members.len() > there.len() + file.losses {
                    return Err(format!("{}: {}", peers.named(absent.member), absent.why));
                }
            }
            Err(Problem::Of(Absent { why, .. }) | Problem::Own(why)) => {
                let _ = writer.abandon();
                return Err(why);
            }
        }
    }
}

/// Whether the stream is there as it was, by the sums that others have of it. What they do not tell is made anew.
fn is_as_it_was(desk: &Desk<'_>, file: &GroupFile, there: &BTreeSet<u32>, peers: &mut Peers) -> bool {
    let files = file.own().map_or(&[][..], |own| &own.files);
    let (Ok(stream), Some(layout)) = (MemberStream::open(desk.job, files), file.layout()) else {
        return false;
    };
    layout
        .data_parts()
        .all(|part| Chunk::of(file, &layout, there, part, peers).is_ok_and(|chunk| chunk.is_in(&stream)))
}

/// The bytes of a stream, chunk by chunk.
fn of_others(
    desk: &Desk<'_>,
    file: &GroupFile,
    there: &BTreeSet<u32>,
    peers: &mut Peers,
    writer: &mut StreamWriter<'_>,
) -> Result<(), Problem> {
    let own = |why: &str| Problem::Own(why.to_owned());
    let layout = file.layout().ok_or_else(|| own("its group is no group"))?;
    for part in layout.data_parts() {
        Chunk::of(file, &layout, there, part, peers)?.restore(desk, peers, writer)?;
    }
    Ok(())
}

/// A chunk that was lost, and the parts of its stripe of which it is made.
struct Chunk<'a> {
    file: &'a GroupFile,
    layout: &'a Layout,
    /// Which part of its stripe it is.
    part: usize,
    /// Parts that are read, by number; and the member of each.
    used: Vec<(usize, Place, u32)>,
    sums: StripeSums,
}

impl<'a> Chunk<'a> {
    fn of(
        file: &'a GroupFile,
        layout: &'a Layout,
        there: &BTreeSet<u32>,
        part: usize,
        peers: &mut Peers,
    ) -> Result<Chunk<'a>, Problem> {
        let places = layout.stripe(layout.stripe_of(file.own, part));
        let member = |place: &Place| file.members.get(place.member).map_or(u32::MAX, |one| one.member);
        let all: Vec<(usize, Place, u32)> =
            places.into_iter().enumerate().map(|(at, place)| (at, place, member(&place))).collect();
        let usable = |(at, _, member): &&(usize, Place, u32)| *at != part && there.contains(member);
        // Data first: what is there need not be computed.
        let (parity, data): (Vec<_>, Vec<_>) =
            all.iter().filter(usable).copied().partition(|(_, place, _)| place.part == Part::Parity);
        let Some((at, _, holder)) = parity.first().copied() else {
            return Err(Problem::Own(format!(
                "of {} members of its group too few are left",
                file.members.len()
            )));
        };
        let used: Vec<_> = data.into_iter().chain(parity).take(layout.data()).collect();
        if used.len() < layout.data() {
            return Err(Problem::Own(format!(
                "of {} members of its group too few are left",
                file.members.len()
            )));
        }
        let text = peers.read(&file.set, &[(holder, Wanted::Sums)]).map_err(Problem::Of)?;
        let sums: Option<Vec<StripeSums>> = text.first().and_then(|text| serde_json::from_slice(text).ok());
        let sums =
            sums.and_then(|sums| sums.get(at).cloned()).filter(|sums| sums.data.len() == layout.data());
        let absent = || Problem::Of(Absent { member: holder, why: "its sums make no sense".into() });
        Ok(Chunk { file, layout, part, used, sums: sums.ok_or_else(absent)? })
    }

    /// The sum of a part of the stripe, where it is known: of parity the holder of the sums has its own alone.
    fn sum_of(&self, part: usize, first: usize) -> Option<&str> {
        match part.checked_sub(self.layout.parity_parts().len()) {
            Some(data) => self.sums.data.get(data).map(String::as_str),
            None => (part == first).then_some(self.sums.parity.as_str()),
        }
    }

    /// Whether a stream has it where it was.
    fn is_in(&self, stream: &MemberStream) -> bool {
        let places = self.layout.stripe(self.layout.stripe_of(self.file.own, self.part));
        let Some(begin) = places.get(self.part).map(|place| place.offset) else { return false };
        let mut sum = ChunkSum::default();
        let is_read = (0..pieces(self.layout)).all(|at| {
            let (at, len) = piece(self.layout, at);
            let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
            let read = stream.read_at(begin + at, &mut bytes);
            sum.update(&bytes);
            read.is_ok()
        });
        is_read && self.sum_of(self.part, self.part).is_some_and(|known| known == sum.text())
    }

    fn restore(
        &self,
        desk: &Desk<'_>,
        peers: &mut Peers,
        writer: &mut StreamWriter<'_>,
    ) -> Result<(), Problem> {
        let own = |why: String| Problem::Own(why);
        let code = Code { data: self.layout.data(), parity: self.file.losses };
        let mut read: Vec<ChunkSum> = self.used.iter().map(|_| ChunkSum::default()).collect();
        let mut made = ChunkSum::default();
        let asked = |at: u64| {
            let (at, len) = piece(self.layout, at);
            let wanted = |(_, place, member): &(usize, Place, u32)| {
                let offset = place.offset + at;
                let wanted = match place.part {
                    Part::Data => Wanted::Stream { offset, len },
                    Part::Parity => Wanted::Parity { offset, len },
                };
                (*member, wanted)
            };
            self.used.iter().map(wanted).collect()
        };
        peers.read_all(&self.file.set, pieces(self.layout), &asked, &mut |_, got| {
            if !(desk.is_wanted)() {
                return Err(own(NOT_WANTED.into()));
            }
            let mut parts: Vec<Option<Vec<u8>>> = vec![None; self.file.members.len()];
            for (((part, ..), sum), piece) in self.used.iter().zip(&mut read).zip(got) {
                sum.update(&piece);
                parts[*part] = Some(piece);
            }
            code.restore(&mut parts).map_err(|error| own(error.0))?;
            let piece = parts[self.part].take().unwrap_or_default();
            made.update(&piece);
            writer.append(&piece).map_err(|error| own(error.to_string()))
        })?;
        let first =
            self.used.iter().find(|(_, place, _)| place.part == Part::Parity).map_or(0, |(at, ..)| *at);
        for ((part, place, member), sum) in self.used.iter().zip(&read) {
            if self.sum_of(*part, first).is_some_and(|known| known != sum.text()) {
                let what = if place.part == Part::Data { "images" } else { "parity" };
                let why = format!("what it has of its {what} is not what it was: holdfast verify");
                return Err(Problem::Of(Absent { member: *member, why }));
            }
        }
        match self.sum_of(self.part, first) {
            Some(known) if known == made.text() => Ok(()),
            _ => Err(own("what was rebuilt is not what it was".into())),
        }
    }
}

/// The image is there again, of its head: when all its streams are.
///
/// # Errors
/// In words: it is not the one that the gang's image names.
pub fn image(desk: &Desk<'_>, part: &MemberImage) -> Result<(), String> {
    let failed = |error: holdfast_tiers::StoreError| error.to_string();
    let manifest = head_manifest(desk.job, part.epoch.0).map_err(failed)?;
    if digest_of(&manifest) != part.digest {
        return Err("the manifest that was rebuilt is not the one that the gang's image names".into());
    }
    put_image(desk.job, desk.lock, part.epoch).map_err(failed)
}

/// The member's parity of what it has rebuilt.
///
/// # Errors
/// In words.
pub fn parity(desk: &Desk<'_>, set: &str, peers: &mut Peers) -> Result<u64, String> {
    let all = sets(desk.job).map_err(|error| error.to_string())?;
    let file = all.into_iter().filter_map(|one| one.file.ok()).find(|file| file.set == set);
    encode(desk, &file.ok_or("it does not have the set")?, peers)
}
