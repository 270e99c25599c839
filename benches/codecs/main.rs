//! The choice of codecs on the kinds of data of numeric programs: `make bench-codecs`.
//!
//! Each kind, but for its pages that are all zero, is packed frame by frame by every codec and by the choice of
//! [`Packer`], samples included. What a frame costs is the processor time of one thread; the link is virtual: it sends
//! a frame when that is packed and the link is free. So is the time to durable, printed as a part of the least that any
//! fixed codec takes. Best of `RUNS` (3). Asserts nothing; says where the choice is more than a tenth behind.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod kinds;

use holdfast_image::Addr;
use holdfast_tiers::codec::choice::Relief;
use holdfast_tiers::codec::{Choices, Codec, Compression, Packer, decode};
use nix::time::{ClockId, clock_gettime};

const FRAME: usize = 1 << 20;
/// Bytes per second.
const LINKS: [(&str, f64); 3] = [("2 GB/s", 2e9), ("200 MB/s", 200e6), ("20 MB/s", 20e6)];

fn thread_s() -> f64 {
    let now = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
    now.tv_sec() as f64 + now.tv_nsec() as f64 / 1e9
}

/// What packing all of some data came to.
#[derive(Clone, Copy)]
struct Outcome {
    durable: f64,
    packing: f64,
    stored: usize,
}

/// Packs `data` and sends it over the link.
fn pack(compression: Compression, data: &[u8], link: f64) -> Outcome {
    let (mut packer, choices) = (Packer::new(compression), Choices::default());
    let relief = Relief { link, processors: 1.0, threads: 2.0 };
    let (mut packed_at, mut sent_at, mut stored) = (0.0, 0.0, 0);
    for (number, frame) in data.chunks(FRAME).enumerate() {
        let begun = thread_s();
        let first = Addr((number * FRAME) as u64);
        let (_, packed) = packer.pack(&choices, first, frame, relief);
        packed_at += thread_s() - begun;
        stored += packed.len();
        sent_at = f64::max(sent_at, packed_at) + packed.len() as f64 / link;
    }
    Outcome { durable: sent_at, packing: packed_at, stored }
}

fn best_of(runs: usize, compression: Compression, data: &[u8], link: f64) -> Outcome {
    let outcomes = (0..runs).map(|_| pack(compression, data, link));
    outcomes.min_by(|one, two| one.durable.total_cmp(&two.durable)).unwrap()
}

/// MB/s of unpacking; all bytes are compared.
fn unpacking(codec: Codec, data: &[u8]) -> f64 {
    let mut packer = Packer::new(Compression::By(codec));
    let mut raw = vec![0; FRAME];
    let mut took = 0.0;
    for frame in data.chunks(FRAME) {
        let relief = Relief { link: 1.0, processors: 1.0, threads: 2.0 };
        let (codec, packed) = packer.pack(&Choices::default(), Addr(0), frame, relief);
        let begun = thread_s();
        decode(codec, packed, &mut raw[..frame.len()]).unwrap();
        took += thread_s() - begun;
        assert!(raw[..frame.len()] == *frame, "{codec:?} changed the data");
    }
    data.len() as f64 / took / 1e6
}

fn main() {
    let runs = std::env::var("RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(3);
    // As the pipeline does: pages of zeros are not stored.
    let not_zero = |page: &&[u8]| page.iter().any(|byte| *byte != 0);
    let without = |data: Vec<u8>| data.chunks(4096).filter(not_zero).collect::<Vec<_>>().concat();
    let kinds = kinds::all().into_iter().map(|(name, data)| (name, without(data)));
    let kinds: Vec<(&str, Vec<u8>)> = kinds.collect();
    println!("### Codecs by kind of data: ratio, MB/s packed / unpacked by one thread\n");
    let codecs = &Codec::ALL[1..];
    let names: Vec<&str> = codecs.iter().map(|codec| codec.name()).collect();
    println!("| data | {} |\n| --- |{}", names.join(" | "), " --- |".repeat(codecs.len()));
    for (name, data) in &kinds {
        let cells = codecs.iter().map(|codec| {
            let outcome = best_of(runs, Compression::By(*codec), data, 1e12);
            let len = data.len() as f64;
            let (ratio, speed) = (len / outcome.stored as f64, len / outcome.packing / 1e6);
            format!("{ratio:.2} {speed:.0}/{:.0}", unpacking(*codec, data))
        });
        println!("| {name} | {} |", cells.collect::<Vec<_>>().join(" | "));
    }
    println!("\n### Time to durable of the choice, as a part of that of the best fixed codec (which)\n");
    println!("| data | {} |", LINKS.map(|(name, _)| name).join(" | "));
    println!("| --- | --- | --- | --- |");
    let mut behind = 0;
    for (name, data) in &kinds {
        let cells = LINKS.map(|(_, link)| {
            let fixed = Codec::ALL.map(|codec| (best_of(runs, Compression::By(codec), data, link), codec));
            let (least, codec) =
                fixed.into_iter().min_by(|one, two| one.0.durable.total_cmp(&two.0.durable)).unwrap();
            let part = best_of(runs, Compression::Auto, data, link).durable / least.durable;
            behind += usize::from(part > 1.1);
            let mark = if part > 1.1 { "**" } else { "" };
            format!("{mark}{part:.2}{mark} ({})", codec.name())
        });
        println!("| {name} | {} |", cells.join(" | "));
    }
    println!("\nMore than a tenth behind: {behind} of {}", kinds.len() * LINKS.len());
}
