//! The tables, and calls with addresses.

use super::*;
use std::net::{IpAddr, Ipv6Addr};

fn bytes(text: &str) -> [u8; 16] {
    match text.parse().unwrap() {
        IpAddr::V4(four) => four.to_ipv6_mapped().octets(),
        IpAddr::V6(six) => Ipv6Addr::octets(&six),
    }
}

/// Fills one table; ascending by the first.
fn table(count: usize, entries: usize, pairs: &[(&str, &str)]) {
    let mut pairs: Vec<_> = pairs.iter().map(|(from, to)| (bytes(from), bytes(to))).collect();
    pairs.sort_unstable();
    for (index, (from, to)) in pairs.iter().enumerate() {
        for (word, chunk) in [*from, *to].concat().chunks_exact(8).enumerate() {
            let at = entries + index * AddressTable::ENTRY + word * 8;
            TABLE.0[at / 8].store(u64::from_le_bytes(chunk.try_into().unwrap()), Relaxed);
        }
    }
    TABLE.0[count / 8].store(pairs.len() as u64, Relaxed);
}

fn name(text: &str) -> Vec<u8> {
    match text.parse().unwrap() {
        IpAddr::V4(four) => [&2_u16.to_ne_bytes()[..], &[0, 80], &four.octets(), &[0; 8]].concat(),
        IpAddr::V6(six) => [&10_u16.to_ne_bytes()[..], &[0, 80], &[7; 4], &six.octets(), &[0; 4]].concat(),
    }
}

fn to(way: Way, text: &str) -> Vec<u8> {
    let mut name = name(text);
    translate(&mut name, way);
    name
}

#[test]
fn addresses_are_translated_both_ways_and_others_stay() {
    let all = [
        ("10.77.0.1", "10.77.0.2"),
        ("10.77.0.2", "10.77.0.1"),
        ("fd00::1", "fd00::9"),
        ("10.0.0.9", "127.0.0.9"),
    ];
    table(AddressTable::COUNT, AddressTable::FORWARD, &all);
    let back: Vec<_> = all.iter().map(|(known, present)| (*present, *known)).collect();
    table(AddressTable::BACK_COUNT, AddressTable::BACKWARD, &back);
    for (known, present) in
        all.into_iter().chain([("::ffff:10.77.0.1", "::ffff:10.77.0.2"), ("10.1.1.1", "10.1.1.1")])
    {
        assert_eq!(to(Way::ToKernel, known), name(present), "{known}");
        assert_eq!(to(Way::ToProgram, present), name(known), "{present}");
    }
    // Of another family, cut off, none at all.
    for wrong in [
        &[1, 0, 0, 80, 10, 77, 0, 1][..],
        &[2, 0, 0, 80, 10, 77, 0],
        &[2],
        &[],
        &[10, 0, 0, 80, 7, 7, 7, 7, 0],
    ] {
        let mut changed = wrong.to_vec();
        assert!(!translate(&mut changed, Way::ToKernel));
        assert_eq!(changed, wrong);
    }
    TABLE.0[0].store(u64::MAX, Relaxed);
    to(Way::ToKernel, "255.255.255.255");
    TABLE.0[0].store(0, Relaxed);
    assert_eq!(to(Way::ToKernel, "10.77.0.1"), name("10.77.0.1"));
    TABLE.0[1].store(0, Relaxed);
}
