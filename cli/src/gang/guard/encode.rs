//! The parity that a member has of the streams of its group.
//!
//! Called by the agent, behind the program's back, and by a rebuild. Each chunk is read once, piece by piece, from the
//! members that have it. Invariant: the parity has its name when all of it is there, with the sums of what it was made
//! of. Fails by: words; what was begun vanishes.

use super::super::message::Wanted;
use super::PIECE;
use super::peers::Peers;
use holdfast_sys::fault;
use holdfast_tiers::redundancy::{ChunkSum, Code, GroupFile, Layout, Place, StripeSums, begin_parity};
use holdfast_tiers::{Job, JobLock};

/// Where a member's parity is made.
pub struct Desk<'a> {
    /// Its job.
    pub job: &'a Job,
    /// That of the job.
    pub lock: &'a JobLock,
    /// Whether to go on.
    pub is_wanted: &'a dyn Fn() -> bool,
}

/// What stops it when it is not wanted any more.
pub(super) const NOT_WANTED: &str = "the program has ended";

/// Makes the parity of a set, whose group file is there. Its length in bytes.
///
/// # Errors
/// In words: of whom something was not to be had, or what could not be written.
pub fn encode(desk: &Desk<'_>, file: &GroupFile, peers: &mut Peers) -> Result<u64, String> {
    let layout = file.layout().ok_or("its group is no group")?;
    let number = file.own().map_or(0, |own| own.epoch);
    let failed = |error: holdfast_tiers::StoreError| error.to_string();
    let mut parity = begin_parity(desk.job, desk.lock, number).map_err(failed)?;
    let code = Code { data: layout.data(), parity: file.losses };
    let mut sums = Vec::new();
    for part in layout.parity_parts() {
        let places = layout.stripe(layout.stripe_of(file.own, part));
        let data = &places[layout.data_parts()];
        let mut sources: Vec<ChunkSum> = data.iter().map(|_| ChunkSum::default()).collect();
        let mut own = ChunkSum::default();
        for (at, len) in pieces(&layout) {
            if !(desk.is_wanted)() {
                return Err(NOT_WANTED.into());
            }
            let pieces = read(file, peers, data, (at, len))?;
            sources.iter_mut().zip(&pieces).for_each(|(sum, piece)| sum.update(piece));
            let made = code.parity(&pieces).map_err(|error| error.0)?;
            let piece = made.get(part).ok_or("no parity")?;
            own.update(piece);
            parity.append(piece).map_err(failed)?;
        }
        sums.push(StripeSums { parity: own.text(), data: sources.iter().map(ChunkSum::text).collect() });
    }
    fault::point("guard-encoded");
    parity.finish(&sums).map_err(failed)?;
    Ok(layout.parity_len())
}

/// The pieces of a chunk: where they begin, and their lengths.
pub(super) fn pieces(layout: &Layout) -> impl Iterator<Item = (u64, u64)> + use<> {
    let chunk = layout.chunk();
    (0..chunk.div_ceil(PIECE)).map(move |piece| (piece * PIECE, (chunk - piece * PIECE).min(PIECE)))
}

fn read(
    file: &GroupFile,
    peers: &mut Peers,
    data: &[Place],
    (at, len): (u64, u64),
) -> Result<Vec<Vec<u8>>, String> {
    let of = |place: &Place| {
        let member = file.members.get(place.member).map_or(0, |member| member.member);
        (member, Wanted::Stream { offset: place.offset + at, len })
    };
    let asked: Vec<(u32, Wanted)> = data.iter().map(of).collect();
    peers.read(&file.set, &asked).map_err(|absent| format!("{}: {}", peers.named(absent.member), absent.why))
}
