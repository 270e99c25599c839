//! Reed-Solomon by the crate that `--protect rs=K+M` uses, beside Intel's ISA-L: `make bench-reed-solomon`.
//!
//! Bytes of data a second of processor time, of one thread, beside memcpy in the same process; both by turns, `RUNS`
//! (3) times, medians. ISA-L is `benches/programs/isal.c`, built here (cc, libisal-dev). `called`: as
//! `tiers/src/redundancy/code.rs` calls the crate, for each piece anew; `kept`: an encoder that is used again. Decoded
//! are as many pieces of data as there is parity.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use nix::time::{ClockId, clock_gettime};
use reed_solomon_simd::{ReedSolomonDecoder, ReedSolomonEncoder, decode, encode};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;

const CODES: [(usize, usize); 3] = [(2, 2), (4, 2), (8, 2)];
const KIB: [usize; 4] = [64, 256, 1024, 4096];
/// Each is repeated until it took so long, and the best of three counts; isal.c does the same.
const LONG_S: f64 = 0.1;

fn thread_s() -> f64 {
    let now = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
    now.tv_sec() as f64 + now.tv_nsec() as f64 / 1e9
}

/// Bytes a second, of so many in each call.
fn rate(bytes: usize, mut work: impl FnMut()) -> f64 {
    work();
    let turn = |work: &mut dyn FnMut()| {
        let (begun, mut times) = (thread_s(), 0);
        loop {
            work();
            times += 1;
            let took = thread_s() - begun;
            if took >= LONG_S {
                return f64::from(times) * bytes as f64 / took;
            }
        }
    };
    (0..3).map(|_| turn(&mut work)).fold(0.0, f64::max)
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..len / 8).flat_map(|_| next()).collect()
}

/// The rates of the crate, by name.
fn of_the_crate(data: usize, parity: usize, len: usize) -> BTreeMap<String, f64> {
    let pieces: Vec<Vec<u8>> = (0..data).map(|seed| noise(len, seed as u64 + 1)).collect();
    let mut copies = vec![vec![0_u8; len]; data];
    let (bytes, lost) = (data * len, parity.min(data));
    let memcpy = rate(bytes, || {
        copies.iter_mut().zip(&pieces).for_each(|(copy, piece)| copy.copy_from_slice(piece));
        black_box(&copies);
    });
    let encode_called = rate(bytes, || drop(black_box(encode(data, parity, &pieces).unwrap())));
    let mut encoder = ReedSolomonEncoder::new(data, parity, len).unwrap();
    let encode_kept = rate(bytes, || {
        pieces.iter().for_each(|piece| encoder.add_original_shard(piece).unwrap());
        black_box(encoder.encode().unwrap());
    });
    let made = encode(data, parity, &pieces).unwrap();
    let known = || pieces.iter().enumerate().skip(lost);
    let restored = decode(data, parity, known(), made.iter().enumerate()).unwrap();
    assert!((0..lost).all(|at| restored[&at] == pieces[at]));
    let decode_called =
        rate(bytes, || drop(black_box(decode(data, parity, known(), made.iter().enumerate()).unwrap())));
    let mut decoder = ReedSolomonDecoder::new(data, parity, len).unwrap();
    let decode_kept = rate(bytes, || {
        known().for_each(|(at, piece)| decoder.add_original_shard(at, piece).unwrap());
        made.iter().enumerate().for_each(|(at, piece)| decoder.add_recovery_shard(at, piece).unwrap());
        black_box(decoder.decode().unwrap());
    });
    let rates = [memcpy, encode_called, encode_kept, decode_called, decode_kept];
    ["memcpy", "encode called", "encode kept", "decode called", "decode kept"]
        .into_iter()
        .map(str::to_owned)
        .zip(rates)
        .collect()
}

/// Where its program lies, if ISA-L is there.
fn isal(root: &Path) -> Option<PathBuf> {
    let program = std::env::temp_dir().join(format!("holdfast-isal-{}", std::process::id()));
    let built = Command::new("cc")
        .args(["-std=gnu11", "-O2", "-Wall", "-I"])
        .arg(root.join("tests/programs"))
        .arg("-o")
        .arg(&program)
        .arg(root.join("benches/programs/isal.c"))
        .arg("-lisal")
        .status();
    built.is_ok_and(|status| status.success()).then_some(program)
}

/// The same of ISA-L.
fn of_isal(program: &Path, data: usize, parity: usize, len: usize) -> BTreeMap<String, f64> {
    let words = [data, parity, len].map(|word| word.to_string());
    let done = Command::new(program).args(words).output().unwrap();
    let text = String::from_utf8(done.stdout).unwrap();
    let words: Vec<&str> = text.split_whitespace().collect();
    words.chunks(2).map(|pair| (format!("isal {}", pair[0]), pair[1].parse().unwrap())).collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn main() {
    let runs = std::env::var("RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(3);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let isal = isal(root);
    if isal.is_none() {
        println!("ISA-L (libisal-dev) is not there: the crate alone\n");
    }
    println!(
        "GB/s of data: memcpy; encode ISA-L, crate called, kept; decode the same; called beside ISA-L\n"
    );
    println!(
        "| code | KiB | memcpy | encode ISA-L | called | kept | of ISA-L | decode ISA-L | called | kept | of ISA-L |"
    );
    println!("{}", "| --- ".repeat(11) + "|");
    for (data, parity) in CODES {
        for kib in KIB {
            let mut all: BTreeMap<String, Vec<f64>> = BTreeMap::new();
            for _ in 0..runs {
                let mut rates = of_the_crate(data, parity, kib << 10);
                if let Some(program) = &isal {
                    rates.append(&mut of_isal(program, data, parity, kib << 10));
                }
                rates.into_iter().for_each(|(name, rate)| all.entry(name).or_default().push(rate / 1e9));
            }
            let of = |name: &str| median(all.get(name).cloned().unwrap_or_default());
            let ratio = |what: &str| of(&format!("{what} called")) / of(&format!("isal {what}"));
            let three = |what: &str| {
                let names = [format!("isal {what}"), format!("{what} called"), format!("{what} kept")];
                names.map(|name| format!("{:.2}", of(&name))).join(" | ")
            };
            println!(
                "| {data}+{parity} | {kib} | {:.2} | {} | {:.2} | {} | {:.2} |",
                of("memcpy"),
                three("encode"),
                ratio("encode"),
                three("decode"),
                ratio("decode")
            );
        }
    }
    if let Some(program) = isal {
        let _ = std::fs::remove_file(program);
    }
}
