//! What of a stream readers on other hosts may read: `NAME`, `NAME/RANK`, `NAME@V`, `NAME@FIRST-LAST`.
//!
//! Read from the command line of `serve`; asked by each session. Pure. Invariant: what is not named may not be read.
//! Fails by: words that say what is accepted.

use std::ops::RangeInclusive;

/// See the head of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Export {
    name: String,
    /// `None`: all.
    rank: Option<u32>,
    versions: RangeInclusive<u64>,
}

/// Reads one.
///
/// # Errors
/// Says what is accepted.
pub fn parse_export(text: &str) -> Result<Export, String> {
    let (stream, versions) = match text.split_once('@') {
        None => (text, Some(1..=u64::MAX)),
        Some((stream, versions)) => (stream, parse_versions(versions)),
    };
    let (name, rank) = match stream.split_once('/') {
        None => (stream, Some(None)),
        Some((name, rank)) => (name, rank.parse().ok().map(Some)),
    };
    match (versions, rank) {
        (Some(versions), Some(rank)) if !name.is_empty() => {
            Ok(Export { name: name.to_owned(), rank, versions })
        }
        _ => Err("write NAME, NAME/RANK, NAME@VERSION or NAME@FIRST-LAST, for example sim@10-20".into()),
    }
}

fn parse_versions(text: &str) -> Option<RangeInclusive<u64>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let first: u64 = first.parse().ok()?;
    let last = if last.is_empty() { u64::MAX } else { last.parse().ok()? };
    (first > 0 && first <= last).then_some(first..=last)
}

/// The versions of a stream that may be read: all ranges that name it.
pub fn allowed(exports: &[Export], name: &str, rank: u32) -> Vec<RangeInclusive<u64>> {
    let names_it = |export: &&Export| export.name == name && export.rank.is_none_or(|only| only == rank);
    exports.iter().filter(names_it).map(|export| export.versions.clone()).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_may_be_read_and_nothing_else() {
        let exports: Vec<Export> =
            ["sim@3-5", "sim/1@9", "log", "part@7-"].map(|text| parse_export(text).unwrap()).into();
        let of = |name, rank| allowed(&exports, name, rank);
        assert_eq!(of("sim", 0), [3..=5]);
        assert_eq!(of("sim", 1), [3..=5, 9..=9]);
        assert_eq!((of("log", 7), of("part", 0)), (vec![1..=u64::MAX], vec![7..=u64::MAX]));
        assert!(of("lo", 0).is_empty() && of("", 0).is_empty());
        for wrong in ["", "@1", "sim@", "sim@0", "sim@5-3", "sim@x", "sim/x", "/1", "sim@-4"] {
            assert!(parse_export(wrong).is_err(), "{wrong}");
        }
    }
}
