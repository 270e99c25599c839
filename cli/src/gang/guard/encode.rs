//! The parity that a member has of the streams of its group.
//!
//! Called by the agent, behind the program's back, and by a rebuild. Each chunk is read once, piece by piece, from the
//! members that have it. Invariant: the parity has its name when all of it is there, with the sums of what it was made
//! of. Fails by: words; what was begun vanishes.

use super::super::message::Wanted;
use super::PIECE;
use super::peers::{Peers, Problem};
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
pub(super) const NOT_WANTED: &str = "it was given up: the program, or the restart, has ended";

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
        let mut each = |_, pieces: Vec<Vec<u8>>| -> Result<(), String> {
            if !(desk.is_wanted)() {
                return Err(NOT_WANTED.into());
            }
            sources.iter_mut().zip(&pieces).for_each(|(sum, piece)| sum.update(piece));
            let made = code.parity(&pieces).map_err(|error| error.0)?;
            let piece = made.get(part).ok_or("no parity")?;
            own.update(piece);
            parity.append(piece).map_err(failed)
        };
        let asked = |at: u64| asked(file, data, piece(&layout, at));
        let read = peers.read_all(&file.set, pieces(&layout), &asked, &mut |at, pieces| {
            each(at, pieces).map_err(Problem::Own)
        });
        read.map_err(|problem| match problem {
            Problem::Of(absent) => format!("{}: {}", peers.named(absent.member), absent.why),
            Problem::Own(why) => why,
        })?;
        sums.push(StripeSums { parity: own.text(), data: sources.iter().map(ChunkSum::text).collect() });
    }
    fault::point("guard-encoded");
    parity.finish(&sums).map_err(failed)?;
    Ok(layout.parity_len())
}

/// How many pieces a chunk is.
pub(super) fn pieces(layout: &Layout) -> u64 {
    layout.chunk().div_ceil(PIECE)
}

/// A piece of a chunk: where it begins, and its length.
pub(super) fn piece(layout: &Layout, at: u64) -> (u64, u64) {
    (at * PIECE, (layout.chunk() - at * PIECE).min(PIECE))
}

/// What is asked for one piece.
fn asked(file: &GroupFile, data: &[Place], (at, len): (u64, u64)) -> Vec<(u32, Wanted)> {
    let of = |place: &Place| {
        let member = file.members.get(place.member).map_or(0, |member| member.member);
        (member, Wanted::Stream { offset: place.offset + at, len })
    };
    data.iter().map(of).collect()
}
